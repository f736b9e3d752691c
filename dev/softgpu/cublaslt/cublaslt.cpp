// cuBLASLt's functions.
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "dev/softgpu/cublaslt/product.h"
#include "dev/softgpu/cublaslt/support.h"
#include "dev/softgpu/runtime/api.h"
#include "dev/softgpu/runtime/graph.h"
#include "dev/softgpu/runtime/memory.h"

using namespace softgpu;

struct cublasLtContext {};

namespace {

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

template <class T, class Handle>
T& of(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}
const Layout& layout(cublasLtMatrixLayout_t handle) { return of<const Layout>(handle); }

int capability() {
  int device = 0;
  cudaDeviceProp properties;
  cudaGetDevice(&device);
  cudaGetDeviceProperties(&properties, device);
  return properties.major * 10 + properties.minor;
}

cublasStatus_t checked(cublasLtMatmulDesc_t o, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  const std::string wrong = unsupported(of<Operation>(o), layout(a), layout(b), layout(c), layout(d), capability());
  if (!wrong.empty()) warn("cuBLASLt supports no such product: %s", wrong.c_str());
  return wrong.empty() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// Number 0 is the default. The others sum in other parts, so they give other bits; one takes twice the time, one wants
// 64 MiB of workspace, one says that it adds its parts in the type of the output.
std::vector<Algorithm> algorithms(const Preference& preference) {
  std::vector<Algorithm> all;
  for (uint64_t i = 0; i < 24; ++i) {
    Algorithm algorithm{.number = i, .parts = 1 + i / 2, .repeats = i == 1 ? 2u : 1u};
    if (algorithm.parts > 1) algorithm.reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (i == 2) algorithm.workspace_bytes = 64 << 20;
    else if (algorithm.parts > 1) algorithm.workspace_bytes = 1 << 20;
    if (i == 3) algorithm.reduction = CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    if (algorithm.workspace_bytes > preference.workspace_bytes) continue;
    if (algorithm.reduction & ~preference.reductions) continue;
    all.push_back(algorithm);
  }
  return all;
}

// Parts is a layout or factors.
template <class Parts>
void require_written(const void* p, const Parts& parts) {
  if (p)
    parts.each_part([&](size_t begin, size_t bytes) {
      softgpu::require_written(static_cast<const std::byte*>(p) + begin, bytes, "cublasLtMatmul");
    });
}

Algorithm algorithm_of(const cublasLtMatmulAlgo_t* handle) { return std::bit_cast<Algorithm>(*handle); }

template <class T>
cublasStatus_t take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

SOFTGPU_API cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
SOFTGPU_API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
SOFTGPU_API size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
SOFTGPU_API const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}

SOFTGPU_API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* to, cublasComputeType_t compute,
                                                    cudaDataType_t scale_type) {
  if (scale_type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *to = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation{.compute = compute});
  return CUBLAS_STATUS_SUCCESS;
}
SOFTGPU_API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete &of<Operation>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
SOFTGPU_API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                                          cublasLtMatmulDescAttributes_t attribute, const void* value,
                                                          size_t bytes) {
  Operation& operation = of<Operation>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(operation.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(operation.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return take(operation.fast_accumulation, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return take(operation.scale_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return take(operation.scale_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return take(operation.mode_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return take(operation.mode_b, value, bytes);
    default:
      warn("attribute %d of a product is not executed", int(attribute));
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

SOFTGPU_API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* to, cudaDataType type, uint64_t rows,
                                                      uint64_t columns, int64_t leading) {
  *to = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
SOFTGPU_API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  delete &of<Layout>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

SOFTGPU_API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* to) {
  *to = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
SOFTGPU_API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  delete &of<Preference>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
SOFTGPU_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                                cublasLtMatmulPreferenceAttributes_t attribute,
                                                                const void* value, size_t bytes) {
  Preference& preference = of<Preference>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(preference.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(preference.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(preference.alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

SOFTGPU_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t o,
                                                          cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                          cublasLtMatmulPreference_t preference, int most,
                                                          cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  if (const cublasStatus_t status = checked(o, a, b, c, d)) return status;
  for (const Algorithm& algorithm : algorithms(of<Preference>(preference))) {
    if (*found == most) break;
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
    result = {};
    result.algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
    result.workspaceSize = algorithm.workspace_bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
SOFTGPU_API cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t o, cublasLtMatrixLayout_t a,
                                                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                                   cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* handle,
                                                   cublasLtMatmulHeuristicResult_t* result) {
  const Algorithm algorithm = algorithm_of(handle);
  if (algorithm.magic != Algorithm::kMagic) return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t status = checked(o, a, b, c, d)) return status;
  *result = {};
  result->algo = *handle;
  result->workspaceSize = algorithm.workspace_bytes;
  return CUBLAS_STATUS_SUCCESS;
}
SOFTGPU_API cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* handle,
                                                                cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                                void* value, size_t bytes, size_t* written) {
  const Algorithm algorithm = algorithm_of(handle);
  const uint64_t number = attribute == CUBLASLT_ALGO_CONFIG_ID                 ? algorithm.number
                          : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM       ? algorithm.parts
                          : attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? algorithm.reduction
                                                                               : 0;
  const size_t size = attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? sizeof(uint16_t) : sizeof(uint32_t);
  if (bytes < size) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(value, &number, size);
  *written = size;
  return CUBLAS_STATUS_SUCCESS;
}

SOFTGPU_API cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t o, const void* alpha, const void* a,
                                          cublasLtMatrixLayout_t la, const void* b, cublasLtMatrixLayout_t lb,
                                          const void* beta, const void* c, cublasLtMatrixLayout_t lc, void* d,
                                          cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t* algorithm,
                                          void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (const cublasStatus_t status = checked(o, la, lb, lc, ld)) return status;
  const Operation& operation = of<Operation>(o);
  Product p{.operation = operation, .a = layout(la), .b = layout(lb), .c = layout(lc), .d = layout(ld)};
  p.algorithm = algorithm ? algorithm_of(algorithm) : Algorithm{};
  p.alpha = *static_cast<const float*>(alpha), p.beta = *static_cast<const float*>(beta);
  if (p.algorithm.magic != Algorithm::kMagic || p.algorithm.workspace_bytes > workspace_bytes)
    return CUBLAS_STATUS_INVALID_VALUE;
  for (const void* pointer : {a, b, c, static_cast<const void*>(d)})
    if (reinterpret_cast<uintptr_t>(pointer) % 16) {
      warn("an operand of a product is not aligned to 16 bytes");
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  const auto where = [](const void* pointer, size_t bytes) {
    return is_pageable(pointer) ? nullptr : accessible(pointer, bytes);
  };
  p.pa = where(a, p.a.bytes()), p.pb = where(b, p.b.bytes());
  p.pc = where(c, p.c.bytes()), p.pd = where(d, p.d.bytes());
  bool all = p.pa && p.pb && p.pc && p.pd && (!workspace_bytes || where(workspace, workspace_bytes));
  if (p.a.fp8()) {
    const size_t blocks = (p.k() + 127) / 128;
    p.factors_a = {operation.scale_a, operation.mode_a, p.m(), blocks};
    p.factors_b = {operation.scale_b, operation.mode_b, p.n(), blocks};
    for (Factors* factors : {&p.factors_a, &p.factors_b}) {
      if (!factors->data) continue;
      factors->data = static_cast<const float*>(where(factors->data, factors->bytes()));
      all = all && factors->data;
    }
  }
  if (!all) {
    warn("an operand, factor or workspace of a product is not all in the device's memory");
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  // The workspace is spoiled, whatever the algorithm needs of it.
  void* const spoiled = p.algorithm.workspace_bytes ? accessible(workspace, workspace_bytes) : nullptr;
  const cudaError_t error = submit(stream, [p, a, b, c, d, spoiled]() -> Poll {
    require_written(a, p.a), require_written(b, p.b);
    if (p.beta != 0) require_written(c, p.c);
    require_written(p.operation.scale_a, p.factors_a), require_written(p.operation.scale_b, p.factors_b);
    if (spoiled) memset(spoiled, 0xff, p.algorithm.workspace_bytes);
    multiply(p);
    p.d.each_part([&](size_t begin, size_t bytes) { mark_written(static_cast<std::byte*>(d) + begin, bytes); });
    return nullptr;
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
