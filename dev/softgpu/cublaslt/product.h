// A product as cuBLASLt's descriptors ask for it: D = alpha op(A) op(B) + beta C, column-major.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace softgpu {

// A cublasLtMatmulDesc_t points to this.
struct Operation {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  int32_t mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int8_t fast_accumulation = 0;
  const float *scale_a = nullptr, *scale_b = nullptr;
};

// A cublasLtMatrixLayout_t points to this. Element (r, c) is number r + c * leading.
struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t leading;

  size_t element_bytes() const { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1; }
  size_t bytes() const { return (size_t(leading) * (columns - 1) + rows) * element_bytes(); }
  // Calls f(first byte, bytes) for the parts that are read or written: all, or each column, for padding lies between.
  template <class F>
  void each_part(const F& f) const {
    if (uint64_t(leading) == rows) return f(0, bytes());
    for (uint64_t c = 0; c < columns; ++c) f(c * uint64_t(leading) * element_bytes(), rows * element_bytes());
  }
  bool fp8() const { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
};

// An algorithm: in how many parts the sum over k is computed, and how often for nothing.
struct Algorithm {
  uint64_t magic = kMagic, number = 0, parts = 1, repeats = 1, workspace_bytes = 0;
  uint64_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  uint64_t unused[2] = {};
  static constexpr uint64_t kMagic = 0x736f667467707531;
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

// The factors of an operand, for each row of A or column of B (`i`) and block of 128 along k. `count` rows or columns.
// From "Scaling Modes Overview" of the documentation of cuBLASLt: OUTER_VEC has one for each i; VEC128 one for each i
// and block, i contiguous; BLK128x128 one for each 128 i and block, blocks contiguous in lines of a multiple of 4.
struct Factors {
  const float* data = nullptr;  // null: 1
  int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  size_t count = 0, blocks = 0;

  size_t bytes() const;
  float at(size_t i, size_t block) const;
  // Calls f(first byte, bytes) for the parts that are read: all, or each line of blocks.
  template <class F>
  void each_part(const F& f) const {
    const bool lines = mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    if (!lines) return f(0, bytes());
    const size_t stride = (blocks + 3) / 4 * 4 * sizeof(float);
    for (size_t begin = 0; begin < bytes(); begin += stride) f(begin, blocks * sizeof(float));
  }
  bool of_blocks() const {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
};

struct Product {
  Operation operation;
  Layout a, b, c, d;
  Algorithm algorithm;
  const void *pa, *pb, *pc;  // where the bytes lie
  void* pd;
  Factors factors_a, factors_b;
  float alpha, beta;

  size_t m() const { return d.rows; }
  size_t n() const { return d.columns; }
  size_t k() const { return operation.transpose_a == CUBLAS_OP_N ? a.columns : a.rows; }
};

void multiply(const Product& product);

}  // namespace softgpu
