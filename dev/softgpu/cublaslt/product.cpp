#include "dev/softgpu/cublaslt/product.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dev/softgpu/arithmetic.h"

namespace softgpu {
namespace {

// "FP8 Formats for Deep Learning": E5M2 is IEEE's, E4M3 has no infinity and one NaN.
f32 fp8_value(u8 x, bool e4m3) {
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int exponent = (x & 127) >> mantissa_bits, mantissa = x & ((1 << mantissa_bits) - 1);
  f32 value;
  if (e4m3 ? (x & 127) == 127 : exponent == 31 && mantissa) value = NAN;
  else if (!e4m3 && exponent == 31) value = INFINITY;
  else if (exponent == 0) value = std::ldexp(f32(mantissa), 1 - bias - mantissa_bits);
  else value = std::ldexp(f32(mantissa | 1 << mantissa_bits), exponent - bias - mantissa_bits);
  return x & 128 ? -value : value;
}

f32 element(const void* p, size_t i, cudaDataType type) {
  switch (type) {
    case CUDA_R_32F:
      return static_cast<const f32*>(p)[i];
    case CUDA_R_16BF:
      return std::bit_cast<f32>(u32(static_cast<const u16*>(p)[i]) << 16);
    default: {
      static const auto tables = [] {
        std::vector<f32> values(512);
        for (int x = 0; x < 256; ++x)
          values[size_t(x)] = fp8_value(u8(x), true), values[size_t(256 + x)] = fp8_value(u8(x), false);
        return values;
      }();
      return tables[size_t(type == CUDA_R_8F_E4M3 ? 0 : 256) + static_cast<const u8*>(p)[i]];
    }
  }
}

// TF32 keeps 10 bits of the mantissa; the tensor cores cut the rest off.
f32 tf32(f32 x) { return std::bit_cast<f32>(std::bit_cast<u32>(x) & 0xffffe000u); }

// The operand as floats, k contiguous: `count` lines of k.
std::vector<f32> lines_of(const void* p, const Layout& layout, bool k_contiguous, size_t count, size_t k,
                          bool truncate) {
  std::vector<f32> lines(count * k);
  const size_t leading = size_t(layout.leading);
  for (size_t i = 0; i < count; ++i)
    for (size_t l = 0; l < k; ++l) {
      const f32 x = element(p, k_contiguous ? i * leading + l : l * leading + i, layout.type);
      lines[i * k + l] = truncate ? tf32(x) : x;
    }
  return lines;
}

}  // namespace

size_t Factors::bytes() const {
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
      return count * sizeof(f32);
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
      return count * blocks * sizeof(f32);
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
      return (count + 127) / 128 * ((blocks + 3) / 4 * 4) * sizeof(f32);
    default:
      return sizeof(f32);
  }
}

f32 Factors::at(size_t i, size_t block) const {
  if (!data) return 1;
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
      return data[i];
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
      return data[block * count + i];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
      return data[i / 128 * ((blocks + 3) / 4 * 4) + block];
    default:
      return data[0];
  }
}

// The sum over k is computed in the algorithm's parts, or in the blocks of the factors; each part by sgemm.
void multiply(const Product& p) {
  const size_t m = p.m(), n = p.n(), k = p.k();
  const bool truncate = p.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const auto a = lines_of(p.pa, p.a, p.operation.transpose_a == CUBLAS_OP_T, m, k, truncate);
  const auto b = lines_of(p.pb, p.b, p.operation.transpose_b == CUBLAS_OP_N, n, k, truncate);
  const bool blocks = p.factors_a.of_blocks() || p.factors_b.of_blocks();
  const size_t length = blocks ? 128 : std::max<size_t>(1, (k + p.algorithm.parts - 1) / p.algorithm.parts);
  std::vector<f32> sum(m * n), part(m * n);
  for (uint64_t repeat = 0; repeat < p.algorithm.repeats; ++repeat) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (size_t begin = 0, block = 0; begin < k; begin += length, ++block) {
      const size_t depth = std::min(length, k - begin);
      // Column-major part[m x n] = (lines of A)ᵀ (lines of B)
      cblas_sgemm(CblasColMajor, CblasTrans, CblasNoTrans, int(m), int(n), int(depth), 1, a.data() + begin, int(k),
                  b.data() + begin, int(k), 0, part.data(), int(m));
      for (size_t j = 0; j < n; ++j)
        for (size_t i = 0; i < m; ++i)
          sum[j * m + i] +=
              blocks ? part[j * m + i] * (p.factors_a.at(i, block) * p.factors_b.at(j, block)) : part[j * m + i];
    }
  }
  for (size_t j = 0; j < n; ++j)
    for (size_t i = 0; i < m; ++i) {
      f32 value = p.alpha * sum[j * m + i];
      if (!blocks) value *= p.factors_a.at(i, 0) * p.factors_b.at(j, 0);
      if (p.beta != 0) value += p.beta * element(p.pc, j * size_t(p.c.leading) + i, p.c.type);
      const size_t at = j * size_t(p.d.leading) + i;
      if (p.d.type == CUDA_R_32F) static_cast<f32*>(p.pd)[at] = value;
      else static_cast<u16*>(p.pd)[at] = to_bf16(value);
    }
}

}  // namespace softgpu
