// Checks and times llmc/kernels/quantize_weights: many matrices at once, whole or in slices, against those that
// quantize() makes of each alone, which dev/kernels/quantize.cu checks.
// Covers: promise 7: FP8 weights that are quantized many at once, whole or in slices, have the bytes, scale_inv,
// largest numbers and counts of each alone
#include "llmc/kernels/quantize_weights.h"

#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"
#include "dev/kernels/quantize_cases.h"

namespace {

// A whole matrix: bytes and scale_inv, rowwise and columnwise; amax and amax_step; the
// words of what is not finite; counts.
struct Whole {
  std::vector<uint8_t> rowwise, columnwise;
  std::vector<float> words;  // both scale_inv, amax, amax_step
  std::vector<uint32_t> not_finite;
  std::vector<unsigned long long> counts;  // values, saturated, underflowed; amax, smallest and largest scale
};
using Outputs = std::tuple<std::vector<uint8_t>, std::vector<uint8_t>, std::vector<float>, std::vector<uint32_t>>;
Outputs outputs_of(const Whole& w) { return {w.rowwise, w.columnwise, w.words, w.not_finite}; }

struct Cut {
  int rows, columns;
  bool power_of_two, given;
  std::vector<size_t> cuts;  // where slices end
  bool lacks = false;        // the given scale is 0, and so it follows from the largest number
  std::string name() const {
    return format("%d x %d in %zu slices%s%s", rows, columns, cuts.size(), power_of_two ? ", powers of two" : "",
                  lacks   ? ", a given scale that is none"
                  : given ? ", a given scale"
                          : "");
  }
  QuantizedTensor operand(bool columnwise) const {
    QuantizedTensor t;
    t.rows = columnwise ? columns : rows, t.columns = columnwise ? rows : columns;
    return t;
  }
};

constexpr float kGivenScale = 77.5f;  // too large for some numbers, which saturate

// Memory that both ways write: as the store has it.
struct Memory {
  QuantizedTensor rowwise, columnwise;
  Array<uint8_t> rows, columns;
  Array<float> words;
  Array<uint32_t> not_finite;
  Array<QuantizeStatistics> statistics;
  Memory(Stream& stream, const Cut& c)
      : rowwise(c.operand(false)),
        columnwise(c.operand(true)),
        rows(stream, rowwise.bytes()),
        columns(stream, columnwise.bytes()),
        words(stream, std::vector<float>{0, 0, 0, 0, c.lacks ? 0 : kGivenScale}),
        not_finite(stream, std::vector<uint32_t>{~0u}),
        statistics(stream, std::vector<QuantizeStatistics>{{0, ~0u, 0, 0, 0, 0, 0}}) {
    rowwise.data = rows.data(), columnwise.data = columns.data();
    rowwise.scale_inv = words.data(), columnwise.scale_inv = words.data() + 1;
  }
  float* amax() const { return words.data() + 2; }
  float* amax_step() const { return words.data() + 3; }
  const float* scale(const Cut& c) const { return c.given ? words.data() + 4 : nullptr; }
  Whole download() const {
    const QuantizeStatistics s = statistics.download()[0];
    return {rows.download(),
            columns.download(),
            words.download(),
            not_finite.download(),
            {s.values, s.saturated, s.underflowed, s.amax, s.smallest_scale, s.largest_scale}};
  }
};

// A table on the device.
template <class Entry>
struct Table {
  std::vector<Entry> entries;
  Array<Entry> on_device;
  Table(Stream& stream, std::vector<Entry> placed) : entries(std::move(placed)), on_device(stream, entries) {}
  DeviceTable<Entry> all() const { return {entries.data(), on_device.data(), int(entries.size())}; }
};
Table<WeightSlice> table_of(Stream& stream, std::vector<WeightSlice> slices) {
  assign_blocks(slices);
  return {stream, std::move(slices)};
}
Table<WeightMatrix> table_of(Stream& stream, std::vector<WeightMatrix> matrices) {
  assign_tiles(matrices);
  return {stream, std::move(matrices)};
}

// In launches of `together` slices.
Whole in_slices(Stream& stream, const Cut& c, const std::vector<bf16>& values, int together = 1000) {
  const Array<bf16> x(stream, values);
  Memory m(stream, c);
  const Array<uint8_t> q(stream, values.size());
  const WeightScaleRefs words{m.scale(c),          m.amax_step(),  m.statistics.data(),
                              m.not_finite.data(), c.power_of_two, c.lacks};
  std::vector<WeightSlice> slices;
  size_t begin = 0;
  for (const size_t end : c.cuts)
    slices.push_back({x.data() + begin, q.data() + begin, end - begin, m.amax(), 0, 7}), begin = end;
  const auto table = table_of(stream, slices);
  const auto each = [&](auto&& f) {
    for (int i = 0; i < int(slices.size()); i += together)
      f(table.all().part(i, std::min(together, int(slices.size()) - i)));
  };
  if (words.needs_amax()) each([&](const WeightSlices& part) { find_weight_amax(stream, part); });
  each([&](const WeightSlices& part) { quantize(stream, part, words); });
  const bool in_place = m.rowwise.bytes() == values.size();
  if (in_place) m.rowwise.data = q.data();
  const auto whole = table_of(stream, std::vector<WeightMatrix>{{m.rowwise, m.columnwise, nullptr, q.data(), m.amax(),
                                                                 nullptr, nullptr, 0, 7}});
  transpose_gathered_weights(stream, whole.all(), words);
  if (in_place) copy(stream, m.rows.data(), q.data(), values.size());
  return m.download();
}

Whole at_once(Stream& stream, const Cut& c, const std::vector<bf16>& values) {
  const Array<bf16> x(stream, values);
  const Memory m(stream, c);
  Quantization q;
  q.rowwise = m.rowwise, q.columnwise = m.columnwise;
  q.power_of_two = c.power_of_two, q.amax = m.amax(), q.scale = m.scale(c), q.amax_step = m.amax_step();
  q.not_finite = m.not_finite.data(), q.nonfinite_code = 7, q.statistics = m.statistics.data();
  const Tensor matrix = x.tensor({c.rows, c.columns});
  if (!c.given) quantize_amax(stream, matrix, q);
  quantize(stream, matrix, q);
  return m.download();
}

void check_case(Checker& checker, OtherSchedules& orders, const Cut& c, const std::vector<bf16>& values,
                const std::string& what) {
  const std::string name = c.name() + what;
  Cut reference = c;
  reference.given = c.given && !c.lacks;
  Whole whole = at_once(checker.stream, reference, values);
  const Whole cut = in_slices(checker.stream, c, values);
  if (c.lacks) whole.words[4] = 0;  // the scale that was given
  checker.that(name + ": bytes by rows", cut.rowwise == whole.rowwise, format("%zu bytes", whole.rowwise.size()));
  checker.that(name + ": bytes by columns", cut.columnwise == whole.columnwise,
               format("%zu bytes", whole.columnwise.size()));
  checker.same_bits(name + ": scale_inv, largest numbers", cut.words, whole.words);
  checker.that(name + ": what is not finite", cut.not_finite == whole.not_finite, format("%u", whole.not_finite[0]));
  // The whole is counted in both orientations.
  bool counts = true;
  for (size_t i = 0; i < 3; ++i) counts = counts && 2 * cut.counts[i] == whole.counts[i];
  for (size_t i = 3; i < 6; ++i) counts = counts && cut.counts[i] == whole.counts[i];
  checker.that(name + ": counts", counts, format("%llu values, %llu saturated", cut.counts[0], cut.counts[1]));
  if (values.size() > 20000) return;
  const Outputs outputs = outputs_of(cut);
  orders.each([&](const std::string& order, Stream& stream) {
    checker.that(name + ", " + order, outputs_of(in_slices(stream, c, values, 2)) == outputs, "the same bits");
  });
}

// ---------------------------------------------------------------------------------------------- whole matrices

struct Shape {
  int rows, columns;
};

// Several matrices against each of them alone: all that is written, in the order of the matrices.
struct Several {
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<float> numbers;  // scale_inv, amaxes where they were asked for, amax_step
  std::vector<uint32_t> not_finite;
  std::vector<unsigned long long> counts;
  bool operator==(const Several&) const = default;
};

Several several(Stream& stream, const std::vector<Shape>& shapes, const Case& c, int odd, bool together) {
  const int count = int(shapes.size());
  std::vector<Array<bf16>> x;
  std::vector<Room> rowwise, columnwise;
  std::vector<Array<float>> maxima;
  const Array<float> amax_step(stream, std::vector<float>(size_t(count))),
      scale(stream, std::vector<float>(size_t(count), kGiven));
  const Array<uint32_t> not_finite(stream, std::vector{~0u});
  const Array<QuantizeStatistics> statistics(stream,
                                             std::vector<QuantizeStatistics>(size_t(count), {0, ~0u, 0, 0, 0, 0, 0}));
  const WeightScaleRefs words{c.given ? scale.data() : nullptr, amax_step.data(), statistics.data(), not_finite.data(),
                              c.power_of_two};
  std::vector<WeightMatrix> matrices;
  for (int i = 0; i < count; ++i) {
    const auto [rows, columns] = shapes[size_t(i)];
    Generator generator(uint64_t(100 * i + rows));
    std::vector<bf16> values = random_normal<bf16>(generator, size_t(rows) * size_t(columns), std::exp2(i));
    if (i == odd) values.back() = from_float<bf16>(INFINITY);
    x.emplace_back(stream, values);
    rowwise.emplace_back(stream, c.rowwise, rows, columns),
        columnwise.emplace_back(stream, c.columnwise, columns, rows);
    maxima.emplace_back(stream, std::vector<float>(size_t(1 + rows + columns)));
    float* m = maxima.back().data();
    matrices.push_back({rowwise.back().tensor, columnwise.back().tensor, x.back().data(), nullptr, m, m + 1,
                        m + 1 + rows, i, uint32_t(10 - i)});
  }
  if (together) {
    const auto table = table_of(stream, matrices);
    if (needs_amax(table.all(), words)) quantize_amax(stream, table.all());
    quantize(stream, table.all(), words);
    stream.synchronize();
  } else {
    for (const WeightMatrix& m : matrices) {
      Quantization q;
      q.rowwise = m.rowwise, q.columnwise = m.columnwise, q.power_of_two = c.power_of_two;
      const int rows = m.rowwise.rows, columns = m.rowwise.columns;
      q.amax = m.amax, q.row_amax = Tensor(m.row_amax, {rows}), q.column_amax = Tensor(m.column_amax, {columns});
      q.scale = words.scale ? words.scale + m.tensor_id : nullptr;
      q.amax_step = words.amax_step + m.tensor_id, q.statistics = words.statistics + m.tensor_id;
      q.not_finite = words.not_finite, q.nonfinite_code = m.nonfinite_code;
      if (q.needs_amax()) quantize_amax(stream, Tensor(m.x, {rows, columns}), q);
      quantize(stream, Tensor(m.x, {rows, columns}), q);
    }
  }
  Several result;
  const auto take = [&](const std::vector<float>& numbers) {
    result.numbers.insert(result.numbers.end(), numbers.begin(), numbers.end());
  };
  for (int i = 0; i < count; ++i) {
    for (Room* room : {&rowwise[size_t(i)], &columnwise[size_t(i)]})
      result.bytes.push_back(room->data.download()), take(room->scale_inv.download());
    // Alone no more is found than what scales follow from.
    const std::vector<float> m = maxima[size_t(i)].download();
    const auto rows = m.begin() + 1, columns = rows + shapes[size_t(i)].rows;
    if (!c.given && c.any(&Asked::single)) take({m[0]});
    if (c.rowwise.of_rows()) take({rows, columns});
    if (c.columnwise.of_rows()) take({columns, m.end()});
  }
  take(amax_step.download());
  result.not_finite = not_finite.download();
  for (const QuantizeStatistics& s : statistics.download())
    for (const unsigned long long number : {s.values, s.saturated, s.underflowed, (unsigned long long)s.amax,
                                            (unsigned long long)s.smallest_scale, (unsigned long long)s.largest_scale})
      result.counts.push_back(number);
  return result;
}

void check_several(Checker& checker, OtherSchedules& orders) {
  const std::vector<std::vector<Shape>> blocks = {
      {{96, 64}, {64, 32}, {272, 64}, {64, 136}}, {{37, 40}, {1, 1}, {300, 3}, {128, 128}, {129, 127}}, {{130, 264}}};
  for (const std::vector<Shape>& shapes : blocks) {
    int wrong = 0, count = 0;
    for (const Case& c : recipes()) {
      if (!c.rowwise.wanted || !c.columnwise.wanted) continue;
      ++count;
      wrong += !(several(checker.stream, shapes, c, -1, true) == several(checker.stream, shapes, c, -1, false));
    }
    const Case tensor{asked(e4, Scaling::tensor), asked(e4, Scaling::tensor)};
    const std::string name =
        format("%zu matrices of %d x %d and more", shapes.size(), shapes[0].rows, shapes[0].columns);
    checker.that(name + ", each recipe", wrong == 0, format("%d of %d differ from each matrix alone", wrong, count));
    for (int odd = 0; odd < int(shapes.size()); ++odd)
      checker.that(name + format(", an infinity in number %d", odd),
                   several(checker.stream, shapes, tensor, odd, true).not_finite[0] == uint32_t(10 - odd), "");
    const Case rows{asked(e4, Scaling::row), asked(e4, Scaling::row, true)};
    for (const Case& c : {tensor, rows}) {
      const Several want = several(checker.stream, shapes, c, -1, true);
      orders.each([&](const std::string& order, Stream& stream) {
        checker.that(name + ", " + order, several(stream, shapes, c, -1, true) == want, "the same bits");
      });
    }
  }
}

// Bytes of several matrices at once, with padding and in place, as each alone.
void check_arranged(Checker& checker) {
  Stream& stream = checker.stream;
  const std::vector<Shape> shapes = {{96, 64}, {37, 40}, {272, 48}, {1, 1}, {128, 144}, {64, 7}};
  for (const bool odd : {false, true}) {
    std::vector<Array<uint8_t>> q, rows, columns;
    std::vector<Array<float>> scale_inv;
    const Array<float> scale(stream, std::vector<float>{3, 5, 7, 11, 13, 17});
    std::vector<WeightMatrix> matrices;
    std::vector<std::vector<uint8_t>> bytes;
    for (int i = 0; i < int(shapes.size()); ++i) {
      const auto [R, C] = shapes[size_t(i)];
      if (!odd && C % 16) continue;
      Generator generator{uint64_t(i)};
      bytes.emplace_back();
      for (int k = 0; k < R * C; ++k) bytes.back().push_back(uint8_t(generator.integer(0, 255)));
      q.emplace_back(stream, bytes.back());
      QuantizedTensor rowwise, columnwise;
      rowwise.rows = columnwise.columns = R, rowwise.columns = columnwise.rows = C;
      rows.emplace_back(stream, rowwise.bytes()), columns.emplace_back(stream, columnwise.bytes());
      scale_inv.emplace_back(stream, 2);
      rowwise.data = rowwise.bytes() == size_t(R) * size_t(C) ? q.back().data() : rows.back().data();
      columnwise.data = columns.back().data();
      rowwise.scale_inv = scale_inv.back().data(), columnwise.scale_inv = rowwise.scale_inv + 1;
      matrices.push_back({rowwise, columnwise, nullptr, q.back().data(), nullptr, nullptr, nullptr, i, 0});
    }
    const auto table = table_of(stream, matrices);
    transpose_gathered_weights(stream, table.all(), {scale.data(), nullptr, nullptr, nullptr, false});
    size_t wrong = 0, all = 0;
    for (size_t i = 0; i < matrices.size(); ++i) {
      const QuantizedTensor &r = matrices[i].rowwise, &c = matrices[i].columnwise;
      const std::vector<uint8_t> got_rows = r.data == q[i].data() ? q[i].download() : rows[i].download(),
                                 got_columns = columns[i].download();
      const auto want = [&](int row, int column) {
        return row < r.rows && column < r.columns ? bytes[i][size_t(row) * size_t(r.columns) + size_t(column)] : 0;
      };
      for (int row = 0; row < r.padded_rows(); ++row)
        for (int column = 0; column < r.stride(); ++column, ++all)
          wrong += got_rows[size_t(row) * size_t(r.stride()) + size_t(column)] != want(row, column);
      for (int column = 0; column < c.padded_rows(); ++column)
        for (int row = 0; row < c.stride(); ++row, ++all)
          wrong += got_columns[size_t(column) * size_t(c.stride()) + size_t(row)] != want(row, column);
      const std::vector<float> two = scale_inv[i].download(), scales = scale.download();
      for (const float factor : two) wrong += factor != 1 / scales[size_t(matrices[i].tensor_id)];
    }
    checker.that(format("%zu matrices arranged at once%s", matrices.size(), odd ? ", some of odd widths" : ""),
                 wrong == 0, format("%zu of %zu bytes wrong", wrong, all));
  }
}

void check_rows(Checker& checker) {
  Stream& stream = checker.stream;
  Generator generator(3);
  std::vector<bf16> values = random_normal<bf16>(generator, 900);
  values[5] = from_float<bf16>(-0.0f), values[6] = from_float<bf16>(0.0f);
  const Array<bf16> x(stream, values);
  constexpr int width = 300;
  // Two ranks, the second of which has what the first lacks of rows 0 and 1; none has row 2.
  const std::vector<std::vector<RowRange>> ranks = {{{x.data(), 0, 7}, {x.data() + 300, 0, 300}, {nullptr, 0, 0}},
                                                    {{x.data() + 7, 7, 293}, {nullptr, 0, 0}, {nullptr, 0, 0}}};
  std::vector<std::vector<float>> spread;
  for (const auto& rows : ranks) {
    const Array<float> out(stream, 3 * width);
    const Table<RowRange> table(stream, rows);
    scatter_rows(stream, out.tensor({3, width}), table.all());
    spread.push_back(out.download());
  }
  std::vector<float> sum, want;
  for (size_t i = 0; i < 3 * width; ++i) {
    sum.push_back(spread[0][i] + spread[1][i]);
    want.push_back(i < 600 ? to_float(values[i]) : -0.0f);
  }
  checker.same_bits("rows of two ranks, summed", sum, want);
  const Array<float> out(stream, 3 * width);
  const Table<RowRange> table(stream, ranks[0]);
  const auto refused = [&](const char* what, const char* expected, const Tensor& out) {
    checker.refused(what, expected, [&] { scatter_rows(stream, out, table.all()); });
  };
  refused("numbers beyond their row", "300 numbers from 0 in a row of 299", out.tensor({3, 299}));
  refused("fewer rows than ranges", "out is (2, 300) of fp32", out.tensor({2, width}));
}

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  Generator generator(5);
  const auto size = [](int rows, int columns) { return size_t(rows) * size_t(columns); };
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{
           {1, 1}, {16, 16}, {37, 40}, {48, 64}, {65, 129}, {128, 80}, {3, 1000}, {272, 144}, {131, 257}}) {
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
    check_case(checker, orders, {rows, columns, false, true, cuts, true}, values, "");
    for (const float odd : {0.0f, -0.0f, 1e-40f, 1.0f, 3e38f, INFINITY, NAN}) {
      std::vector<bf16> hostile(n, from_float<bf16>(odd == 1.0f ? 1e-3f : odd));
      if (odd == 1.0f) hostile[n / 2] = from_float<bf16>(-1024.0f);
      if (!std::isfinite(odd))
        std::fill(hostile.begin(), hostile.end(), from_float<bf16>(1.0f)), hostile[n - 1] = from_float<bf16>(odd);
      if (std::isfinite(odd))
        check_case(checker, orders, {rows, columns, false, false, cuts}, hostile, format(" of %g", double(odd)));
      else
        checker.that(format("%d x %d with %g is reported", rows, columns, double(odd)),
                     in_slices(checker.stream, {rows, columns, false, false, cuts}, hostile).not_finite[0] == 7, "");
    }
  }
  check_several(checker, orders);
  check_arranged(checker);
  check_rows(checker);
  Array<bf16> x(checker.stream, 64);
  Array<uint8_t> q(checker.stream, 64);
  Array<float> numbers(checker.stream, 1);
  const auto refused = [&](const char* what, const char* expected, const WeightSlice& slice) {
    checker.refused(what, expected, [&] {
      const auto table = table_of(checker.stream, std::vector<WeightSlice>{slice});
      quantize(checker.stream, table.all(), {});
    });
  };
  refused("no numbers", "a slice of 0 weights", {x.data(), q.data(), 0, numbers.data(), 0, 1});
  refused("not aligned", "aligned to 16", {x.data() + 1, q.data(), 8, numbers.data(), 0, 1});
  refused("no scale", "neither a scale", {x.data(), q.data(), 8, nullptr, 0, 1});
  QuantizedTensor tensor;
  tensor.rows = 8, tensor.columns = 4, tensor.data = q.data(), tensor.scale_inv = numbers.data();
  const auto matrix_refused = [&](const char* what, const char* expected, const WeightMatrix& m) {
    checker.refused(what, expected, [&] {
      const auto table = table_of(checker.stream, std::vector<WeightMatrix>{m});
      transpose_gathered_weights(checker.stream, table.all(), {});
    });
  };
  matrix_refused("no transpose", "not a matrix and its transpose",
                 {tensor, tensor, x.data(), nullptr, nullptr, nullptr, nullptr, 0, 1});
  QuantizedTensor turned = tensor;
  std::swap(turned.rows, turned.columns);
  matrix_refused("no scale to arrange by", "neither a scale",
                 {tensor, turned, nullptr, q.data(), nullptr, nullptr, nullptr, 0, 1});
  matrix_refused("in place with padding", "need a copy with padding",
                 {tensor, turned, nullptr, q.data(), numbers.data(), nullptr, nullptr, 0, 1});
  tensor.scaling = turned.scaling = Scaling::row;
  matrix_refused("no room for rows", "no room for the largest",
                 {tensor, turned, x.data(), nullptr, nullptr, nullptr, nullptr, 0, 1});
}

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads()) {
    Stream& stream = bencher.stream;
    // A block's products: in slices as one rank's part of several blocks, and whole.
    const int QKV = model.qkv_width(), Q = model.NH * model.HD;
    const std::vector<Shape> shapes = {{QKV, model.C}, {model.C, Q}, {2 * model.FF, model.C}, {model.C, model.FF}};
    size_t n = 0;
    for (const Shape& s : shapes) n += size_t(s.rows) * size_t(s.columns);
    const Array<bf16> x(stream, repeated_normal<bf16>(n));
    const Array<uint8_t> q(stream, n), rows(stream, n), columns(stream, n);
    const Array<float> words(stream, std::vector<float>(64, 1.0f));
    constexpr size_t kParts = 8;  // of ranks that share
    std::vector<WeightSlice> slices;
    std::vector<WeightMatrix> quantized, arranged;
    size_t at = 0;
    for (int i = 0; i < int(shapes.size()); ++i) {
      const size_t size = size_t(shapes[size_t(i)].rows) * size_t(shapes[size_t(i)].columns),
                   part = size / kParts / 8 * 8;
      for (size_t p = 0; p < kParts; ++p)
        slices.push_back({x.data() + at + p * part, q.data() + at + p * part, part, words.data() + i, i, 1});
      QuantizedTensor rowwise, columnwise;
      rowwise.rows = columnwise.columns = shapes[size_t(i)].rows,
      rowwise.columns = columnwise.rows = shapes[size_t(i)].columns;
      columnwise.data = columns.data() + at, rowwise.data = rows.data() + at;
      rowwise.scale_inv = words.data() + 8 + i, columnwise.scale_inv = words.data() + 16 + i;
      if (rowwise.bytes() != size || columnwise.bytes() != size) return;
      quantized.push_back({rowwise, columnwise, x.data() + at, nullptr, words.data() + i, nullptr, nullptr, i, 1});
      rowwise.data = q.data() + at;
      arranged.push_back({rowwise, columnwise, nullptr, q.data() + at, words.data() + i, nullptr, nullptr, i, 1});
      at += size;
    }
    const auto cut = table_of(stream, slices);
    const auto whole = table_of(stream, quantized), bytes = table_of(stream, arranged);
    const std::string what = format(", %zu weights of a block", n);
    bencher.time("weight_amax" + what, 2.0 * double(n), 0, [&] { find_weight_amax(stream, cut.all()); });
    bencher.time("quantize, slices" + what, 3.0 * double(n), 0, [&] { quantize(stream, cut.all(), {}); });
    bencher.time("transpose_gathered_weights" + what, 2.0 * double(n), 0,
                 [&] { transpose_gathered_weights(stream, bytes.all(), {}); });
    bencher.time("quantize_amax" + what, 2.0 * double(n), 0, [&] { quantize_amax(stream, whole.all()); });
    bencher.time("quantize, both" + what, 4.0 * double(n), 0, [&] { quantize(stream, whole.all(), {}); });
  }
}
