// Checks and times llmc/kernels/qk_norm_rope against formulas in double.
// Covers: promise 7: biases, norms of queries and keys with RoPE, forward and backward, agree with a plain reference on
// ugly shapes, also where tensor-parallel ranks share a norm's heads
#include "llmc/kernels/qk_norm_rope.h"

#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"
#include "llmc/kernels/column_sums.h"

namespace {

enum class Kind { bias, head, whole };
constexpr const char* kKinds[] = {"biases", "norm of heads", "norm of the whole"};
constexpr float kEps = 1e-3f;  // large enough that leaving it out would show

struct Shape {
  int N, NH, NKV, HD;
  Kind kind;
  int ranks = 1;  // by which sums of the whole are shared

  int rotated() const { return NH + NKV; }
  int heads() const { return NH + 2 * NKV; }
  int width() const { return heads() * HD; }
  int columns() const { return kind == Kind::bias ? width() : rotated() * HD; }  // those that have vectors
  // The numbers of the vectors: biases of q, k and v, or weights of q and k.
  int q_size() const { return kind == Kind::head ? HD : NH * HD; }
  int k_size() const { return kind == Kind::head ? HD : NKV * HD; }
  int v_size() const { return kind == Kind::bias ? NKV * HD : 0; }
  // The place of a column's number in its vector.
  int vector_at(int column) const {
    if (kind == Kind::head) return column % HD;
    return column < NH * HD ? column : (column - NH * HD) % (NKV * HD);
  }
  double mean_over(int head) const { return kind == Kind::head ? HD : double(head < NH ? NH : NKV) * HD * ranks; }
  std::string name() const { return format("%s N=%d NH=%d NKV=%d HD=%d", kKinds[int(kind)], N, NH, NKV, HD); }
};

// The inputs of one check.
template <class T>
struct Inputs {
  std::vector<T> qkv, dqkv, q, k, v;     // q, k, v: the vectors
  std::vector<float> table, sums, dots;  // sums and dots (N, 2) of a norm of the whole
  std::vector<int> positions;
};

template <class T>
struct Outputs {
  std::vector<T> out, dqkv;
  std::vector<float> dq, dk, dv, amax;
  auto all() const { return std::tuple{out, dqkv, dq, dk, dv, amax}; }
};

// Device copies of the vectors, and the views of them that a launcher takes.
template <class T>
struct Vectors {
  Array<T> q, k, v;
  Kind kind;
  Vectors(Stream& stream, const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v, Kind kind)
      : q(stream, q), k(stream, k), v(stream, v), kind(kind) {}
  QkvVectors views() const {
    if (kind == Kind::bias) return {q.tensor(), k.tensor(), v.tensor(), {}, {}};
    return {{}, {}, {}, q.tensor(), k.tensor()};
  }
};

constexpr float kBefore = 0.5f;  // what the gradients of vectors hold before

template <class T>
Outputs<T> run(Stream& stream, const Inputs<T>& in, const Shape& s, bool in_place) {
  const Vectors<T> vectors(stream, in.q, in.k, in.v, s.kind);
  const Vectors<float> gradients(stream, std::vector<float>(in.q.size(), kBefore),
                                 std::vector<float>(in.k.size(), kBefore), std::vector<float>(in.v.size(), kBefore),
                                 s.kind);
  Array<T> qkv(stream, in.qkv), dqkv(stream, in.dqkv), apart(stream, in.qkv.size());
  Array<float> table(stream, in.table), sums(stream, in.sums), dots(stream, in.dots),
      amax(stream, std::vector<float>{0});
  Array<float> scratch(stream, size_t(qk_norm_rope_scratch(s.N, s.columns())));
  Array<int> positions(stream, in.positions);
  const RopeAngles angles{table.tensor({int64_t(in.table.size()) / s.HD, s.HD / 2, 2}), positions.tensor(),
                          s.rotated()};
  const bool normed = s.kind != Kind::bias, whole = s.kind == Kind::whole;
  const WholeNorm shared{whole ? sums.tensor({s.N, 2}) : Tensor(), whole ? dots.tensor({s.N, 2}) : Tensor(), s.ranks};
  const TensorShape rows{s.N, s.width()};
  const Tensor out = in_place ? qkv.tensor(rows) : apart.tensor(rows);
  qk_norm_rope_forward(stream, out, qkv.tensor(rows), vectors.views(), angles, kEps, shared);
  const std::vector<T> result = in_place ? qkv.download() : apart.download();
  if (in_place) qkv.upload(in.qkv);
  qk_norm_rope_backward(stream, dqkv.tensor(rows), gradients.views(), scratch.tensor(),
                        normed ? qkv.tensor(rows) : Tensor(), vectors.views(), angles, kEps, shared,
                        sizeof(T) == 2 ? amax.data() : nullptr);
  return {result,         dqkv.download(), gradients.q.download(), gradients.k.download(), gradients.v.download(),
          amax.download()};
}

// The formulas of qk_norm_rope.h in double.
struct Reference {
  std::vector<double> out, dqkv, dq, dk, dv;
};
template <class T>
Reference reference(const Inputs<T>& in, const Shape& s) {
  const int HD = s.HD, half = HD / 2;
  Reference r{std::vector<double>(in.qkv.size()), std::vector<double>(in.qkv.size()),
              std::vector<double>(in.q.size(), kBefore), std::vector<double>(in.k.size(), kBefore),
              std::vector<double>(in.v.size(), kBefore)};
  const bool normed = s.kind != Kind::bias;
  for (int n = 0; n < s.N; ++n)
    for (int h = 0; h < s.heads(); ++h) {
      const size_t at = size_t(n) * s.width() + size_t(h) * HD;
      const bool rotates = h < s.rotated(), query = h < s.NH;
      const std::vector<T>& vector = query ? in.q : rotates ? in.k : in.v;
      std::vector<double>& dvector = query ? r.dq : rotates ? r.dk : r.dv;
      std::vector<double> x(HD), y(HD), g(HD);  // the input; what RoPE rotates; the gradient of y
      for (int i = 0; i < HD; ++i) {
        x[i] = to_double(in.qkv[at + i]), g[i] = to_double(in.dqkv[at + i]);
        if (!normed) x[i] += to_double(vector[s.vector_at(h * HD + i)]);
        y[i] = x[i];
      }
      double rstd = 0;
      if (normed && rotates) {
        double squares = 0;
        for (int i = 0; i < HD; ++i) squares += x[i] * x[i];
        if (s.kind == Kind::whole) squares = in.sums[size_t(n) * 2 + !query];
        rstd = 1 / std::sqrt(squares / s.mean_over(h) + kEps);
        for (int i = 0; i < HD; ++i) y[i] = x[i] * rstd * to_double(vector[s.vector_at(h * HD + i)]);
      }
      for (int i = 0; i < half; ++i) {
        const float* angle = &in.table[(size_t(in.positions[n]) * half + i) * 2];
        const double cosine = rotates ? angle[0] : 1, sine = rotates ? angle[1] : 0;
        r.out[at + i] = y[i] * cosine - y[half + i] * sine;
        r.out[at + half + i] = y[half + i] * cosine + y[i] * sine;
        const double a = g[i], b = g[half + i];
        g[i] = a * cosine + b * sine, g[half + i] = b * cosine - a * sine;
      }
      double dot = 0;
      for (int i = 0; i < HD && normed && rotates; ++i) dot += g[i] * y[i];
      if (s.kind == Kind::whole) dot = in.dots[size_t(n) * 2 + !query];
      for (int i = 0; i < HD; ++i) {
        const int c = s.vector_at(h * HD + i);
        if (!normed) dvector[c] += g[i];
        else if (rotates) {
          dvector[c] += g[i] * x[i] * rstd;
          g[i] = rstd * (g[i] * to_double(vector[c]) - x[i] * rstd * dot / s.mean_over(h));
        }
        r.dqkv[at + i] = g[i];
      }
    }
  return r;
}

// sums or dots of the whole, in double from what the rows hold.
template <class T>
std::vector<double> dots_of(const std::vector<T>& a, const std::vector<T>& b, const Shape& s) {
  std::vector<double> sums(size_t(s.N) * 2);
  for (int n = 0; n < s.N; ++n)
    for (int c = 0; c < s.rotated() * s.HD; ++c) {
      const size_t at = size_t(n) * s.width() + c;
      sums[size_t(n) * 2 + (c >= s.NH * s.HD)] += to_double(a[at]) * to_double(b[at]);
    }
  return sums;
}

template <class T>
std::vector<float> kernel_dots(Stream& stream, const std::vector<T>& a, const std::vector<T>& b, const Shape& s) {
  const Array<T> x(stream, a), y(stream, b);
  const Array<float> sums(stream, size_t(s.N) * 2);
  qk_dots(stream, sums.tensor({s.N, 2}), x.tensor({s.N, s.width()}), y.tensor({s.N, s.width()}), s.NH, s.NKV);
  return sums.download();
}

template <class T>
Inputs<T> inputs_of(const Shape& s, uint64_t seed) {
  Generator generator(seed);
  const auto around_one = [&](int size) {  // a norm's weight; some are 0 or small
    std::vector<T> w(size);
    for (int i = 0; i < size; ++i) w[i] = from_float<T>(i % 11 == 3 ? 0 : float(1 + 0.5 * generator.normal()));
    return w;
  };
  const auto vector = [&](int size) {
    return s.kind == Kind::bias ? random_normal<T>(generator, size) : around_one(size);
  };
  Inputs<T> in{random_normal<T>(generator, size_t(s.N) * s.width()),
               random_normal<T>(generator, size_t(s.N) * s.width()),
               vector(s.q_size()),
               vector(s.k_size()),
               random_normal<T>(generator, size_t(s.v_size())),
               rope_table({500}, s.HD, 64),
               std::vector<float>(size_t(s.N) * 2),
               std::vector<float>(size_t(s.N) * 2),
               std::vector<int>(size_t(s.N))};
  for (int& position : in.positions) position = generator.integer(0, 63);
  in.positions[0] = 63;
  return in;
}

template <class T>
void check_shape(Checker& checker, OtherSchedules& orders, const Shape& s) {
  const std::string name = std::string(dtype_name(kDType<T>)) + " " + s.name();
  Inputs<T> in = inputs_of<T>(s, uint64_t(s.N) * 1009 + s.width());
  if (s.kind == Kind::whole) {
    in.sums = kernel_dots(checker.stream, in.qkv, in.qkv, s);
    // Sums of up to 5120 squares in fp32.
    checker.close(name + " sums", in.sums, dots_of(in.qkv, in.qkv, s), {s.N, 2}, 1e-5, 0);
    const std::vector<T> out = run(checker.stream, in, s, false).out;
    in.dots = kernel_dots(checker.stream, in.dqkv, out, s);
    checker.close(name + " dots", in.dots, dots_of(in.dqkv, out, s), {s.N, 2}, 1e-5, 1e-3);
  }
  const Outputs<T> got = run(checker.stream, in, s, false);
  const Reference want = reference(in, s);
  // fp32: a dozen roundings of numbers up to about 20. bf16 rounds the result once more. Sums of vectors go over N
  // rows and up to NH heads, of products of size 1.
  const double relative = sizeof(T) == 2 ? 0x1p-8 : 1e-6, absolute = 4e-6,
               sum = 1e-6 * std::sqrt(double(s.N) * s.NH) + 4e-6;
  const std::vector<int> shape = {s.N, s.heads(), s.HD};
  checker.close(name + " out", got.out, want.out, shape, relative, absolute);
  checker.close(name + " dqkv", got.dqkv, want.dqkv, shape, relative, absolute);
  checker.close(name + " gradient of q's vector", got.dq, want.dq, {s.q_size()}, 1e-5, sum);
  checker.close(name + " gradient of k's vector", got.dk, want.dk, {s.k_size()}, 1e-5, sum);
  if (s.kind == Kind::bias) checker.close(name + " gradient of v's vector", got.dv, want.dv, {s.v_size()}, 1e-5, sum);
  if (sizeof(T) == 2) {
    float largest = 0;
    for (const T x : got.dqkv) largest = std::max(largest, std::fabs(to_float(x)));
    checker.that(name + " the largest number of dqkv", got.amax[0] == largest,
                 format("%g and %g", double(got.amax[0]), double(largest)));
  }
  checker.same_bits(name + " in place", run(checker.stream, in, s, true).out, got.out);
  orders.same_bits(checker, name, got.all(), [&](Stream& stream) { return run(stream, in, s, false).all(); });
}

// The gradient of a norm of the whole needs the sums of y and its gradient; RoPE rotates both, so their product is that
// of out and its gradient. Here by finite differences, through all of the formulas.
void check_differences(Checker& checker) {
  for (const Kind kind : {Kind::head, Kind::whole}) {
    const Shape s{3, 2, 1, 16, kind};
    Inputs<float> in = inputs_of<float>(s, 5);
    const auto forward = [&](const std::vector<float>& qkv) {
      Inputs<float> moved = in;
      moved.qkv = qkv;
      const std::vector<double> sums = dots_of(qkv, qkv, s);
      moved.sums.assign(sums.begin(), sums.end());
      return reference(moved, s).out;
    };
    const std::vector<double> sums = dots_of(in.qkv, in.qkv, s);
    in.sums.assign(sums.begin(), sums.end());
    in.dots = kernel_dots(checker.stream, in.dqkv, run(checker.stream, in, s, false).out, s);
    const std::vector<float> got = run(checker.stream, in, s, false).dqkv;
    std::vector<double> want(got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      std::vector<float> more = in.qkv, less = in.qkv;
      more[i] += 1e-2f, less[i] -= 1e-2f;
      const std::vector<double> a = forward(more), b = forward(less);
      for (size_t j = 0; j < a.size(); ++j) want[i] += in.dqkv[j] * (a[j] - b[j]) / double(more[i] - less[i]);
    }
    // The third derivative, times 1e-4 / 6.
    checker.close(std::string(kKinds[int(kind)]) + " against finite differences", got, want, {s.N, s.heads(), s.HD}, 0,
                  1e-3);
  }
}

// Two ranks have half of the query heads each, and both have the one key head: together they give what one rank gives.
void check_ranks(Checker& checker) {
  const Shape all{9, 4, 1, 24, Kind::whole}, part{9, 2, 1, 24, Kind::whole, 2};
  Inputs<float> in = inputs_of<float>(all, 7);
  in.sums = kernel_dots(checker.stream, in.qkv, in.qkv, all);
  in.dots = kernel_dots(checker.stream, in.dqkv, run(checker.stream, in, all, false).out, all);
  const Outputs<float> one = run(checker.stream, in, all, false);
  // The columns of a rank: its query heads, and the key and value head. Its keys' gradient is a share of the whole.
  const auto columns_of = [&](const std::vector<float>& rows, int rank, float share) {
    std::vector<float> own;
    for (int n = 0; n < all.N; ++n)
      for (int c = 0; c < part.width(); ++c) {
        const bool query = c < part.NH * part.HD;
        const int column = query ? rank * part.NH * part.HD + c : c + part.NH * part.HD;
        own.push_back(rows[size_t(n) * all.width() + column] * (query ? 1 : share));
      }
    return own;
  };
  Inputs<float> of[2];
  std::vector<float> sums(in.sums.size()), dots(in.dots.size());
  for (int rank = 0; rank < 2; ++rank) {
    of[rank] = in;
    of[rank].qkv = columns_of(in.qkv, rank, 1), of[rank].dqkv = columns_of(in.dqkv, rank, rank ? 0.75f : 0.25f);
    const int q = part.q_size();
    of[rank].q.assign(in.q.begin() + rank * q, in.q.begin() + (rank + 1) * q);
    const std::vector<float> own = kernel_dots(checker.stream, of[rank].qkv, of[rank].qkv, part);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += own[i];
  }
  for (Inputs<float>& rank : of) {
    rank.sums = sums;
    const std::vector<float> own =
        kernel_dots(checker.stream, rank.dqkv, run(checker.stream, rank, part, false).out, part);
    for (size_t i = 0; i < dots.size(); ++i) dots[i] += own[i];
  }
  std::vector<float> keys(size_t(all.N) * all.HD), dk(all.k_size());
  for (int rank = 0; rank < 2; ++rank) {
    of[rank].dots = dots;
    const Outputs<float> got = run(checker.stream, of[rank], part, false);
    const auto want = columns_of(one.out, rank, 1), dwant = columns_of(one.dqkv, rank, 1);
    checker.close(format("out of rank %d", rank), got.out, to_doubles(want), {part.N, part.heads(), part.HD}, 1e-6,
                  1e-6);
    std::vector<float> dq, dq_want;
    for (int n = 0; n < part.N; ++n)
      for (int c = 0; c < 3 * part.HD; ++c) {
        const size_t at = size_t(n) * part.width() + c;
        if (c < 2 * part.HD) dq.push_back(got.dqkv[at]), dq_want.push_back(dwant[at]);
        else keys[size_t(n) * part.HD + c - 2 * part.HD] += got.dqkv[at];
      }
    checker.close(format("dq of rank %d", rank), dq, to_doubles(dq_want), {part.N, 2, part.HD}, 1e-6, 4e-6);
    for (size_t i = 0; i < dk.size(); ++i) dk[i] += got.dk[i] - (rank ? kBefore : 0);
  }
  std::vector<double> keys_want;
  for (int n = 0; n < all.N; ++n)
    for (int c = 0; c < all.HD; ++c) keys_want.push_back(one.dqkv[size_t(n) * all.width() + all.NH * all.HD + c]);
  checker.close("dk, added over the ranks", keys, keys_want, {all.N, all.HD}, 1e-6, 4e-6);
  checker.close("gradient of k's weight, added over the ranks", dk, to_doubles(one.dk), {all.HD}, 1e-6, 1e-5);
}

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  Array<float> qkv(stream, 3 * 64), table(stream, 64), weight(stream, 64), scratch(stream, 64);
  Array<int> positions(stream, std::vector<int>{0, 1});
  const RopeAngles angles{table.tensor({4, 8, 2}), positions.tensor(), 3};
  const Tensor x = qkv.tensor({2, 64}), w = weight.tensor({16});
  const auto forward = [&](const Tensor& out, const QkvVectors& v, const RopeAngles& a, WholeNorm whole = {}) {
    return [=, &stream] { qk_norm_rope_forward(stream, out, x, v, a, kEps, whole); };
  };
  const QkvVectors norms{{}, {}, {}, w, w};
  checker.refused("neither", "neither biases nor norms", forward(x, {}, angles));
  checker.refused("both", "biases and norms", forward(x, {weight.tensor({32}), w, w, w, w}, angles));
  checker.refused("one norm", "k_norm is absent", forward(x, {{}, {}, {}, w, {}}, angles));
  checker.refused("two biases", "v_bias is absent", forward(x, {weight.tensor({32}), w, {}, {}, {}}, angles));
  checker.refused("a weight of another size", "q_norm is (32)",
                  forward(x, {{}, {}, {}, weight.tensor({32}), w}, angles));
  checker.refused("another number of heads", "of which 4 heads",
                  forward(x, norms, {angles.table, angles.positions, 4}));
  checker.refused("an overlap", "overlap", forward(Tensor(qkv.data() + 32, {2, 64}), norms, angles));
  checker.refused("a gradient without its sums", "dots is absent", [&] {
    Array<float> dqkv(stream, 2 * 64);
    const QkvVectors weights{{}, {}, {}, weight.tensor({32}), w};
    qk_norm_rope_backward(stream, dqkv.tensor({2, 64}), weights, scratch.tensor(), x, weights, angles, kEps,
                          {scratch.tensor({2, 2})});
  });
  checker.refused("sums of another size", "squares is (2)",
                  forward(x, {{}, {}, {}, weight.tensor({32}), w}, angles, {weight.tensor({2})}));
  checker.refused("backward without forward's input", "qkv is absent",
                  [&] { qk_norm_rope_backward(stream, x, norms, scratch.tensor(), {}, norms, angles, kEps); });
  checker.refused("a short scratch", "expected (48) or more", [&] {
    Array<float> dqkv(stream, 2 * 64);
    qk_norm_rope_backward(stream, dqkv.tensor({2, 64}), norms, scratch.tensor({47}), x, norms, angles, kEps);
  });
  checker.refused("dots of a part of a head", "expected (N, (NH + 2 NKV) HD)", [&] {
    qk_dots(stream, scratch.tensor({2, 2}), x, x, 3, 1);
  });
  checker.refused("column sums of another width", "sum is (15)", [&] {
    add_column_sums(stream, "sums", weight.tensor({15}), scratch.tensor({1, 4, 16}));
  });
}

template <class T>
void bench_shape(Bencher& bencher, const Shape& s) {
  Stream& stream = bencher.stream;
  Inputs<T> in = inputs_of<T>({1, s.NH, s.NKV, s.HD, s.kind}, 1);
  Array<T> qkv(stream, repeated_normal<T>(size_t(s.N) * s.width())),
      dqkv(stream, repeated_normal<T>(size_t(s.N) * s.width()));
  Array<T> out(stream, size_t(s.N) * s.width());
  const Vectors<T> vectors(stream, in.q, in.k, in.v, s.kind);
  const Vectors<float> gradients(stream, std::vector<float>(in.q.size()), std::vector<float>(in.k.size()),
                                 std::vector<float>(in.v.size()), s.kind);
  Array<float> table(stream, rope_table({500}, s.HD, 8192));
  Array<float> sums(stream, std::vector<float>(size_t(s.N) * 2, 1)),
      scratch(stream, size_t(qk_norm_rope_scratch(s.N, s.columns())));
  std::vector<int> positions(size_t(s.N));
  for (int n = 0; n < s.N; ++n) positions[n] = n % 8192;
  Array<int> there(stream, positions);
  const RopeAngles angles{table.tensor({8192, s.HD / 2, 2}), there.tensor(), s.rotated()};
  const TensorShape rows{s.N, s.width()};
  const bool normed = s.kind != Kind::bias;
  const Tensor stats = s.kind == Kind::whole ? sums.tensor({s.N, 2}) : Tensor();
  const WholeNorm whole{stats, stats};
  const std::string name = format("%s %s", dtype_name(kDType<T>), s.name().c_str());
  const double all = double(s.N) * s.width() * sizeof(T), angle_bytes = 4.0 * s.N * s.HD;
  bencher.time("qk_norm_rope_forward " + name, 2 * all + angle_bytes, 0, [&] {
    qk_norm_rope_forward(stream, normed ? out.tensor(rows) : qkv.tensor(rows), qkv.tensor(rows), vectors.views(),
                         angles, kEps, whole);
  });
  bencher.time("qk_norm_rope_backward " + name, (normed ? 3 : 2) * all + angle_bytes, 0, [&] {
    qk_norm_rope_backward(stream, dqkv.tensor(rows), gradients.views(), scratch.tensor(),
                          normed ? qkv.tensor(rows) : Tensor(), vectors.views(), angles, kEps, whole);
  });
  if (s.kind == Kind::whole)
    bencher.time("qk_dots " + name, 2 * all * s.rotated() / s.heads(), 0, [&] {
      qk_dots(stream, sums.tensor({s.N, 2}), qkv.tensor(rows), dqkv.tensor(rows), s.NH, s.NKV);
    });
}

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  for (const Kind kind : {Kind::bias, Kind::head, Kind::whole})
    for (const auto& [N, NH, NKV, HD] : std::vector<std::tuple<int, int, int, int>>{{1, 1, 1, 8},
                                                                                    {7, 3, 1, 16},
                                                                                    {31, 7, 1, 24},
                                                                                    {127, 2, 2, 40},
                                                                                    {129, 5, 5, 64},
                                                                                    {300, 6, 2, 72},
                                                                                    {257, 4, 2, 128},
                                                                                    {5, 16, 8, 128},
                                                                                    {3, 4, 1, 248},
                                                                                    {9, 2, 1, 256}}) {
      check_shape<float>(checker, orders, {N, NH, NKV, HD, kind});
      check_shape<bf16>(checker, orders, {N, NH, NKV, HD, kind});
    }
  check_differences(checker);
  check_ranks(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads())
    for (const Kind kind : {Kind::bias, Kind::head, Kind::whole})
      bench_shape<bf16>(bencher, {N, model.NH, model.NKV, model.HD, kind});
}
