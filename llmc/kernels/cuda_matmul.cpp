// Products on a GPU: cuBLASLt. A plan (descriptors and the algorithm) is made once for each kind and shape and kept.
//
// cuBLASLt thinks in columns. A row-major X[r,c] is its column-major matrix of c rows and r columns, so each product is
// computed transposed: out[N,OC] row-major is outᵀ, OC x N, and so on; see the calls of `run`.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <map>
#include <tuple>

#include "llmc/base/error.h"
#include "llmc/device/cuda_stream.h"
#include "llmc/device/number.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/matmul_work.h"

#define CUBLAS_CHECK(call)                                                                  \
  do {                                                                                      \
    const cublasStatus_t status_ = (call);                                                  \
    REQUIRE(status_ == CUBLAS_STATUS_SUCCESS, "%s:%d: %s\n  %s", __FILE__, __LINE__, #call, \
            cublasLtGetStatusString(status_));                                              \
  } while (0)

namespace {

// What a plan depends on: D (m x n, ldd) = op(A) op(B) + beta D in cuBLASLt's column-major terms.
struct Shape {
  cublasOperation_t op_a, op_b;
  int64_t m, n, k, lda, ldb, ldd;
  cudaDataType_t operand, result;
  bool accumulate;
  auto key() const { return std::tie(op_a, op_b, m, n, k, lda, ldb, ldd, operand, result, accumulate); }
  bool operator<(const Shape& other) const { return key() < other.key(); }
};

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

template <class T>
constexpr cudaDataType_t cuda_type() {
  return kDType<T> == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

void require_operand(const char* product, const char* name, const void* pointer) {
  REQUIRE(pointer && reinterpret_cast<uintptr_t>(pointer) % Matmul::kAlignment == 0,
          "matmul %s: %s at %p is not %zu-byte aligned", product, name, pointer, Matmul::kAlignment);
}

}  // namespace

struct Matmul::State {
  Stream& stream;
  std::byte* workspace;
  Options options;
  cublasLtHandle_t handle = nullptr;
  std::map<Shape, Plan> plans;

  ~State() {
    for (auto& [shape, plan] : plans) {
      cublasLtMatmulDescDestroy(plan.operation);
      cublasLtMatrixLayoutDestroy(plan.a);
      cublasLtMatrixLayoutDestroy(plan.b);
      cublasLtMatrixLayoutDestroy(plan.d);
    }
    if (handle) cublasLtDestroy(handle);
  }
  Plan make_plan(const Shape& shape);
  void run(const Work& work, const Shape& shape, const void* a, const void* b, void* d);
};

Plan Matmul::State::make_plan(const Shape& s) {
  Plan plan;
  const cublasComputeType_t compute =
      s.operand == CUDA_R_32F && options.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan.operation, compute, CUDA_R_32F));
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &s.op_a, sizeof s.op_a));
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &s.op_b, sizeof s.op_b));
  const bool plain_a = s.op_a == CUBLAS_OP_N, plain_b = s.op_b == CUBLAS_OP_N;
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.a, s.operand, plain_a ? s.m : s.k, plain_a ? s.k : s.m, s.lda));
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.b, s.operand, plain_b ? s.k : s.n, plain_b ? s.n : s.k, s.ldb));
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.d, s.result, s.m, s.n, s.ldd));

  cublasLtMatmulPreference_t preference;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const size_t workspace_bytes = Matmul::kWorkspaceBytes;
  const uint32_t alignment = kAlignment;
  CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace_bytes, sizeof workspace_bytes));
  // Where the sum over k is split, its parts are added in fp32, never in the type of the result.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                    sizeof reductions));
  for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                                               preference, 1, &found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  REQUIRE(status == CUBLAS_STATUS_SUCCESS && count == 1,
          "cuBLASLt has no algorithm for a product of m=%lld n=%lld k=%lld, lda=%lld ldb=%lld ldd=%lld: %s",
          (long long)s.m, (long long)s.n, (long long)s.k, (long long)s.lda, (long long)s.ldb, (long long)s.ldd,
          cublasLtGetStatusString(status));
  plan.algorithm = found.algo;
  return plan;
}

void Matmul::State::run(const Work& work, const Shape& shape, const void* a, const void* b, void* d) {
  const RecordedWork recorded(work);
  auto found = plans.find(shape);
  if (found == plans.end()) found = plans.emplace(shape, make_plan(shape)).first;
  const Plan& plan = found->second;
  const float one = 1, beta = shape.accumulate ? 1 : 0;
  CUBLAS_CHECK(cublasLtMatmul(handle, plan.operation, &one, a, plan.a, b, plan.b, &beta, d, plan.d, d, plan.d,
                              &plan.algorithm, workspace, Matmul::kWorkspaceBytes, cuda_stream(stream)));
}

Matmul::Matmul(Stream& stream, std::byte* workspace, Options options)
    : state_(new State{stream, workspace, options, nullptr, {}}) {
  require_operand("workspace", "workspace", workspace);
  CUBLAS_CHECK(cublasLtCreate(&state_->handle));
}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;

size_t Matmul::workspace_bytes(const DeviceInfo&) { return kWorkspaceBytes; }

std::string Matmul::description() {
  const size_t version = cublasLtGetVersion();  // 130002 = 13.0.2
  return format("cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

template <class T>
void Matmul::forward(T* out, const T* in, const T* weight, int N, int OC, int IC, int out_stride) {
  require_operand("forward", "out", out);
  require_operand("forward", "in", in);
  require_operand("forward", "weight", weight);
  const int64_t stride = out_stride ? out_stride : OC;
  // outᵀ[OC,N] = W[OC,IC] inᵀ[IC,N]
  state_->run(forward_work(state_->stream, out, in, weight, N, OC, IC, stride),
              {CUBLAS_OP_T, CUBLAS_OP_N, OC, N, IC, IC, IC, stride, cuda_type<T>(), cuda_type<T>(), false}, weight, in,
              out);
}

template <class T>
void Matmul::dgrad(T* din, const T* dout, const T* weight, int N, int OC, int IC, int dout_stride) {
  require_operand("dgrad", "din", din);
  require_operand("dgrad", "dout", dout);
  require_operand("dgrad", "weight", weight);
  const int64_t stride = dout_stride ? dout_stride : OC;
  // dinᵀ[IC,N] = Wᵀ[IC,OC] doutᵀ[OC,N]
  state_->run(dgrad_work(state_->stream, din, dout, weight, N, OC, IC, stride),
              {CUBLAS_OP_N, CUBLAS_OP_N, IC, N, OC, IC, stride, IC, cuda_type<T>(), cuda_type<T>(), false}, weight,
              dout, din);
}

template <class T>
void Matmul::wgrad(float* dweight, const T* dout, const T* in, int N, int OC, int IC, bool accumulate,
                   int dout_stride) {
  require_operand("wgrad", "dweight", dweight);
  require_operand("wgrad", "dout", dout);
  require_operand("wgrad", "in", in);
  const int64_t stride = dout_stride ? dout_stride : OC;
  // dWᵀ[IC,OC] = inᵀ[IC,N] dout[N,OC]
  state_->run(wgrad_work(state_->stream, dweight, dout, in, N, OC, IC, stride),
              {CUBLAS_OP_N, CUBLAS_OP_T, IC, OC, N, IC, stride, IC, cuda_type<T>(), CUDA_R_32F, accumulate}, in, dout,
              dweight);
}

#define INSTANTIATE(T)                                                       \
  template void Matmul::forward(T*, const T*, const T*, int, int, int, int); \
  template void Matmul::dgrad(T*, const T*, const T*, int, int, int, int);   \
  template void Matmul::wgrad(float*, const T*, const T*, int, int, int, bool, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
