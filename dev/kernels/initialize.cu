// First values against Box & Muller in float64, slices against the whole, and the moments of a normal distribution.
//
// Covers: promise 7: initialize: normal numbers of any slice of a tensor, the same bits on every machine; casts
#include "llmc/kernels/initialize.h"

#include "dev/kernels/check.h"
#include "llmc/base/philox.h"

namespace {

std::vector<float> normals(Stream& stream, size_t n, uint64_t key, uint64_t offset, float std) {
  Array<float> data(stream, n);
  initialize_normal(stream, data.tensor(), key, offset, std);
  return data.download();
}

double reference(uint64_t key, uint64_t i, double std) {
  const PhiloxBlock bits = philox(key, i / 4, 0);
  const uint32_t radius = bits.words[i % 4 / 2 * 2], angle = bits.words[i % 4 / 2 * 2 + 1];
  const double r = std::sqrt(-2 * std::log(double(uniform(radius)))), a = 2 * M_PI * double(angle) * 0x1p-32;
  return std * r * (i % 2 ? std::sin(a) : std::cos(a));
}

void check_values(Checker& checker) {
  const uint64_t far = (uint64_t(1) << 33) + 3;  // beyond 32 bits
  for (const uint64_t offset : {uint64_t(0), uint64_t(1), uint64_t(30), far})
    for (const size_t n : {1, 2, 3, 5, 31, 32, 33, 8191, 8193, 100003}) {
      const std::vector<float> got = normals(checker.stream, n, 42, offset, 0.02f);
      std::vector<double> want(n);
      for (size_t i = 0; i < n; ++i) want[i] = reference(42, offset + i, double(0.02f));
      // Polynomials good to 2 units in the last place; sine and cosine near a quarter turn's end lose the digits that
      // the angle's 2^-32 steps never had: absolute, at the size of the radius (up to 6.66).
      checker.close(format("n=%zu offset=%llu", n, (unsigned long long)offset), got, want, {int(n)}, 1e-6,
                    0.02 * 6.66 * 2e-7);
    }
}

void check_slices(Checker& checker) {
  Stream& stream = checker.stream;
  const size_t n = 20000;
  const std::vector<float> whole = normals(stream, n, 7, 0, 1);
  for (const size_t begin : {1, 2, 3, 4, 5, 31, 127, 8190, 8192, 19999})
    for (const size_t count : {1, 4, 7, 64, 8193}) {
      if (begin + count > n) continue;
      const auto from = whole.begin() + std::ptrdiff_t(begin);
      checker.same_bits(format("elements %zu to %zu alone", begin, begin + count), normals(stream, count, 7, begin, 1),
                        std::vector<float>(from, from + std::ptrdiff_t(count)));
    }
}

// Columns of a matrix, that begin within a row, as a rank holds them.
void check_columns(Checker& checker) {
  Stream& stream = checker.stream;
  const size_t rows = 33, columns = 29;
  const std::vector<float> whole = normals(stream, rows * columns, 11, 0, 1);
  for (const auto& [first, width] : std::vector<std::pair<size_t, size_t>>{{0, 29}, {0, 1}, {28, 1}, {3, 8}, {5, 17}})
    for (const size_t skip : {0, 1, 9, 40}) {
      if (skip >= (rows - 5) * width) continue;
      const size_t n = (rows - 5) * width - skip;
      const ShardWindow window{2 * columns + first, skip, width, columns};
      std::vector<float> want;
      for (size_t i = skip; i < skip + n; ++i) want.push_back(whole[(2 + i / width) * columns + first + i % width]);
      Array<float> data(stream, n);
      initialize_normal(stream, data.tensor(), 11, window, 1);
      checker.same_bits(format("columns %zu to %zu of %zu from number %zu on", first, first + width - 1, columns, skip),
                        data.download(), want);
    }
}

// Numbers written down once: weights made from a seed must never change, nor differ from machine to machine.
void check_pinned(Checker& checker) {
  const uint64_t key = philox_key("model.embed_tokens.weight", 1);
  checker.same_bits("the first weights of seed 1", normals(checker.stream, 8, key, 0, 0.02f),
                    {0x1.3f228ap-7f, 0x1.1c90a6p-5f, 0x1.90c67ap-8f, -0x1.51cd44p-6f, -0x1.0e3ddcp-6f, 0x1.4c0944p-5f,
                     -0x1.08b3a6p-5f, 0x1.c03c32p-7f});
  const std::vector<float> many = normals(checker.stream, 1 << 20, key, 5, 0.02f);
  const uint64_t hash = fnv1a({reinterpret_cast<const char*>(many.data()), many.size() * sizeof(float)});
  checker.that("a million more of them", hash == 0x3de0eec52fd52666u,
               format("their FNV-1a hash is %016llx", (unsigned long long)hash));
}

void check_moments(Checker& checker) {
  const size_t n = 1 << 20;
  const std::vector<float> x = normals(checker.stream, n, 11, 0, 1), other = normals(checker.stream, n, 12, 0, 1);
  const auto mean = [&](const std::function<double(size_t)>& f) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += f(i);
    return sum / double(n);
  };
  const auto power = [](double v, int p) { return std::pow(v, p); };
  const auto at = [&](size_t i) { return double(x[i % n]); };
  // Each mean is off by about sqrt(variance / n); five times that happens once in a million.
  const auto expect = [&](const std::string& name, double got, double want, double variance) {
    const double limit = 5 * std::sqrt(variance / double(n));
    checker.that(name, std::fabs(got - want) < limit, format("%.6f, expected %.0f within %.6f", got, want, limit));
  };
  expect("mean", mean([&](size_t i) { return at(i); }), 0, 1);
  expect("variance", mean([&](size_t i) { return power(at(i), 2); }), 1, 2);
  expect("third moment", mean([&](size_t i) { return power(at(i), 3); }), 0, 15);
  expect("fourth moment", mean([&](size_t i) { return power(at(i), 4); }), 3, 96);
  for (const size_t distance : {1, 2, 3, 4, 128})
    expect(format("correlation over %zu", distance), mean([&](size_t i) { return at(i) * at(i + distance); }), 0, 1);
  expect("correlation of squares of a pair", mean([&](size_t i) { return power(at(i & ~size_t(1)) * at(i | 1), 2); }),
         1,
         16);  // of n/2 pairs, each counted twice
  expect("correlation of two keys", mean([&](size_t i) { return at(i) * double(other[i]); }), 0, 1);
  const float largest = *std::max_element(x.begin(), x.end());
  checker.that("tails", largest > 4 && largest < 6.67f, format("the largest of %zu is %g", n, double(largest)));
}

template <class T>
void check_cast(Checker& checker) {
  for (const size_t n : {1, 7, 8, 9, 2047, 2048, 2049, 4100}) {
    Generator generator(n);
    std::vector<float> values = random_normal<float>(generator, n);
    values[0] = INFINITY;
    values[n / 2] = NAN;
    values[n - 1] = -1.00390625f;  // half way between two bf16 numbers
    const Array<float> in(checker.stream, values);
    Array<T> out(checker.stream, n);
    cast(checker.stream, out.tensor(), in.tensor());
    std::vector<T> want(n);
    for (size_t i = 0; i < n; ++i) {
      if constexpr (sizeof(T) == 2) want[i] = T{bf16_bits(values[i])};
      else want[i] = values[i];
    }
    checker.same_bits(format("cast to %s n=%zu", dtype_name(kDType<T>), n), out.download(), want);
  }
}

}  // namespace

void check(Checker& checker) {
  check_values(checker);
  check_slices(checker);
  check_columns(checker);
  check_pinned(checker);
  check_moments(checker);
  check_cast<float>(checker);
  check_cast<bf16>(checker);
  for (const size_t n : {1, 7, 8, 9, 2049}) {
    Array<float> data(checker.stream, n);
    initialize_constant(checker.stream, data.tensor(), 0.75f);
    checker.same_bits(format("constant n=%zu", n), data.download(), std::vector<float>(n, 0.75f));
  }
  checker.same_bits("no deviation", normals(checker.stream, 5, 1, 0, 0.0f), [&] {
    std::vector<float> zeros = normals(checker.stream, 5, 1, 0, 1.0f);
    for (float& x : zeros) x *= 0.0f;
    return zeros;
  }());

  Stream& stream = checker.stream;
  Array<float> data(stream, 8);
  Array<int> integers(stream, 8);
  const Tensor x = data.tensor(), none = data.tensor({0});
  checker.refused("no numbers", "of no numbers", [&] { initialize_normal(stream, none, 1, 0, 1); });
  checker.refused("a negative deviation", "deviation -1", [&] { initialize_normal(stream, x, 1, 0, -1); });
  checker.refused("a deviation that is NaN", "nan", [&] { initialize_normal(stream, x, 1, 0, NAN); });
  checker.refused("normal integers", "data is (8) of int32\n  expected a tensor of fp32",
                  [&] { initialize_normal(stream, integers.tensor(), 1, 0, 1); });
  checker.refused("no constants", "no numbers", [&] { initialize_constant(stream, none, 1); });
  checker.refused("nothing to cast", "no numbers", [&] { cast(stream, none, none); });
  checker.refused("a cast of too little", "out is (8) of fp32\n  expected 4 elements", [&] {
    cast(stream, x, x.first({2, 2}));
  });
  checker.refused("a cast to integers", "no kernel for int32", [&] { cast(stream, integers.tensor(), x); });
}

void bench(Bencher& bencher) {
  const size_t n = bencher.gpu_sizes() ? size_t(1) << 30 : size_t(1) << 20;
  Array<float> data(bencher.stream, n);
  Array<bf16> rounded(bencher.stream, n);
  bencher.time(format("initialize_normal, %zu elements", n), double(n) * 4, 0,
               [&] { initialize_normal(bencher.stream, data.tensor(), 1, 0, 0.02f); });
  bencher.time(format("cast to bf16, %zu elements", n), double(n) * 6, 0,
               [&] { cast(bencher.stream, rounded.tensor(), data.tensor()); });
}
