// Covers: promise 7: the products of a linear layer: forward, dgrad, wgrad, strides, accumulation in fp32, any number
// of threads, each algorithm that timing may choose; the general product of matrices and their transposes, with an
// addend in place, elsewhere or absent
#include "llmc/kernels/matmul.h"

#include "dev/kernels/check.h"
#include "dev/kernels/operand.h"
#include "llmc/kernels/tuning.h"

namespace {

struct Sizes {
  int N, OC, IC, stride;
};

// A sum of K products of numbers around 1: fp32 sums in another order differ by about sqrt(K) roundings of its partial
// sums, of size sqrt(K); 8 times that bounds the largest of many elements. bf16 results add their own rounding.
template <class T>
double relative() {
  return sizeof(T) == 2 ? epsilon_of<T>() : 4 * epsilon_of<float>();
}
double absolute(int K) { return 8 * epsilon_of<float>() * K; }

// Row-major c[M,N] = sum over k of a(i, k) * b(k, j).
template <class A, class B>
std::vector<double> product(int M, int N, int K, const A& a, const B& b) {
  std::vector<double> c(size_t(M) * size_t(N), 0.0);
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k) {
      const double x = a(i, k);
      for (int j = 0; j < N; ++j) c[size_t(i) * size_t(N) + size_t(j)] += x * b(k, j);
    }
  return c;
}

// The columns that are not part of the product keep their poison.
template <class T>
bool outside_untouched(const std::vector<T>& values, int N, int OC, int stride) {
  const std::vector<T> poison = poisoned<T>(1);
  for (int n = 0; n < N; ++n)
    for (int c = OC; c < stride; ++c)
      if (memcmp(&values[size_t(n) * size_t(stride) + size_t(c)], poison.data(), sizeof(T))) return false;
  return true;
}

template <class T>
std::vector<T> inner_columns(const std::vector<T>& values, int N, int OC, int stride) {
  std::vector<T> inner;
  for (int n = 0; n < N; ++n)
    inner.insert(inner.end(), values.begin() + ptrdiff_t(n) * stride, values.begin() + ptrdiff_t(n) * stride + OC);
  return inner;
}

// Out: the type of forward's and dgrad's results.
template <class T, class Out = T>
void check_sizes(Checker& checker, Matmul& matmul, Sizes s) {
  Stream& stream = checker.stream;
  Generator generator(uint64_t(s.N) * 1000003 + uint64_t(s.OC) * 1009 + uint64_t(s.IC));
  const int stride = s.stride ? s.stride : s.OC;
  const std::string name = format("%s to %s N=%d OC=%d IC=%d stride=%d", dtype_name(kDType<T>), dtype_name(kDType<Out>),
                                  s.N, s.OC, s.IC, stride);
  const auto x = random_normal<T>(generator, size_t(s.N) * size_t(s.IC));
  const auto w = random_normal<T>(generator, size_t(s.OC) * size_t(s.IC));
  const auto dy = random_normal<T>(generator, size_t(s.N) * size_t(stride));
  const auto before = random_normal<float>(generator, w.size());
  const auto x_at = [&](int n, int i) { return to_double(x[size_t(n) * size_t(s.IC) + size_t(i)]); };
  const auto w_at = [&](int o, int i) { return to_double(w[size_t(o) * size_t(s.IC) + size_t(i)]); };
  const auto dy_at = [&](int n, int o) { return to_double(dy[size_t(n) * size_t(stride) + size_t(o)]); };
  const Operand<T> X(stream, x), W(stream, w), DY(stream, dy);
  const Operand<Out> dx(stream, poisoned<Out>(x.size())), y(stream, poisoned<Out>(dy.size()));
  Operand<float> dw(stream, poisoned<float>(w.size()));
  const Tensor x_tensor = X.tensor({s.N, s.IC}), w_tensor = W.tensor({s.OC, s.IC}), dw_tensor = dw.tensor({s.OC, s.IC});
  const Tensor dy_tensor = DY.tensor({s.N, stride}).columns(0, s.OC);

  matmul.forward(y.tensor({s.N, stride}).columns(0, s.OC), x_tensor, w_tensor);
  const auto out = y.download();
  checker.close("forward " + name, inner_columns(out, s.N, s.OC, stride),
                product(s.N, s.OC, s.IC, x_at, [&](int i, int o) { return w_at(o, i); }), {s.N, s.OC}, relative<Out>(),
                absolute(s.IC));
  if (stride > s.OC)
    checker.that("forward " + name, outside_untouched(out, s.N, s.OC, stride), "the row's rest is untouched");

  matmul.dgrad(dx.tensor({s.N, s.IC}), dy_tensor, w_tensor);
  checker.close("dgrad " + name, dx.download(), product(s.N, s.IC, s.OC, dy_at, w_at), {s.N, s.IC}, relative<Out>(),
                absolute(s.OC));

  // wgrad is fp32 whatever T is: its limit knows no bf16.
  auto want = product(
      s.OC, s.IC, s.N, [&](int o, int n) { return dy_at(n, o); }, x_at);
  matmul.wgrad(dw_tensor, dy_tensor, x_tensor, false);
  checker.close("wgrad = " + name, dw.download(), want, {s.OC, s.IC}, relative<float>(), absolute(s.N));
  copy(stream, dw.data(), before.data(), before.size());
  matmul.wgrad(dw_tensor, dy_tensor, x_tensor, true);
  for (size_t i = 0; i < want.size(); ++i) want[i] += double(before[i]);
  checker.close("wgrad += " + name, dw.download(), want, {s.OC, s.IC}, relative<float>(), absolute(s.N + 1));
}

// An operand of the general product: (rows, columns), or its transpose in memory.
template <class T>
struct GemmFactor {
  int rows, columns;
  bool transposed;
  std::vector<T> values;
  Operand<T> memory;
  GemmFactor(Stream& stream, Generator& generator, int rows, int columns, bool transposed)
      : rows(rows),
        columns(columns),
        transposed(transposed),
        values(random_normal<T>(generator, size_t(rows) * size_t(columns))),
        memory(stream, values) {}
  Tensor tensor() const { return transposed ? memory.tensor({columns, rows}) : memory.tensor({rows, columns}); }
  double operator()(int i, int j) const {
    return to_double(transposed ? values[size_t(j) * size_t(rows) + size_t(i)]
                                : values[size_t(i) * size_t(columns) + size_t(j)]);
  }
};

enum class Addend { absent, in_place, elsewhere };

// The general product with these two numbers, and what it must give.
template <class T, class Out>
struct Gemm {
  GemmFactor<T> a, b;
  Addend which;
  float alpha, beta;
  std::vector<Out> before;
  Operand<Out> addend, out;
  Gemm(Stream& stream, Generator& generator, int M, int N, int K, bool transpose_a, bool transpose_b, Addend which,
       float alpha, float beta)
      : a(stream, generator, M, K, transpose_a),
        b(stream, generator, K, N, transpose_b),
        which(which),
        alpha(alpha),
        beta(beta),
        before(random_normal<Out>(generator, size_t(M) * size_t(N))),
        addend(stream, before),
        out(stream, poisoned<Out>(before.size())) {}
  void run(Matmul& matmul) const {
    if (which == Addend::in_place) out.upload(before);
    const Tensor result = out.tensor({a.rows, b.columns}), left = a.tensor(), right = b.tensor();
    const Matmul::Factor op_a{left, a.transposed}, op_b{right, b.transposed};
    if (which == Addend::absent) matmul.gemm(result, op_a, op_b, alpha, beta);
    else
      matmul.gemm(result, op_a, op_b, alpha, beta,
                  which == Addend::in_place ? result : addend.tensor({a.rows, b.columns}));
  }
  void compare(Checker& checker, const std::string& name) const {
    std::vector<double> want = product(a.rows, b.columns, a.columns, a, b);
    for (size_t i = 0; i < want.size(); ++i) want[i] = double(alpha) * want[i] + double(beta) * to_double(before[i]);
    // The addend is one more term, of which 6 is the largest number; it and alpha times the sum are rounded once more.
    const double terms = std::fabs(double(alpha)) * a.columns + 6 * std::fabs(double(beta));
    checker.close(name, out.download(), want, {a.rows, b.columns}, relative<Out>(), absolute(1) * terms);
  }
};

template <class T, class Out = T>
void check_gemm(Checker& checker, Matmul& matmul, int M, int N, int K) {
  Generator generator(uint64_t(M) * 1000003 + uint64_t(N) * 1009 + uint64_t(K));
  const struct {
    Addend which;
    float alpha, beta;
    const char* name;
  } kinds[] = {{Addend::absent, 1, 0, "no addend"},
               {Addend::absent, -0.5f, 0, "times -0.5, no addend"},
               {Addend::in_place, 1, 1, "added"},
               {Addend::in_place, 2.0315f, -4.775f, "in place"},
               {Addend::elsewhere, 1, 3.4445f, "another matrix"}};
  for (const bool transpose_a : {false, true})
    for (const bool transpose_b : {false, true})
      for (const auto& kind : kinds) {
        const Gemm<T, Out> gemm(checker.stream, generator, M, N, K, transpose_a, transpose_b, kind.which, kind.alpha,
                                kind.beta);
        gemm.run(matmul);
        gemm.compare(checker,
                     format("gemm %s to %s %dx%dx%d a%s b%s, %s", dtype_name(kDType<T>), dtype_name(kDType<Out>), M, N,
                            K, transpose_a ? "ᵀ" : "", transpose_b ? "ᵀ" : "", kind.name));
        if (kind.which == Addend::elsewhere)
          checker.same_bits("  which stays as it was", gemm.addend.download(), gemm.before);
      }
}

// One matrix as both factors and as the addend, as in a polynomial of it.
template <class T>
void check_polynomial(Checker& checker, Matmul& matmul) {
  const int n = 72;
  Generator generator(8);
  const GemmFactor<T> a(checker.stream, generator, n, n, false);
  const Operand<T> out(checker.stream, poisoned<T>(a.values.size()));
  const Tensor matrix = a.tensor();
  matmul.gemm(out.tensor({n, n}), {matrix}, {matrix}, 2, -3, matrix);
  std::vector<double> want = product(n, n, n, a, a);
  for (size_t i = 0; i < want.size(); ++i) want[i] = 2 * want[i] - 3 * to_double(a.values[i]);
  checker.close(std::string("2 A A - 3 A in ") + dtype_name(kDType<T>), out.download(), want, {n, n}, relative<T>(),
                absolute(2 * n + 18));
}

// Returns what timing finds for the one product that `run` computes.
TunedProduct timed(Stream& stream, Matmul& matmul, std::string& shape, const std::function<void()>& run) {
  matmul.begin_timing([&] { stream.synchronize(); });
  run();
  const Tuning found = matmul.end_timing();
  REQUIRE(found.products().size() == 1, "%zu shapes of one product", found.products().size());
  shape = found.products().begin()->first;
  return found.products().begin()->second;
}

// A product by each of its candidates, named as in a file.
void check_candidates(Checker& checker, Matmul& matmul, const std::string& name, const std::function<void()>& run,
                      const std::function<void(const std::string&)>& compare) {
  std::string shape;
  TunedProduct product = timed(checker.stream, matmul, shape, run);
  const TunedFor here = Matmul::tuned_for(checker.stream.device().info());
  checker.that("candidates of " + name, product.candidates >= 1 && product.candidates == int(product.tried.size()),
               format("%d for %s: the fastest takes %.1f us, the default %.1f us", product.candidates, shape.c_str(),
                      product.seconds * 1e6, product.by_default * 1e6));
  for (const std::string& choice : product.tried) {
    Tuning tuning(here);
    tuning.set(shape, {choice});
    matmul.use(tuning);
    run();
    compare(name + " by " + choice.substr(0, choice.find(':')));
    checker.that("  is what was asked for", matmul.unused_choices() == 0, shape);
  }
  for (const std::string& changed : {std::string("nonsense"), product.choice + "x", std::string()}) {
    Tuning tuning(here);
    tuning.set(shape, {changed});
    matmul.use(tuning);
    checker.refused(name + " by a choice that is none", "--tune-products writes a new one", run);
  }
  matmul.use({});
}

template <class T>
void check_all_candidates(Checker& checker, Matmul& matmul) {
  const int N = 400, OC = 264, IC = 312;
  Stream& stream = checker.stream;
  Generator generator(11);
  const auto x = random_normal<T>(generator, size_t(N) * IC), w = random_normal<T>(generator, size_t(OC) * IC),
             dy = random_normal<T>(generator, size_t(N) * OC);
  const auto before = random_normal<float>(generator, w.size());
  const Operand<T> X(stream, x), W(stream, w), DY(stream, dy), y(stream, dy), dx(stream, x);
  const Operand<float> dw(stream, before);
  const Tensor xs = X.tensor({N, IC}), ws = W.tensor({OC, IC}), dys = DY.tensor({N, OC}), dws = dw.tensor({OC, IC});
  const auto at = [](const auto& matrix, int columns) {
    return [&matrix, columns](int i, int j) { return to_double(matrix[size_t(i) * size_t(columns) + size_t(j)]); };
  };
  const auto flipped = [](auto element) { return [element](int i, int j) { return element(j, i); }; };
  const std::string type = dtype_name(kDType<T>);

  const auto want_y = product(N, OC, IC, at(x, IC), flipped(at(w, IC)));
  check_candidates(
      checker, matmul, "forward " + type,
      [&] {
        matmul.forward(y.tensor({N, OC}), xs, ws);
      },
      [&](const std::string& name) {
        checker.close(name, y.download(), want_y, {N, OC}, relative<T>(), absolute(IC));
      });
  const auto want_dx = product(N, IC, OC, at(dy, OC), at(w, IC));
  check_candidates(
      checker, matmul, "dgrad " + type,
      [&] {
        matmul.dgrad(dx.tensor({N, IC}), dys, ws);
      },
      [&](const std::string& name) {
        checker.close(name, dx.download(), want_dx, {N, IC}, relative<T>(), absolute(OC));
      });
  auto want_dw = product(OC, IC, N, flipped(at(dy, OC)), at(x, IC));
  check_candidates(
      checker, matmul, "wgrad = " + type, [&] { matmul.wgrad(dws, dys, xs, false); },
      [&](const std::string& name) {
        checker.close(name, dw.download(), want_dw, {OC, IC}, relative<float>(), absolute(N));
      });
  for (size_t i = 0; i < before.size(); ++i) want_dw[i] += double(before[i]);
  const auto add = [&] {
    copy(stream, dw.data(), before.data(), before.size());
    matmul.wgrad(dws, dys, xs, true);
  };
  check_candidates(checker, matmul, "wgrad += " + type, add, [&](const std::string& name) {
    checker.close(name, dw.download(), want_dw, {OC, IC}, relative<float>(), absolute(N + 1));
  });
  for (const Addend which : {Addend::absent, Addend::in_place, Addend::elsewhere}) {
    const Gemm<T, T> gemm(stream, generator, OC, N, IC, which == Addend::in_place, which == Addend::elsewhere, which,
                          1.5f, which == Addend::absent ? 0 : -0.5f);
    const char* names[] = {"no addend", "in place", "another matrix"};
    check_candidates(
        checker, matmul, format("gemm %s, %s", type.c_str(), names[int(which)]), [&] { gemm.run(matmul); },
        [&](const std::string& name) { gemm.compare(checker, name); });
  }
}

// The same bits on a device of another number of threads (on a GPU: once more).
void check_threads(Checker& checker) {
  const int N = 300, OC = 200, IC = 150;
  std::vector<std::vector<float>> results;
  for (int threads : {1, 3}) {
    CpuBackend cpu = CpuBackend::from_environment();
    cpu.threads = threads;
    Device device(0, cpu);
    Stream stream(device, "compute");
    DeviceMemory workspace(device, Matmul::workspace_bytes(device.info()));
    Matmul matmul(stream, workspace.data(), {});
    Generator generator(3);
    const Operand<float> X(stream, random_normal<float>(generator, size_t(N) * IC)),
        W(stream, random_normal<float>(generator, size_t(OC) * IC)), Y(stream, poisoned<float>(size_t(N) * OC));
    matmul.forward(Y.tensor({N, OC}), X.tensor({N, IC}), W.tensor({OC, IC}));
    results.push_back(Y.download());
  }
  checker.same_bits("forward with 1 and with 3 threads", results[0], results[1]);
}

// CpuBackend::exact_products: each number is the sum in double, rounded once, however the product is cut.
void check_exact_products(Checker& checker) {
  const int N = 70, OC = 33, IC = 500;
  CpuBackend cpu = CpuBackend::from_environment();
  cpu.exact_products = true;
  Device device(0, cpu);
  if (device.info().gpu) return;
  Stream stream(device, "compute");
  Matmul matmul(stream, nullptr, {});
  Generator generator(5);
  const std::vector<float> x = random_normal<float>(generator, size_t(N) * IC),
                           w = random_normal<float>(generator, size_t(OC) * IC);
  const Operand<float> X(stream, x), W(stream, w), Y(stream, poisoned<float>(size_t(N) * OC));
  std::vector<float> sums;
  for (int n = 0; n < N; ++n)
    for (int o = 0; o < OC; ++o) {
      double sum = 0;
      for (int i = 0; i < IC; ++i) sum += double(x[size_t(n) * IC + i]) * double(w[size_t(o) * IC + i]);
      sums.push_back(float(sum));
    }
  matmul.forward(Y.tensor({N, OC}), X.tensor({N, IC}), W.tensor({OC, IC}));
  checker.same_bits("exact products", Y.download(), sums);
}

void check_refusals(Checker& checker, Matmul& matmul) {
  Stream& stream = checker.stream;
  const Operand<float> memory(stream, std::vector<float>(4 * 1024));
  const auto tensor = [&](int number, TensorShape shape, DType type = DType::fp32) {
    return Tensor(memory.data() + number * 1024, type, shape);
  };
  const Tensor out = tensor(0, {8, 16}), in = tensor(1, {8, 24}), weight = tensor(2, {16, 24});
  const Tensor out16 = tensor(0, {8, 16}, DType::bf16), in16 = tensor(1, {8, 24}, DType::bf16),
               weight16 = tensor(2, {16, 24}, DType::bf16);
  const auto forward = [&](const char* name, const char* expected, const Tensor& y, const Tensor& x, const Tensor& w) {
    checker.refused(name, expected, [&] { matmul.forward(y, x, w); });
  };
  forward("operands of two types", "matmul_forward: there is no product of bf16 and fp32 to fp32", out, in16, weight);
  forward("fp32 to bf16", "there is no product of fp32 and fp32 to bf16", out16, in, weight);
  forward("bytes", "there is no product of uint8 and uint8 to fp32", out, tensor(1, {8, 24}, DType::uint8),
          tensor(2, {16, 24}, DType::uint8));
  forward("no rows", "out is (0, 16)", tensor(0, {0, 16}), tensor(1, {0, 24}), weight);
  forward("no columns", "out is (8, 0)", tensor(0, {8, 0}), in, weight);
  Tensor overlapping = out;
  overlapping.stride[2] = 8;
  forward("rows that overlap", "its rows are 8 elements apart", overlapping, in, weight);
  forward("another N", "in is (7, 24) of fp32\n  expected (8, 24)", out, in.rows(0, 7), weight);
  forward("another OC", "weight is (15, 24) of fp32\n  expected (16, 24)", out, in, weight.rows(0, 15));
  forward("another IC", "weight is (16, 16) of fp32\n  expected (16, 24)", out, in, tensor(2, {16, 16}));
  forward("inputs with gaps", "in (8, 16) is not contiguous", out, in.columns(0, 16), tensor(2, {16, 16}));
  forward("no input", "in is absent", out, {}, weight);
  forward("no output", "out is absent", {}, in, weight);
  forward("no memory", "out (8, 16) has no memory", Tensor(nullptr, DType::fp32, {8, 16}), in, weight);
  checker.refused("din of another type", "matmul_dgrad: there is no product of fp32 and fp32 to bf16",
                  [&] { matmul.dgrad(in16, out, weight); });
  checker.refused("din of another shape", "weight is (16, 24) of fp32\n  expected (16, 16)", [&] {
    matmul.dgrad(tensor(1, {8, 16}), out, weight);
  });
  checker.refused("dweight in bf16", "matmul_wgrad: dweight is bf16\n  expected fp32",
                  [&] { matmul.wgrad(weight16, out16, in16, false); });
  checker.refused("dout and in of two types", "there is no product of fp32 and bf16 to fp32",
                  [&] { matmul.wgrad(weight, out, in16, true); });
  const auto gemm = [&](const char* name, const char* expected, const Tensor& c, const Matmul::Factor& a,
                        const Matmul::Factor& b, float beta = 0, const Tensor& addend = {}) {
    checker.refused(name, expected, [&] { matmul.gemm(c, a, b, 1, beta, addend); });
  };
  gemm("another K", "matmul_gemm: a is (8, 24) and b is (16, 24)\n  expected (M, K) and (K, N)", out, {in}, {weight});
  gemm("another K of a transpose", "a is (8, 24), transposed, and b is (16, 24), transposed", out, {in, true},
       {weight, true});
  gemm("another result", "out is (8, 16) of fp32\n  expected (16, 8)", out, {weight}, {in, true});
  gemm("factors of two types", "b is (16, 24) of fp32\n  expected (16, 24) of bf16", out, {in16}, {weight, true});
  gemm("fp32 to bf16", "there is no product of fp32 to bf16", out16, {in}, {weight, true});
  gemm("no addend", "addend is absent", out, {in}, {weight, true}, 1);
  gemm("an addend in another type", "addend is (8, 16) of bf16\n  expected (8, 16) of fp32", out, {in}, {weight, true},
       1, out16);
  gemm("a vector", "expected (M, K) and (K, N)", out, {tensor(1, {24})}, {weight, true});
}

template <class T>
void time_sizes(Bencher& bencher, Matmul& matmul, const char* what, int N, int OC, int IC) {
  Stream& stream = bencher.stream;
  const Operand<T> X(stream, repeated_normal<T>(size_t(N) * size_t(IC))),
      W(stream, repeated_normal<T>(size_t(OC) * size_t(IC))), Y(stream, repeated_normal<T>(size_t(N) * size_t(OC)));
  Operand<float> dW(stream, std::vector<float>(size_t(OC) * size_t(IC)));
  const double flops = 2.0 * N * OC * IC;
  const double small = double(sizeof(T)) * (double(N) * IC + double(N) * OC), weight = double(OC) * IC;
  const std::string name = format("%s %s %dx%dx%d", what, dtype_name(kDType<T>), N, OC, IC);
  // The default, and the best of the candidates: of large products on a GPU alone, since a CPU takes minutes for them.
  const bool tunes = stream.device().info().gpu || flops < 4e9;
  const auto time = [&](const char* product, double bytes, const std::function<void()>& run) {
    bencher.time<T>(product + (" " + name), bytes, flops, run);
    if (!tunes) return;
    std::string shape;
    const TunedProduct best = timed(stream, matmul, shape, run);
    printf("  %+5.1f%% by the best of %d: %s\n", 100 * (best.seconds / best.by_default - 1), best.candidates,
           best.choice.substr(0, best.choice.find(':')).c_str());
  };
  const Tensor x = X.tensor({N, IC}), w = W.tensor({OC, IC}), y = Y.tensor({N, OC});
  time("forward", small + weight * sizeof(T), [&] { matmul.forward(y, x, w); });
  time("dgrad", small + weight * sizeof(T), [&] { matmul.dgrad(x, y, w); });
  time("wgrad", small + weight * 8, [&] { matmul.wgrad(dW.tensor({OC, IC}), y, x, true); });
}

}  // namespace

void check(Checker& checker) {
  Stream& stream = checker.stream;
  DeviceMemory workspace(stream.device(), Matmul::workspace_bytes(stream.device().info()));
  Matmul matmul(stream, workspace.data(), {});
  printf("products: %s\n", Matmul::description().c_str());
  // The strides of bf16 rows are multiples of 8, as the model's are (padded vocabulary).
  for (Sizes s : {Sizes{1, 8, 8, 0}, Sizes{7, 16, 24, 0}, Sizes{33, 97, 40, 128}, Sizes{130, 64, 72, 0},
                  Sizes{257, 200, 136, 256}, Sizes{64, 24, 520, 0}}) {
    check_sizes<float>(checker, matmul, s);
    check_sizes<bf16>(checker, matmul, s);
    check_sizes<bf16, float>(checker, matmul, s);
  }
  for (const auto& [M, N, K] : {std::tuple(1, 8, 24), {40, 16, 8}, {97, 64, 72}, {136, 200, 257}}) {
    check_gemm<float>(checker, matmul, M, N, K);
    check_gemm<bf16>(checker, matmul, M, N, K);
    check_gemm<bf16, float>(checker, matmul, M, N, K);
  }
  check_polynomial<float>(checker, matmul);
  check_polynomial<bf16>(checker, matmul);
  check_all_candidates<float>(checker, matmul);
  check_all_candidates<bf16>(checker, matmul);
  check_threads(checker);
  check_exact_products(checker);
  check_refusals(checker, matmul);
}

void bench(Bencher& bencher) {
  Stream& stream = bencher.stream;
  DeviceMemory workspace(stream.device(), Matmul::workspace_bytes(stream.device().info()));
  Matmul matmul(stream, workspace.data(), {});
  const auto time = [&]<class T>(T, const ModelConfig& model, int N) {
    time_sizes<T>(bencher, matmul, "qkv", N, model.qkv_width(), model.C);
    time_sizes<T>(bencher, matmul, "out", N, model.C, model.q_width());
    time_sizes<T>(bencher, matmul, "gate_up", N, 2 * model.FF, model.C);
    time_sizes<T>(bencher, matmul, "down", N, model.C, model.FF);
  };
  for (const auto& [model, N] : bencher.workloads()) {
    printf("%s\n", model.name.c_str());
    if (bencher.gpu() || model.name == "tiny") time(bf16{}, model, N);  // the CPU backend multiplies bf16 as fp32
    if (!bencher.gpu()) time(float{}, model, N);
  }
}
