// What the products declare, in both worlds.
#pragma once

#include "llmc/device/work.h"

template <class T>
Work forward_work(Stream& stream, T* out, const T* in, const T* weight, size_t n, size_t oc, size_t ic, size_t ld) {
  return {stream,
          "matmul_forward",
          {reads(in, n * ic), reads(weight, oc * ic), writes(out, (n - 1) * ld + oc)},
          2.0 * double(n) * double(oc) * double(ic)};
}
template <class T>
Work dgrad_work(Stream& stream, T* din, const T* dout, const T* weight, size_t n, size_t oc, size_t ic, size_t ld) {
  return {stream,
          "matmul_dgrad",
          {reads(dout, (n - 1) * ld + oc), reads(weight, oc * ic), writes(din, n * ic)},
          2.0 * double(n) * double(oc) * double(ic)};
}
template <class T>
Work wgrad_work(Stream& stream, float* dweight, const T* dout, const T* in, size_t n, size_t oc, size_t ic, size_t ld) {
  return {stream,
          "matmul_wgrad",
          {reads(dout, (n - 1) * ld + oc), reads(in, n * ic), updates(dweight, oc * ic)},
          2.0 * double(n) * double(oc) * double(ic)};
}
