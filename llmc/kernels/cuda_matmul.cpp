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
  // FP8: B's type, how each operand is scaled, whether sums stay in the tensor cores.
  cudaDataType_t operand_b = operand;
  Scaling scaling_a = Scaling::tensor, scaling_b = Scaling::tensor;
  bool fast = false;
  auto key() const {
    return std::tie(op_a, op_b, m, n, k, lda, ldb, ldd, operand, result, accumulate, operand_b, scaling_a, scaling_b,
                    fast);
  }
  bool operator<(const Shape& other) const { return key() < other.key(); }
  bool quantized() const { return operand == CUDA_R_8F_E4M3 || operand == CUDA_R_8F_E5M2; }
};

cudaDataType_t cuda_type(Fp8Format format) { return format == Fp8Format::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }

// How cuBLASLt calls the scaling; -1: this toolkit's does not know it.
int scale_mode(Scaling scaling) {
#if CUBLAS_VERSION >= 120900
  switch (scaling) {
    case Scaling::tensor:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case Scaling::row:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case Scaling::block_1x128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Scaling::block_128x128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
#endif
  return scaling == Scaling::tensor ? 0 : -1;
}

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
    for (auto& [shape, plan] : plans) destroy(plan);
    if (handle) cublasLtDestroy(handle);
  }
  void destroy(const Plan& plan) {
    if (plan.operation) cublasLtMatmulDescDestroy(plan.operation);
    for (const cublasLtMatrixLayout_t layout : {plan.a, plan.b, plan.d})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
  }
  // An algorithm for the shape, or why there is none. `factors_*`: of FP8 operands.
  cublasStatus_t make_plan(Plan& plan, const Shape& shape, const float* factors_a, const float* factors_b);
  Plan& plan_for(const Shape& shape, const float* factors_a, const float* factors_b);
  void set_factors(const Plan& plan, const float* factors_a, const float* factors_b);
  void run(const Work& work, const Shape& shape, const void* a, const void* b, void* d,
           const float* factors_a = nullptr, const float* factors_b = nullptr);
};

// out[a.rows, b.rows] row-major is outᵀ, b.rows x a.rows, = b (aᵀ): b is cuBLASLt's A.
static Shape shape_of(const QuantizedTensor& a, const QuantizedTensor& b, cudaDataType_t result, bool accumulate,
                      bool fast) {
  Shape shape{CUBLAS_OP_T, CUBLAS_OP_N,         b.rows, a.rows,    a.stride(), b.stride(), a.stride(),
              b.rows,      cuda_type(b.format), result, accumulate};
  shape.operand_b = cuda_type(a.format);
  shape.scaling_a = b.scaling, shape.scaling_b = a.scaling;
  shape.fast = fast;
  return shape;
}

void Matmul::State::set_factors(const Plan& plan, const float* factors_a, const float* factors_b) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &factors_a,
                                              sizeof factors_a));
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &factors_b,
                                              sizeof factors_b));
}

cublasStatus_t Matmul::State::make_plan(Plan& plan, const Shape& s, const float* factors_a, const float* factors_b) {
  const cublasComputeType_t compute =
      s.operand == CUDA_R_32F && options.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan.operation, compute, CUDA_R_32F));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.operation, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, s.op_a);
  set(CUBLASLT_MATMUL_DESC_TRANSB, s.op_b);
  if (s.quantized()) {
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(s.fast));
#if CUBLAS_VERSION >= 120900
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t(scale_mode(s.scaling_a)));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t(scale_mode(s.scaling_b)));
#endif
    set_factors(plan, factors_a, factors_b);
  }
  const bool plain_a = s.op_a == CUBLAS_OP_N, plain_b = s.op_b == CUBLAS_OP_N;
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.a, s.operand, plain_a ? s.m : s.k, plain_a ? s.k : s.m, s.lda));
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.b, s.operand_b, plain_b ? s.k : s.n, plain_b ? s.n : s.k, s.ldb));
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.d, s.result, s.m, s.n, s.ldd));

  cublasLtMatmulPreference_t preference;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Matmul::kWorkspaceBytes);
  // Where the sum over k is split, its parts are added in fp32, never in the type of the result.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(which, uint32_t(kAlignment));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                                               preference, 1, &found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  plan.algorithm = found.algo;
  return status == CUBLAS_STATUS_SUCCESS && count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

Plan& Matmul::State::plan_for(const Shape& s, const float* factors_a, const float* factors_b) {
  const auto found = plans.find(s);
  if (found != plans.end()) return found->second;
  Plan& plan = plans[s];
  const cublasStatus_t status = make_plan(plan, s, factors_a, factors_b);
  REQUIRE(status == CUBLAS_STATUS_SUCCESS,
          "cuBLASLt has no algorithm for a product of %s m=%lld n=%lld k=%lld, lda=%lld ldb=%lld ldd=%lld: %s",
          s.quantized() ? "FP8 operands" : "operands", (long long)s.m, (long long)s.n, (long long)s.k, (long long)s.lda,
          (long long)s.ldb, (long long)s.ldd, cublasLtGetStatusString(status));
  return plan;
}

void Matmul::State::run(const Work& work, const Shape& shape, const void* a, const void* b, void* d,
                        const float* factors_a, const float* factors_b) {
  const RecordedWork recorded(work);
  if (!recorded.executes()) return;
  const Plan& plan = plan_for(shape, factors_a, factors_b);
  if (shape.quantized()) set_factors(plan, factors_a, factors_b);
  const float one = 1, beta = shape.accumulate ? 1 : 0;
  CUBLAS_CHECK(cublasLtMatmul(handle, plan.operation, &one, a, plan.a, b, plan.b, &beta, d, plan.d, d, plan.d,
                              &plan.algorithm, workspace, Matmul::kWorkspaceBytes, cuda_stream(stream)));
}

Matmul::Matmul(Stream& stream, std::byte* workspace, Options options)
    : state_(new State{stream, workspace, options, nullptr, {}}) {
  require_operand("workspace", "workspace", workspace);
  if (stream.device().executes()) CUBLAS_CHECK(cublasLtCreate(&state_->handle));
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

template <class T>
void Matmul::multiply(const char* name, T* out, const QuantizedTensor& a, const QuantizedTensor& b, bool accumulate,
                      bool fast) {
  require_operands(name, a, b);
  REQUIRE(!accumulate || sizeof(T) == sizeof(float), "%s: only fp32 is added to", name);
  for (const void* pointer :
       {static_cast<const void*>(out), static_cast<const void*>(a.data), static_cast<const void*>(b.data)})
    require_operand(name, "an operand", pointer);
  state_->run(quantized_work(state_->stream, name, out, a, b), shape_of(a, b, cuda_type<T>(), accumulate, fast), b.data,
              a.data, out, b.factors, a.factors);
}

std::string Matmul::refusal(const QuantizedTensor& a, const QuantizedTensor& b, DType result, bool accumulate,
                            bool fast) {
  if (scale_mode(a.scaling) < 0 || scale_mode(b.scaling) < 0)
    return "cuBLASLt knows such factors from CUDA 12.9 on, and this build has " + description();
  if (!state_->handle) return known_refusal(state_->stream.device().info(), a, b);
  Plan plan;
  const cudaDataType_t type = result == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
  const cublasStatus_t status = state_->make_plan(plan, shape_of(a, b, type, accumulate, fast), a.factors, b.factors);
  state_->destroy(plan);
  if (status == CUBLAS_STATUS_SUCCESS) return "";
  return format("cuBLASLt multiplies no %s with %s to %s%s%s here (%s, %s): %s", format_name(a.format),
                format_name(b.format), dtype_name(result), accumulate ? ", adding," : "", fast ? ", fast," : "",
                scaling_name(a.scaling), scaling_name(b.scaling), cublasLtGetStatusString(status));
}

#define INSTANTIATE(T)                                                               \
  template void Matmul::forward(T*, const T*, const T*, int, int, int, int);         \
  template void Matmul::dgrad(T*, const T*, const T*, int, int, int, int);           \
  template void Matmul::wgrad(float*, const T*, const T*, int, int, int, bool, int); \
  template void Matmul::multiply(const char*, T*, const QuantizedTensor&, const QuantizedTensor&, bool, bool);
INSTANTIATE(float)
INSTANTIATE(bf16)
