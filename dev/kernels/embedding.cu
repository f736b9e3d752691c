// Checks and times llmc/kernels/embedding against a plain reference in double.
// Covers: promise 7: embedding forward and backward agree with a plain reference on ugly shapes and skewed tokens
#include "llmc/kernels/embedding.h"

#include <numeric>
#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"

namespace {

std::vector<int> sorted_positions(const std::vector<int>& tokens) {
  std::vector<int> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return tokens[a] < tokens[b]; });
  return order;
}

template <class T>
struct Inputs {
  int C, V;
  std::vector<int> tokens;
  std::vector<T> weight, dout;
  std::vector<float> dweight;  // what is there before backward adds to it

  Inputs(std::vector<int> tokens, int C, int V) : C(C), V(V), tokens(std::move(tokens)) {
    Generator generator(this->tokens.size() * 10007 + C);
    weight = random_normal<T>(generator, size_t(V) * C);
    dout = random_normal<T>(generator, this->tokens.size() * C);
    dweight = random_normal<float>(generator, size_t(V) * C);
  }
  int N() const { return int(tokens.size()); }
};

template <class T>
using Outputs = std::tuple<std::vector<T>, std::vector<float>>;  // out, dweight

template <class T>
Outputs<T> run(Stream& stream, const Inputs<T>& in, int pad = -1) {
  Array<int> tokens(stream, in.tokens), order(stream, sorted_positions(in.tokens));
  Array<T> weight(stream, in.weight), dout(stream, in.dout), out(stream, in.dout.size());
  Array<float> dweight(stream, in.dweight);
  const int N = in.N(), C = in.C, V = in.V;
  embedding_forward(stream, out.tensor({N, C}), tokens.tensor(), weight.tensor({V, C}), {0, V});
  embedding_backward(stream, dweight.tensor({V, C}), dout.tensor({N, C}), tokens.tensor(), order.tensor(), {0, V, pad});
  return {out.download(), dweight.download()};
}

template <class T>
void check_tokens(Checker& checker, OtherSchedules& orders, const std::string& what, const std::vector<int>& tokens,
                  int C, int V) {
  const Inputs<T> in(tokens, C, V);
  const std::string name = format("%s N=%d C=%d V=%d %s", dtype_name(kDType<T>), in.N(), C, V, what.c_str());
  const Outputs<T> outputs = run(checker.stream, in);

  std::vector<T> want;
  std::vector<double> want_d = to_doubles(in.dweight);
  std::vector<int> count(size_t(V), 0);
  for (size_t n = 0; n < tokens.size(); ++n) {
    const size_t row = size_t(tokens[n]) * C;
    ++count[tokens[n]];
    for (int c = 0; c < C; ++c) {
      want.push_back(in.weight[row + c]);
      want_d[row + c] += to_double(in.dout[n * C + c]);
    }
  }
  checker.same_bits(name + " out", std::get<0>(outputs), want);
  // A sum of numbers of about 1 in fp32: a few roundings of the sum of their magnitudes.
  const int longest = *std::max_element(count.begin(), count.end());
  checker.close(name + " dweight", std::get<1>(outputs), want_d, {V, C}, 4 * 0x1p-23, 3e-7 * (longest + 1));
  orders.same_bits(checker, name, outputs, [&](Stream& stream) { return run(stream, in); });
  // The most frequent token as the padding: its row gets nothing, all others what they got.
  const int pad = int(std::max_element(count.begin(), count.end()) - count.begin());
  std::vector<float> padded = std::get<1>(outputs);
  std::copy_n(in.dweight.begin() + ptrdiff_t(pad) * C, C, padded.begin() + ptrdiff_t(pad) * C);
  checker.same_bits(name + " dweight with a padding token", std::get<1>(run(checker.stream, in, pad)), padded);
}

// The table shared out over ranks by rows: their sum is the whole, and each rank's gradient its rows of the whole's.
template <class T>
void check_rows(Checker& checker, int N, int C, int V, int ranks) {
  Generator generator(uint64_t(N * 31 + V));
  std::vector<int> drawn;
  for (int n = 0; n < N; ++n) drawn.push_back(n % 3 ? generator.integer(0, V - 1) : V / 2);
  drawn[0] = V, drawn[1] = -1;  // unknown to all
  const Inputs<T> in(drawn, C, V);
  const auto [whole, dwhole] = run(checker.stream, in, V / 2);
  const std::string name = format("%s N=%d C=%d V=%d over %d ranks", dtype_name(kDType<T>), N, C, V, ranks);
  const int most = (V + ranks - 1) / ranks;
  int known = 0, unknown = 0, bad = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const EmbeddingRows rows{rank * most, V, V / 2};
    const int held = std::min(most, V - rank * most);
    const auto part = [&](const auto& all) {
      return std::vector(all.begin() + size_t(rows.first) * C, all.begin() + size_t(rows.first + held) * C);
    };
    Array<int> tokens(checker.stream, in.tokens), order(checker.stream, sorted_positions(in.tokens));
    Array<T> weight(checker.stream, part(in.weight)), dout(checker.stream, in.dout),
        out(checker.stream, in.dout.size());
    Array<float> dweight(checker.stream, part(in.dweight));
    embedding_forward(checker.stream, out.tensor({N, C}), tokens.tensor(), weight.tensor({held, C}), rows);
    embedding_backward(checker.stream, dweight.tensor({held, C}), dout.tensor({N, C}), tokens.tensor(), order.tensor(),
                       rows);
    const std::vector<T> got = out.download();
    for (int n = 0; n < N; ++n) {
      const bool here = in.tokens[n] >= rows.first && in.tokens[n] < rows.first + held;
      const bool nowhere = in.tokens[n] < 0 || in.tokens[n] >= V;
      known += here, unknown += nowhere;
      for (int c = 0; c < C; ++c) {
        const float value = to_float(got[n * C + c]), of_whole = to_float(whole[n * C + c]);
        bad += nowhere ? !std::isnan(value) : value != (here ? of_whole : 0.0f);
      }
    }
    checker.same_bits(name + format(" dweight of rank %d", rank), dweight.download(), part(dwhole));
  }
  checker.that(name + " out", bad == 0 && known == N - 2 && unknown == 2 * ranks,
               format("%d values are wrong, %d rows were found", bad, known));
}

// Tokens outside of the table, once and in long runs: NaN rows, and no gradient. The table given is a part of one
// that goes on by `more` rows in both directions, so that an access outside of it would find numbers.
template <class T>
void check_unknown_tokens(Checker& checker) {
  Stream& stream = checker.stream;
  for (const auto& [C, V, more] : std::vector<std::tuple<int, int, int>>{{16, 5, 3}, {9, 7, 2}}) {
    std::vector<int> tokens = {2, -1, 0, V, V - 1, -more, V + more - 1, 2};
    for (int repeat = 0; repeat < 70; ++repeat) tokens.insert(tokens.end(), {-1, 1, V});
    const Inputs<T> all(tokens, C, V + 2 * more);
    Array<int> there(stream, tokens), order(stream, sorted_positions(tokens));
    Array<T> weight(stream, all.weight), dout(stream, all.dout), out(stream, all.dout.size());
    Array<float> dweight(stream, all.dweight);
    // Both are 16-byte aligned where they have to be: more * C is a multiple of 8 for C = 16.
    const int N = all.N(), rows_there = V + 2 * more;
    embedding_forward(stream, out.tensor({N, C}), there.tensor(), weight.tensor({rows_there, C}).rows(more, V), {0, V});
    embedding_backward(stream, dweight.tensor({rows_there, C}).rows(more, V), dout.tensor({N, C}), there.tensor(),
                       order.tensor(), {0, V});
    const std::vector<T> rows = out.download();
    int wrong = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const int token = tokens[i / C];
      wrong += std::isnan(to_float(rows[i])) != (token < 0 || token >= V);
    }
    checker.that(format("%s C=%d unknown tokens: rows", dtype_name(kDType<T>), C), wrong == 0,
                 format("%d elements wrong", wrong));
    std::vector<float> outside = dweight.download(), want = all.dweight;
    outside.erase(outside.begin() + more * C, outside.begin() + (more + V) * C);
    want.erase(want.begin() + more * C, want.begin() + (more + V) * C);
    checker.same_bits(format("%s C=%d unknown tokens: no gradient", dtype_name(kDType<T>), C), outside, want);
  }
}

// Rows of tokens that do not occur keep their bits, whatever they hold.
void check_untouched(Checker& checker) {
  const int C = 24, V = 9;
  Inputs<float> in({3, 5, 3}, C, V);
  for (float& d : in.dweight) d = -0.0f;
  const std::vector<float> dweight = std::get<1>(run(checker.stream, in));
  int wrong = 0;
  for (int v = 0; v < V; ++v)
    for (int c = 0; c < C; ++c)
      wrong += (std::signbit(dweight[v * C + c]) && dweight[v * C + c] == 0) == (v == 3 || v == 5);
  checker.that("rows without a token keep their bits", wrong == 0, format("%d elements wrong", wrong));
}

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  Array<float> numbers(stream, 64), others(stream, 64);
  Array<int> ids(stream, std::vector<int>{0});
  const Tensor weight = numbers.tensor({8, 8}), out = others.tensor({1, 8}), token = ids.tensor();
  const auto forward = [&](const Tensor& to, const Tensor& from, EmbeddingRows rows = {0, 8}) {
    return [=, &stream] { embedding_forward(stream, to, token, from, rows); };
  };
  const auto backward = [&](const Tensor& to, const Tensor& dout, const Tensor& order) {
    return [=, &stream] { embedding_backward(stream, to, dout, token, order, {0, 8}); };
  };
  checker.refused("no tokens", "embedding_forward: out is (0, 8)", forward(out.rows(0, 0), weight));
  checker.refused("no columns", "out is (1, 0)", forward(others.tensor({1, 0}), weight));
  checker.refused("no vocabulary", "weight is (0, 8)", forward(out, weight.rows(0, 0)));
  checker.refused("tokens that are missing", "tokens is (1) of int32\n  expected (2) of int32",
                  forward(others.tensor({2, 8}), weight));
  checker.refused("rows of another width", "weight is (16, 4)", forward(out, numbers.tensor({16, 4})));
  checker.refused("rows beyond the table", "rows 1 to 8 of a table of 8", forward(out, weight, {1, 8}));
  checker.refused("unaligned rows", "align", forward(Tensor(others.data() + 1, {1, 8}), weight));
  checker.refused("backward of no tokens", "embedding_backward: dout is (0, 8)",
                  backward(weight, out.rows(0, 0), token));
  checker.refused("no order", "order is absent", backward(weight, out, {}));
}

// Tokens as text has them: rank r with probability about 1/(r + 3).
std::vector<int> text_like(Generator& generator, int N, int V) {
  std::vector<int> tokens(static_cast<size_t>(N));
  for (int& token : tokens) token = std::min(V - 1, int(3 * (std::pow((V + 3) / 3.0, generator.uniform()) - 1)));
  return tokens;
}

template <class T>
void bench_shape(Bencher& bencher, int N, int C, int V) {
  Stream& stream = bencher.stream;
  Generator generator(1);
  const std::vector<int> text = text_like(generator, N, V);
  const size_t size = size_t(N) * C, table = size_t(V) * C;
  Array<int> tokens(stream, text), order(stream, sorted_positions(text));
  Array<T> weight(stream, repeated_normal<T>(table)), dout(stream, repeated_normal<T>(size)), out(stream, size);
  Array<float> dweight(stream, repeated_normal<float>(table));
  const std::string shape = format("%s N=%d C=%d V=%d", dtype_name(kDType<T>), N, C, V);
  const double rows = double(size) * sizeof(T);
  std::vector<int> distinct = text;
  std::sort(distinct.begin(), distinct.end());
  const double touched = double(std::unique(distinct.begin(), distinct.end()) - distinct.begin()) * C * sizeof(float);
  bencher.time("embedding_forward " + shape, 2 * rows, 0, [&] {
    embedding_forward(stream, out.tensor({N, C}), tokens.tensor(), weight.tensor({V, C}), {0, V});
  });
  bencher.time("embedding_backward " + shape, rows + 2 * touched, double(size), [&] {
    embedding_backward(stream, dweight.tensor({V, C}), dout.tensor({N, C}), tokens.tensor(), order.tensor(), {0, V});
  });
}

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  Generator generator(7);
  const auto both = [&](const std::string& what, const std::vector<int>& tokens, int C, int V) {
    check_tokens<float>(checker, orders, what, tokens, C, V);
    check_tokens<bf16>(checker, orders, what, tokens, C, V);
  };
  for (const auto& [N, C, V] : std::vector<std::tuple<int, int, int>>{{1, 1, 1},
                                                                      {2, 8, 3},
                                                                      {7, 9, 2},
                                                                      {9, 7, 100},
                                                                      {31, 33, 5},
                                                                      {32, 16, 1},
                                                                      {33, 65, 1},
                                                                      {63, 64, 4},
                                                                      {64, 63, 2},
                                                                      {65, 40, 300},
                                                                      {130, 24, 3},
                                                                      {255, 8, 31},
                                                                      {257, 255, 9},
                                                                      {256, 264, 6},
                                                                      {1000, 48, 2},
                                                                      {999, 31, 3},
                                                                      {40, 1024, 3},
                                                                      {37, 1025, 2}}) {
    both("text", text_like(generator, N, V), C, V);
    std::vector<int> uniform(static_cast<size_t>(N));
    for (int& token : uniform) token = generator.integer(0, V - 1);
    both("uniform", uniform, C, V);
  }
  // Runs of every length around the window's, begun at every place in a window.
  for (int before : {0, 1, 15, 31, 32, 33})
    for (int length : {1, 31, 32, 33, 63, 64, 65, 200}) {
      std::vector<int> tokens;
      for (int i = 0; i < before; ++i) tokens.push_back(i / 2);
      tokens.insert(tokens.end(), size_t(length), 20);
      for (int i = 0; i < 40; ++i) tokens.push_back(21 + i % 3);
      for (size_t i = tokens.size(); i > 1; --i)
        std::swap(tokens[i - 1], tokens[size_t(generator.integer(0, int(i) - 1))]);
      check_tokens<float>(checker, orders, format("run of %d from %d", length, before), tokens, 16, 24);
    }
  for (const auto& [N, C, V, ranks] : std::vector<std::tuple<int, int, int, int>>{
           {9, 16, 5, 2}, {300, 9, 97, 4}, {70, 33, 101, 3}, {257, 64, 1000, 8}}) {
    check_rows<float>(checker, N, C, V, ranks);
    check_rows<bf16>(checker, N, C, V, ranks);
  }
  check_unknown_tokens<float>(checker);
  check_unknown_tokens<bf16>(checker);
  check_untouched(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads()) {
    const int V =
        bencher.gpu_sizes() ? model.V : std::min(model.V, 16384);  // of the table, only the tokens' rows are touched
    bench_shape<bf16>(bencher, N, model.C, V);
    bench_shape<float>(bencher, N, model.C, V);
  }
}
