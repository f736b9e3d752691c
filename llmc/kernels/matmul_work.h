// The work that matrix products declare, in both backends.
#pragma once

#include "llmc/base/error.h"
#include "llmc/device/device.h"
#include "llmc/device/work.h"
#include "llmc/kernels/quantized_tensor.h"

// Returns `work` with the rate class of products of T. `tf32`: fp32 operands are rounded to TF32.
template <class T>
Work with_rate_of(Work work, bool tf32) {
  if (sizeof(T) == sizeof(float)) work.rate = tf32 ? RateClass::product_tf32 : RateClass::product_fp32;
  return work;
}

template <class T, class Out>
Work forward_work(Stream& stream, Out* out, const T* in, const T* weight, size_t n, size_t oc, size_t ic, size_t ld,
                  bool tf32) {
  Work work{stream,
            "matmul_forward",
            {reads(in, n * ic), reads(weight, oc * ic), writes(out, (n - 1) * ld + oc)},
            2.0 * double(n) * double(oc) * double(ic)};
  return with_rate_of<T>(work, tf32);
}
template <class T, class Out>
Work dgrad_work(Stream& stream, Out* din, const T* dout, const T* weight, size_t n, size_t oc, size_t ic, size_t ld,
                bool tf32) {
  Work work{stream,
            "matmul_dgrad",
            {reads(dout, (n - 1) * ld + oc), reads(weight, oc * ic), writes(din, n * ic)},
            2.0 * double(n) * double(oc) * double(ic)};
  return with_rate_of<T>(work, tf32);
}
template <class T>
Work wgrad_work(Stream& stream, float* dweight, const T* dout, const T* in, size_t n, size_t oc, size_t ic, size_t ld,
                bool adds, bool tf32) {
  Work work{
      stream,
      "matmul_wgrad",
      {reads(dout, (n - 1) * ld + oc), reads(in, n * ic), adds ? updates(dweight, oc * ic) : writes(dweight, oc * ic)},
      2.0 * double(n) * double(oc) * double(ic)};
  return with_rate_of<T>(work, tf32);
}
template <class T>
Work quantized_work(Stream& stream, const char* name, T* out, const QuantizedTensor& a, const QuantizedTensor& b,
                    bool adds) {
  const size_t size = size_t(a.rows) * size_t(b.rows);
  Work work{stream,
            name,
            {reads(a.data, a.bytes()), reads(a.factors, a.factor_count()), reads(b.data, b.bytes()),
             reads(b.factors, b.factor_count()), adds ? updates(out, size) : writes(out, size)},
            2.0 * double(a.rows) * double(b.rows) * double(a.columns)};
  const auto either = [&](Scaling scaling) { return a.scaling == scaling || b.scaling == scaling; };
  work.rate = either(Scaling::block_1x128) || either(Scaling::block_128x128) ? RateClass::product_fp8_block
              : either(Scaling::row)                                         ? RateClass::product_fp8_row
                                                                             : RateClass::product_fp8_tensor;
  return work;
}
inline void require_operands(const char* name, const QuantizedTensor& a, const QuantizedTensor& b) {
  REQUIRE(a && b && a.rows > 0 && b.rows > 0 && a.columns == b.columns && a.stride() == b.stride(),
          "%s: operands of %d x %d and %d x %d: expected as many columns, padded alike", name, a.rows, a.columns,
          b.rows, b.columns);
  REQUIRE(b.rows % b.padding() == 0 && (a.padding() == 16 || a.rows % a.padding() == 0),
          "%s: an output of %d x %d: expected multiples of %d", name, a.rows, b.rows, b.padding());
}

// Returns why a modelled GPU cannot multiply such FP8 operands, as far as that is known; "" if it can.
inline std::string known_refusal(const DeviceInfo& info, const QuantizedTensor& a, const QuantizedTensor& b) {
  const bool one_factor = a.scaling == Scaling::tensor && b.scaling == Scaling::tensor;
  if (!info.gpu || one_factor || info.compute_capability == 90) return "";
  return format("cuBLASLt knows factors of the kind \"%s\" on compute capability 9.0 (Hopper) alone",
                scaling_name(a.scaling == Scaling::tensor ? b.scaling : a.scaling));
}
