// Newton and Schulz's iteration against the same in float64.
//
// Covers: promise 7: newton_schulz: wide, tall, square and thin matrices in fp32 and bf16, tiny ones, 0 and NaN;
// singular values near 1; the same bits with more scratch
#include "llmc/kernels/newton_schulz.h"

#include "dev/kernels/check.h"
#include "dev/kernels/operand.h"
#include "llmc/kernels/global_norm.h"

namespace {

// ---------------------------------------------------------------------------------------------- the reference

// Row-major, in float64.
struct Matrix {
  int rows, columns;
  std::vector<double> values;
  Matrix(int rows, int columns) : rows(rows), columns(columns), values(size_t(rows) * size_t(columns)) {}
  double& at(int i, int j) { return values[size_t(i) * size_t(columns) + size_t(j)]; }
  double at(int i, int j) const { return values[size_t(i) * size_t(columns) + size_t(j)]; }
  double norm() const {
    double sum = 0;
    for (const double x : values) sum += x * x;
    return std::sqrt(sum);
  }
};
Matrix transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  return t;
}
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (int i = 0; i < a.rows; ++i)
    for (int k = 0; k < a.columns; ++k) {
      const double x = a.at(i, k);
      const double* row = &b.values[size_t(k) * size_t(b.columns)];
      for (int j = 0; j < b.columns; ++j) c.values[size_t(i) * size_t(b.columns) + size_t(j)] += x * row[j];
    }
  return c;
}

// The iteration. round() is applied to all that is rounded to the matrices' type: the norm and each result.
template <class Round>
Matrix iterated(const Matrix& x, const Round& round) {
  if (x.rows > x.columns) return transposed(iterated(transposed(x), round));
  constexpr double a = double(3.4445f), b = double(-4.7750f), c = double(2.0315f);
  Matrix X = x;
  const double norm = std::max(round(x.norm()), round(double(1e-7f)));
  for (double& value : X.values) value = round(value / norm);
  for (int step = 0; step < 5; ++step) {
    Matrix A = product(X, transposed(X));
    for (double& value : A.values) value = round(value);
    Matrix P = product(A, A);
    for (size_t i = 0; i < P.values.size(); ++i) P.values[i] = round(c * P.values[i] + b * A.values[i]);
    Matrix next = product(P, X);
    for (size_t i = 0; i < next.values.size(); ++i) next.values[i] = round(next.values[i] + a * X.values[i]);
    X = std::move(next);
  }
  return X;
}

// ‖a - b‖ / ‖b‖
double distance(const Matrix& a, const Matrix& b) {
  Matrix difference = a;
  for (size_t i = 0; i < a.values.size(); ++i) difference.values[i] -= b.values[i];
  return difference.norm() / b.norm();
}

// Rounds to T's precision, up or down at random, with the exact value as the mean.
template <class T>
struct RandomRounding {
  Generator& generator;
  double operator()(double x) const {
    if (x == 0) return 0;
    const double spacing = std::ldexp(epsilon_of<T>(), std::ilogb(x));
    return spacing * std::floor(x / spacing + generator.uniform());
  }
};

// The distance that the rounding to T alone makes. Which way a number is rounded may depend on the last bit of a sum,
// and so on the processor. Therefore several emulations round at random, which makes larger errors than rounding to
// nearest (their mean square is twice as large); the largest distance counts. It differs little between emulations of
// a large matrix, and a small one, where few numbers decide, has many emulations.
template <class T>
double rounding_distance(const Matrix& x, const Matrix& exact) {
  const double flops = newton_schulz_flops(x.rows, x.columns);
  const int seeds = int(std::clamp((few_sizes() ? 2e7 : 3e8) / flops, 4.0, 500.0));
  double most = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    Generator generator(uint64_t(seed) + 1);
    most = std::max(most, distance(iterated(x, RandomRounding<T>{generator}), exact));
  }
  return most;
}

// The singular values of a matrix, from the eigenvalues of its Gram matrix by Jacobi's rotations.
std::vector<double> singular_values(const Matrix& x) {
  Matrix A = x.rows <= x.columns ? product(x, transposed(x)) : product(transposed(x), x);
  const int n = A.rows;
  for (int sweep = 0; sweep < 12; ++sweep)
    for (int p = 0; p < n; ++p)
      for (int q = p + 1; q < n; ++q) {
        const double off = A.at(p, q);
        if (std::fabs(off) < 1e-14) continue;
        const double theta = (A.at(q, q) - A.at(p, p)) / (2 * off);
        const double t = (theta < 0 ? -1 : 1) / (std::fabs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        for (int k = 0; k < n; ++k) {
          const double kp = A.at(k, p), kq = A.at(k, q);
          A.at(k, p) = c * kp - s * kq, A.at(k, q) = s * kp + c * kq;
        }
        for (int k = 0; k < n; ++k) {
          const double pk = A.at(p, k), qk = A.at(q, k);
          A.at(p, k) = c * pk - s * qk, A.at(q, k) = s * pk + c * qk;
        }
      }
  std::vector<double> values;
  for (int i = 0; i < n; ++i) values.push_back(std::sqrt(std::max(0.0, A.at(i, i))));
  std::sort(values.begin(), values.end());
  return values;
}

// ---------------------------------------------------------------------------------------------- the kernels

template <class T>
std::vector<T> newton_schulz_of(Checker& checker, Matmul& matmul, const std::vector<T>& values, int rows, int columns,
                                size_t more_scratch = 0) {
  Stream& stream = checker.stream;
  const size_t n = size_t(std::min(rows, columns)), partials = global_norm_partials(values.size());
  const Operand<T> x(stream, values), result(stream, poisoned<T>(values.size())),
      gram(stream, poisoned<T>(n * n + more_scratch)), polynomial(stream, poisoned<T>(n * n + more_scratch));
  const Operand<double> sums(stream, poisoned<double>(partials + more_scratch)), sum(stream, poisoned<double>(1));
  const auto all = [](const auto& operand) { return operand.tensor({operand.count}); };
  newton_schulz(matmul, stream, x.tensor({rows, columns}), result.tensor({rows, columns}),
                {all(gram), all(polynomial), all(sums), all(sum)});
  return result.download();
}

struct Shape {
  int rows, columns;
  double scale = 1;
};

// Random numbers, whose smallest singular value is more than 1/100 of the norm: a square matrix of them alone has
// smaller ones, so that its diagonal is made large.
template <class T>
std::vector<T> well_conditioned(const Shape& s) {
  Generator generator(uint64_t(s.rows) * 1009 + uint64_t(s.columns));
  std::vector<T> values(size_t(s.rows) * size_t(s.columns));
  for (size_t i = 0; i < values.size(); ++i) {
    const bool diagonal = s.rows == s.columns && i % size_t(s.columns + 1) == 0;
    values[i] = from_float<T>(float(s.scale * (generator.normal() + (diagonal ? 3 * std::sqrt(s.rows) : 0))));
  }
  return values;
}

template <class T>
void check_shape(Checker& checker, Matmul& matmul, const Shape& s) {
  const std::vector<T> values = well_conditioned<T>(s);
  Matrix x(s.rows, s.columns), got = x;
  x.values = to_doubles(values);
  const std::vector<T> result = newton_schulz_of(checker, matmul, values, s.rows, s.columns);
  got.values = to_doubles(result);
  const Matrix exact = iterated(x, [](double value) { return value; });
  // A sum of K fp32 numbers rounds up to K times where an emulation in fp32 rounds once, and the signs of these errors
  // are random: sqrt(K). In bf16 they do not count.
  const double longest = double(std::max(s.rows, s.columns)), sums = sizeof(T) == 2 ? 1 : std::sqrt(longest);
  const double is = distance(got, exact), limit = 2 * sums * rounding_distance<T>(x, exact);
  const std::string name = format("%s %d x %d times %g", dtype_name(kDType<T>), s.rows, s.columns, s.scale);
  checker.that(name, is <= limit, format("%.2g of its norm away from float64, limit %.2g", is, limit));
  checker.same_bits("  with more scratch", newton_schulz_of(checker, matmul, values, s.rows, s.columns, 300), result);
  if (s.scale < 1) return;  // its norm is below 1e-7, and is not 1 afterwards
  const std::vector<double> singular = singular_values(got);
  checker.that("  singular values", 0.65 < singular.front() && singular.back() < 1.25,
               format("%.3f to %.3f, expected 0.65 to 1.25", singular.front(), singular.back()));
}

template <class T>
void check_type(Checker& checker, Matmul& matmul) {
  std::vector<Shape> shapes = {{1, 1}, {1, 100}, {100, 1}, {2, 3}, {7, 130}, {130, 7}, {40, 80}, {48, 48}};
  if (!few_sizes())
    for (const Shape& s : {Shape{513, 7}, {64, 200}, {200, 64}, {96, 96}, {128, 513}}) shapes.push_back(s);
  for (const Shape& s : shapes) check_shape<T>(checker, matmul, s);
  for (const double scale : {1e-10, 1e15}) check_shape<T>(checker, matmul, {24, 64, scale});

  const std::string type = dtype_name(kDType<T>);
  const std::vector<T> zeros(24 * 40, from_float<T>(0));
  checker.same_bits("0 in " + type, newton_schulz_of(checker, matmul, zeros, 24, 40), zeros);
  std::vector<T> nan = well_conditioned<T>({24, 40});
  nan[333] = from_float<T>(NAN);
  size_t hidden = 0;
  for (const T y : newton_schulz_of(checker, matmul, nan, 24, 40)) hidden += to_float(y) == to_float(y);
  checker.that("NaN in " + type, hidden == 0, format("%zu of %zu numbers hide it", hidden, nan.size()));
}

void check_refusals(Checker& checker, Matmul& matmul) {
  Stream& stream = checker.stream;
  const Operand<float> a(stream, std::vector<float>(1024)), b(stream, std::vector<float>(1024)),
      c(stream, std::vector<float>(1024)), d(stream, std::vector<float>(1024));
  const Operand<double> sums(stream, std::vector<double>(64));
  const Tensor x = a.tensor({16, 32}), result = b.tensor({16, 32}), partials = sums.tensor({32}),
               sum = partials.elements(0, 1);
  const auto refused = [&](const char* name, const char* expected, const Tensor& x, const Tensor& y,
                           const NewtonSchulzScratch& scratch) {
    checker.refused(name, expected, [&] { newton_schulz(matmul, stream, x, y, scratch); });
  };
  const NewtonSchulzScratch scratch{c.tensor({1024}), d.tensor({1024}), partials, sum};
  refused("another shape", "newton_schulz: result is (32, 16) of fp32\n  expected (16, 32)", x, b.tensor({32, 16}),
          scratch);
  refused("another type", "expected (16, 32) of fp32", x, Tensor(b.data(), DType::bf16, {16, 32}), scratch);
  refused("columns of a wider matrix", "x (16, 16) is not contiguous", x.columns(0, 16), b.tensor({16, 16}), scratch);
  refused("too small a Gram matrix", "255", x, result, {c.tensor({255}), d.tensor({1024}), partials, sum});
}

}  // namespace

void check(Checker& checker) {
  Stream& stream = checker.stream;
  DeviceMemory workspace(stream.device(), Matmul::workspace_bytes(stream.device().info()));
  Matmul matmul(stream, workspace.data(), {});
  check_type<float>(checker, matmul);
  check_type<bf16>(checker, matmul);
  check_refusals(checker, matmul);
}

void bench(Bencher& bencher) {
  Stream& stream = bencher.stream;
  DeviceMemory workspace(stream.device(), Matmul::workspace_bytes(stream.device().info()));
  Matmul matmul(stream, workspace.data(), {});
  std::vector<Shape> shapes = {{2048, 8192}, {8192, 2048}, {4096, 4096}, {4096, 14336}};
  if (!bencher.gpu_sizes()) shapes = {{128, 512}, {512, 128}, {256, 256}};
  for (const Shape& s : shapes) {
    const size_t size = size_t(s.rows) * size_t(s.columns), n = size_t(std::min(s.rows, s.columns));
    const Operand<bf16> x(stream, repeated_normal<bf16>(size)), result(stream, std::vector<bf16>(size)),
        gram(stream, std::vector<bf16>(n * n)), polynomial(stream, std::vector<bf16>(n * n));
    const Operand<double> partials(stream, std::vector<double>(global_norm_partials(size))),
        sum(stream, std::vector<double>(1));
    const auto all = [](const auto& operand) { return operand.tensor({operand.count}); };
    // A step reads the matrix twice and writes it once; it reads and writes both of the others. The norm reads the
    // matrix twice more, and writes it once.
    const double numbers = kNewtonSchulzSteps * (3.0 * double(size) + 4.0 * double(n * n)) + 3.0 * double(size);
    bencher.time<bf16>(format("newton_schulz %d x %d", s.rows, s.columns), numbers * sizeof(bf16),
                       newton_schulz_flops(s.rows, s.columns), [&] {
                         newton_schulz(matmul, stream, x.tensor({s.rows, s.columns}),
                                       result.tensor({s.rows, s.columns}),
                                       {all(gram), all(polynomial), all(partials), all(sum)});
                       });
  }
}
