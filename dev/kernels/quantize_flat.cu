// Checks and times llmc/kernels/quantize_flat: weights that are quantized in stretches, and whole again, beside those
// that quantize() makes of the whole matrix, which dev/kernels/quantize.cu checks.
// Covers: promise 7: stretches of FP8 weights have the bytes, factors and largest numbers of the whole
#include "llmc/kernels/quantize_flat.h"

#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_orders.h"

namespace {

// A whole matrix: bytes and factor by rows and by columns, the largest number as it was found and as it was seen; the
// words of what is not finite; counts.
struct Whole {
  std::vector<uint8_t> by_rows, by_columns;
  std::vector<float> words;  // both factors, amax, seen
  std::vector<uint32_t> not_finite;
  std::vector<unsigned long long> counts;  // values, saturated, underflowed; amax, smallest and largest scale
};
using Outputs = std::tuple<std::vector<uint8_t>, std::vector<uint8_t>, std::vector<float>, std::vector<uint32_t>>;
Outputs outputs_of(const Whole& w) { return {w.by_rows, w.by_columns, w.words, w.not_finite}; }

struct Case {
  int rows, columns;
  bool power_of_two, given;
  std::vector<size_t> cuts;  // where stretches end
  std::string name() const {
    return format("%d x %d in %zu stretches%s%s", rows, columns, cuts.size(), power_of_two ? ", powers of two" : "",
                  given ? ", a given scale" : "");
  }
  QuantizedTensor operand(bool by_columns) const {
    QuantizedTensor t;
    t.rows = by_columns ? columns : rows, t.columns = by_columns ? rows : columns;
    return t;
  }
};

constexpr float kGivenScale = 77.5f;  // too large for some numbers, which saturate

// Memory that both ways write: as the store has it.
struct Memory {
  QuantizedTensor by_rows, by_columns;
  Array<uint8_t> rows, columns;
  Array<float> words;
  Array<uint32_t> not_finite;
  Array<QuantizeStatistics> statistics;
  Memory(Stream& stream, const Case& c)
      : by_rows(c.operand(false)),
        by_columns(c.operand(true)),
        rows(stream, by_rows.bytes()),
        columns(stream, by_columns.bytes()),
        words(stream, std::vector<float>{0, 0, 0, 0, kGivenScale}),
        not_finite(stream, std::vector<uint32_t>{~0u}),
        statistics(stream, std::vector<QuantizeStatistics>{{0, ~0u, 0, 0, 0, 0, 0}}) {
    by_rows.data = rows.data(), by_columns.data = columns.data();
    by_rows.factors = words.data(), by_columns.factors = words.data() + 1;
  }
  float* amax() const { return words.data() + 2; }
  float* seen() const { return words.data() + 3; }
  const float* scale(const Case& c) const { return c.given ? words.data() + 4 : nullptr; }
  Whole download() const {
    const QuantizeStatistics s = statistics.download()[0];
    return {rows.download(),
            columns.download(),
            words.download(),
            not_finite.download(),
            {s.values, s.saturated, s.underflowed, s.amax, s.smallest_scale, s.largest_scale}};
  }
};

Whole in_stretches(Stream& stream, const Case& c, const std::vector<bf16>& values) {
  const Array<bf16> x(stream, values);
  Memory m(stream, c);
  const Array<uint8_t> q(stream, values.size());
  SharedScale shared;
  shared.amax = m.amax(), shared.scale = m.scale(c), shared.power_of_two = c.power_of_two, shared.seen = m.seen();
  shared.not_finite = m.not_finite.data(), shared.number = 7, shared.statistics = m.statistics.data();
  const auto each = [&](auto&& f) {
    size_t begin = 0;
    for (const size_t end : c.cuts) f(begin, end - begin), begin = end;
  };
  if (!c.given) each([&](size_t at, size_t n) { largest_magnitude(stream, m.amax(), x.data() + at, n); });
  each([&](size_t at, size_t n) { quantize_flat(stream, q.data() + at, x.data() + at, n, shared); });
  const bool in_place = m.by_rows.bytes() == values.size();
  if (in_place) m.by_rows.data = q.data();
  arrange_quantized(stream, m.by_rows, m.by_columns, q.data(), shared);
  if (in_place) copy(stream, m.rows.data(), q.data(), values.size());
  return m.download();
}

Whole at_once(Stream& stream, const Case& c, const std::vector<bf16>& values) {
  const Array<bf16> x(stream, values);
  const Memory m(stream, c);
  Quantization q;
  q.by_rows = m.by_rows, q.by_columns = m.by_columns;
  q.power_of_two = c.power_of_two, q.amax = m.amax(), q.scale = m.scale(c), q.seen = m.seen();
  q.not_finite = m.not_finite.data(), q.number = 7, q.statistics = m.statistics.data();
  if (!c.given) quantize_amax(stream, PlainSource{x.data()}, c.rows, c.columns, q);
  quantize(stream, PlainSource{x.data()}, c.rows, c.columns, q);
  return m.download();
}

void check_case(Checker& checker, OtherOrders& orders, const Case& c, const std::vector<bf16>& values,
                const std::string& what) {
  const std::string name = c.name() + what;
  const Whole whole = at_once(checker.stream, c, values), cut = in_stretches(checker.stream, c, values);
  checker.that(name + ": bytes by rows", cut.by_rows == whole.by_rows, format("%zu bytes", whole.by_rows.size()));
  checker.that(name + ": bytes by columns", cut.by_columns == whole.by_columns,
               format("%zu bytes", whole.by_columns.size()));
  checker.same_bits(name + ": factors, largest numbers", cut.words, whole.words);
  checker.that(name + ": what is not finite", cut.not_finite == whole.not_finite, format("%u", whole.not_finite[0]));
  // The whole is counted in both orientations.
  bool counts = true;
  for (size_t i = 0; i < 3; ++i) counts = counts && 2 * cut.counts[i] == whole.counts[i];
  for (size_t i = 3; i < 6; ++i) counts = counts && cut.counts[i] == whole.counts[i];
  checker.that(name + ": counts", counts, format("%llu values, %llu saturated", cut.counts[0], cut.counts[1]));
  if (values.size() > 20000) return;
  const Outputs outputs = outputs_of(cut);
  orders.each([&](const std::string& order, Stream& stream) {
    checker.that(name + ", " + order, outputs_of(in_stretches(stream, c, values)) == outputs, "the same bits");
  });
}

}  // namespace

void check(Checker& checker) {
  OtherOrders orders;
  Generator generator(5);
  const auto size = [](int rows, int columns) { return size_t(rows) * size_t(columns); };
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{
           {1, 1}, {16, 16}, {37, 40}, {48, 64}, {65, 129}, {128, 80}, {3, 1000}, {272, 144}}) {
    const size_t n = size(rows, columns);
    std::vector<size_t> cuts;  // at multiples of 256, as parts of units have them
    for (size_t at = 256; at < n; at += 256 * size_t(generator.integer(1, 9))) cuts.push_back(at);
    cuts.push_back(n);
    const auto values = random_normal<bf16>(generator, n, 0.02);
    for (const bool power_of_two : {false, true}) {
      check_case(checker, orders, {rows, columns, power_of_two, false, {n}}, values, "");
      check_case(checker, orders, {rows, columns, power_of_two, false, cuts}, values, "");
    }
    check_case(checker, orders, {rows, columns, false, true, cuts}, random_normal<bf16>(generator, n, 5), "");
    for (const float odd : {0.0f, -0.0f, 1e-40f, 1.0f, 3e38f, INFINITY, NAN}) {
      std::vector<bf16> hostile(n, from_float<bf16>(odd == 1.0f ? 1e-3f : odd));
      if (odd == 1.0f) hostile[n / 2] = from_float<bf16>(-1024.0f);
      if (!std::isfinite(odd))
        std::fill(hostile.begin(), hostile.end(), from_float<bf16>(1.0f)), hostile[n - 1] = from_float<bf16>(odd);
      if (std::isfinite(odd))
        check_case(checker, orders, {rows, columns, false, false, cuts}, hostile, format(" of %g", double(odd)));
      else
        checker.that(format("%d x %d with %g is reported", rows, columns, double(odd)),
                     in_stretches(checker.stream, {rows, columns, false, false, cuts}, hostile).not_finite[0] == 7, "");
    }
  }
  Array<bf16> x(checker.stream, 64);
  Array<uint8_t> q(checker.stream, 64);
  Array<float> amax(checker.stream, 1);
  SharedScale shared;
  shared.amax = amax.data();
  checker.refused("no numbers", "largest_magnitude: 0 numbers",
                  [&] { largest_magnitude(checker.stream, amax.data(), x.data(), 0); });
  checker.refused("not aligned", "16-byte aligned",
                  [&] { quantize_flat(checker.stream, q.data(), x.data() + 1, 8, shared); });
  checker.refused("no scale", "neither a scale", [&] { quantize_flat(checker.stream, q.data(), x.data(), 8, {}); });
}

void bench(Bencher& bencher) {
  for (const auto& workload : bencher.workloads()) {
    const int rows = 2 * workload.model.FF, columns = workload.model.C;
    const size_t n = size_t(rows) * size_t(columns);
    Case c{rows, columns, false, false, {n}};
    Stream& stream = bencher.stream;
    const Array<bf16> x(stream, repeated_normal<bf16>(n));
    Memory m(stream, c);
    const Array<uint8_t> q(stream, n);
    SharedScale shared;
    shared.amax = m.amax();
    const std::string shape = format(" of %d x %d", rows, columns);
    bencher.time("largest_magnitude" + shape, 2.0 * double(n), 0,
                 [&] { largest_magnitude(stream, m.amax(), x.data(), n); });
    bencher.time("quantize_flat" + shape, 3.0 * double(n), 0,
                 [&] { quantize_flat(stream, q.data(), x.data(), n, shared); });
    m.by_rows.data = q.data();
    bencher.time("arrange_quantized" + shape, 2.0 * double(n), 0,
                 [&] { arrange_quantized(stream, m.by_rows, m.by_columns, q.data(), shared); });
  }
}
