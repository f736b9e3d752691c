// Checks and times llmc/kernels/rmsnorm against a plain reference in double.
// Covers: promise 7: rmsnorm, add + rmsnorm, rmsnorm + add and their backward agree with a plain reference on ugly
// shapes; without y: the same, and its largest number
#include "llmc/kernels/rmsnorm.h"

#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"

namespace {

constexpr float kEps = 1e-5f;

template <class T>
struct Inputs {
  int N, C;
  std::vector<T> a, b, w, dy, dx;  // dx, dw: what is there before backward adds to it
  std::vector<float> dw;

  Inputs(int N, int C, uint64_t seed) : N(N), C(C) {
    Generator generator(seed);
    const size_t size = size_t(N) * C;
    a = random_normal<T>(generator, size, 0.7);
    b = random_normal<T>(generator, size, 0.7);
    w = random_normal<T>(generator, size_t(C), 0.3, 1);
    dy = random_normal<T>(generator, size);
    dx = random_normal<T>(generator, size);
    dw = random_normal<float>(generator, size_t(C));
  }
};

template <class T>
using Outputs = std::tuple<std::vector<T>, std::vector<T>, std::vector<float>, std::vector<T>, std::vector<float>>;

// sum, y and rstd of the sum, dx, dw.
template <class T>
Outputs<T> run(Stream& stream, const Inputs<T>& in, bool in_place) {
  const int N = in.N, C = in.C;
  Array<T> a(stream, in.a), b(stream, in.b), w(stream, in.w), dy(stream, in.dy), dx(stream, in.dx);
  Array<T> sum_beside(stream, in.a.size()), y(stream, in.a.size());
  Array<float> rstd(stream, size_t(N)), dw(stream, in.dw), scratch(stream, rmsnorm_backward_scratch(N, C));
  Array<T>& sum = in_place ? a : sum_beside;
  add_rmsnorm_forward(stream, sum.tensor({N, C}), y.tensor({N, C}), rstd.tensor(), a.tensor({N, C}), b.tensor({N, C}),
                      w.tensor(), kEps);
  rmsnorm_backward(stream, dx.tensor({N, C}), dw.tensor(), scratch.tensor(), dy.tensor({N, C}), sum.tensor({N, C}),
                   w.tensor(), rstd.tensor());
  scratch.download();  // its guards are whole
  return {sum.download(), y.download(), rstd.download(), dx.download(), dw.download()};
}

// Without y: the same sum and rstd, and |y|'s maximum, which raises what is there and never lowers it.
template <class T>
void check_without_y(Checker& checker, const Inputs<T>& in, const Outputs<T>& outputs, const std::string& name) {
  Stream& stream = checker.stream;
  const auto& [sum, y, rstd, dx, dw] = outputs;
  const int N = in.N, C = in.C;
  float largest = 0;
  for (const T& v : y) largest = std::max(largest, std::fabs(to_float(v)));
  const Array<T> a(stream, in.a), b(stream, in.b), w(stream, in.w);
  const auto run = [&](bool with_amax, bool with_y, float before, bool add) {
    Array<T> apart(stream, sum.size()), out(stream, y.size());
    Array<float> r(stream, rstd.size()), amax(stream, std::vector{before});
    if (!add) apart.upload(sum);
    const Tensor to = with_y ? out.tensor({N, C}) : Tensor(), x = apart.tensor({N, C});
    float* most = with_amax ? amax.data() : nullptr;
    if (add) add_rmsnorm_forward(stream, x, to, r.tensor(), a.tensor({N, C}), b.tensor({N, C}), w.tensor(), kEps, most);
    else rmsnorm_forward(stream, to, r.tensor(), x, w.tensor(), kEps, most);
    const std::vector<T> written = out.download();
    bool same = !memcmp(apart.download().data(), sum.data(), sum.size() * sizeof(T)) &&
                !memcmp(r.download().data(), rstd.data(), rstd.size() * sizeof(float)) &&
                amax.download()[0] == (with_amax ? std::max(before, largest) : before);
    if (with_y) return same && !memcmp(written.data(), y.data(), y.size() * sizeof(T));
    for (const T& v : written) same = same && std::isnan(to_float(v));  // poison
    return same;
  };
  int wrong = 0, count = 0;
  for (const bool with_amax : {false, true})
    for (const bool with_y : {false, true})
      for (const float before : {0.0f, largest / 2, 2 * largest})
        for (const bool add : {false, true}) ++count, wrong += !run(with_amax, with_y, before, add);
  checker.that(name + " with and without y and its maximum", wrong == 0, format("%d of %d wrong", wrong, count));
}

// The same dx and dw, and |dx|'s maximum.
void check_backward_amax(Checker& checker, const Inputs<bf16>& in, const Outputs<bf16>& outputs,
                         const std::string& name) {
  Stream& stream = checker.stream;
  const auto& [sum, y, rstd, dx, dw] = outputs;
  const int N = in.N, C = in.C;
  float largest = 0;
  for (const bf16 v : dx) largest = std::max(largest, std::fabs(to_float(v)));
  int wrong = 0;
  for (const float before : {0.0f, largest / 2, 2 * largest}) {
    const Array<bf16> x(stream, sum), w(stream, in.w), dy(stream, in.dy), to(stream, in.dx);
    const Array<float> r(stream, rstd), sums(stream, in.dw), amax(stream, std::vector{before}),
        scratch(stream, rmsnorm_backward_scratch(N, C));
    rmsnorm_backward(stream, to.tensor({N, C}), sums.tensor(), scratch.tensor(), dy.tensor({N, C}), x.tensor({N, C}),
                     w.tensor(), r.tensor(), amax.data());
    wrong += amax.download()[0] != std::max(before, largest) ||
             memcmp(to.download().data(), dx.data(), dx.size() * sizeof(bf16)) != 0 || sums.download() != dw;
  }
  checker.that(name + " dx with its maximum", wrong == 0, format("%d of 3 wrong", wrong));
}

// Norms after the layers: sum = a + norm(b), with its largest number; and backward that sets dx.
template <class T>
void check_norm_after(Checker& checker, const Inputs<T>& in, const std::string& name) {
  Stream& stream = checker.stream;
  const int N = in.N, C = in.C;
  std::vector<double> want(in.a.size()), want_dx(in.a.size());
  for (size_t n = 0; n < size_t(N); ++n) {
    double squares = 0, dot = 0;
    const auto at = [&](const std::vector<T>& values, int c) { return to_double(values[n * C + c]); };
    for (int c = 0; c < C; ++c) squares += at(in.b, c) * at(in.b, c);
    const double r = 1 / std::sqrt(squares / C + double(kEps));
    for (int c = 0; c < C; ++c) dot += at(in.dy, c) * to_double(in.w[c]) * at(in.b, c);
    for (int c = 0; c < C; ++c) {
      want[n * C + c] = at(in.a, c) + at(in.b, c) * r * to_double(in.w[c]);
      want_dx[n * C + c] = r * (at(in.dy, c) * to_double(in.w[c]) - at(in.b, c) * r * r * dot / C);
    }
  }
  const double few = 8 * 0x1p-23, rounding = sizeof(T) == 2 ? 0x1p-8 : 0;
  const Array<T> a(stream, in.a), b(stream, in.b), w(stream, in.w), dy(stream, in.dy), dx(stream, in.a.size()),
      sum(stream, in.a.size());
  const Array<float> rstd(stream, size_t(N)), dw(stream, in.dw), amax(stream, std::vector<float>{0}),
      scratch(stream, rmsnorm_backward_scratch(N, C));
  rmsnorm_add_forward(stream, sum.tensor({N, C}), rstd.tensor(), a.tensor({N, C}), b.tensor({N, C}), w.tensor(), kEps,
                      amax.data());
  const std::vector<T> got = sum.download();
  float largest = 0;
  for (const T x : got) largest = std::max(largest, std::fabs(to_float(x)));
  // A sum of two numbers up to about 10, of which one may nearly undo the other.
  checker.close(name + " a + norm(b)", got, want, {N, C}, few + rounding, 8e-6);
  checker.that(name + " its largest number", amax.download()[0] == largest, format("%g", double(largest)));
  rmsnorm_backward(stream, dx.tensor({N, C}), dw.tensor(), scratch.tensor(), dy.tensor({N, C}), b.tensor({N, C}),
                   w.tensor(), rstd.tensor(), nullptr, false);
  checker.close(name + " dx that is set", dx.download(), want_dx, {N, C}, 4 * few + rounding, 8e-6);
}

template <class T>
void check_shape(Checker& checker, OtherSchedules& orders, int N, int C) {
  const std::string name = format("%s N=%d C=%d", dtype_name(kDType<T>), N, C);
  const Inputs<T> in(N, C, uint64_t(N) * 10007 + C);
  const Outputs<T> outputs = run(checker.stream, in, false);
  const auto& [sum, y, rstd, dx, dw] = outputs;

  std::vector<T> want_sum(in.a.size());
  for (size_t i = 0; i < want_sum.size(); ++i) want_sum[i] = from_float<T>(to_float(in.a[i]) + to_float(in.b[i]));
  checker.same_bits(name + " sum", sum, want_sum);

  std::vector<double> want_y(y.size()), want_rstd(rstd.size()), want_dx = to_doubles(in.dx),
                                                                want_dw = to_doubles(in.dw), terms = want_dw;
  for (double& term : terms) term = std::fabs(term);
  for (size_t n = 0; n < size_t(N); ++n) {
    const auto at = [&](const std::vector<T>& values, int c) { return to_double(values[n * C + c]); };
    double squares = 0, dot = 0;
    for (int c = 0; c < C; ++c) squares += at(want_sum, c) * at(want_sum, c);
    const double r = want_rstd[n] = 1 / std::sqrt(squares / C + double(kEps));
    for (int c = 0; c < C; ++c) {
      want_y[n * C + c] = at(want_sum, c) * r * to_double(in.w[c]);
      const double term = at(in.dy, c) * at(want_sum, c) * r;
      want_dw[c] += term, terms[c] += std::fabs(term);
      dot += at(in.dy, c) * to_double(in.w[c]) * at(want_sum, c);
    }
    for (int c = 0; c < C; ++c)
      want_dx[n * C + c] += r * (at(in.dy, c) * to_double(in.w[c]) - at(want_sum, c) * r * r * dot / C);
  }
  // fp32 sums of up to some hundred positive squares a thread are right to a few roundings; bf16 rounds once more.
  const double few = 8 * 0x1p-23, rounding = sizeof(T) == 2 ? 0x1p-8 : 0;
  checker.close(name + " rstd", rstd, want_rstd, {N}, few, 0);
  checker.close(name + " y", y, want_y, {N, C}, few + rounding, 0);
  // dx is a difference of numbers up to about 10 (rows of one or two columns have a large rstd: relative).
  checker.close(name + " dx", dx, want_dx, {N, C}, 4 * few + rounding, 8e-6);
  // dw is a sum of N terms, each rounded a few times by 2^-24: of the largest sum of magnitudes.
  checker.close(name + " dw", dw, want_dw, {C}, few, 0x1p-22 * *std::max_element(terms.begin(), terms.end()));

  checker.same_bits(name + " the sum in place of a", std::get<0>(run(checker.stream, in, true)), sum);
  orders.same_bits(checker, name, outputs, [&](Stream& stream) { return run(stream, in, false); });

  Array<T> x(checker.stream, want_sum), w(checker.stream, in.w), y_alone(checker.stream, y.size());
  Array<float> rstd_alone(checker.stream, size_t(N));
  rmsnorm_forward(checker.stream, y_alone.tensor({N, C}), rstd_alone.tensor(), x.tensor({N, C}), w.tensor(), kEps);
  checker.same_bits(name + " y of the norm alone", y_alone.download(), y);
  checker.same_bits(name + " rstd of the norm alone", rstd_alone.download(), rstd);
  check_without_y(checker, in, outputs, name);
  check_norm_after(checker, in, name);
  if constexpr (std::is_same_v<T, bf16>) check_backward_amax(checker, in, outputs, name);
}

// The sum of squares is kept in fp32: 4096 ones and a 16 in bf16 could not be added up in bf16.
void check_fp32_sum(Checker& checker) {
  const int C = 4104;
  std::vector<bf16> x(size_t(C), from_float<bf16>(1));
  x[0] = from_float<bf16>(16);
  Array<bf16> in(checker.stream, x), w(checker.stream, std::vector<bf16>(size_t(C), from_float<bf16>(1)));
  Array<bf16> y(checker.stream, x.size());
  Array<float> rstd(checker.stream, 1);
  rmsnorm_forward(checker.stream, y.tensor({1, C}), rstd.tensor(), in.tensor({1, C}), w.tensor(), kEps);
  checker.close("bf16 squares are added in fp32", rstd.download(), {1 / std::sqrt((C - 1 + 256.0) / C + double(kEps))},
                {1}, 4 * 0x1p-23, 0);
}

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  Array<float> xs(stream, 64), ys(stream, 64), ws(stream, 16), rstds(stream, 4), sums(stream, 64), dws(stream, 16);
  Array<bf16> narrow(stream, 64);
  const Tensor x = xs.tensor({4, 16}), y = ys.tensor({4, 16}), w = ws.tensor(), rstd = rstds.tensor();
  const Tensor apart = sums.tensor({4, 16}), dw = dws.tensor(), scratch = sums.tensor({16}), row = rstd.first({1});
  const auto forward = [&](const Tensor& out, const Tensor& in, float eps = kEps) {
    return [=, &stream] { rmsnorm_forward(stream, out, in.rows() == 4 ? rstd : row, in, w, eps); };
  };
  const auto add = [&](const Tensor& sum, const Tensor& out, const Tensor& a, const Tensor& b) {
    return [=, &stream] { add_rmsnorm_forward(stream, sum, out, a.rows() == 4 ? rstd : row, a, b, w, kEps); };
  };
  const auto backward = [&](const Tensor& dx, const Tensor& sums, const Tensor& dy, float* amax = nullptr) {
    return [=, &stream] { rmsnorm_backward(stream, dx, dw, sums, dy, x, w, rstd, amax); };
  };
  checker.refused("no rows", "rmsnorm_forward: x is (0, 16)", forward(y.rows(0, 0), x.rows(0, 0)));
  checker.refused("no columns", "x is (4, 0)", forward(y, xs.tensor({4, 0})));
  checker.refused("no input", "x is absent", forward(y, {}));
  checker.refused("eps of 0", "eps = 0", forward(y, x, 0));
  checker.refused("another type", "y is (4, 16) of bf16\n  expected (4, 16) of fp32",
                  forward(narrow.tensor({4, 16}), x));
  checker.refused("a norm in place", "y overlaps x", forward(x, x));
  checker.refused("unaligned rows", "align", forward(y.rows(0, 1), Tensor(xs.data() + 1, {1, 16})));
  checker.refused("no sum", "sum is absent", add({}, apart, x, y));
  checker.refused("no second addend", "b is absent", add(x, apart, x, {}));
  checker.refused("a sum over b", "sum overlaps b", add(x, apart, y, x));
  checker.refused("a sum that overlaps a in part", "sum overlaps a",
                  add(Tensor(xs.data() + 4, {1, 16}), apart.rows(0, 1), x.rows(0, 1), y.rows(0, 1)));
  checker.refused("y over b", "y overlaps b", add(x, y, x, y));
  checker.refused("dx in place of dy", "dx overlaps dy", backward(y, scratch, y));
  checker.refused("dx in place of x", "dx overlaps x", backward(x, scratch, y));
  checker.refused("too little scratch", "scratch is (15)\n  expected (16) or more",
                  backward(y, scratch.first({15}), x));
  checker.refused("a maximum in fp32", "in bf16 alone", backward(y, scratch, x, dws.data()));
  checker.refused("scratch of no rows", "rmsnorm_backward_scratch: N = 0", [] { rmsnorm_backward_scratch(0, 8); });
}

template <class T>
void bench_shape(Bencher& bencher, int N, int C) {
  Stream& stream = bencher.stream;
  const size_t size = size_t(N) * C;
  const std::vector<T> values = repeated_normal<T>(size);
  Array<T> a(stream, values), b(stream, values), w(stream, repeated_normal<T>(size_t(C)));
  Array<T> dy(stream, values), dx(stream, values), sum(stream, size), y(stream, size);
  Array<float> rstd(stream, size_t(N)), dw(stream, repeated_normal<float>(size_t(C))),
      scratch(stream, rmsnorm_backward_scratch(N, C));
  const double row = double(N) * C * sizeof(T);
  const auto name = [&](const char* what) { return format("%s %s N=%d C=%d", what, dtype_name(kDType<T>), N, C); };
  bencher.time(name("rmsnorm_forward"), 2 * row, 4.0 * N * C, [&] {
    rmsnorm_forward(stream, y.tensor({N, C}), rstd.tensor(), a.tensor({N, C}), w.tensor(), kEps);
  });
  bencher.time(name("add_rmsnorm_forward"), 4 * row, 5.0 * N * C, [&] {
    add_rmsnorm_forward(stream, sum.tensor({N, C}), y.tensor({N, C}), rstd.tensor(), a.tensor({N, C}), b.tensor({N, C}),
                        w.tensor(), kEps);
  });
  bencher.time(name("rmsnorm_backward"), 4 * row, 12.0 * N * C, [&] {
    rmsnorm_backward(stream, dx.tensor({N, C}), dw.tensor(), scratch.tensor(), dy.tensor({N, C}), a.tensor({N, C}),
                     w.tensor(), rstd.tensor());
  });
}

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  const std::vector<std::pair<int, int>> shapes = {
      {1, 1},    {1, 2},    {2, 1},    {7, 8},     {9, 7},     {31, 33},   {33, 31},  {64, 63},  {65, 64},  {63, 65},
      {127, 9},  {130, 16}, {255, 40}, {257, 24},  {128, 128}, {129, 120}, {70, 136}, {5, 255},  {17, 256}, {18, 257},
      {3, 1000}, {33, 520}, {2, 1025}, {17, 2048}, {1, 4104},  {2, 4099},  {1100, 8}, {290, 520}};
  for (const auto& [N, C] : shapes) {
    check_shape<float>(checker, orders, N, C);
    check_shape<bf16>(checker, orders, N, C);
  }
  // Rows that a block shares, as on a GPU.
  CpuBackend backend = CpuBackend::from_environment();
  backend.wide_rows = true;
  Device wide_device(0, backend);
  Checker wide_checker(wide_device);
  OtherSchedules wide_orders(backend);
  const std::vector<std::pair<int, int>> shared = {{9, 7},     {33, 40},  {3, 1000},  {2, 1025}, {1, 1024},
                                                   {17, 1032}, {3, 2048}, {33, 2056}, {5, 4096}, {2, 4104},
                                                   {18, 5120}, {2, 8192}, {3, 8200}};
  for (const auto& [N, C] : shared) {
    check_shape<float>(wide_checker, wide_orders, N, C);
    check_shape<bf16>(wide_checker, wide_orders, N, C);
  }
  checker.all_of("rows that a block shares", wide_checker);
  check_fp32_sum(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads()) {
    bench_shape<bf16>(bencher, N, model.C);
    bench_shape<float>(bencher, N, model.C);
  }
}
