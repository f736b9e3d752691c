// Products of FP8 operands of any size (contract: quantized_product.h).
#include "llmc/kernels/quantized_product.h"

#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    unpad_kernel(T* __restrict__ out, const T* __restrict__ padded, int rows, int columns, int stride, bool add) {
  const size_t i = size_t(blockIdx.x) * kThreads + threadIdx.x;
  const size_t row = i / columns, column = i % columns;
  if (row >= size_t(rows)) return;
  const float x = to_float(padded[row * stride + column]);
  out[i] = from_float<T>(add ? to_float(out[i]) + x : x);
}

// ---------------------------------------------------------------------------------------------- launchers

// Rows of `a` are rows of the output, which products take as they are but for blocks of 128.
int output_rows(const QuantizedTensor& a) { return a.padding() == 16 ? a.rows : a.padded_rows(); }

}  // namespace

size_t quantized_product_scratch(const QuantizedTensor& a, const QuantizedTensor& b, size_t element_bytes) {
  if (output_rows(a) == a.rows && b.padded_rows() == b.rows) return 0;
  return size_t(output_rows(a)) * size_t(b.padded_rows()) * element_bytes;
}

template <class T>
void quantized_product(Stream& stream, Matmul& matmul, const char* name, T* out, QuantizedTensor a, QuantizedTensor b,
                       bool accumulate, bool fast, std::byte* padded) {
  if (quantized_product_scratch(a, b, sizeof(T)) == 0) return matmul.multiply(name, out, a, b, accumulate, fast);
  REQUIRE(padded, "%s: an output of %d x %d needs a padded buffer", name, a.rows, b.rows);
  T* larger = reinterpret_cast<T*>(padded);
  const int rows = a.rows, columns = b.rows;
  a.rows = output_rows(a);
  b.rows = b.padded_rows();
  matmul.multiply(name, larger, a, b, false, fast);
  const size_t size = size_t(rows) * size_t(columns);
  launch<unpad_kernel<T>>({stream, "unpad", {updates(out, size), reads(larger, size_t(a.rows) * size_t(b.rows))}},
                          blocks_for(size, kThreads), kThreads, 0, out, larger, rows, columns, b.rows, accumulate);
}

#define INSTANTIATE(T)                                                                                             \
  template void quantized_product(Stream&, Matmul&, const char*, T*, QuantizedTensor, QuantizedTensor, bool, bool, \
                                  std::byte*);
INSTANTIATE(float)
INSTANTIATE(bf16)
