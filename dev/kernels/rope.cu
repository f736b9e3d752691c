// Checks and times llmc/kernels/rope against rotations in double, and its tables against transformers' numbers.
// Covers: promise 7: RoPE forward and backward agree with a plain reference on ugly shapes and any positions
#include "llmc/kernels/rope.h"

#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"

namespace {

const RopeScaling kLlama2{10000};
const RopeScaling kLlama31{500000, RopeType::llama3, 8, 8192};
const RopeScaling kLlama32{500000, RopeType::llama3, 32, 8192};
const RopeScaling kShort{500, RopeType::llama3, 8, 32};
const RopeScaling kLinear{10000, RopeType::linear, 4};
const RopeScaling kYarn{1e6, RopeType::yarn, 4, 32768};
const RopeScaling kShortYarn{.theta = 500,
                             .type = RopeType::yarn,
                             .factor = 8,
                             .original_max_position = 32,
                             .beta_fast = 4,
                             .beta_slow = 0.5,
                             .attention_factor = 1.25,
                             .truncate = false};

// ---------------------------------------------------------------------------------------------- tables

// inv_freq of transformers 5.23's LlamaRotaryEmbedding, an fp32 tensor: all of Llama 3.2's, which lie in all three
// bands, and those of kShort with HD = 16.
const std::vector<double> kTransformersLlama32 = {1,
                                                  0.663601279,
                                                  0.440366626,
                                                  0.292227834,
                                                  0.193922758,
                                                  0.128687382,
                                                  0.0853971019,
                                                  0.0566696189,
                                                  0.0376060307,
                                                  0.0249554086,
                                                  0.0165604409,
                                                  0.0109895291,
                                                  0.00729266508,
                                                  0.00483942125,
                                                  0.00321144611,
                                                  0.00129054801,
                                                  0.000429556705,
                                                  9.70828623e-05,
                                                  1.94616387e-05,
                                                  1.29147675e-05,
                                                  8.57025589e-06,
                                                  5.68723226e-06,
                                                  3.77405445e-06,
                                                  2.50446715e-06,
                                                  1.66196742e-06,
                                                  1.10288363e-06,
                                                  7.31874934e-07,
                                                  4.85673127e-07,
                                                  3.22293289e-07,
                                                  2.1387423e-07,
                                                  1.41927202e-07,
                                                  9.41830649e-08};
const std::vector<double> kTransformersShort = {
    1, 0.237489685, 0.0311854575, 0.0121561559, 0.00559017016, 0.0025707141, 0.00118217699, 0.000543639821};

void check_frequencies(Checker& checker) {
  // transformers computes in fp32: a power and a quotient, some roundings.
  const double fp32 = 8e-7;
  checker.close("frequencies of Llama 3.2", rope_frequencies(kLlama32, 64), kTransformersLlama32, {32}, fp32, 0);
  checker.close("frequencies of a short context", rope_frequencies(kShort, 16), kTransformersShort, {8}, fp32, 0);
  // More of its numbers: without scaling, and the band of Llama 3.1 in which frequencies are blended.
  const std::vector<double> llama2 = rope_frequencies(kLlama2, 128), llama31 = rope_frequencies(kLlama31, 128);
  checker.close("frequencies 3, 63 of Llama 2", std::vector<double>{llama2[3], llama2[63]},
                {0.649381638, 0.000115478193}, {2}, fp32, 0);
  checker.close("frequencies 28 to 35 of Llama 3.1", std::vector<double>(llama31.begin() + 28, llama31.begin() + 36),
                {0.00321144611, 0.00216657063, 0.00137189368, 0.00085675146, 0.000524846022, 0.00031269365,
                 0.000178507791, 9.55621217e-05},
                {8}, fp32, 0);

  checker.close(
      "frequencies of linear scaling", rope_frequencies(kLinear, 16),
      {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
      {8}, fp32, 0);
  // Yarn as Qwen2.5 uses it: the blended band begins between 22 and 24 and ends at 40.
  const std::vector<double> yarn = rope_frequencies(kYarn, 128);
  checker.close("frequencies 22 to 25, 38 to 41 of yarn",
                std::vector<double>{yarn[22], yarn[23], yarn[24], yarn[25], yarn[38], yarn[39], yarn[40], yarn[41]},
                {0.00865964312, 0.00697830599, 0.00537532149, 0.0041317381, 9.26230132e-05, 6.4903943e-05,
                 4.44569851e-05, 3.58253164e-05},
                {8}, fp32, 0);
  checker.close("frequencies of yarn without truncation", rope_frequencies(kShortYarn, 16),
                {1, 0.356288016, 0.094717592, 0.0121561559, 0.00559017016, 0.0025707141, 0.00118217699, 0.000543639821},
                {8}, fp32, 0);
  RopeScaling truncated{500, RopeType::yarn, 8, 32};
  checker.close(
      "frequencies of yarn with truncation", rope_frequencies(truncated, 16),
      {1, 0.325736493, 0.0881142616, 0.0121561559, 0.00559017016, 0.0025707141, 0.00118217699, 0.000543639821}, {8},
      fp32, 0);

  // transformers' own text, in double: the three bands one by one.
  const double two_pi = 2 * M_PI;
  for (const RopeScaling& s : {kLlama31, kLlama32, kShort}) {
    std::vector<double> want;
    for (int i = 0; i < 48; ++i) {
      const double frequency = 1 / std::pow(s.theta, 2 * i / 96.0), wavelength = two_pi / frequency;
      const double smooth =
          (s.original_max_position / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
      if (wavelength > s.original_max_position / s.low_freq_factor) want.push_back(frequency / s.factor);
      else if (wavelength < s.original_max_position / s.high_freq_factor) want.push_back(frequency);
      else want.push_back((1 - smooth) * frequency / s.factor + smooth * frequency);
    }
    checker.close(format("frequencies, context %d, factor %g", s.original_max_position, s.factor),
                  rope_frequencies(s, 96), want, {48}, 1e-14, 0);
  }
}

void check_table(Checker& checker) {
  const std::vector<float> once = rope_table({500}, 16, 3), times = rope_table(kShortYarn, 16, 3);
  // The first frequency is 1 in both: position 2 has an angle of 2.
  checker.close("yarn multiplies cosine and sine", std::vector<float>{times[32], times[33]},
                {1.25 * std::cos(2.0), 1.25 * std::sin(2.0)}, {2}, 0x1p-23, 0);
  checker.that("no other kind does", once[32] == float(std::cos(2.0)), format("%g", double(once[32])));
  const int HD = 64, positions = 131072;
  const std::vector<float> table = rope_table(kLlama31, HD, positions);
  const std::vector<double> frequencies = rope_frequencies(kLlama31, HD);
  checker.that("table's size", table.size() == size_t(positions) * HD, format("%zu numbers", table.size()));
  std::vector<float> got;
  std::vector<double> want;
  const std::vector<int> chosen = {0, 1, 2, 100, 8191, 8192, 131071};
  for (int p : chosen)
    for (int i = 0; i < HD / 2; ++i) {
      got.insert(got.end(), {table[size_t(p) * HD + 2 * i], table[size_t(p) * HD + 2 * i + 1]});
      const long double angle = (long double)p * frequencies[i];
      want.insert(want.end(), {double(cosl(angle)), double(sinl(angle))});
    }
  // Half an ulp of a number up to 1; angles up to 131071 radians are right to 2e-11 in double.
  checker.close("table", got, want, {int(chosen.size()), HD / 2, 2}, 0x1p-24, 3e-11);
}

// ---------------------------------------------------------------------------------------------- kernels

struct Shape {
  int N, NH, NKV, HD, table_positions;
  int width() const { return (NH + 2 * NKV) * HD; }
  template <class T>
  Tensor of(const Array<T>& qkv) const {
    return qkv.tensor({N, width()});
  }
  RopeAngles angles(const Array<float>& table, const Array<int>& positions) const {
    return {table.tensor({table_positions, HD / 2, 2}), positions.tensor({N}), NH + NKV};
  }
};

template <class T>
using Outputs = std::tuple<std::vector<T>, std::vector<T>>;  // of forward and of backward, of the same qkv

template <class T>
Outputs<T> run(Stream& stream, const std::vector<T>& qkv, const std::vector<float>& table,
               const std::vector<int>& positions, const Shape& s) {
  Array<T> forward(stream, qkv), backward(stream, qkv);
  Array<float> table_there(stream, table);
  Array<int> there(stream, positions);
  rope_forward(stream, s.of(forward), s.angles(table_there, there));
  rope_backward(stream, s.of(backward), s.angles(table_there, there));
  return {forward.download(), backward.download()};
}

// Complex multiplication in double by the angles themselves, not by the table.
template <class T>
std::vector<double> reference(const std::vector<T>& qkv, const std::vector<int>& positions, const Shape& s,
                              const RopeScaling& scaling, double direction) {
  const std::vector<double> frequencies = rope_frequencies(scaling, s.HD);
  std::vector<double> want = to_doubles(qkv);
  for (int n = 0; n < s.N; ++n)
    for (int h = 0; h < s.NH + s.NKV; ++h)
      for (int i = 0; i < s.HD / 2; ++i) {
        const size_t at = size_t(n) * s.width() + h * s.HD + i, partner = at + s.HD / 2;
        const double angle = direction * positions[n] * frequencies[i], x = want[at], y = want[partner];
        want[at] = x * std::cos(angle) - y * std::sin(angle);
        want[partner] = y * std::cos(angle) + x * std::sin(angle);
      }
  return want;
}

template <class T>
void check_shape(Checker& checker, OtherSchedules& orders, const Shape& s, const RopeScaling& scaling) {
  const std::string name = format("%s N=%d NH=%d NKV=%d HD=%d", dtype_name(kDType<T>), s.N, s.NH, s.NKV, s.HD);
  Generator generator(uint64_t(s.N) * 1009 + s.width());
  const auto qkv = random_normal<T>(generator, size_t(s.N) * s.width());
  std::vector<int> positions(size_t(s.N));
  for (int& position : positions) position = generator.integer(0, s.table_positions - 1);
  positions[0] = s.table_positions - 1;
  const std::vector<float> table = rope_table(scaling, s.HD, s.table_positions);
  const Outputs<T> outputs = run(checker.stream, qkv, table, positions, s);
  const auto& [forward, backward] = outputs;
  // Two products of numbers up to about 5 with table entries that are right to 2^-25, three roundings; bf16 rounds the
  // result once more.
  const double relative = sizeof(T) == 2 ? 0x1p-8 : 0, absolute = 1e-6;
  const std::vector<int> shape = {s.N, s.NH + 2 * s.NKV, s.HD};
  checker.close(name + " qkv", forward, reference(qkv, positions, s, scaling, 1), shape, relative, absolute);
  checker.close(name + " dqkv", backward, reference(qkv, positions, s, scaling, -1), shape, relative, absolute);
  orders.same_bits(checker, name, outputs, [&](Stream& stream) { return run(stream, qkv, table, positions, s); });

  size_t v_changed = 0;
  for (int n = 0; n < s.N; ++n)
    for (int j = (s.NH + s.NKV) * s.HD; j < s.width(); ++j) {
      const size_t at = size_t(n) * s.width() + j;
      v_changed += memcmp(&forward[at], &qkv[at], sizeof(T)) != 0 || memcmp(&backward[at], &qkv[at], sizeof(T)) != 0;
    }
  checker.that(name + " v is left alone", v_changed == 0, format("%zu elements of v changed", v_changed));
}

// A position outside of the table: NaN in q and k of its row, nothing else. The table given is the second third of one
// that goes on in both directions, so that a read outside of it would find numbers.
template <class T>
void check_unknown_positions(Checker& checker) {
  const Shape s{6, 2, 1, 16, 4};
  const std::vector<int> positions = {0, -1, 3, 4, 0x7fffffff, -0x7fffffff - 1};
  Generator generator(1);
  Array<float> table(checker.stream, rope_table(kLlama2, s.HD, 12));
  Array<int> there(checker.stream, positions);
  const Tensor third = table.tensor({12, s.HD}).rows(4, s.table_positions).first({s.table_positions, s.HD / 2, 2});
  for (const auto rotate : {rope_forward, rope_backward}) {
    Array<T> qkv(checker.stream, random_normal<T>(generator, size_t(s.N) * s.width()));
    rotate(checker.stream, s.of(qkv), {third, there.tensor({s.N}), s.NH + s.NKV});
    const std::vector<T> rotated = qkv.download();
    int wrong = 0;
    for (int n = 0; n < s.N; ++n)
      for (int j = 0; j < s.width(); ++j) {
        const bool poisoned = (n == 1 || n >= 3) && j < (s.NH + s.NKV) * s.HD;
        wrong += std::isnan(to_float(rotated[size_t(n) * s.width() + j])) != poisoned;
      }
    checker.that("positions outside of the table", wrong == 0, format("%d elements wrong", wrong));
  }
}

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  Array<float> qkv(stream, 256), table(stream, 64);
  Array<int> positions(stream, std::vector<int>{0});
  const Shape s{1, 2, 1, 16, 4};
  const RopeAngles angles = s.angles(table, positions);
  const auto forward = [&](const Tensor& x, const RopeAngles& a) {
    return [=, &stream] { rope_forward(stream, x, a); };
  };
  checker.refused("no rows", "qkv is (0, 64)", forward(s.of(qkv).rows(0, 0), angles));
  checker.refused("no heads of v", "qkv is (1, 48), of which 3 heads of 16", forward(qkv.tensor({1, 48}), angles));
  checker.refused("fewer heads than those of k", "qkv is (1, 160), of which 2 heads of 16",
                  forward(qkv.tensor({1, 160}), {angles.table, angles.positions, 2}));
  checker.refused("a part of a head", "qkv is (1, 72)", forward(qkv.tensor({1, 72}), angles));
  checker.refused("no table", "table is (0, 8, 2)", forward(s.of(qkv), {table.tensor({0, 8, 2}), angles.positions, 3}));
  checker.refused("angles without sines", "table is (4, 16) of fp32",
                  forward(s.of(qkv), {table.tensor({4, 16}), angles.positions, 3}));
  checker.refused("too few positions", "positions is (1) of int32\n  expected (2)",
                  forward(qkv.tensor({2, 64}), angles));
  checker.refused("positions in fp32", "positions is (1) of fp32",
                  forward(s.of(qkv), {angles.table, table.tensor({1}), 3}));
  checker.refused("unaligned rows", "align", forward(Tensor(qkv.data() + 1, {1, 64}), angles));
  checker.refused("theta of 0", "theta = 0", [] { rope_table({0}, 16, 4); });
  checker.refused("bands the wrong way round", "low_freq_factor 4", [] {
    rope_table({1e4, RopeType::llama3, 8, 32, 4, 1}, 16, 4);
  });
  checker.refused("a factor that shortens", "factor 0.5", [] { rope_table({1e4, RopeType::linear, 0.5}, 16, 4); });
  checker.refused("yarn without a context", "original context 0", [] {
    rope_table({1e4, RopeType::yarn, 4, 0}, 16, 4);
  });
  checker.refused("an odd table", "head size 7", [] { rope_table(kLlama2, 7, 4); });
  checker.refused("an empty table", "0 positions", [] { rope_table(kLlama2, 8, 0); });
}

template <class T>
void bench_shape(Bencher& bencher, const Shape& s) {
  Stream& stream = bencher.stream;
  Array<T> qkv(stream, repeated_normal<T>(size_t(s.N) * s.width()));
  Array<float> table(stream, rope_table(kLlama31, s.HD, s.table_positions));
  std::vector<int> positions(size_t(s.N));
  for (int n = 0; n < s.N; ++n) positions[n] = n % s.table_positions;
  Array<int> there(stream, positions);
  const double rotated = double(s.N) * (s.NH + s.NKV) * s.HD;
  bencher.time(format("rope_forward %s N=%d NH=%d NKV=%d HD=%d", dtype_name(kDType<T>), s.N, s.NH, s.NKV, s.HD),
               2 * rotated * sizeof(T) + 4.0 * s.N * s.HD, 3 * rotated,
               [&] { rope_forward(stream, s.of(qkv), s.angles(table, there)); });
}

}  // namespace

void check(Checker& checker) {
  check_frequencies(checker);
  check_table(checker);
  OtherSchedules orders;
  int number = 0;
  for (const Shape& s : std::vector<Shape>{{1, 1, 1, 2, 1},
                                           {2, 1, 1, 6, 3},
                                           {7, 3, 1, 8, 9},
                                           {9, 8, 8, 16, 31},
                                           {31, 7, 1, 24, 64},
                                           {33, 4, 2, 32, 33},
                                           {65, 9, 3, 48, 127},
                                           {130, 5, 5, 64, 512},
                                           {127, 4, 2, 72, 128},
                                           {257, 32, 8, 64, 99},
                                           {63, 2, 1, 128, 4096},
                                           {3, 16, 1, 256, 130},
                                           {2, 128, 8, 128, 300}}) {
    const RopeScaling scaling = number % 3 == 0 ? kLlama2 : number % 3 == 1 ? kLlama31 : kShort;
    ++number;
    check_shape<float>(checker, orders, s, scaling);
    check_shape<bf16>(checker, orders, s, scaling);
  }
  check_unknown_positions<float>(checker);
  check_unknown_positions<bf16>(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads()) {
    bench_shape<bf16>(bencher, {N, model.NH, model.NKV, model.HD, 8192});
    bench_shape<float>(bencher, {N, model.NH, model.NKV, model.HD, 8192});
  }
}
