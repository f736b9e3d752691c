// Matrix products on a GPU, by cuBLASLt. A plan (descriptors and the algorithm) is made once for each shape and types,
// and kept.
//
// cuBLASLt is column-major: a row-major X[r,c] is its matrix of c rows and r columns. Each product is therefore
// computed transposed: the row-major out[N,OC] is outᵀ, OC x N, and so on; see the calls of `run`.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstring>
#include <map>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/cuda_stream.h"
#include "llmc/device/number.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/matmul_work.h"
#include "llmc/kernels/tuning.h"

// A product that cannot be executed, rather than asked for, has met a GPU that failed.
#define CUBLAS_CHECK(call)                                                                                          \
  do {                                                                                                              \
    const cublasStatus_t status_ = (call);                                                                          \
    if (status_ != CUBLAS_STATUS_SUCCESS)                                                                           \
      fail_as(status_ == CUBLAS_STATUS_EXECUTION_FAILED ? ExitCode::lost : ExitCode::unexpected, "%s:%d: %s\n  %s", \
              __FILE__, __LINE__, #call, cublasLtGetStatusString(status_));                                         \
  } while (0)

namespace {

cudaDataType_t cuda_type(MatmulShape::Type type) {
  switch (type) {
    case MatmulShape::Type::fp32:
    case MatmulShape::Type::tf32:
      return CUDA_R_32F;
    case MatmulShape::Type::bf16:
      return CUDA_R_16BF;
    case MatmulShape::Type::e4m3:
      return CUDA_R_8F_E4M3;
    case MatmulShape::Type::e5m2:
      break;
  }
  return CUDA_R_8F_E5M2;
}

// Returns true if the headers that this file was compiled with and the library that it runs with both support scales of
// rows and blocks. An older library accepts the scale mode without an error.
bool knows_scale_modes() { return CUBLAS_VERSION >= 120900 && cublasLtGetVersion() >= 120900; }

// Returns cuBLASLt's scale mode for the scaling, or -1 if it has none.
int scale_mode(Scaling scaling) {
  if (!knows_scale_modes()) return scaling == Scaling::tensor ? 0 : -1;
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
  return -1;
}

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

constexpr size_t kCandidates = 64;  // algorithms requested from the heuristic for timing

// Returns an attribute of the algorithm. The values are cuBLASLt's own codes.
uint32_t attribute_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute,
                      size_t bytes = sizeof(uint32_t)) {
  uint32_t value = 0;
  size_t written = 0;
  CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, bytes, &written));
  return value;
}

// Returns, for example, "algorithm 66, tile 20, stages 35, cluster 2, split-k 1: " and the algorithm's bytes in
// hexadecimal.
std::string choice_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text = format(
      "algorithm %u, tile %u, stages %u, cluster %u, split-k %u: ", attribute_of(algorithm, CUBLASLT_ALGO_CONFIG_ID),
      attribute_of(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), attribute_of(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
      attribute_of(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, sizeof(uint16_t)),
      attribute_of(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
  for (const uint64_t word : algorithm.data) text += format("%016llx", (unsigned long long)word);
  return text;
}

// Reads the algorithm from the text of choice_of(). Returns false if the text does not end in its hexadecimal digits.
bool read_choice(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  constexpr size_t kDigits = 16, kWords = std::size(cublasLtMatmulAlgo_t{}.data);
  if (text.size() < kWords * kDigits) return false;
  const std::string digits = text.substr(text.size() - kWords * kDigits);
  if (digits.find_first_not_of("0123456789abcdef") != digits.npos) return false;
  for (size_t i = 0; i < kWords; ++i)
    algorithm.data[i] = strtoull(digits.substr(i * kDigits, kDigits).c_str(), nullptr, 16);
  return true;
}

void require_aligned(const char* product, std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers)
    REQUIRE(pointer && reinterpret_cast<uintptr_t>(pointer) % Matmul::kAlignment == 0,
            "%s: a tensor at %p is not %zu-byte aligned", product, pointer, Matmul::kAlignment);
}

}  // namespace

struct Matmul::State {
  Stream& stream;
  std::byte* workspace;
  Options options;
  cublasLtHandle_t handle = nullptr;
  std::map<MatmulShape, Plan> plans;
  ProductTuner tuner;

  ~State() {
    forget_plans();
    if (handle) cublasLtDestroy(handle);
  }
  void forget_plans() {
    for (auto& [shape, plan] : plans) destroy(plan);
    plans.clear();
  }
  void destroy(const Plan& plan) {
    if (plan.operation) cublasLtMatmulDescDestroy(plan.operation);
    for (const cublasLtMatrixLayout_t layout : {plan.a, plan.b, plan.d})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
  }
  // Creates the descriptors of such a product. `factors_*`: only for FP8 operands.
  void describe(Plan& plan, const MatmulShape& shape, const float* scale_inv_a, const float* scale_inv_b);
  // Appends up to `count` algorithms for the plan, the default first. Returns the reason if there is none.
  cublasStatus_t find_algorithms(const Plan& plan, int count, std::vector<cublasLtMatmulAlgo_t>& algorithms);
  cublasStatus_t make_plan(Plan& plan, const MatmulShape& shape, const float* scale_inv_a, const float* scale_inv_b);
  void take_choice(Plan& plan, const MatmulShape& shape, const std::string& choice);
  Plan& plan_for(const MatmulShape& shape, const float* scale_inv_a, const float* scale_inv_b);
  void set_scale_inv(const Plan& plan, const float* scale_inv_a, const float* scale_inv_b);
  MatmulShape::Type type(DType type) const {
    return options.tf32 && type == DType::fp32 ? MatmulShape::Type::tf32 : MatmulShape::type(type);
  }
  // Returns the shape of operands as they lie in memory, in cuBLASLt's column-major terms. The result may have another
  // type.
  MatmulShape shape_of(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
                       int64_t ldd, DType operands, DType result, bool accumulate = false) const {
    return {transpose_a, transpose_b, m, n, k, lda, ldb, ldd, type(operands), type(operands), MatmulShape::type(result),
            accumulate};
  }
  // d = alpha op(a) op(b) + beta c. The shape says whether beta is 0.
  struct Arguments {
    const void *a, *b;
    void* d;
    const float *scale_inv_a = nullptr, *scale_inv_b = nullptr;
    float alpha = 1, beta = 1;
    const void* c = nullptr;  // null: d itself
  };
  void run(const Work& work, const MatmulShape& shape, const Arguments& arguments);
};

// The row-major out[a.rows, b.rows] is outᵀ, b.rows x a.rows, = b (aᵀ). So b is cuBLASLt's A.
static MatmulShape shape_of(const QuantizedTensor& a, const QuantizedTensor& b, DType result, bool accumulate,
                            bool fast) {
  return {true,
          false,
          b.rows,
          a.rows,
          a.stride(),
          b.stride(),
          a.stride(),
          b.rows,
          MatmulShape::type(b.format),
          MatmulShape::type(a.format),
          MatmulShape::type(result),
          accumulate,
          b.scaling,
          a.scaling,
          fast};
}

void Matmul::State::set_scale_inv(const Plan& plan, const float* scale_inv_a, const float* scale_inv_b) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale_inv_a,
                                              sizeof scale_inv_a));
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale_inv_b,
                                              sizeof scale_inv_b));
}

void Matmul::State::describe(Plan& plan, const MatmulShape& s, const float* scale_inv_a, const float* scale_inv_b) {
  const cublasComputeType_t compute =
      s.a == MatmulShape::Type::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan.operation, compute, CUDA_R_32F));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.operation, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (s.quantized()) {
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(s.fast));
#if CUBLAS_VERSION >= 120900
    if (knows_scale_modes()) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t(scale_mode(s.scaling_a)));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t(scale_mode(s.scaling_b)));
    }
#endif
    set_scale_inv(plan, scale_inv_a, scale_inv_b);
  }
  CUBLAS_CHECK(
      cublasLtMatrixLayoutCreate(&plan.a, cuda_type(s.a), s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.lda));
  CUBLAS_CHECK(
      cublasLtMatrixLayoutCreate(&plan.b, cuda_type(s.b), s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n, s.ldb));
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.d, cuda_type(s.d), s.m, s.n, s.ldd));
}

cublasStatus_t Matmul::State::find_algorithms(const Plan& plan, int count,
                                              std::vector<cublasLtMatmulAlgo_t>& algorithms) {
  cublasLtMatmulPreference_t preference;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Matmul::kWorkspaceBytes);
  // If an algorithm splits the sum over k, its parts are added in fp32, never in the type of the result.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(which, uint32_t(kAlignment));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
  int number = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                                               preference, count, found.data(), &number);
  cublasLtMatmulPreferenceDestroy(preference);
  found.resize(size_t(number));
  for (const cublasLtMatmulHeuristicResult_t& result : found)
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  return status == CUBLAS_STATUS_SUCCESS && algorithms.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

cublasStatus_t Matmul::State::make_plan(Plan& plan, const MatmulShape& s, const float* scale_inv_a,
                                        const float* scale_inv_b) {
  describe(plan, s, scale_inv_a, scale_inv_b);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  const cublasStatus_t status = find_algorithms(plan, 1, algorithms);
  if (!algorithms.empty()) plan.algorithm = algorithms.front();
  return status;
}

// Checks a file's choice before it runs, and throws if it does not fit. The library must support it for this shape with
// our workspace, and it must add in fp32.
void Matmul::State::take_choice(Plan& plan, const MatmulShape& shape, const std::string& choice) {
  cublasLtMatmulHeuristicResult_t checked{};
  const bool fits = read_choice(choice, plan.algorithm) &&
                    cublasLtMatmulAlgoCheck(handle, plan.operation, plan.a, plan.b, plan.d, plan.d, &plan.algorithm,
                                            &checked) == CUBLAS_STATUS_SUCCESS &&
                    checked.workspaceSize <= kWorkspaceBytes;
  const uint32_t sums = fits ? attribute_of(plan.algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) : 0;
  REQUIRE(fits && (sums & ~uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) == 0,
          "the tuning's choice \"%s\" for the product %s is none of %s\n  --tune-products writes a new one",
          choice.c_str(), shape.text().c_str(), description().c_str());
}

Plan& Matmul::State::plan_for(const MatmulShape& s, const float* scale_inv_a, const float* scale_inv_b) {
  const auto found = plans.find(s);
  if (found != plans.end()) return found->second;
  Plan& plan = plans[s];
  const cublasStatus_t status = make_plan(plan, s, scale_inv_a, scale_inv_b);
  REQUIRE(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt has no algorithm for the product %s: %s", s.text().c_str(),
          cublasLtGetStatusString(status));
  if (const std::string* choice = tuner.choice(s)) take_choice(plan, s, *choice);
  return plan;
}

void Matmul::State::run(const Work& work, const MatmulShape& shape, const Arguments& given) {
  const RecordedWork recorded(work);
  if (!recorded.executes()) return;
  const bool first = !plans.contains(shape);
  Plan& plan = plan_for(shape, given.scale_inv_a, given.scale_inv_b);
  if (shape.quantized()) set_scale_inv(plan, given.scale_inv_a, given.scale_inv_b);
  const float beta = shape.accumulate ? given.beta : 0;
  const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return cublasLtMatmul(handle, plan.operation, &given.alpha, given.a, plan.a, given.b, plan.b, &beta,
                          given.c ? given.c : given.d, plan.d, given.d, plan.d, &algorithm, workspace,
                          Matmul::kWorkspaceBytes, cuda_stream(stream));
  };
  if (tuner.timing && first) {
    std::vector<cublasLtMatmulAlgo_t> algorithms = {plan.algorithm}, all;
    find_algorithms(plan, kCandidates, all);
    for (const cublasLtMatmulAlgo_t& algorithm : all)
      if (memcmp(&algorithm, &plan.algorithm, sizeof algorithm) != 0 && multiply(algorithm) == CUBLAS_STATUS_SUCCESS)
        algorithms.push_back(algorithm);
    std::vector<std::string> names;
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms) names.push_back(choice_of(algorithm));
    plan.algorithm = algorithms[size_t(
        tuner.time(stream, shape, std::move(names), [&](int i) { CUBLAS_CHECK(multiply(algorithms[size_t(i)])); }))];
  }
  if (tuner.timing) ++tuner.timed[shape].calls;
  CUBLAS_CHECK(multiply(plan.algorithm));
}

Matmul::Matmul(Stream& stream, std::byte* workspace, Options options)
    : state_(new State{stream, workspace, options, nullptr, {}, {}}) {
  require_aligned("the workspace of matrix products", {workspace});
  if (stream.device().executes()) CUBLAS_CHECK(cublasLtCreate(&state_->handle));
}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;

size_t Matmul::workspace_bytes(const DeviceInfo&) { return kWorkspaceBytes; }

std::string Matmul::description() {
  const size_t version = cublasLtGetVersion();  // 130002 means 13.0.2
  return format("cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

TunedFor Matmul::tuned_for(const DeviceInfo& device) { return {device.name, device.compute_capability, description()}; }

void Matmul::use(const Tuning& tuning) {
  state_->tuner.use(tuning);
  state_->forget_plans();
}

size_t Matmul::unused_choices() const { return state_->tuner.unused.size(); }

void Matmul::begin_timing(std::function<void()> wait) {
  REQUIRE(state_->handle, "products were to be timed on a device that is modelled");
  state_->forget_plans();
  state_->tuner.begin(std::move(wait));
}

Tuning Matmul::end_timing() {
  state_->forget_plans();
  return state_->tuner.end(tuned_for(state_->stream.device().info()));
}

void Matmul::forward(const Tensor& out, const Tensor& in, const Tensor& weight) {
  const LinearProduct p = forward_product(state_->stream, out, in, weight, state_->options.tf32);
  require_aligned(p.work.name, {out.data, in.data, weight.data});
  // outᵀ[OC,N] = W[OC,IC] inᵀ[IC,N]
  state_->run(p.work, state_->shape_of(true, false, p.OC, p.N, p.IC, p.IC, p.IC, p.stride, p.operands, p.result),
              {weight.data, in.data, out.data});
}

void Matmul::dgrad(const Tensor& din, const Tensor& dout, const Tensor& weight) {
  const LinearProduct p = dgrad_product(state_->stream, din, dout, weight, state_->options.tf32);
  require_aligned(p.work.name, {din.data, dout.data, weight.data});
  // dinᵀ[IC,N] = Wᵀ[IC,OC] doutᵀ[OC,N]
  state_->run(p.work, state_->shape_of(false, false, p.IC, p.N, p.OC, p.IC, p.stride, p.IC, p.operands, p.result),
              {weight.data, dout.data, din.data});
}

void Matmul::wgrad(const Tensor& dweight, const Tensor& dout, const Tensor& in, bool accumulate) {
  const LinearProduct p = wgrad_product(state_->stream, dweight, dout, in, accumulate, state_->options.tf32);
  require_aligned(p.work.name, {dweight.data, dout.data, in.data});
  // dWᵀ[IC,OC] = inᵀ[IC,N] dout[N,OC]
  state_->run(p.work,
              state_->shape_of(false, true, p.IC, p.OC, p.N, p.IC, p.stride, p.IC, p.operands, p.result, accumulate),
              {in.data, dout.data, dweight.data});
}

void Matmul::gemm(const Tensor& out, const Factor& a, const Factor& b, float alpha, float beta, const Tensor& addend) {
  const GeneralProduct p = general_product(state_->stream, out, a, b, beta, addend, state_->options.tf32);
  require_aligned(p.work.name, {out.data, a.matrix.data, b.matrix.data, p.adds ? addend.data : out.data});
  // outᵀ[N,M] = op(b)ᵀ[N,K] op(a)ᵀ[K,M]
  state_->run(p.work,
              state_->shape_of(b.transposed, a.transposed, p.N, p.M, p.K, b.matrix.columns(), a.matrix.columns(), p.N,
                               p.operands, p.result, p.adds),
              {b.matrix.data, a.matrix.data, out.data, nullptr, nullptr, alpha, beta, addend.data});
}

void Matmul::multiply(const char* name, const Tensor& out, const QuantizedTensor& a, const QuantizedTensor& b,
                      bool accumulate, bool fast) {
  require_operands(name, out, a, b, accumulate);
  require_aligned(name, {out.data, a.data, b.data});
  state_->run(quantized_work(state_->stream, name, out, a, b, accumulate), ::shape_of(a, b, out.type, accumulate, fast),
              {b.data, a.data, out.data, b.scale_inv, a.scale_inv});
}

std::string Matmul::unsupported_reason(const QuantizedTensor& a, const QuantizedTensor& b, DType result,
                                       bool accumulate, bool fast) {
  if (scale_mode(a.scaling) < 0 || scale_mode(b.scaling) < 0)
    return format(
        "cuBLASLt multiplies by scales of rows or blocks from CUDA 12.9 on; this program was compiled with %d.%d.%d, "
        "and runs with %s: build it with CUDA 12.9 or later, and let that one's library be found first",
        CUBLAS_VERSION / 10000, CUBLAS_VERSION / 100 % 100, CUBLAS_VERSION % 100, description().c_str());
  if (!state_->handle) return known_refusal(state_->stream.device().info(), a, b);
  Plan plan;
  const cublasStatus_t status =
      state_->make_plan(plan, ::shape_of(a, b, result, accumulate, fast), a.scale_inv, b.scale_inv);
  state_->destroy(plan);
  if (status == CUBLAS_STATUS_SUCCESS) return "";
  return format("cuBLASLt multiplies no %s with %s to %s%s%s here (%s, %s): %s", format_name(a.format),
                format_name(b.format), dtype_name(result), accumulate ? ", adding," : "", fast ? ", fast," : "",
                scaling_name(a.scaling), scaling_name(b.scaling), cublasLtGetStatusString(status));
}
