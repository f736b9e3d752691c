// The cases of quantization, a plain reference on the host, and functions that run and compare both.
#pragma once

#include <map>
#include <optional>
#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/sizes.h"
#include "llmc/kernels/quantize.h"

// Numbers of many sizes, as a matrix has them whose rows and columns differ.
inline std::vector<bf16> uneven_numbers(Generator& generator, int rows, int columns) {
  std::vector<double> of_column(static_cast<size_t>(columns));
  for (double& x : of_column) x = std::exp2(generator.integer(-6, 3));
  std::vector<bf16> values;
  for (int r = 0; r < rows; ++r) {
    const double of_row = std::exp2(generator.integer(-6, 3));
    for (int c = 0; c < columns; ++c)
      values.push_back(from_float<bf16>(float(generator.normal() * of_row * of_column[size_t(c)])));
  }
  return values;
}

// ---------------------------------------------------------------------------------------------- what is asked for

struct Asked {  // of one orientation
  bool wanted = false;
  Fp8Format format = Fp8Format::e4m3;
  Scaling scaling = Scaling::tensor;
  bool one_scale = false;

  bool single() const { return scaling == Scaling::tensor || one_scale; }
  bool of_rows() const { return scaling == Scaling::row && !one_scale; }
  std::string name() const {
    if (!wanted) return "nothing";
    const char* scalings[] = {"tensor", "row", "1x128", "128x128"};
    return format_name(format) + std::string(" ") + (one_scale ? "one scale a row" : scalings[int(scaling)]);
  }
};

constexpr Asked kNothing;
constexpr Asked asked(Fp8Format format, Scaling scaling, bool one_scale = false) {
  return {true, format, scaling, one_scale};
}
constexpr Fp8Format e4 = Fp8Format::e4m3, e5 = Fp8Format::e5m2;

struct Case {
  Asked rowwise, columnwise;
  bool power_of_two = false, given = false;
  std::string name() const {
    return "by rows " + rowwise.name() + ", by columns " + columnwise.name() + (power_of_two ? ", powers of two" : "") +
           (given ? ", a given scale" : "");
  }
  bool any(bool (Asked::*kind)() const) const {
    return (rowwise.wanted && (rowwise.*kind)()) || (columnwise.wanted && (columnwise.*kind)());
  }
};

// Returns the cases that the recipes ask for.
inline std::vector<Case> recipes() {
  std::vector<Case> cases;
  for (const Fp8Format format : {e4, e5})
    for (const bool power_of_two : {false, true}) {
      if (few_sizes() && (format == e5 || power_of_two)) continue;
      const auto both = [&](Asked rows, Asked columns) { cases.push_back({rows, columns, power_of_two}); };
      const Asked tensor = asked(format, Scaling::tensor), row = asked(format, Scaling::row),
                  one = asked(format, Scaling::row, true), small = asked(format, Scaling::block_1x128),
                  large = asked(format, Scaling::block_128x128);
      both(tensor, tensor);
      cases.push_back({tensor, tensor, power_of_two, true});
      both(tensor, kNothing);
      both(kNothing, tensor);
      both(row, row);
      both(row, kNothing);
      both(kNothing, row);
      both(row, one);
      both(small, small);
      both(small, kNothing);
      both(large, large);
      both(kNothing, large);
    }
  return cases;
}

// All that can be asked for.
inline std::vector<Case> everything() {
  std::vector<Asked> kinds = {kNothing};
  for (const Fp8Format format : {e4, e5}) {
    for (const Scaling scaling : {Scaling::tensor, Scaling::row, Scaling::block_1x128, Scaling::block_128x128})
      kinds.push_back(asked(format, scaling));
    kinds.push_back(asked(format, Scaling::row, true));
  }
  std::vector<Case> cases;
  for (const Asked& rows : kinds)
    for (const Asked& columns : kinds)
      for (const bool power_of_two : {false, true})
        for (const bool given : {false, true})
          if (rows.wanted || columns.wanted) cases.push_back({rows, columns, power_of_two, given});
  return cases;
}

constexpr float kGiven = 3.25f;  // not a power of two: scale_inv are rounded

// ---------------------------------------------------------------------------------------------- the reference

struct Matrix {
  int rows, columns;
  std::vector<float> x;
  float at(int r, int c) const { return x[size_t(r) * size_t(columns) + size_t(c)]; }
  Matrix transposed() const {
    Matrix t{columns, rows, std::vector<float>(x.size())};
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) t.x[size_t(c) * size_t(rows) + size_t(r)] = at(r, c);
    return t;
  }
  // The largest |x| of some rows and columns.
  float amax(int first_row, int row_count, int first_column, int column_count) const {
    float largest = 0;
    for (int r = first_row; r < std::min(rows, first_row + row_count); ++r)
      for (int c = first_column; c < std::min(columns, first_column + column_count); ++c)
        largest = std::max(largest, std::fabs(at(r, c)));
    return largest;
  }
};

inline Matrix matrix_of(const std::vector<bf16>& x, int rows, int columns) {
  Matrix m{rows, columns, {}};
  for (const bf16 v : x) m.x.push_back(to_float(v));
  return m;
}

struct Operand {
  std::vector<uint8_t> data;
  std::vector<float> scale_inv;
  double saturated = 0, underflowed = 0;
  float smallest_scale = INFINITY, largest_scale = 0;
};

inline int up_to(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

inline Operand quantized(const Matrix& x, const Asked& a, bool power_of_two, bool given) {
  const bool blocks = a.scaling == Scaling::block_1x128 || a.scaling == Scaling::block_128x128;
  const int rows = up_to(x.rows, blocks ? 128 : 16), stride = up_to(x.columns, blocks ? 128 : 16);
  const double largest = a.format == e4 ? 448 : 57344;
  Operand result;
  result.data.assign(size_t(rows) * size_t(stride), 0);
  const int across = up_to(stride / 128, 4);  // of 128x128 blocks
  const size_t scale_inv = a.scaling == Scaling::tensor        ? 1
                           : a.scaling == Scaling::row         ? size_t(rows)
                           : a.scaling == Scaling::block_1x128 ? size_t(rows) * size_t(stride / 128)
                                                               : size_t(rows / 128) * size_t(across);
  result.scale_inv.assign(scale_inv, 1.0f);
  // Groups that share a scale, as many rows by as many columns.
  const int group_rows = a.single() ? x.rows : a.scaling == Scaling::block_128x128 ? 128 : 1;
  const int group_columns = blocks ? 128 : x.columns;
  for (int r0 = 0; r0 < x.rows; r0 += group_rows)
    for (int c0 = 0; c0 < x.columns; c0 += group_columns) {
      const double amax = double(x.amax(r0, group_rows, c0, group_columns));
      float scale = float(largest / std::max(amax, 1e-12));
      int exponent;
      if (power_of_two) std::frexp(scale, &exponent), scale = std::ldexp(1.0f, exponent - 1);
      if (given && a.single()) scale = kGiven;
      result.smallest_scale = std::min(result.smallest_scale, scale);
      result.largest_scale = std::max(result.largest_scale, scale);
      for (int r = r0; r < std::min(x.rows, r0 + group_rows); ++r) {
        const int block = c0 / 128;
        const size_t factor = a.scaling == Scaling::tensor        ? 0
                              : a.scaling == Scaling::row         ? size_t(r)
                              : a.scaling == Scaling::block_1x128 ? size_t(block) * size_t(rows) + size_t(r)
                                                                  : size_t(r / 128) * size_t(across) + size_t(block);
        result.scale_inv[factor] = 1 / scale;
        for (int c = c0; c < std::min(x.columns, c0 + group_columns); ++c) {
          const float scaled = x.at(r, c) * scale;
          const uint8_t bits = fp8_bits(scaled, a.format == e4 ? 4 : 5, Overflow::saturate);
          result.data[size_t(r) * size_t(stride) + size_t(c)] = bits;
          result.saturated += std::fabs(double(scaled)) > largest * (1 + 0x1p-20);
          result.underflowed += x.at(r, c) != 0 && (bits & 0x7f) == 0;
        }
      }
    }
  return result;
}

// Bytes and scale_inv, rowwise and columnwise; amax, amax_step, the maxima of rows and columns; the statistics.
using Outputs = std::tuple<std::vector<uint8_t>, std::vector<float>, std::vector<uint8_t>, std::vector<float>,
                           std::vector<float>, std::vector<double>>;

template <class T>
std::vector<T> poisoned(size_t count) {
  std::vector<T> values(count);
  memset(values.data(), 0xff, count * sizeof(T));
  return values;
}

// The reference of one matrix, each operand computed once.
class Reference {
 public:
  explicit Reference(Matrix x) : x_(std::move(x)), t_(x_.transposed()) {}

  Outputs outputs(const Case& c, bool statistics) {
    Outputs result;
    auto& [row_data, row_scale_inv, column_data, column_scale_inv, maxima, counts] = result;
    const float amax = x_.amax(0, x_.rows, 0, x_.columns);
    std::vector<float> row_maxima = poisoned<float>(size_t(x_.rows)),
                       column_maxima = poisoned<float>(size_t(x_.columns));
    float smallest = INFINITY, largest = 0;
    double values = 0, saturated = 0, underflowed = 0;
    const auto take = [&](const Operand& o) {
      values += double(x_.x.size()), saturated += o.saturated, underflowed += o.underflowed;
      smallest = std::min(smallest, o.smallest_scale), largest = std::max(largest, o.largest_scale);
    };
    if (c.rowwise.wanted) {
      const Operand& o = operand(false, c.rowwise, c);
      row_data = o.data, row_scale_inv = o.scale_inv;
      take(o);
      if (c.rowwise.of_rows())
        for (int r = 0; r < x_.rows; ++r) row_maxima[size_t(r)] = x_.amax(r, 1, 0, x_.columns);
    }
    if (c.columnwise.wanted) {
      const Operand& o = operand(true, c.columnwise, c);
      column_data = o.data, column_scale_inv = o.scale_inv;
      take(o);
      if (c.columnwise.of_rows())
        for (int r = 0; r < x_.columns; ++r) column_maxima[size_t(r)] = t_.amax(r, 1, 0, x_.rows);
    }
    maxima = {c.any(&Asked::single) && !c.given ? amax : 0.0f, amax};
    maxima.insert(maxima.end(), row_maxima.begin(), row_maxima.end());
    maxima.insert(maxima.end(), column_maxima.begin(), column_maxima.end());
    if (statistics) counts = {amax, smallest, largest, values, saturated, underflowed};
    return result;
  }

 private:
  const Operand& operand(bool transposed, const Asked& a, const Case& c) {
    const auto key = std::tuple(transposed, a.format, a.scaling, a.one_scale, c.power_of_two, c.given && a.single());
    const auto found = operands_.find(key);
    if (found != operands_.end()) return found->second;
    return operands_[key] = quantized(transposed ? t_ : x_, a, c.power_of_two, c.given);
  }
  Matrix x_, t_;
  std::map<std::tuple<bool, Fp8Format, Scaling, bool, bool, bool>, Operand> operands_;
};

// ---------------------------------------------------------------------------------------------- runs

inline QuantizedTensor tensor_of(const Asked& a, int rows, int columns) {
  QuantizedTensor t;
  t.rows = rows, t.columns = columns;
  t.format = a.format, t.scaling = a.scaling, t.one_scale = a.one_scale;
  return t;
}

// Poisoned memory for an operand.
struct Room {
  QuantizedTensor tensor;
  Array<uint8_t> data;
  Array<float> scale_inv;
  Room(Stream& stream, const Asked& a, int rows, int columns)
      : tensor(tensor_of(a, rows, columns)),
        data(stream, a.wanted ? tensor.bytes() : 0),
        scale_inv(stream, a.wanted ? tensor.scale_inv_count() : 0) {
    if (a.wanted) tensor.data = data.data(), tensor.scale_inv = scale_inv.data();
  }
};

// `uncertain`: a given scale that may be 0, and so none.
inline Outputs run(Stream& stream, const QuantizeSource& source, const Case& c, bool statistics,
                   std::optional<float> uncertain = {}) {
  const auto [rows, columns] = shape_of(source);
  Room rowwise(stream, c.rowwise, rows, columns), columnwise(stream, c.columnwise, columns, rows);
  Array<float> amax(stream, std::vector{0.0f}), amax_step(stream, std::vector{0.0f}), row_amax(stream, size_t(rows)),
      column_amax(stream, size_t(columns)), scale(stream, std::vector{uncertain.value_or(kGiven)});
  QuantizeStatistics empty{};
  empty.smallest_scale = ~0u;
  Array<QuantizeStatistics> counts(stream, std::vector{empty});
  Array<uint32_t> not_finite(stream, std::vector{1000u});
  Quantization q;
  q.rowwise = rowwise.tensor, q.columnwise = columnwise.tensor;
  q.power_of_two = c.power_of_two;
  if (c.given || uncertain) q.scale = scale.data();
  if (!c.given || uncertain) q.amax = amax.data();
  q.may_lack_scale = uncertain.has_value();
  q.row_amax = row_amax.tensor({rows}), q.column_amax = column_amax.tensor({columns});
  q.amax_step = amax_step.data();
  q.not_finite = not_finite.data();
  if (statistics) q.statistics = counts.data();
  const bool expected = c.any(&Asked::of_rows) || (c.any(&Asked::single) && (!c.given || uncertain));
  REQUIRE(q.needs_amax() == expected, "%s: needs_amax() = %d", c.name().c_str(), q.needs_amax());
  if (q.needs_amax()) quantize_amax(stream, source, q);
  quantize(stream, source, q);
  REQUIRE(not_finite.download()[0] == 1000, "%s: finite numbers were reported", c.name().c_str());
  std::vector<float> maxima = {amax.download()[0], amax_step.download()[0]};
  for (const Array<float>& part : {std::cref(row_amax), std::cref(column_amax)}) {
    const std::vector<float> values = part.download();
    maxima.insert(maxima.end(), values.begin(), values.end());
  }
  std::vector<double> numbers;
  const QuantizeStatistics s = counts.download()[0];
  if (statistics)
    numbers = {double(std::bit_cast<float>(s.amax)),
               double(std::bit_cast<float>(s.smallest_scale)),
               double(std::bit_cast<float>(s.largest_scale)),
               double(s.values),
               double(s.saturated),
               double(s.underflowed)};
  return {rowwise.data.download(),    rowwise.scale_inv.download(),
          columnwise.data.download(), columnwise.scale_inv.download(),
          std::move(maxima),          std::move(numbers)};
}

// Many comparisons, of which one line is printed.
class Tally {
 public:
  void compare(const std::string& name, const Outputs& got, const Outputs& want) {
    ++count_;
    std::string wrong;
    compare(got, want, wrong, std::make_index_sequence<std::tuple_size_v<Outputs>>());
    if (wrong.empty()) return;
    if (++different_ == 1) first_ = name + ": " + wrong;
  }
  void report(Checker& checker, const std::string& name) const {
    checker.that(name, different_ == 0 && count_ > 0,
                 different_ ? format("%d of %d differ, the first: %s", different_, count_, first_.c_str())
                            : format("%d equal bit for bit", count_));
  }

 private:
  template <size_t... I>
  static void compare(const Outputs& got, const Outputs& want, std::string& wrong, std::index_sequence<I...>) {
    static const char* names[] = {"rowwise bytes", "rowwise scale_inv", "columnwise bytes", "columnwise scale_inv",
                                  "maxima",        "statistics"};
    (part(names[I], std::get<I>(got), std::get<I>(want), wrong), ...);
  }
  template <class T>
  static void part(const char* name, const std::vector<T>& got, const std::vector<T>& want, std::string& wrong) {
    if (!wrong.empty()) return;
    if (got.size() != want.size()) {
      wrong = format("%s: %zu instead of %zu", name, got.size(), want.size());
      return;
    }
    for (size_t i = 0; i < got.size(); ++i)
      if (memcmp(&got[i], &want[i], sizeof(T))) {
        wrong =
            format("%s [%zu of %zu]: got %.9g want %.9g", name, i, got.size(), to_double(got[i]), to_double(want[i]));
        return;
      }
  }
  int count_ = 0, different_ = 0;
  std::string first_;
};
