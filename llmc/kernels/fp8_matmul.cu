// Products of FP8 operands of any size (contract: fp8_matmul.h).
#include "llmc/kernels/fp8_matmul.h"

#include <algorithm>

#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;

// Copies `columns` columns of `padded`, whose rows are `padded_stride` elements apart, to `out`, whose rows are
// `stride` apart. With `add` it adds them to `out`.
template <class T>
__global__ void __launch_bounds__(kThreads) unpad_kernel(T* __restrict__ out, const T* __restrict__ padded, int rows,
                                                         int columns, int stride, int padded_stride, bool add) {
  const size_t i = size_t(blockIdx.x) * kThreads + threadIdx.x;
  const size_t row = i / columns, column = i % columns;
  if (row >= size_t(rows)) return;
  const float x = to_float(padded[row * padded_stride + column]);
  T& to = out[row * stride + column];
  to = from_float<T>(add ? to_float(to) + x : x);
}

// ---------------------------------------------------------------------------------------------- launchers

// Returns the rows of the product's output. Rows of `a` are rows of the output; only blocks of 128 need them padded.
int output_rows(const QuantizedTensor& a) { return a.padding() == 16 ? a.rows : a.padded_rows(); }

// Returns how many columns of the output the padded buffer holds at once, since a whole output can take hundreds of
// megabytes. Weights in blocks of 128 x 128 can be cut between blocks: at every 16th, so that their scale_inv stay
// 256-byte aligned.
int columns_at_once(const QuantizedTensor& b) {
  return b.scaling == Scaling::block_128x128 ? std::min(b.padded_rows(), 16 * QuantizedTensor::kBlock)
                                             : b.padded_rows();
}

}  // namespace

size_t fp8_matmul_scratch(const QuantizedTensor& a, const QuantizedTensor& b, size_t element_bytes) {
  if (output_rows(a) == a.rows && b.padded_rows() == b.rows) return 0;
  return size_t(output_rows(a)) * size_t(columns_at_once(b)) * element_bytes;
}

size_t fp8_matmul_most_scratch(const QuantizedTensor& a, const QuantizedTensor& b, size_t element_bytes) {
  if (a.padding() == 16) return fp8_matmul_scratch(a, b, element_bytes);
  return size_t(output_rows(a)) * size_t(columns_at_once(b)) * element_bytes;
}

void fp8_matmul(Stream& stream, Matmul& matmul, const char* name, const Tensor& out, QuantizedTensor a,
                QuantizedTensor b, bool accumulate, bool fast, std::byte* padded) {
  if (fp8_matmul_scratch(a, b, bytes_of(out.type)) == 0) return matmul.multiply(name, out, a, b, accumulate, fast);
  const int rows = a.rows, columns = b.rows;
  require_tensor(name, "out", out, out.type, {rows, columns});
  REQUIRE(!accumulate || out.type == DType::fp32, "%s: out is %s\n  expected fp32: only fp32 is added to", name,
          dtype_name(out.type));
  REQUIRE(padded, "%s: an output of %d x %d needs a padded buffer", name, rows, columns);
  a.rows = output_rows(a);
  for (int first = 0; first < columns; first += columns_at_once(b)) {
    QuantizedTensor part = b;
    part.rows = std::min(columns_at_once(b), b.padded_rows() - first);
    part.data += size_t(first) * size_t(b.stride());
    part.scale_inv += first ? b.scale_inv_at(first, 0) : 0;
    const Tensor larger(padded, out.type, {a.rows, part.rows});
    matmul.multiply(name, larger, a, part, false, fast);
    const int count = std::min(part.rows, columns - first);
    with_type(name, out.type, [&](auto number) {
      using T = decltype(number);
      launch<unpad_kernel<T>>({stream, "unpad", {updates(out), reads(larger)}},
                              blocks_for(size_t(rows) * size_t(count), kThreads), kThreads, 0, out.as<T>() + first,
                              larger.as<T>(), rows, count, columns, part.rows, accumulate);
    });
  }
}
