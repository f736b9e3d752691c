// Matrix products in the CPU backend. OpenBLAS (or plain loops without it) computes parts of the output, which are
// spread over the device's threads. bf16 operands are widened to fp32 first, and the result is rounded once.
#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/cpu_stream.h"
#include "llmc/device/number.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/matmul_work.h"
#include "llmc/kernels/tuning.h"

#if LLMC_OPENBLAS
#include <cblas.h>
#endif

namespace {

// C[M,N] = alpha op(A) op(B) + beta C, row-major. op transposes a matrix that is stored transposed. With beta 0, C is
// not read.
struct Product {
  bool transpose_a, transpose_b;
  int M, N, K;
  const float* a;
  int lda;
  const float* b;
  int ldb;
  float* c;
  int ldc;
  float beta = 0, alpha = 1;
};

// Adds in the order of k, however many rows and columns there are. A product of two fp32 values is exact in double, so
// with Sum = double only the additions round.
template <class Sum>
void multiply_by_loops(const Product& p) {
  const size_t N = size_t(p.N);
  std::vector<Sum> b(size_t(p.K) * N), row(N);  // op(B), row-major, and one row of C
  for (size_t k = 0; k < size_t(p.K); ++k)
    for (size_t j = 0; j < N; ++j) b[k * N + j] = p.b[p.transpose_b ? j * size_t(p.ldb) + k : k * size_t(p.ldb) + j];
  for (int i = 0; i < p.M; ++i) {
    std::fill(row.begin(), row.end(), Sum(0));
    for (int k = 0; k < p.K; ++k) {
      const Sum a = p.transpose_a ? p.a[size_t(k) * p.lda + i] : p.a[size_t(i) * p.lda + k];
      for (size_t j = 0; j < N; ++j) row[j] += a * b[size_t(k) * N + j];
    }
    float* c = p.c + size_t(i) * p.ldc;
    for (size_t j = 0; j < N; ++j) c[j] = float(p.alpha * row[j] + (p.beta != 0 ? p.beta * Sum(c[j]) : Sum(0)));
  }
}

#if LLMC_OPENBLAS

void multiply(const Product& p) {
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans, p.M,
              p.N, p.K, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
}

#else

void multiply(const Product& p) { multiply_by_loops<float>(p); }

#endif

// How the output is cut into parts, each of which is a product of its own. Tuning chooses the cut. The bits of the
// result depend on the cut, but not on how many threads share the parts. Files of tunings say "pieces" for parts.
struct Cut {
  int rows, columns;  // of one part
  bool operator==(const Cut&) const = default;
  std::string text() const { return format("pieces of %d x %d", rows, columns); }
};

// Returns parts of whole rows or whole columns, with about 2^22 multiplications each. No part is narrow, because each
// part packs the whole other operand anew.
Cut default_cut(int M, int N, int K) {
  const bool rowwise = M >= N;
  const int extent = rowwise ? M : N;
  const double work = double(M) * N * K;
  const int wanted = int(std::clamp(work / double(1 << 22), 1.0, 64.0));
  const int size = std::min(extent, std::max(64, ((extent + wanted - 1) / wanted + 15) / 16 * 16));
  return rowwise ? Cut{size, N} : Cut{M, size};
}

// Returns the default cut and up to 28 others: rows halved i times and columns j times, with i + j <= 6.
std::vector<Cut> cuts(int M, int N, int K) {
  const auto part = [](int extent, int halved) {
    return std::min(extent, (((extent + (1 << halved) - 1) >> halved) + 15) / 16 * 16);
  };
  std::vector<Cut> cuts = {default_cut(M, N, K)};
  for (int i = 0; i <= 6; ++i)
    for (int j = 0; i + j <= 6; ++j) {
      const Cut cut{part(M, i), part(N, j)};
      if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
    }
  return cuts;
}

Cut cut_named(const std::string& text, int M, int N) {
  Cut cut{};
  int end = 0;
  const bool read = sscanf(text.c_str(), "pieces of %d x %d%n", &cut.rows, &cut.columns, &end) == 2;
  REQUIRE(
      read && size_t(end) == text.size() && cut.rows > 0 && cut.rows <= M && cut.columns > 0 && cut.columns <= N,
      "the tuning's choice \"%s\" for a product of %d x %d is none: it was changed\n  --tune-products writes a new one",
      text.c_str(), M, N);
  return cut;
}

void multiply_in_parts(Device& device, const Product& p, Cut cut) {
  const auto product = cpu_backend::backend_of(device).exact_products ? multiply_by_loops<double> : multiply;
  const int down = (p.M + cut.rows - 1) / cut.rows, across = (p.N + cut.columns - 1) / cut.columns;
  cpu_backend::parallel_for(device, size_t(down) * size_t(across), [&](size_t i) {
    const int row = int(i) / across * cut.rows, column = int(i) % across * cut.columns;
    Product part = p;
    part.M = std::min(cut.rows, p.M - row);
    part.N = std::min(cut.columns, p.N - column);
    part.a += p.transpose_a ? size_t(row) : size_t(row) * p.lda;
    part.b += p.transpose_b ? size_t(column) * p.ldb : size_t(column);
    part.c += size_t(row) * p.ldc + column;
    product(part);
  });
}

constexpr size_t kRowsAtOnce = 64;

// Calls body(row) for all rows, shared out over the device's threads.
template <class Body>
void for_rows(Device& device, size_t rows, const Body& body) {
  cpu_backend::parallel_for(device, (rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](size_t part) {
    for (size_t r = part * kRowsAtOnce; r < std::min(rows, (part + 1) * kRowsAtOnce); ++r) body(r);
  });
}

// Copies a matrix of fp32 or bf16 as fp32, with the same stride.
void copy_widened(Device& device, float* to, const Tensor& t) {
  const size_t rows = size_t(t.rows()), columns = size_t(t.columns()), stride = size_t(t.row_stride());
  with_type("a matrix product", t.type, [&](auto number) {
    const auto* data = t.as<decltype(number)>();
    for_rows(device, rows, [&](size_t r) {
      for (size_t c = 0; c < columns; ++c) to[r * stride + c] = to_float(data[r * stride + c]);
    });
  });
}

// Returns a matrix of bf16 as fp32 in `scratch`; returns fp32 as it is.
const float* widened(Device& device, std::vector<float>& scratch, const Tensor& t) {
  if (t.type == DType::fp32) return t.as<float>();
  const size_t size = size_t(t.rows()) * size_t(t.row_stride());
  if (scratch.size() < size) scratch.resize(size);
  copy_widened(device, scratch.data(), t);
  return scratch.data();
}

// Returns the memory to which a product with the result `t` is computed: `scratch` if it must be rounded afterwards.
float* output(std::vector<float>& scratch, const Tensor& t) {
  if (t.type == DType::fp32) return t.as<float>();
  const size_t size = size_t(t.rows()) * size_t(t.row_stride());
  if (scratch.size() < size) scratch.resize(size);
  return scratch.data();
}

void round_output(Device& device, const Tensor& t, const float* from) {
  if (t.type == DType::fp32) return;
  bf16* out = t.as<bf16>();
  const size_t columns = size_t(t.columns()), stride = size_t(t.row_stride());
  for_rows(device, size_t(t.rows()), [&](size_t r) {
    for (size_t c = 0; c < columns; ++c) out[r * stride + c] = from_float<bf16>(from[r * stride + c]);
  });
}

// Returns the values of an FP8 operand times their scale_inv as fp32 in `scratch`, (rows, stride).
const float* decoded(Device& device, std::vector<float>& scratch, const QuantizedTensor& t) {
  static const std::vector<float> values = [] {
    std::vector<float> values(512);
    for (int i = 0; i < 256; ++i)
      values[size_t(i)] = fp8_value(uint8_t(i), 4), values[256 + size_t(i)] = fp8_value(uint8_t(i), 5);
    return values;
  }();
  const float* value = values.data() + (t.format == Fp8Format::e5m2 ? 256 : 0);
  const size_t rows = size_t(t.rows), stride = size_t(t.stride());
  if (scratch.size() < rows * stride) scratch.resize(rows * stride);
  for_rows(device, rows, [&](size_t r) {
    for (size_t first = 0; first < stride; first += QuantizedTensor::kBlock) {
      const float factor = t.scale_inv[t.scale_inv_at(int(r), int(first))];
      for (size_t c = first; c < std::min(stride, first + QuantizedTensor::kBlock); ++c)
        scratch[r * stride + c] = value[t.data[r * stride + c]] * factor;
    }
  });
  return scratch.data();
}

}  // namespace

struct Matmul::State {
  Stream& stream;
  const Options options;       // tf32 sets the rate that products declare when a GPU is modelled
  std::vector<float> a, b, c;  // fp32 copies of bf16 and FP8 operands, and of bf16 results
  ProductTuner tuner;
  std::map<MatmulShape, Cut> plans;

  // Enqueues `task`, which computes a product of this shape with the cut that it receives.
  void run(const Work& work, const MatmulShape& shape, const std::function<void(Cut)>& task) {
    const auto enqueue = [&](Cut cut) { cpu_backend::enqueue(work, [task, cut] { task(cut); }); };
    const int M = int(shape.m), N = int(shape.n), K = int(shape.k);
    auto plan = plans.find(shape);
    if (plan == plans.end()) {
      const std::string* chosen = tuner.choice(shape);
      plan = plans.emplace(shape, chosen ? cut_named(*chosen, M, N) : default_cut(M, N, K)).first;
      if (tuner.timing) {
        const std::vector<Cut> candidates = cuts(M, N, K);
        std::vector<std::string> names;
        for (const Cut& cut : candidates) names.push_back(cut.text());
        const int fastest = tuner.time(stream, shape, std::move(names), [&](int i) { enqueue(candidates[size_t(i)]); });
        plan->second = candidates[size_t(fastest)];
      }
    }
    if (tuner.timing) ++tuner.timed[shape].calls;
    enqueue(plan->second);
  }
};

Matmul::Matmul(Stream& stream, std::byte*, Options options) : state_(new State{stream, options, {}, {}, {}, {}, {}}) {
#if LLMC_OPENBLAS
  openblas_set_num_threads(1);  // the device's threads share the parts
#endif
}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;

size_t Matmul::workspace_bytes(const DeviceInfo& device) { return device.gpu ? kWorkspaceBytes : 0; }

std::string Matmul::description() {
#if LLMC_OPENBLAS
  std::string config = openblas_get_config();
  return config.substr(0, config.find(' ', sizeof "OpenBLAS"));
#else
  return "plain loops, many times slower than OpenBLAS: install libopenblas-dev and build again";
#endif
}

TunedFor Matmul::tuned_for(const DeviceInfo&) {
  std::string library = description();
#if LLMC_OPENBLAS
  library += format(" for %s", openblas_get_corename());
#endif
  return {"CPU", 0, library};
}

void Matmul::use(const Tuning& tuning) {
  state_->tuner.use(tuning);
  state_->plans.clear();
}

size_t Matmul::unused_choices() const { return state_->tuner.unused.size(); }

void Matmul::begin_timing(std::function<void()> wait) {
  REQUIRE(state_->stream.device().executes(), "products were to be timed on a device that is modelled");
  state_->plans.clear();
  state_->tuner.begin(std::move(wait));
}

Tuning Matmul::end_timing() {
  state_->plans.clear();
  return state_->tuner.end(tuned_for(state_->stream.device().info()));
}

// Returns the shape of the product of these row-major operands.
static MatmulShape shape_of(bool transpose_a, bool transpose_b, int M, int N, int K, int lda, int ldb, int ldc,
                            DType operands, DType result, bool accumulate = false) {
  return {transpose_a,
          transpose_b,
          M,
          N,
          K,
          lda,
          ldb,
          ldc,
          MatmulShape::type(operands),
          MatmulShape::type(operands),
          MatmulShape::type(result),
          accumulate};
}

void Matmul::forward(const Tensor& out, const Tensor& in, const Tensor& weight) {
  State& s = *state_;
  const LinearProduct p = forward_product(s.stream, out, in, weight, s.options.tf32);
  const int N = p.N, OC = p.OC, IC = p.IC, stride = p.stride;
  const MatmulShape shape = shape_of(false, true, N, OC, IC, IC, IC, stride, p.operands, p.result);
  s.run(p.work, shape, [=, &s](Cut cut) {
    Device& device = s.stream.device();
    const float *a = widened(device, s.a, in), *b = widened(device, s.b, weight);
    float* c = output(s.c, out);
    multiply_in_parts(device, {false, true, N, OC, IC, a, IC, b, IC, c, stride}, cut);
    round_output(device, out, c);
  });
}

void Matmul::dgrad(const Tensor& din, const Tensor& dout, const Tensor& weight) {
  State& s = *state_;
  const LinearProduct p = dgrad_product(s.stream, din, dout, weight, s.options.tf32);
  const int N = p.N, OC = p.OC, IC = p.IC, stride = p.stride;
  const MatmulShape shape = shape_of(false, false, N, IC, OC, stride, IC, IC, p.operands, p.result);
  s.run(p.work, shape, [=, &s](Cut cut) {
    Device& device = s.stream.device();
    const float *a = widened(device, s.a, dout), *b = widened(device, s.b, weight);
    float* c = output(s.c, din);
    multiply_in_parts(device, {false, false, N, IC, OC, a, stride, b, IC, c, IC}, cut);
    round_output(device, din, c);
  });
}

void Matmul::wgrad(const Tensor& dweight, const Tensor& dout, const Tensor& in, bool accumulate) {
  State& s = *state_;
  const LinearProduct p = wgrad_product(s.stream, dweight, dout, in, accumulate, s.options.tf32);
  const int N = p.N, OC = p.OC, IC = p.IC, stride = p.stride;
  const MatmulShape shape = shape_of(true, false, OC, IC, N, stride, IC, IC, p.operands, p.result, accumulate);
  s.run(p.work, shape, [=, &s](Cut cut) {
    Device& device = s.stream.device();
    const float *a = widened(device, s.a, dout), *b = widened(device, s.b, in);
    float* c = dweight.as<float>();
    multiply_in_parts(device, {true, false, OC, IC, N, a, stride, b, IC, c, IC, accumulate ? 1.0f : 0.0f}, cut);
  });
}

void Matmul::gemm(const Tensor& out, const Factor& a, const Factor& b, float alpha, float beta, const Tensor& addend) {
  State& s = *state_;
  const GeneralProduct p = general_product(s.stream, out, a, b, beta, addend, s.options.tf32);
  const int M = p.M, N = p.N, K = p.K, lda = int(a.matrix.columns()), ldb = int(b.matrix.columns());
  const MatmulShape shape = shape_of(a.transposed, b.transposed, M, N, K, lda, ldb, N, p.operands, p.result, p.adds);
  s.run(p.work, shape, [=, &s, x = a.matrix, y = b.matrix, ta = a.transposed, tb = b.transposed](Cut cut) {
    Device& device = s.stream.device();
    const float *left = widened(device, s.a, x), *right = widened(device, s.b, y);
    float* c = output(s.c, out);
    if (beta != 0 && c != addend.data) copy_widened(device, c, addend);
    multiply_in_parts(device, {ta, tb, M, N, K, left, lda, right, ldb, c, N, beta, alpha}, cut);
    round_output(device, out, c);
  });
}

void Matmul::multiply(const char* name, const Tensor& out, const QuantizedTensor& a, const QuantizedTensor& b,
                      bool accumulate, bool) {
  require_operands(name, out, a, b, accumulate);
  State& s = *state_;
  MatmulShape shape = shape_of(false, true, a.rows, b.rows, a.stride(), a.stride(), b.stride(), b.rows, DType::bf16,
                               out.type, accumulate);
  shape.a = MatmulShape::type(a.format), shape.b = MatmulShape::type(b.format);
  shape.scaling_a = a.scaling, shape.scaling_b = b.scaling;
  s.run(quantized_work(s.stream, name, out, a, b, accumulate), shape, [=, &s](Cut cut) {
    Device& device = s.stream.device();
    const float *x = decoded(device, s.a, a), *y = decoded(device, s.b, b);
    float* c = output(s.c, out);
    multiply_in_parts(
        device,
        {false, true, a.rows, b.rows, a.stride(), x, a.stride(), y, b.stride(), c, b.rows, accumulate ? 1.0f : 0.0f},
        cut);
    round_output(device, out, c);
  });
}

std::string Matmul::unsupported_reason(const QuantizedTensor& a, const QuantizedTensor& b, DType, bool, bool) {
  return known_refusal(state_->stream.device().info(), a, b);
}
