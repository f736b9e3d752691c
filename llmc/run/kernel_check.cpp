#include "llmc/run/kernel_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/device/bounded_wait.cuh"
#include "llmc/kernels/fp8_matmul.h"
#include "llmc/kernels/quantize.h"

namespace {

// A debug build's kernels end by themselves when they wait in vain, and say for what (bounded_wait.cuh).
constexpr double kSecondsToEnd = LLMC_BOUNDED_WAITS ? 60 : 10;

// What the cases share: a stream, memory that is freed at the end, and numbers.
class Bench {
 public:
  // `hangs`: the error of kernels that do not end.
  Bench(Device& device, std::string hangs) : device_(device), hangs_(std::move(hangs)), stream(device, "check") {}

  // Waits for the kernels. A first launch may take its time, for it loads the kernel; then they must be quick.
  void wait() {
    const Deadline deadline(kSecondsToEnd, hangs_, ExitCode::unexpected);  // as of kernels that compute nonsense
    stream.synchronize();
  }

  // A tensor of random numbers of about the size of `scale`, which the host has too, rounded as the device has them.
  Tensor random(DType type, TensorShape shape, std::vector<double>& values,
                const std::function<float(int64_t)>& scale) {
    const Tensor tensor = empty(type, shape);
    values.resize(size_t(tensor.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      // The sum of two uniform numbers from -0.5 to 0.5.
      const auto [words] = philox(next_++, 0, 1);
      values[i] = ((words[0] >> 8) * 0x1p-24 + (words[1] >> 8) * 0x1p-24 - 1) * double(scale(int64_t(i)));
    }
    with_type("check", type, [&](auto number) {
      using T = decltype(number);
      std::vector<T> rounded;
      for (double& x : values) rounded.push_back(from_float<T>(float(x))), x = double(to_float(rounded.back()));
      copy(stream, tensor.as<T>(), rounded.data(), rounded.size());
      stream.synchronize();
    });
    return tensor;
  }
  Tensor empty(DType type, TensorShape shape) {
    const Tensor sized(static_cast<void*>(nullptr), type, shape);
    memory_.emplace_back(device_, sized.span_bytes());
    return Tensor(memory_.back().data(), type, shape);
  }
  std::byte* bytes(size_t count) {
    memory_.emplace_back(device_, count);
    return memory_.back().data();
  }
  std::vector<double> download(const Tensor& tensor) {
    wait();
    std::vector<double> values;
    with_type("check", tensor.type, [&](auto number) {
      using T = decltype(number);
      std::vector<T> here(size_t(tensor.size()));
      copy(stream, here.data(), tensor.as<T>(), here.size());
      stream.synchronize();
      for (const T x : here) values.push_back(double(to_float(x)));
    });
    return values;
  }

 private:
  Device& device_;
  const std::string hangs_;
  std::vector<DeviceMemory> memory_;
  uint32_t next_ = 1;

 public:
  Stream stream;
};

// Returns the largest difference, in parts of the largest wanted value; infinity if `got` has a NaN.
double largest_error(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = std::fabs(got[i] - want[i]);
    error = e >= 0 ? std::max(error, e) : std::numeric_limits<double>::infinity();
    size = std::max(size, std::fabs(want[i]));
  }
  return error / size;
}

// ---------------------------------------------------------------------------------------------- attention

constexpr int kTokens = 160, kHeads = 2;  // more than a tile of queries and of keys, in no kernel a multiple of one

struct Attention {
  std::vector<double> q, k, v, dout;         // the inputs
  std::vector<double> out, lse, dq, dk, dv;  // the reference
};

// The formulas at the head of attention.h, with one key and value head for both query heads.
void compute_reference(Attention& a, int HD) {
  const size_t T = kTokens, C = size_t(HD);
  a.out.assign(T * kHeads * C, 0), a.dq = a.out, a.dk.assign(T * C, 0), a.dv = a.dk, a.lse.assign(kHeads * T, 0);
  std::vector<double> p(T), dp(T);
  for (size_t h = 0; h < kHeads; ++h)
    for (size_t t = 0; t < T; ++t) {
      const size_t row = (t * kHeads + h) * C;
      double largest = -std::numeric_limits<double>::infinity(), sum = 0, rowsum_dO_O = 0;
      for (size_t j = 0; j <= t; ++j) {
        double s = 0;
        dp[j] = 0;
        for (size_t c = 0; c < C; ++c) s += a.q[row + c] * a.k[j * C + c], dp[j] += a.dout[row + c] * a.v[j * C + c];
        p[j] = s / std::sqrt(double(HD));
        largest = std::max(largest, p[j]);
      }
      for (size_t j = 0; j <= t; ++j) sum += p[j] = std::exp(p[j] - largest);
      for (size_t j = 0; j <= t; ++j) p[j] /= sum, rowsum_dO_O += p[j] * dp[j];
      a.lse[h * T + t] = largest + std::log(sum);
      for (size_t j = 0; j <= t; ++j) {
        const double ds = p[j] * (dp[j] - rowsum_dO_O) / std::sqrt(double(HD));
        for (size_t c = 0; c < C; ++c) {
          a.out[row + c] += p[j] * a.v[j * C + c];
          a.dq[row + c] += ds * a.k[j * C + c];
          a.dk[j * C + c] += ds * a.q[row + c];
          a.dv[j * C + c] += p[j] * a.dout[row + c];
        }
      }
    }
}

const char* way_round(AttentionKernel kernel) {
  return kernel == AttentionKernel::hopper ? "--attention mma"
         : kernel == AttentionKernel::mma  ? "--attention plain"
                                           : "";
}

std::string check_attention(Bench& bench, const KernelCheck& check, const std::string& name) {
  const int HD = check.HD;
  Attention a;
  // Scores of the size of a few units, so that some weights are large and some vanish.
  const auto few = [](int64_t) { return 4.0f; };
  const Tensor q = bench.random(check.dtype, {1, kTokens, kHeads, HD}, a.q, few);
  const Tensor k = bench.random(check.dtype, {1, kTokens, 1, HD}, a.k, few);
  const Tensor v = bench.random(check.dtype, {1, kTokens, 1, HD}, a.v, few);
  const Tensor dout = bench.random(check.dtype, {1, kTokens, kHeads, HD}, a.dout, few);
  const Tensor out = bench.empty(check.dtype, {1, kTokens, kHeads, HD}),
               dq = bench.empty(check.dtype, {1, kTokens, kHeads, HD});
  const Tensor dk = bench.empty(check.dtype, {1, kTokens, 1, HD}), dv = bench.empty(check.dtype, {1, kTokens, 1, HD});
  const Tensor lse = bench.empty(DType::fp32, {1, kHeads, kTokens}),
               rowsum_dO_O = bench.empty(DType::fp32, {1, kHeads, kTokens});
  AttentionOptions options;
  options.kernel = check.attention;
  attention_forward(bench.stream, out, lse, q, k, v, options);
  attention_backward(bench.stream, dq, dk, dv, rowsum_dO_O, dout, out, lse, q, k, v, options);
  compute_reference(a, HD);
  // A number in bf16 is off by up to 2^-9 of itself, and some such roundings come together in an output; a wrong tile,
  // sum or mask is off by as much as the output is large. In fp32 the roundings are 2^-24, over sums of 160.
  const double limit = check.dtype == DType::bf16 ? 0.03 : 1e-4;
  const std::pair<const char*, double> errors[] = {{"out", largest_error(bench.download(out), a.out)},
                                                   {"lse", largest_error(bench.download(lse), a.lse)},
                                                   {"dq", largest_error(bench.download(dq), a.dq)},
                                                   {"dk", largest_error(bench.download(dk), a.dk)},
                                                   {"dv", largest_error(bench.download(dv), a.dv)}};
  for (const auto& [what, error] : errors)
    if (!(error <= limit))
      return format("%s: %s is wrong by %.3g of its largest value, and %g is what rounding explains", name.c_str(),
                    what, error, limit);
  return "";
}

// ---------------------------------------------------------------------------------------------- FP8

constexpr int kN = 256, kOC = 384, kIC = 256;  // of y[N, OC] = x[N, IC] Wᵀ

struct Matrix {
  Tensor tensor;               // (rows, columns), bf16
  std::vector<double> values;  // the same on the host
  int rows, columns;

  double at(int i, int j, bool transposed) const {
    return values[transposed ? size_t(j) * size_t(columns) + size_t(i) : size_t(i) * size_t(columns) + size_t(j)];
  }
};

// Rows and blocks of columns have sizes of their own, so that a factor at a wrong place shows.
Matrix random_matrix(Bench& bench, int rows, int columns) {
  Matrix m{{}, {}, rows, columns};
  m.tensor = bench.random(DType::bf16, {rows, columns}, m.values, [&](int64_t i) {
    const int row = int(i / columns), column = int(i % columns);
    return std::ldexp(1.0f, row / 128 + column / 128 + row % 4);
  });
  return m;
}

QuantizedTensor quantized(Bench& bench, const Fp8Settings& fp8, Role role, const Matrix& m, bool columnwise) {
  QuantizedTensor operand = fp8.operand(role, columnwise, m.rows, m.columns);
  operand.data = reinterpret_cast<uint8_t*>(bench.bytes(operand.bytes()));
  operand.scale_inv = reinterpret_cast<float*>(bench.bytes(operand.scale_inv_count() * sizeof(float)));
  Quantization q;
  (columnwise ? q.columnwise : q.rowwise) = operand;
  q.power_of_two = fp8.power_of_two;
  const Tensor amax = bench.empty(DType::fp32, {1 + m.rows + m.columns});
  clear(bench.stream, amax);
  q.amax = amax.as<float>();
  q.row_amax = amax.elements(1, m.rows), q.column_amax = amax.elements(1 + m.rows, m.columns);
  if (q.needs_amax()) quantize_amax(bench.stream, m.tensor, q);
  quantize(bench.stream, m.tensor, q);
  return operand;
}

// One product out = a bᵀ. The error of each element is measured in the lengths of the two rows that it is the product
// of.
std::string check_product(Bench& bench, Matmul& matmul, const Fp8Settings& fp8, const char* name, Role role_a,
                          const Matrix& a, bool transpose_a, Role role_b, const Matrix& b, bool transpose_b,
                          bool forward) {
  const QuantizedTensor qa = quantized(bench, fp8, role_a, a, transpose_a);
  const QuantizedTensor qb = quantized(bench, fp8, role_b, b, transpose_b);
  const Tensor out = bench.empty(DType::fp32, {qa.rows, qb.rows});
  const size_t scratch = fp8_matmul_scratch(qa, qb, sizeof(float));
  fp8_matmul(bench.stream, matmul, name, out, qa, qb, false, fp8.fast_accumulation(forward),
             scratch ? bench.bytes(scratch) : nullptr);
  const std::vector<double> got = bench.download(out);
  double worst = 0;
  for (int i = 0; i < qa.rows; ++i)
    for (int j = 0; j < qb.rows; ++j) {
      double want = 0, length_a = 0, length_b = 0;
      for (int k = 0; k < qa.columns; ++k) {
        const double x = a.at(i, k, transpose_a), y = b.at(j, k, transpose_b);
        want += x * y, length_a += x * x, length_b += y * y;
      }
      const double error =
          std::fabs(got[size_t(i) * size_t(qb.rows) + size_t(j)] - want) / std::sqrt(length_a * length_b);
      worst = error >= 0 ? std::max(worst, error) : std::numeric_limits<double>::infinity();
    }
  // Numbers with 3 bits of mantissa are off by 2^-4 at most, with 2 bits by 2^-3, each in a direction of its own: over
  // K = 256 that is 0.01 of the two lengths, and 0.03 in the worst of 10^5 elements. A wrong factor or layout gives
  // 0.2.
  constexpr double kLimit = 0.06;
  if (worst <= kLimit) return "";
  return format(
      "the FP8 product %s of --fp8 %s is wrong by %.3g of its operands' lengths, and %g is what rounding explains",
      name, recipe_name(fp8.recipe), worst, kLimit);
}

std::string check_recipe(Bench& bench, const Fp8Settings& fp8) {
  const DeviceInfo& info = bench.stream.device().info();
  Matmul matmul(bench.stream, bench.bytes(std::max<size_t>(Matmul::workspace_bytes(info), 256)), {});
  const Matrix x = random_matrix(bench, kN, kIC), weight = random_matrix(bench, kOC, kIC),
               dy = random_matrix(bench, kN, kOC);
  std::string wrong =
      check_product(bench, matmul, fp8, "forward", Role::input, x, false, Role::weight, weight, false, true);
  if (wrong.empty())
    wrong =
        check_product(bench, matmul, fp8, "dgrad", Role::output_gradient, dy, false, Role::weight, weight, true, false);
  if (wrong.empty() && !fp8.bf16_wgrad())
    wrong = check_product(bench, matmul, fp8, "wgrad", Role::output_gradient, dy, true, Role::input, x, true, false);
  return wrong;
}

}  // namespace

std::string KernelCheck::run(Device& device) const {
  KernelCheck chosen = *this;
  chosen.attention = choose_attention_kernel(attention, device.info(), dtype, HD).kernel;
  const std::string kernel = attention_kernel_name(chosen.attention);
  // The check of one part, with what goes round it, and what shows more.
  const auto checked = [&](const std::string& name, const std::string& round, const std::string& program, auto&& part) {
    const std::string remedy = (round.empty() ? "" : "\n  " + round + " goes round it") +
                               "\n  make DEVICE=cuda kernels && build/cuda/kernels/" + program + " check  shows more";
    try {
      Bench bench(device, format("error: %s does not end: it had %g s, before the first step%s", name.c_str(),
                                 kSecondsToEnd, remedy.c_str()));
      const std::string wrong = part(bench, name);
      return wrong.empty() ? wrong : wrong + remedy;
    } catch (const Error& error) {
      return name + ": " + error.what() + remedy;
    }
  };
  std::string wrong =
      checked(format("the attention kernel %s for heads of %d", kernel.c_str(), HD), way_round(chosen.attention),
              chosen.attention == AttentionKernel::plain ? "attention" : "attention_" + kernel,
              [&](Bench& bench, const std::string& name) { return check_attention(bench, chosen, name); });
  if (wrong.empty() && fp8.on())
    wrong = checked(format("the products of --fp8 %s", recipe_name(fp8.recipe)), "--fp8 off", "fp8_matmul",
                    [&](Bench& bench, const std::string&) { return check_recipe(bench, fp8); });
  if (wrong.empty() && fp8.computes_head(true))
    wrong = checked("the head's products in FP8", "--fp8-head off", "fp8_matmul",
                    [&](Bench& bench, const std::string&) { return check_recipe(bench, fp8.of_head()); });
  return wrong;
}

void require_right_kernels(const KernelCheck& check, Device& device, Communicator& communicator, const Ranks& ranks) {
  const std::string own = check.run(device);
  std::vector<std::string> all{own};
  if (ranks.mpi) {
    all = ranks.all_gather(own);
  } else if (ranks.size > 1 && own.empty()) {
    // A GPU that failed cannot tell: its rank ends, and the others find it gone.
    Stream stream(device, "check");
    barrier(communicator, stream);
  }
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty())
      fail_as(ExitCode::unexpected, "this run's kernels were tried before its first step, and failed%s\n  %s",
              all.size() > 1 ? format(" on rank %zu", r).c_str() : "", all[r].c_str());
}
