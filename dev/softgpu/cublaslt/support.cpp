#include "dev/softgpu/cublaslt/support.h"

#include <algorithm>
#include <iterator>

#include "llmc/base/error.h"

namespace softgpu {
namespace {

// The rows of the tables below "cublasLtMatmul()" in the documentation of cuBLAS 13 that have types of this project.
struct Types {
  cublasComputeType_t compute;
  cudaDataType a, b, c, d;
};
constexpr Types kTypes[] = {
    // "Table 1. When A, B, C, and D are Regular Column- or Row-major Matrices"
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    // "FP8 kernels": both E5M2 is no row
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F},
};

// "Scaling Modes Overview" and "FP8 data types usage": which pairs of modes, on which compute capabilities.
struct Modes {
  int32_t a, b;
  int first_capability, last_capability;
};
constexpr int kScalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, kRow = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
              kBlock1 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, kBlock2 = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
constexpr Modes kModes[] = {
    {kScalar, kScalar, 89, 999}, {kRow, kRow, 90, 90},       {kBlock1, kBlock1, 90, 90},
    {kBlock1, kBlock2, 90, 90},  {kBlock2, kBlock1, 90, 90},
};

std::string unsupported_fp8(const Operation& o, const Layout& a, const Layout& b, const Layout& d, int capability) {
  if (capability < 89) return "FP8 needs compute capability 8.9";
  const bool tn = o.transpose_a == CUBLAS_OP_T && o.transpose_b == CUBLAS_OP_N;
  if (!tn && (capability < 100 || capability >= 120)) return "FP8 operands must be TN: A transposed, B not";
  const uint64_t m = d.rows, k = a.rows;
  if (m % 16 || k % 16 || a.leading % 16 || b.leading % 16)
    return format("FP8 needs m, k and leading dimensions that are multiples of 16: m %llu, k %llu, lda %lld, ldb %lld",
                  (unsigned long long)m, (unsigned long long)k, (long long)a.leading, (long long)b.leading);
  const bool known = std::any_of(std::begin(kModes), std::end(kModes), [&](const Modes& modes) {
    return modes.a == o.mode_a && modes.b == o.mode_b && capability >= modes.first_capability &&
           capability <= modes.last_capability;
  });
  if (!known) return format("scale modes %d and %d on compute capability %d", o.mode_a, o.mode_b, capability);
  const auto blocks = [](int mode) { return mode == kBlock1 || mode == kBlock2; };
  if (o.fast_accumulation && (blocks(o.mode_a) || blocks(o.mode_b)))  // seen on an H200, cuBLASLt 13.1
    return "fast accumulation with scales of blocks of 128";
  return "";
}

}  // namespace

std::string unsupported(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d,
                        int capability) {
  const bool ta = o.transpose_a == CUBLAS_OP_T, tb = o.transpose_b == CUBLAS_OP_T;
  const uint64_t m = d.rows, n = d.columns, k = ta ? a.rows : a.columns;
  if ((ta ? a.columns : a.rows) != m || (tb ? b.rows : b.columns) != n || (tb ? b.columns : b.rows) != k ||
      c.rows != m || c.columns != n)
    return "the sizes of A, B, C and D do not fit together";
  for (const Layout* layout : {&a, &b, &c, &d})
    if (layout->leading < int64_t(layout->rows)) return "a leading dimension is below the rows";
  const bool known = std::any_of(std::begin(kTypes), std::end(kTypes), [&](const Types& types) {
    return types.compute == o.compute && types.a == a.type && types.b == b.type && types.c == c.type &&
           types.d == d.type;
  });
  if (!known) return format("types %d x %d + %d -> %d with compute type %d", a.type, b.type, c.type, d.type, o.compute);
  if ((a.type == CUDA_R_16BF || o.compute == CUBLAS_COMPUTE_32F_FAST_TF32) && capability < 80)
    return "bfloat16 and TF32 need compute capability 8.0";
  return a.fp8() ? unsupported_fp8(o, a, b, d, capability) : "";
}

}  // namespace softgpu
