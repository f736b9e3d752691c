// Checks and times llmc/kernels/quantize against a plain reference on the host: bytes and scale_inv bit for bit.
// Covers: promise 7: quantization to FP8: every scaling, orientation and source has the bits of its formula, padding
// included; fused and unfused have the same; delayed scales over many steps
// Timeout: 600
//
// LLMC_SIZES=few: a few shapes and no hostile numbers (dev/kernels/sizes.h).
#include "llmc/kernels/quantize.h"

#include <tuple>

#include "dev/kernels/delayed_scaling.h"
#include "dev/kernels/other_schedules.h"
#include "dev/kernels/quantize_cases.h"
#include "llmc/kernels/rmsnorm.h"
#include "llmc/kernels/rope.h"
#include "llmc/kernels/swiglu.h"

namespace {

void check_cases(Checker& checker, const std::string& name, const std::vector<bf16>& values, int rows, int columns,
                 const std::vector<Case>& cases) {
  const Array<bf16> x(checker.stream, values);
  Reference reference(matrix_of(values, rows, columns));
  Tally tally, without;
  for (const Case& c : cases) {
    tally.compare(c.name(), run(checker.stream, x.tensor({rows, columns}), c, true), reference.outputs(c, true));
    if (cases.size() < 100)
      without.compare(c.name(), run(checker.stream, x.tensor({rows, columns}), c, false), reference.outputs(c, false));
  }
  tally.report(checker, name);
  if (cases.size() < 100) without.report(checker, name + ", without statistics");
}

void check_shapes(Checker& checker) {
  const auto values = [](int rows, int columns) {
    Generator generator(uint64_t(rows) * 10007 + uint64_t(columns));
    return uneven_numbers(generator, rows, columns);
  };
  if (few_sizes()) return check_cases(checker, "129 x 260", values(129, 260), 129, 260, recipes());
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{{37, 40}, {130, 17}, {9, 264}})
    check_cases(checker, format("%d x %d, all that can be asked for", rows, columns), values(rows, columns), rows,
                columns, everything());
  std::vector<std::pair<int, int>> shapes = {{1, 1},     {16, 16},   {1, 16},  {16, 1},   {128, 128}, {129, 127},
                                             {200, 384}, {7, 1000},  {300, 3}, {15, 17},  {127, 129}, {128, 136},
                                             {256, 8},   {144, 272}, {3, 641}, {513, 24}, {260, 516}};
  Generator generator(41);
  for (int i = 0; i < 8; ++i) shapes.push_back({generator.integer(1, 280), generator.integer(1, 280)});
  for (const auto& [rows, columns] : shapes)
    check_cases(checker, format("%d x %d", rows, columns), values(rows, columns), rows, columns, recipes());
}

// ---------------------------------------------------------------------------------------------- hostile numbers

void check_hostile_numbers(Checker& checker) {
  const int rows = 37, columns = 136;
  const size_t count = size_t(rows) * size_t(columns);
  Generator generator(5);
  const auto numbers = [&](const std::function<float(size_t)>& number) {
    std::vector<bf16> values;
    for (size_t i = 0; i < count; ++i) values.push_back(from_float<bf16>(number(i)));
    return values;
  };
  const auto normal = [&](double size) { return float(size * generator.normal()); };
  const auto at_most = [&](float amax) {  // a few of them, so that each block, row and column has one
    return numbers([&](size_t i) { return i % 7 == 3 ? (i % 2 ? amax : -amax) : float(generator.uniform()) * amax; });
  };
  const auto check = [&](const std::string& name, const std::vector<bf16>& values) {
    check_cases(checker, name, values, rows, columns, recipes());
  };
  check("zeros", numbers([](size_t) { return 0.0f; }));
  check("zeros of both signs", numbers([](size_t i) { return i % 3 ? -0.0f : 0.0f; }));
  check("one outlier", numbers([&](size_t i) { return i == 1234 ? -3e4f : normal(1e-3); }));
  check("one number in the last place", numbers([&](size_t i) { return i + 1 == count ? 2.5f : 0.0f; }));
  check("subnormal numbers", numbers([&](size_t) { return std::ldexp(float(generator.integer(-127, 127)), -133); }));
  check("subnormal numbers and an outlier",
        numbers([&](size_t i) { return i == 77 ? 1.0f : std::ldexp(float(generator.integer(-127, 127)), -133); }));
  check("numbers of all sizes", numbers([&](size_t) { return std::ldexp(normal(1), generator.integer(-40, 40)); }));
  for (const float amax : {1.0f, 0.5f, 448.0f, 57344.0f, 446.0f, 450.0f, 0.875f, 1.75f, 0.87890625f, 1.7578125f})
    check(format("numbers up to %g", double(amax)), at_most(amax));
  for (const float amax : {1e-12f, 9e-13f, 1.1e-12f, 1e-20f, 1e-37f, 9.2e-41f, 3e38f, 3.3895e38f})
    check(format("numbers up to %g", double(amax)), at_most(amax));
  // Halfway between two numbers of the format, and next to it: scales of powers of two are exact.
  check("midpoints",
        numbers([&](size_t i) { return i % 7 == 3 ? 1.0f : float(generator.integer(-255, 255)) / 256.0f; }));
}

// An infinity or a NaN anywhere is reported by the smallest number that was said; nothing else is asked of the result,
// but that it stays in its memory.
void check_not_finite(Checker& checker) {
  Stream& stream = checker.stream;
  const int rows = 130, columns = 136;
  Generator generator(6);
  const std::vector<bf16> normal = random_normal<bf16>(generator, size_t(rows) * size_t(columns));
  int wrong = 0, count = 0;
  for (const float value : {INFINITY, -INFINITY, float(NAN), -float(NAN), 3e38f})
    for (const size_t place : {size_t(0), normal.size() - 1, size_t(128) * columns, size_t(127) * columns + 127})
      for (const Case& c : recipes()) {
        std::vector<bf16> values = normal;
        values[place] = from_float<bf16>(value);
        for (const uint32_t before : {3u, 7u, ~0u}) {
          const Array<bf16> x(stream, values);
          Room rowwise(stream, c.rowwise, rows, columns), columnwise(stream, c.columnwise, columns, rows);
          Array<float> maxima(stream, std::vector<float>(1 + size_t(rows + columns))),
              scale(stream, std::vector{kGiven});
          Array<uint32_t> not_finite(stream, std::vector{before});
          Quantization q;
          q.rowwise = rowwise.tensor, q.columnwise = columnwise.tensor;
          q.power_of_two = c.power_of_two;
          const Tensor of_lines = maxima.tensor({1 + rows + columns});
          q.amax = maxima.data(), q.row_amax = of_lines.columns(1, rows),
          q.column_amax = of_lines.columns(1 + rows, columns);
          q.scale = c.given ? scale.data() : nullptr;
          q.not_finite = not_finite.data();
          q.nonfinite_code = 5;
          if (q.needs_amax()) quantize_amax(stream, x.tensor({rows, columns}), q);
          quantize(stream, x.tensor({rows, columns}), q);
          for (Room* room : {&rowwise, &columnwise}) room->data.download(), room->scale_inv.download();
          maxima.download();
          ++count;
          wrong += not_finite.download()[0] != (std::isfinite(value) ? before : std::min(before, 5u));
        }
        if (place != 0 && place != normal.size() - 1) break;
      }
  checker.that("infinities and NaN are reported", wrong == 0, format("%d of %d wrong", wrong, count));
}

// The end of a step's reports: the smaller of two words, and whether it is a tensor's.
void check_count_not_finite(Checker& checker) {
  Stream& stream = checker.stream;
  const uint32_t finite = 0x01010101u * kFiniteByte, words[] = {1, 17, kLargestCode, kLargestCode + 1, finite, ~0u};
  int wrong = 0;
  for (const uint32_t own : words)
    for (const uint32_t other : words)
      for (const bool has_other : {false, true}) {
        StepState before{};
        before.fp8_not_finite = own, before.not_finite_ranks = 5;
        const Array<StepState> state(stream, std::vector{before});
        const Array<uint32_t> weights(stream, std::vector{other});
        count_not_finite(stream, state.data(), has_other ? weights.data() : nullptr);
        const StepState got = state.download()[0];
        const uint32_t want = has_other ? std::min(own, other) : own;
        wrong += got.fp8_not_finite != want || got.not_finite_ranks != (want <= kLargestCode ? 1 : 0);
      }
  checker.that("reports are counted", wrong == 0, format("%d of 72 wrong", wrong));
}

// Operands with more rows and columns than the matrix are those of the matrix with zeros around it.
void check_larger_operands(Checker& checker) {
  const int rows = 37, columns = 136, more_rows = 64, more_columns = 264;
  Generator generator(8);
  const std::vector<bf16> values = random_normal<bf16>(generator, size_t(rows) * size_t(columns));
  std::vector<bf16> padded(size_t(more_rows) * size_t(more_columns));
  for (int r = 0; r < rows; ++r)
    std::copy_n(&values[size_t(r) * size_t(columns)], columns, &padded[size_t(r) * size_t(more_columns)]);
  const Array<bf16> x(checker.stream, values);
  Reference reference(matrix_of(padded, more_rows, more_columns));
  for (const Fp8Format format : {e4, e5})
    for (const bool given : {false, true}) {
      const Asked tensor = asked(format, Scaling::tensor);
      const Case c{tensor, tensor, false, given};
      const auto want = reference.outputs(c, false);
      Room rowwise(checker.stream, tensor, more_rows, more_columns),
          columnwise(checker.stream, tensor, more_columns, more_rows);
      Array<float> amax(checker.stream, std::vector{0.0f}), scale(checker.stream, std::vector{kGiven});
      Quantization q;
      q.rowwise = rowwise.tensor, q.columnwise = columnwise.tensor;
      q.amax = amax.data(), q.scale = given ? scale.data() : nullptr;
      if (q.needs_amax()) quantize_amax(checker.stream, x.tensor({rows, columns}), q);
      quantize(checker.stream, x.tensor({rows, columns}), q);
      const std::string name = c.name() + ", larger than the matrix";
      checker.same_bits(name + ", bytes", rowwise.data.download(), std::get<0>(want));
      checker.same_bits(name + ", bytes by columns", columnwise.data.download(), std::get<2>(want));
      checker.same_bits(name + ", scale_inv", rowwise.scale_inv.download(), std::get<1>(want));
      checker.same_bits(name + ", scale_inv by columns", columnwise.scale_inv.download(), std::get<3>(want));
    }
}

// The gradients of logits are at most 1.02 / labels, which this scale makes a number of the format.
void check_logit_gradient_scale(Checker& checker) {
  for (const Fp8Format format : {e4, e5})
    for (const int64_t labels : {int64_t(0), int64_t(1), int64_t(3), int64_t(1237), int64_t(4096), int64_t(1) << 31}) {
      StepState before{};
      before.label_count = labels;
      const Array<StepState> state(checker.stream, std::vector{before});
      const Array<float> scale(checker.stream, size_t(1));
      logit_gradient_scale(checker.stream, scale.data(), state.data(), format);
      const double largest = format == e4 ? 448 : 57344, one = labels ? double(labels) : 1;
      checker.same_bits(format == e4 ? "a scale of logits' gradients, e4m3" : "a scale of logits' gradients, e5m2",
                        scale.download(), {float(largest / 2 * one)});
    }
}

// Both passes raise the number that is there already, and never lower it.
void check_raises(Checker& checker) {
  Stream& stream = checker.stream;
  const std::vector<bf16> values(16 * 16, from_float<bf16>(-2.5f));
  const Array<bf16> x(stream, values);
  const Asked tensor = asked(e4, Scaling::tensor), row = asked(e5, Scaling::row);
  for (const float before : {0.0f, 1.0f, 2.5f, 3.0f}) {
    Room rowwise(stream, tensor, 16, 16), columnwise(stream, row, 16, 16);
    Array<float> amax(stream, std::vector{before}), amax_step(stream, std::vector{before}),
        of_columns(stream, std::vector<float>(16, 99.0f));
    Quantization q;
    q.rowwise = rowwise.tensor, q.columnwise = columnwise.tensor;
    q.amax = amax.data(), q.amax_step = amax_step.data(), q.column_amax = of_columns.tensor({16});
    quantize_amax(stream, x.tensor({16, 16}), q);
    quantize(stream, x.tensor({16, 16}), q);
    const float want = std::max(before, 2.5f);
    const std::string name = format("after %g", double(before));
    checker.same_bits(name + " amax and amax_step are raised", {amax.download()[0], amax_step.download()[0]},
                      std::vector<float>{want, want});
    checker.same_bits(name + " the scale is that of amax", rowwise.scale_inv.download(),
                      {1 / fp8_scale(want, e4, false)});
    checker.same_bits(name + " maxima of columns begin anew", of_columns.download(), std::vector<float>(16, 2.5f));
  }
}

// ---------------------------------------------------------------------------------------------- fused sources

enum class Kind { plain, rmsnorm, swiglu, swiglu_backward, rope_backward };

struct Shape {
  Kind kind;
  int rows, columns;
  int HD = 0, heads = 0;  // of rope_backward: those that are turned
  std::string name() const {
    const char* names[] = {"plain", "rmsnorm", "swiglu", "swiglu_backward", "rope_backward"};
    return format("%s %d x %d%s", names[int(kind)], rows, columns, HD ? format(", heads of %d", HD).c_str() : "");
  }
};

// The tensors that a source reads, on a device, and the x that the kernel which is not fused wrote there.
struct OnDevice {
  Array<bf16> a, b, written;
  Array<float> numbers, amax;
  Array<int> positions;
  QuantizeSource source;

  static constexpr int kPositions = 50;
  static size_t size_a(const Shape& s) {
    const size_t size = size_t(s.rows) * size_t(s.columns);
    return s.kind == Kind::swiglu ? 2 * size : s.kind == Kind::swiglu_backward ? size / 2 : size;
  }
  static size_t size_b(const Shape& s) {
    return s.kind == Kind::rmsnorm           ? size_t(s.columns)
           : s.kind == Kind::swiglu_backward ? size_t(s.rows) * size_t(s.columns)
                                             : 1;
  }

  OnDevice(Stream& stream, const Shape& s)
      : a(stream, size_a(s)),
        b(stream, size_b(s)),
        written(stream, size_t(s.rows) * size_t(s.columns)),
        numbers(stream, s.kind == Kind::rope_backward ? size_t(kPositions) * size_t(s.HD) : size_t(s.rows)),
        amax(stream, std::vector{0.0f}),
        positions(stream, size_t(s.rows)) {
    Generator generator(uint64_t(s.rows) * 10007 + uint64_t(s.columns));
    a.upload(random_normal<bf16>(generator, a.size(), 2));
    b.upload(random_normal<bf16>(generator, b.size(), 0.7, 1));
    const Tensor out = written.tensor({s.rows, s.columns});
    switch (s.kind) {
      case Kind::plain:
        source = a.tensor({s.rows, s.columns});
        break;
      case Kind::rmsnorm:
        rmsnorm_forward(stream, out, numbers.tensor({s.rows}), a.tensor({s.rows, s.columns}), b.tensor({s.columns}),
                        1e-5f, amax.data());
        source = RmsnormOutput{a.tensor({s.rows, s.columns}), numbers.tensor({s.rows}), b.tensor({s.columns})};
        break;
      case Kind::swiglu:
        swiglu_forward(stream, out, a.tensor({s.rows, 2 * s.columns}));
        source = SwigluOutput{a.tensor({s.rows, 2 * s.columns})};
        break;
      case Kind::swiglu_backward: {
        const SwigluBackwardOutput gradient{a.tensor({s.rows, s.columns / 2}), b.tensor({s.rows, s.columns})};
        swiglu_backward(stream, out, gradient.dout, gradient.gate_up);
        source = gradient;
        break;
      }
      case Kind::rope_backward: {
        std::vector<int> places(size_t(s.rows));
        for (int& place : places) place = generator.integer(0, kPositions - 1);
        places[0] = 0;
        positions.upload(places);
        numbers.upload(rope_table({}, s.HD, kPositions));
        copy(stream, written.data(), a.data(), a.size());
        const RopeAngles angles{numbers.tensor({kPositions, s.HD / 2, 2}), positions.tensor({s.rows}), s.heads};
        rope_backward(stream, out, angles);
        source = RopeBackwardOutput{a.tensor({s.rows, s.columns}), angles};
        break;
      }
    }
    stream.synchronize();
  }
};

void check_source(Checker& checker, const Shape& s) {
  const OnDevice on(checker.stream, s);
  const Tensor plain = on.written.tensor({s.rows, s.columns});
  Tally tally;
  for (const Case& c : recipes())
    tally.compare(c.name(), run(checker.stream, on.source, c, true), run(checker.stream, plain, c, true));
  tally.report(checker, s.name() + ", fused as unfused");
  if (s.kind == Kind::rmsnorm) {
    const Case tensor{asked(e4, Scaling::tensor), kNothing};
    const std::vector<float> maxima = std::get<4>(run(checker.stream, on.source, tensor, false));
    checker.same_bits(s.name() + ", the norm's amax is that of the amax pass", on.amax.download(), {maxima[0]});
  }
}

void check_sources(Checker& checker) {
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{
           {37, 40}, {129, 127}, {1, 1}, {130, 264}, {7, 1000}, {300, 3}, {64, 33}, {2, 1024}}) {
    check_source(checker, {Kind::rmsnorm, rows, columns});
    check_source(checker, {Kind::swiglu, rows, columns});
    check_source(checker, {Kind::swiglu_backward, rows, 2 * columns});
    if (few_sizes() && columns % 8) break;  // both widths of access have been tried
  }
  check_source(checker, {Kind::swiglu_backward, 20, 248});  // a half that ends within a tile, not of 8s
  for (const auto& [rows, HD, NH, NKV] : std::vector<std::tuple<int, int, int, int>>{
           {1, 2, 1, 1}, {37, 16, 2, 1}, {130, 6, 3, 2}, {129, 64, 4, 2}, {20, 128, 2, 1}, {33, 10, 4, 4}})
    check_source(checker, {Kind::rope_backward, rows, (NH + 2 * NKV) * HD, HD, NH + NKV});
}

// A position that the table does not have makes q and k NaN, as in the kernel.
void check_unknown_position(Checker& checker) {
  Stream& stream = checker.stream;
  const int rows = 3, HD = 16, columns = 3 * HD;
  for (const int position : {-1, 4, 0}) {
    Generator generator(2);
    const Array<bf16> x(stream, random_normal<bf16>(generator, size_t(rows) * columns));
    const Array<float> table(stream, rope_table({}, HD, 4));
    const Array<int> positions(stream, std::vector<int>{1, position, 3});
    Room rowwise(stream, asked(e5, Scaling::block_1x128), rows, columns);
    Array<uint32_t> not_finite(stream, std::vector{9u});
    Quantization q;
    q.rowwise = rowwise.tensor;
    q.not_finite = not_finite.data();
    const RopeAngles angles{table.tensor({4, HD / 2, 2}), positions.tensor({rows}), 2};
    quantize(stream, RopeBackwardOutput{x.tensor({rows, columns}), angles}, q);
    const std::vector<uint8_t> data = rowwise.data.download();
    int nans = 0;
    for (const uint8_t bits : data) nans += (bits & 0x7f) == 0x7f;
    checker.that(format("position %d of 4", position),
                 nans == (position ? 2 * HD : 0) && not_finite.download()[0] == (position ? 0u : 9u),
                 format("%d NaN, not_finite = %u", nans, not_finite.download()[0]));
  }
}

// Rows that a whole block shares in the norm, as on a GPU.
void check_wide_norm(Checker& checker) {
  CpuBackend backend = CpuBackend::from_environment();
  backend.wide_rows = true;
  Device device(0, backend);
  Checker inner(device);
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{{3, 1024}, {17, 2056}, {2, 4104}})
    if (!few_sizes() || columns == 1024) check_source(inner, {Kind::rmsnorm, rows, columns});
  checker.all_of("norms of long rows with a block each", inner);
}

void check_orders(Checker& checker) {
  OtherSchedules orders;
  const Asked row = asked(e4, Scaling::row), one = asked(e4, Scaling::row, true),
              small = asked(e4, Scaling::block_1x128), large = asked(e5, Scaling::block_128x128),
              tensor = asked(e5, Scaling::tensor);
  for (const Shape& s : {Shape{Kind::plain, 200, 384}, Shape{Kind::plain, 129, 127}, Shape{Kind::rmsnorm, 130, 264},
                         Shape{Kind::swiglu_backward, 130, 528}, Shape{Kind::rope_backward, 129, 512, 64, 6}})
    for (const Case& c : {Case{tensor, tensor}, Case{row, one}, Case{small, small}, Case{large, large},
                          Case{tensor, kNothing, true, true}}) {
      const auto in_world = [&](Stream& stream) {
        const OnDevice on(stream, s);
        return run(stream, on.source, c, true);
      };
      orders.same_bits(checker, s.name() + ", " + c.name(), in_world(checker.stream), in_world);
    }
}

// A scale that may be none: where it is 0 as without it, else as with it, but that the largest number was looked for.
void check_uncertain_scales(Checker& checker) {
  const int rows = 130, columns = 264;
  Generator generator(4);
  const Array<bf16> x(checker.stream, random_normal<bf16>(generator, size_t(rows) * size_t(columns)));
  Tally none, given;
  for (Case c : recipes()) {
    if (!c.given) continue;
    const auto run_it = [&](std::optional<float> uncertain) {
      return run(checker.stream, x.tensor({rows, columns}), c, true, uncertain);
    };
    const Outputs zero = run_it(0.0f), certain = run_it(std::nullopt);
    Outputs some = run_it(kGiven);
    std::get<4>(some)[0] = std::get<4>(certain)[0];
    given.compare(c.name(), some, certain);
    c.given = false;
    none.compare(c.name(), zero, run_it(std::nullopt));
  }
  none.report(checker, "a scale of 0 is none");
  given.report(checker, "a scale that might have been none");
}

// ---------------------------------------------------------------------------------------------- refusals

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  const int rows = 16, columns = 32;
  const Array<bf16> x(stream, std::vector<bf16>(4096));
  const Array<float> numbers(stream, std::vector<float>(512));
  const Array<int> positions(stream, std::vector<int>(16));
  Room room(stream, asked(e4, Scaling::block_128x128), rows, columns);
  const auto with = [&](const Asked& a, bool transposed = false) {
    Quantization q;
    QuantizedTensor& t = transposed ? q.columnwise : q.rowwise;
    t = transposed ? tensor_of(a, columns, rows) : tensor_of(a, rows, columns);
    t.data = room.data.data(), t.scale_inv = room.scale_inv.data();
    return q;
  };
  const auto matrix = [&](int rows, int columns) { return x.tensor({rows, columns}); };
  const auto refuse = [&](const std::string& name, const std::string& expected, const Quantization& q,
                          const QuantizeSource& source) {
    checker.refused("quantize: " + name, "quantize: " + expected, [&] { quantize(stream, source, q); });
    checker.refused("quantize_amax: " + name, "quantize_amax: " + expected, [&] { quantize_amax(stream, source, q); });
  };
  const Tensor good = matrix(rows, columns);
  const Asked blocks = asked(e4, Scaling::block_128x128), tensor = asked(e4, Scaling::tensor);
  checker.refused("no source", "the source is absent", [&] { quantize(stream, {}, with(blocks)); });
  refuse("no rows", "0 x 32", with(blocks), matrix(0, 32));
  refuse("no columns", "16 x 0", with(blocks), matrix(16, 0));
  refuse("nothing asked for", "neither orientation", {}, good);
  refuse("another size", "an operand of 16 x 32 of a matrix that gives 16 x 40", with(blocks), matrix(16, 40));
  refuse("larger, with blocks", "an operand of 16 x 32 of a matrix that gives 8 x 32", with(blocks), matrix(8, 32));
  refuse("not transposed", "an operand of 32 x 16", with(blocks, true), matrix(32, 16));
  Quantization q = with(blocks);
  q.rowwise.scale_inv = nullptr;
  refuse("no scale_inv", "an operand at", q, good);
  q = with(blocks);
  q.rowwise.data += 8;
  refuse("unaligned bytes", "an operand at", q, good);
  q = with(blocks);
  q.rowwise.one_scale = true;
  refuse("one scale of blocks", "one scale for the whole tensor", q, good);
  q = with(asked(e4, Scaling::row));
  refuse("no amax of rows", "no room for the rows' largest numbers: absent", q, good);
  q.row_amax = numbers.tensor({15});
  refuse("an amax of too few rows", "no room for the rows' largest numbers: (15), for 16", q, good);
  q.row_amax = Tensor(static_cast<float*>(nullptr), {16});
  refuse("an amax of rows without memory", "the room for the rows' largest numbers has no memory", q, good);
  refuse("no amax of columns", "no room for the columns'", with(asked(e4, Scaling::row), true), good);
  refuse("neither scale nor amax", "a tensor with one scale", with(tensor), good);
  refuse("neither scale nor amax, a row", "a tensor with one scale", with(asked(e4, Scaling::row, true), true), good);
  refuse("unaligned numbers", "a buffer of rows of 32", with(blocks), Tensor(x.data() + 1, {rows, columns}));
  refuse("fp32", "x is (16, 32) of fp32", with(blocks), numbers.tensor({rows, columns}));
  const Tensor rstd = numbers.tensor({rows}), table = numbers.tensor({4, 8, 2}), turned = positions.tensor({rows});
  refuse("an unaligned weight", "a buffer of rows of 32", with(blocks),
         RmsnormOutput{good, rstd, Tensor(x.data() + 4, {columns})});
  refuse("another weight", "weight is (31) of bf16", with(blocks), RmsnormOutput{good, rstd, x.tensor({31})});
  refuse("rstd of other rows", "rstd is (15) of fp32", with(blocks),
         RmsnormOutput{good, numbers.tensor({15}), x.tensor({columns})});
  refuse("unaligned gates", "a buffer of rows of 16", with(blocks),
         SwigluBackwardOutput{matrix(rows, columns / 2), Tensor(x.data() + 2, {rows, columns})});
  refuse("an unaligned table", "a buffer of rows of 8", with(blocks),
         RopeBackwardOutput{good, {Tensor(numbers.data() + 2, {4, 8, 2}), turned, 1}});
  refuse("positions of other rows", "positions is (15) of int32", with(blocks),
         RopeBackwardOutput{good, {table, positions.tensor({15}), 1}});
  const auto heads = [&](int count, int HD) {
    refuse(format("%d heads of %d", count, HD), format("%d heads of %d", count, HD), with(blocks),
           RopeBackwardOutput{good, {numbers.tensor({4, HD / 2, 2}), turned, count}});
  };
  heads(1, 0), heads(1, 12), heads(3, 16), heads(-1, 16);
  Quantization odd;
  odd.rowwise = tensor_of(blocks, 16, 7);
  odd.rowwise.data = room.data.data(), odd.rowwise.scale_inv = room.scale_inv.data();
  refuse("gates without an up", "gate_up is (16, 7)", odd, SwigluBackwardOutput{matrix(16, 3), matrix(16, 7)});
  refuse("gates without an up, forward", "gate_up is (16, 15)", odd, SwigluOutput{matrix(16, 15)});

  Array<float> f(stream, std::vector<float>(8));
  Array<uint32_t> entries(stream, std::vector<uint32_t>(8));
  Array<StepState> state(stream, std::vector{StepState{}});
  const auto delayed = [&](int tensors, int length) {
    checker.refused(format("delayed scales of %d tensors, %d long", tensors, length), "expected at least 1", [&] {
      update_delayed_scales(stream,
                            {f.data(), f.data(), f.data(), entries.data(), f.data(), tensors, length, false, false, 0},
                            state.data());
    });
  };
  delayed(0, 4), delayed(4, 0);
}

void check_scales(Checker& checker) {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 0x7f80u; ++bits)
    for (const Fp8Format format : {e4, e5})
      for (const bool power_of_two : {false, true}) {
        const float amax = to_float(bf16{uint16_t(bits)});
        const double exact = double(format == e4 ? 448.0f : 57344.0f) / std::max(double(amax), 1e-12);
        float want = float(exact);
        if (power_of_two) want = float(std::exp2(std::floor(std::log2(double(want)))));
        wrong += fp8_scale(amax, format, power_of_two) != want;
      }
  checker.that("the scale of every bf16", wrong == 0, format("%d wrong", wrong));
}

// ---------------------------------------------------------------------------------------------- bench

struct Timed {
  const char* name;
  Case what;
};

void time_source(Bencher& bencher, const Shape& s, const Timed& timed, double read_bytes) {
  Stream& stream = bencher.stream;
  const OnDevice on(stream, s);
  Room rowwise(stream, timed.what.rowwise, s.rows, s.columns),
      columnwise(stream, timed.what.columnwise, s.columns, s.rows);
  Array<float> amax(stream, std::vector{0.0f}), row_amax(stream, size_t(s.rows)),
      column_amax(stream, size_t(s.columns)), scale(stream, std::vector{kGiven});
  Quantization q;
  q.rowwise = rowwise.tensor, q.columnwise = columnwise.tensor;
  q.amax = amax.data(), q.row_amax = row_amax.tensor({s.rows}), q.column_amax = column_amax.tensor({s.columns});
  if (timed.what.given) q.scale = scale.data();
  const double size = double(s.rows) * double(s.columns);
  const double written = double(timed.what.rowwise.wanted + timed.what.columnwise.wanted) * size;
  bencher.time(format("quantize %s, %s", s.name().c_str(), timed.name),
               (q.needs_amax() ? 2 : 1) * size * read_bytes + written, 0, [&] {
                 if (q.needs_amax()) quantize_amax(stream, on.source, q);
                 quantize(stream, on.source, q);
               });
}

}  // namespace

void check(Checker& checker) {
  check_scales(checker);
  check_shapes(checker);
  if (!few_sizes()) check_hostile_numbers(checker), check_not_finite(checker), check_count_not_finite(checker);
  check_larger_operands(checker);
  check_logit_gradient_scale(checker);
  check_raises(checker);
  check_sources(checker);
  check_unknown_position(checker);
  check_wide_norm(checker);
  check_orders(checker);
  check_uncertain_scales(checker);
  check_delayed(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  const Asked tensor = asked(e4, Scaling::tensor), row = asked(e4, Scaling::row),
              small = asked(e4, Scaling::block_1x128), large = asked(e4, Scaling::block_128x128);
  const Timed given{"both, a given scale", {tensor, tensor, false, true}}, current{"both, tensor", {tensor, tensor}},
      rowwise{"by rows, a given scale", {tensor, kNothing, false, true}},
      columnwise{"by columns, a given scale", {kNothing, tensor, false, true}}, rows{"both, row", {row, row}},
      blocks{"both, 1x128", {small, small}}, squares{"both, 128x128", {large, large}};
  for (const auto& [r, c] : std::vector<std::pair<int, int>>{{256, 768}, {2048, 2048}})
    for (const Timed& timed : {given, rowwise, columnwise, current, rows, blocks, squares})
      time_source(bencher, {Kind::plain, r, c}, timed, 2);
  for (const auto& [model, N] : bencher.workloads()) {
    printf("%s\n", model.name.c_str());
    for (const Timed& timed : {given, current, blocks}) {
      time_source(bencher, {Kind::plain, N, model.C}, timed, 2);
      time_source(bencher, {Kind::rmsnorm, N, model.C}, timed, 2);
      time_source(bencher, {Kind::swiglu, N, model.FF}, timed, 4);
      time_source(bencher, {Kind::swiglu_backward, N, 2 * model.FF}, timed, 3);
      time_source(bencher, {Kind::rope_backward, N, model.qkv_width(), model.HD, model.NH + model.NKV}, timed, 2);
    }
    time_source(bencher, {Kind::plain, 2 * model.FF, model.C}, squares, 2);
  }
}
