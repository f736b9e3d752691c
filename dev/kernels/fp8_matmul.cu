// Checks and times products of FP8 operands against a product of their decoded numbers in double.
// Covers: promise 7: products of FP8 operands: forward, dgrad and wgrad with every pair of scalings that recipes have,
// sizes that are padded, accumulation, any number of threads
#include "llmc/kernels/fp8_matmul.h"

#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"
#include "llmc/kernels/quantize.h"

namespace {

constexpr Fp8Format e4 = Fp8Format::e4m3, e5 = Fp8Format::e5m2;

struct Kind {
  Fp8Format format;
  Scaling scaling;
  bool one_scale = false;
};
struct Pair {
  const char* name;
  Kind a, b;
};
// The kinds of operands that are multiplied.
const Pair kPairs[] = {
    {"tensor x tensor", {e4, Scaling::tensor}, {e4, Scaling::tensor}},
    {"e5m2 tensor x tensor", {e5, Scaling::tensor}, {e4, Scaling::tensor}},
    {"row x row", {e4, Scaling::row}, {e4, Scaling::row}},
    {"row x one scale", {e4, Scaling::row}, {e4, Scaling::row, true}},
    {"e5m2 row x row", {e5, Scaling::row}, {e4, Scaling::row}},
    {"1x128 x 128x128", {e4, Scaling::block_1x128}, {e4, Scaling::block_128x128}},
    {"1x128 x 1x128", {e4, Scaling::block_1x128}, {e4, Scaling::block_1x128}},
    {"e5m2 1x128 x 128x128", {e5, Scaling::block_1x128}, {e4, Scaling::block_128x128}},
};

// An operand in memory of its own, 256-byte aligned as products want it; its bytes and scale_inv on the host.
struct Operand {
  QuantizedTensor tensor;
  DeviceMemory data, scale_inv, maxima;
  std::vector<uint8_t> bytes;
  std::vector<float> values;

  Operand(Stream& stream, Kind kind, int rows, int columns) {
    tensor.rows = rows, tensor.columns = columns;
    tensor.format = kind.format, tensor.scaling = kind.scaling, tensor.one_scale = kind.one_scale;
    data = DeviceMemory(stream.device(), tensor.bytes());
    scale_inv = DeviceMemory(stream.device(), tensor.scale_inv_count() * sizeof(float));
    maxima = DeviceMemory(stream.device(), size_t(1 + rows) * sizeof(float));
    tensor.data = reinterpret_cast<uint8_t*>(data.data());
    tensor.scale_inv = reinterpret_cast<float*>(scale_inv.data());
  }
  float* amax() const { return reinterpret_cast<float*>(maxima.data()); }
  // Quantizes x[tensor.rows, tensor.columns], or its transpose.
  void quantize_from(Stream& stream, const bf16* x, bool transposed) {
    Quantization q;
    (transposed ? q.columnwise : q.rowwise) = tensor;
    q.amax = amax();
    (transposed ? q.column_amax : q.row_amax) = Tensor(amax() + 1, {tensor.rows});
    const Tensor matrix =
        transposed ? Tensor(x, {tensor.columns, tensor.rows}) : Tensor(x, {tensor.rows, tensor.columns});
    if (q.needs_amax()) {
      clear(stream, amax(), 1);
      quantize_amax(stream, matrix, q);
    }
    quantize(stream, matrix, q);
  }
  void download(Stream& stream) {
    bytes.resize(tensor.bytes()), values.resize(tensor.scale_inv_count());
    copy(stream, bytes.data(), tensor.data, bytes.size());
    copy(stream, values.data(), tensor.scale_inv, values.size());
    stream.synchronize();
  }
  double at(int row, int column) const {
    const uint8_t bits = bytes[size_t(row) * size_t(tensor.stride()) + size_t(column)];
    return double(fp8_value(bits, tensor.format == e4 ? 4 : 5)) * double(values[tensor.scale_inv_at(row, column)]);
  }
};

// 256-byte aligned memory for a result, with poison after it.
template <class T>
struct Result {
  static constexpr size_t kBehind = 64;
  Stream& stream;
  size_t count;
  DeviceMemory memory;
  Result(Stream& stream, const std::vector<T>& values)
      : stream(stream), count(values.size()), memory(stream.device(), (values.size() + kBehind) * sizeof(T)) {
    std::vector<T> all(count + kBehind);
    memset(static_cast<void*>(all.data()), 0xff, all.size() * sizeof(T));
    std::copy(values.begin(), values.end(), all.begin());
    copy(stream, data(), all.data(), all.size());
    stream.synchronize();
  }
  T* data() const { return reinterpret_cast<T*>(memory.data()); }
  std::vector<T> download() const {
    std::vector<T> all(count + kBehind);
    copy(stream, all.data(), data(), all.size());
    stream.synchronize();
    const auto* after = reinterpret_cast<const unsigned char*>(all.data() + count);
    for (size_t i = 0; i < kBehind * sizeof(T); ++i)
      REQUIRE(after[i] == 0xff, "written after a result of %zu elements", count);
    all.resize(count);
    return all;
  }
};

struct Decoded {
  std::vector<double> product, magnitude;  // sums of a b and of |a b|
};
Decoded decoded_product(const Operand& a, const Operand& b) {
  const int M = a.tensor.rows, N = b.tensor.rows, K = a.tensor.columns;
  std::vector<double> x(size_t(M) * size_t(K)), y(size_t(N) * size_t(K));
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k) x[size_t(i) * size_t(K) + size_t(k)] = a.at(i, k);
  for (int j = 0; j < N; ++j)
    for (int k = 0; k < K; ++k) y[size_t(j) * size_t(K) + size_t(k)] = b.at(j, k);
  Decoded d;
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) {
      double sum = 0, magnitude = 0;
      for (int k = 0; k < K; ++k) {
        const double term = x[size_t(i) * size_t(K) + size_t(k)] * y[size_t(j) * size_t(K) + size_t(k)];
        sum += term, magnitude += std::fabs(term);
      }
      d.product.push_back(sum), d.magnitude.push_back(magnitude);
    }
  return d;
}

template <class T>
void compare(Checker& checker, const std::string& name, const std::vector<T>& got, const Operand& a, const Operand& b,
             const Decoded& want, const std::vector<float>& before, bool fast) {
  const int M = a.tensor.rows, N = b.tensor.rows, K = a.tensor.columns;
  if (checker.stream.device().info().gpu) {
    // Tensor cores keep about 13 bits of the sums that stay in them, and each addition cuts: with `fast` all sums,
    // whose error grows with K; else those of 128 elements at a time, which are added up in fp32. bf16 adds its own.
    double square = 0, error = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double exact = want.product[i] + (before.empty() ? 0 : double(before[i]));
      square += exact * exact, error += (to_double(got[i]) - exact) * (to_double(got[i]) - exact);
    }
    const double relative = std::sqrt(error / square);
    const double limit = (fast ? std::max(3e-4, 1.5e-6 * K) : 3e-4) + (sizeof(T) == 2 ? 0x1p-9 : 0);
    return checker.that(name, relative <= limit, format("relative error %.2g, limit %.2g", relative, limit));
  }
  // fp32, in units of the terms' magnitudes: decoding rounds each operand once, and K roundings of the partial sums add
  // up as a random walk does; 2 times that bounds the largest of many. bf16 rounds once more.
  std::vector<double> result(got.size()), exact(got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double start = before.empty() ? 0 : double(before[i]);
    const double unit = std::max(want.magnitude[i] + std::fabs(start), 1e-30);
    result[i] = to_double(got[i]) / unit;
    exact[i] = (want.product[i] + start) / unit;
  }
  checker.close(name, result, exact, {M, N}, sizeof(T) == 2 ? 0x1p-8 : 0, (2 + 2 * std::sqrt(K)) * 0x1p-24);
}

template <class T>
std::vector<T> multiply(Stream& stream, Matmul& matmul, const Operand& a, const Operand& b,
                        const std::vector<T>& before, bool accumulate, bool fast) {
  const Result<T> out(stream, before);
  const size_t scratch = fp8_matmul_scratch(a.tensor, b.tensor, sizeof(T));
  // Exactly as much as is said, with the result's poison after it.
  const Result<std::byte> padded(stream, std::vector<std::byte>(scratch, std::byte{0xff}));
  fp8_matmul(stream, matmul, "product", Tensor(out.data(), {a.tensor.rows, b.tensor.rows}), a.tensor, b.tensor,
             accumulate, fast, scratch ? padded.data() : nullptr);
  padded.download();
  return out.download();
}

// Why these operands are not multiplied, "" if they are. fp8_matmul() asks for the product of their padded rows.
std::string left_out(Matmul& matmul, QuantizedTensor a, QuantizedTensor b, bool fast = false) {
  a.rows = a.padded_rows(), b.rows = b.padded_rows();
  return matmul.unsupported_reason(a, b, DType::bf16, false, fast);
}

bool has_blocks(const QuantizedTensor& x) {
  return x.scaling == Scaling::block_1x128 || x.scaling == Scaling::block_128x128;
}

// The operands of out = a bᵀ; x or y may be given transposed.
void check_product(Checker& checker, Matmul& matmul, const std::string& shape, const Pair& pair, int M, int N, int K,
                   bool transposed_a, bool transposed_b) {
  Stream& stream = checker.stream;
  Operand a(stream, pair.a, M, K), b(stream, pair.b, N, K);
  const std::string reason = left_out(matmul, a.tensor, b.tensor);
  const std::string name = format("%s, %s %dx%dx%d", pair.name, shape.c_str(), M, N, K);
  // Hopper multiplies them all, if the program was compiled with a CUDA that does.
  const bool may_refuse = stream.device().info().compute_capability != 90 || reason.find("CUDA 12.9") != reason.npos;
  if (!reason.empty()) return checker.that(name, may_refuse, "left out: " + reason);
  Generator generator(uint64_t(M) * 1000003 + uint64_t(N) * 1009 + uint64_t(K));
  const Array<bf16> x(stream, random_normal<bf16>(generator, size_t(M) * size_t(K))),
      y(stream, random_normal<bf16>(generator, size_t(N) * size_t(K), 0.02));
  a.quantize_from(stream, x.data(), transposed_a);
  b.quantize_from(stream, y.data(), transposed_b);
  a.download(stream), b.download(stream);
  const Decoded want = decoded_product(a, b);
  const size_t size = size_t(M) * size_t(N);
  std::vector<float> poison(size, NAN);
  std::vector<bf16> poison16(size, bf16{0xffff});
  const std::vector<float> before = random_normal<float>(generator, size, 0.1);
  for (const bool fast : {false, true}) {
    if (fast && !stream.device().info().gpu) continue;  // the CPU backend knows no difference
    const std::string how = name + (fast ? " fast" : ""),
                      refusal = fast ? left_out(matmul, a.tensor, b.tensor, true) : "";
    if (!refusal.empty()) {  // cuBLASLt adds the products of blocks in fp32 anyway
      checker.that(how, may_refuse || has_blocks(a.tensor) || has_blocks(b.tensor), "left out: " + refusal);
      continue;
    }
    compare(checker, how + " fp32", multiply(stream, matmul, a, b, poison, false, fast), a, b, want, {}, fast);
    compare(checker, how + " bf16", multiply(stream, matmul, a, b, poison16, false, fast), a, b, want, {}, fast);
    compare(checker, how + " fp32 +=", multiply(stream, matmul, a, b, before, true, fast), a, b, want, before, fast);
  }
}

void check_sizes(Checker& checker, Matmul& matmul, int N, int OC, int IC) {
  for (const Pair& pair : kPairs) {
    check_product(checker, matmul, "forward", pair, N, OC, IC, false, false);
    check_product(checker, matmul, "dgrad", pair, N, IC, OC, false, true);
    check_product(checker, matmul, "wgrad", pair, OC, IC, N, true, true);
  }
}

// Every byte that is a number, and scale_inv of many sizes, in place of what quantization makes.
void check_any_bytes(Checker& checker, Matmul& matmul) {
  Stream& stream = checker.stream;
  const int M = 144, N = 130, K = 392;
  for (const Pair& pair : kPairs) {
    Operand a(stream, pair.a, M, K), b(stream, pair.b, N, K);
    if (!left_out(matmul, a.tensor, b.tensor).empty()) continue;
    Generator generator(17);
    for (Operand* o : {&a, &b}) {
      const QuantizedTensor& t = o->tensor;
      std::vector<uint8_t> bytes(t.bytes(), 0);
      std::vector<float> scale_inv(t.scale_inv_count());
      for (int r = 0; r < t.rows; ++r)
        for (int c = 0; c < t.columns; ++c) {
          uint8_t bits;
          do bits = uint8_t(generator.integer(0, 255));
          while (!std::isfinite(fp8_value(bits, t.format == e4 ? 4 : 5)));
          bytes[size_t(r) * size_t(t.stride()) + size_t(c)] = bits;
        }
      const float one = float(generator.uniform() + 0.5);
      for (float& f : scale_inv)
        f = t.one_scale ? one : std::ldexp(float(generator.uniform() + 0.5), generator.integer(-8, 3));
      copy(stream, t.data, bytes.data(), bytes.size());
      copy(stream, t.scale_inv, scale_inv.data(), scale_inv.size());
      o->download(stream);
    }
    const std::vector<float> got =
        multiply(stream, matmul, a, b, std::vector<float>(size_t(M) * size_t(N), NAN), false, false);
    compare(checker, format("%s, any bytes %dx%dx%d", pair.name, M, N, K), got, a, b, decoded_product(a, b), {}, false);
  }
}

// The same bits on devices of 1 and 3 threads, and in other orders.
void check_orders(Checker& checker) {
  OtherSchedules orders;
  const auto in_world = [](Stream& stream) {
    DeviceMemory workspace(stream.device(), Matmul::workspace_bytes(stream.device().info()));
    Matmul matmul(stream, workspace.data(), {});
    std::vector<float> all;
    for (const Pair& pair : {kPairs[3], kPairs[5]}) {
      const int M = 300, N = 200, K = 150;
      Operand a(stream, pair.a, M, K), b(stream, pair.b, N, K);
      if (!left_out(matmul, a.tensor, b.tensor).empty()) continue;
      Generator generator(3);
      const Array<bf16> x(stream, random_normal<bf16>(generator, size_t(M) * K)),
          y(stream, random_normal<bf16>(generator, size_t(N) * K));
      a.quantize_from(stream, x.data(), false), b.quantize_from(stream, y.data(), false);
      const auto out = multiply(stream, matmul, a, b, std::vector<float>(size_t(M) * N, 1.0f), true, false);
      all.insert(all.end(), out.begin(), out.end());
    }
    return std::tuple{all};
  };
  const auto expected = in_world(checker.stream);
  orders.same_bits(checker, "300x200x150", expected, in_world);
  for (const int threads : {1, 3}) {
    CpuBackend cpu = CpuBackend::from_environment();
    cpu.threads = threads;
    Device device(0, cpu);
    Stream stream(device, "compute");
    checker.same_bits(format("300x200x150, %d threads", threads), std::get<0>(in_world(stream)), std::get<0>(expected));
  }
}

// fp8_matmul_most_scratch() must be the largest scratch that any number of rows needs.
void check_scratch(Checker& checker) {
  for (const Pair& pair : kPairs)
    for (const int columns : {16, 97, 128, 4096, 5000}) {
      size_t most = 0;
      int wrong = 0;
      for (int rows = 1; rows <= 300; ++rows) {
        QuantizedTensor a, b;
        a.rows = rows, b.rows = columns, a.columns = b.columns = 64;
        a.scaling = pair.a.scaling, b.scaling = pair.b.scaling;
        most = std::max(most, fp8_matmul_scratch(a, b, 2));
        wrong += fp8_matmul_most_scratch(a, b, 2) != most;
      }
      checker.that(format("%s, %d columns: scratch of up to 1 .. 300 rows", pair.name, columns), wrong == 0,
                   format("%d wrong, most %zu bytes", wrong, most));
    }
}

void check_refusals(Checker& checker, Matmul& matmul) {
  Stream& stream = checker.stream;
  const Kind tensor{e4, Scaling::tensor}, small{e4, Scaling::block_1x128};
  const Operand a(stream, tensor, 32, 48), b(stream, tensor, 24, 48), other(stream, tensor, 16, 64),
      blocks(stream, small, 32, 48);
  const Result<float> out(stream, std::vector<float>(1024));
  const Result<bf16> out16(stream, std::vector<bf16>(1024));
  const auto shaped = [](const auto& result, const Operand& x, const Operand& y) {
    return Tensor(result.data(), {x.tensor.rows, y.tensor.rows});
  };
  const auto product = [&](const Operand& x, const Operand& y) {
    fp8_matmul(stream, matmul, "product", shaped(out, x, y), x.tensor, y.tensor, false, false, nullptr);
  };
  const auto multiply = [&](const Tensor& to, const Operand& x, const Operand& y, bool accumulate) {
    matmul.multiply("product", to, x.tensor, y.tensor, accumulate, false);
  };
  checker.refused("no padded buffer", "product: an output of 32 x 24 needs a padded buffer", [&] { product(a, b); });
  checker.refused("another K", "product: operands of 32 x 48 and 16 x 64", [&] { product(a, other); });
  const Operand of_blocks(stream, small, 128, 48), of_rows(stream, tensor, 128, 48);
  checker.refused("operands that are padded otherwise", "padded alike", [&] { product(of_rows, of_blocks); });
  checker.refused("rows that are not padded", "expected multiples of 16",
                  [&] { multiply(shaped(out, a, b), a, b, false); });
  checker.refused("rows of blocks that are not padded", "expected multiples of 128",
                  [&] { multiply(shaped(out, blocks, of_blocks), blocks, of_blocks, false); });
  const Operand sixteen(stream, tensor, 16, 48);
  checker.refused("adding to bf16", "only fp32 is added to",
                  [&] { multiply(shaped(out16, a, sixteen), a, sixteen, true); });
  checker.refused("another shape", "product: out is (32, 24) of fp32\n  expected (32, 16) of fp32",
                  [&] { multiply(shaped(out, a, b), a, sixteen, false); });
  checker.refused("another type", "product: out is (32, 16) of int32\n  expected (32, 16) of bf16", [&] {
    multiply(Tensor(out.data(), DType::int32, {32, 16}), a, sixteen, false);
  });
  checker.refused("a padded product of another shape", "product: out is (32, 16) of fp32\n  expected (32, 24)", [&] {
    fp8_matmul(stream, matmul, "product", shaped(out, a, sixteen), a.tensor, b.tensor, false, false, nullptr);
  });
  checker.refused("adding a padded product to bf16", "product: out is bf16\n  expected fp32", [&] {
    fp8_matmul(stream, matmul, "product", shaped(out16, a, b), a.tensor, b.tensor, true, false, nullptr);
  });
  Operand nothing(stream, tensor, 16, 48);
  nothing.tensor.data = nullptr;
  checker.refused("an operand without bytes", "product: operands", [&] { product(a, nothing); });
}

void time_sizes(Bencher& bencher, Matmul& matmul, const char* what, int N, int OC, int IC) {
  Stream& stream = bencher.stream;
  const double flops = 2.0 * N * OC * IC;
  const auto line = [&](const std::string& how, double bytes, const std::function<void()>& enqueue) {
    bencher.time<bf16>(format("%s %dx%dx%d %s", what, N, OC, IC, how.c_str()), bytes, flops, enqueue);
  };
  const double out_bytes = 2.0 * N * OC, elements = double(N) * IC + double(OC) * IC;
  const Result<bf16> x(stream, repeated_normal<bf16>(size_t(N) * size_t(IC))),
      w(stream, repeated_normal<bf16>(size_t(OC) * size_t(IC))), out(stream, std::vector<bf16>(size_t(N) * size_t(OC)));
  const Tensor result(out.data(), {N, OC});
  line("bf16", 2 * elements + out_bytes, [&] {
    matmul.forward(result, Tensor(x.data(), {N, IC}), Tensor(w.data(), {OC, IC}));
  });
  for (const Pair& pair : kPairs) {
    if (pair.a.format == e5) continue;
    Operand a(stream, pair.a, N, IC), b(stream, pair.b, OC, IC);
    const std::string reason = left_out(matmul, a.tensor, b.tensor);
    if (!reason.empty()) {
      printf("%s: %s\n", pair.name, reason.c_str());
      continue;
    }
    a.quantize_from(stream, x.data(), false), b.quantize_from(stream, w.data(), false);
    const DeviceMemory padded(stream.device(), std::max<size_t>(256, fp8_matmul_scratch(a.tensor, b.tensor, 2)));
    const auto product = [&](bool fast) {
      fp8_matmul(stream, matmul, "product", result, a.tensor, b.tensor, false, fast, padded.data());
    };
    const bool fast = bencher.gpu() && left_out(matmul, a.tensor, b.tensor, true).empty();
    line(pair.name, elements + out_bytes, [&] { product(false); });
    if (fast) line(std::string(pair.name) + " fast", elements + out_bytes, [&] { product(true); });
    line(std::string(pair.name) + ", quantizing", 4 * elements + out_bytes, [&] {
      a.quantize_from(stream, x.data(), false), b.quantize_from(stream, w.data(), false);
      product(fast);
    });
  }
}

}  // namespace

void check(Checker& checker) {
  Stream& stream = checker.stream;
  DeviceMemory workspace(stream.device(), Matmul::workspace_bytes(stream.device().info()));
  Matmul matmul(stream, workspace.data(), {});
  printf("products: %s\n", Matmul::description().c_str());
  for (const auto& [N, OC, IC] : std::vector<std::tuple<int, int, int>>{
           {1, 16, 16}, {16, 32, 48}, {37, 24, 40}, {128, 256, 128}, {130, 97, 200}, {200, 136, 392}})
    check_sizes(checker, matmul, N, OC, IC);
  check_scratch(checker);
  // Wider than what is in the padded buffer at once, and the last part padded.
  for (const int M : {3, 256}) check_product(checker, matmul, "many columns", kPairs[5], M, 4500, 150, false, false);
  check_product(checker, matmul, "long sums", kPairs[0], 24, 40, 4100, false, false);
  check_any_bytes(checker, matmul);
  check_orders(checker);
  check_refusals(checker, matmul);
}

void bench(Bencher& bencher) {
  Stream& stream = bencher.stream;
  DeviceMemory workspace(stream.device(), Matmul::workspace_bytes(stream.device().info()));
  Matmul matmul(stream, workspace.data(), {});
  for (const auto& [model, N] : bencher.workloads()) {
    printf("%s\n", model.name.c_str());
    time_sizes(bencher, matmul, "qkv", N, model.qkv_width(), model.C);
    time_sizes(bencher, matmul, "gate_up", N, 2 * model.FF, model.C);
    time_sizes(bencher, matmul, "down", N, model.C, model.FF);
  }
}
