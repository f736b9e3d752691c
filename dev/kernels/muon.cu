// Muon's momentum, norm and update against float64; bf16 against the fp32 kernels, to the bit.
//
// Covers: promise 7: muon: momentum, norm and update of ugly lengths, aligned or not, in every combination of types; a
// step that is held writes nothing; stochastic rounding by AdamW's draws; the same bits wherever an element lies, also
// in columns of a wider matrix; largest weights; norms of 0 and of NaN
#include "llmc/kernels/muon.h"

#include "dev/kernels/check.h"
#include "llmc/kernels/global_norm.h"

namespace {

constexpr float kMomentum = 0.95f;
constexpr MuonRates kRates = {0.7f, 0.1f, 6.5f};

StepState state_at(int step, float clip) {
  StepState state{};
  state.learning_rate = 3e-3f, state.clip_factor = clip, state.step = step;
  return state;
}

// `count` numbers, `shift` elements after an aligned address.
template <class T>
struct Shifted {
  Array<T> array;
  size_t shift, count;
  Shifted(Stream& stream, size_t shift, size_t count) : array(stream, shift + count), shift(shift), count(count) {}
  Shifted(Stream& stream, size_t shift, const std::vector<T>& values) : Shifted(stream, shift, values.size()) {
    copy(stream, array.data() + shift, values.data(), count);
    stream.synchronize();
  }
  Tensor tensor(size_t first, size_t n) const { return Tensor(array.data() + shift + first, {int64_t(n)}); }
  std::vector<T> download() const {
    const std::vector<T> all = array.download();
    return {all.begin() + ptrdiff_t(shift), all.end()};
  }
};

// A case says what is computed, and how it lies in memory.
struct Case {
  size_t n;
  size_t shift = 0;  // elements that all tensors lie after an aligned address
  MuonSlice slice = {0x1234567, {}};
  StepState state = state_at(3, 0.37f);
  size_t launch = 0;  // elements of one launch; 0: all
  std::string name() const {
    return format("n=%zu, %zu after an aligned address%s%s", n, shift, slice.window.is_cut() ? ", cut" : "",
                  launch ? format(", %zu at once", launch).c_str() : "");
  }
  template <class F>
  void each_launch(const F& f) const {
    for (size_t first = 0, count = launch ? launch : n; first < n; first += count)
      f(first, std::min(count, n - first), MuonSlice{slice.key, slice.window.from(first)});
  }
};

// ---------------------------------------------------------------------------------------------- momentum

struct Moments {
  std::vector<float> m, u;
};

// Values of type Moment are rounded before.
template <class Moment, class Update>
Moments momentum(Stream& stream, const Case& c, const std::vector<float>& m, const std::vector<float>& gradients,
                 float momentum = kMomentum, bool wants_u = true) {
  const Array<StepState> state(stream, {c.state});
  const Shifted<Moment> moment(stream, c.shift, as<Moment>(m));
  const Shifted<Update> update(stream, c.shift, c.n);
  const Shifted<float> g(stream, c.shift, gradients);
  c.each_launch([&](size_t first, size_t n, const MuonSlice& slice) {
    muon_momentum(stream, moment.tensor(first, n), wants_u ? update.tensor(first, n) : Tensor(), g.tensor(first, n),
                  state.data(), momentum, slice);
  });
  return {as_floats(moment.download()), as_floats(update.download())};
}

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float x : values) most = std::max(most, std::fabs(double(x)));
  return most;
}

struct Numbers {
  std::vector<float> m, gradients, p, o;
  explicit Numbers(const Case& c) {
    Generator generator(c.n);
    m = as_floats(random_normal<bf16>(generator, c.n, 0.5)), gradients = random_normal<float>(generator, c.n);
    p = as_floats(random_normal<bf16>(generator, c.n, 0.1)), o = as_floats(random_normal<bf16>(generator, c.n, 0.3));
  }
};

void check_momentum(Checker& checker, const Case& c) {
  Stream& stream = checker.stream;
  const Numbers numbers(c);
  const Moments plain = momentum<float, float>(stream, c, numbers.m, numbers.gradients);
  const double clip = double(c.state.clip_factor), mu = double(kMomentum);
  std::vector<double> want_m, want_u;
  for (size_t i = 0; i < c.n; ++i) {
    const double g = double(numbers.gradients[i]) * clip;
    want_m.push_back(mu * double(numbers.m[i]) + (1 - mu) * g);
    want_u.push_back(mu * want_m.back() + (1 - mu) * g);
  }
  // A lerp rounds a difference, a product and a sum, and g a product, none of them larger than the sum of the largest
  // magnitudes; u is a lerp of a lerp. Each rounds by 2^-24 of itself at most.
  const double size = (largest(numbers.m) + largest(numbers.gradients)) * 0x1p-24;
  const std::vector<int> shape = {int(c.n)};
  checker.close("m " + c.name(), plain.m, want_m, shape, 0, 4 * size);
  checker.close("u " + c.name(), plain.u, want_u, shape, 0, 8 * size);

  std::vector<float> drawn;
  for (size_t i = 0; i < c.n; ++i)
    drawn.push_back(stochastic_bf16(plain.m[i], adamw_draws(c.slice.key, c.slice.window[i], c.state.step).m));
  const std::vector<float> narrow_u = as_floats(as<bf16>(plain.u));
  const auto is = [&](const char* types, const Moments& got, const std::vector<float>& m, const std::vector<float>& u) {
    checker.same_bits(format("  m, u in %s: m", types), got.m, m);
    checker.same_bits("  u", got.u, u);
  };
  is("fp32, bf16", momentum<float, bf16>(stream, c, numbers.m, numbers.gradients), plain.m, narrow_u);
  is("bf16, fp32", momentum<bf16, float>(stream, c, numbers.m, numbers.gradients), drawn, plain.u);
  is("bf16, bf16", momentum<bf16, bf16>(stream, c, numbers.m, numbers.gradients), drawn, narrow_u);
  const auto without = momentum<float, float>(stream, c, numbers.m, numbers.gradients, kMomentum, false);
  is("fp32, none", without, plain.m, as_floats(Shifted<float>(stream, 0, c.n).download()));
  checker.same_bits("  m in bf16, no u",
                    momentum<bf16, float>(stream, c, numbers.m, numbers.gradients, kMomentum, false).m, drawn);
}

// torch.lerp is exact at both ends: with weight 1 it gives the second number, whatever the first one is.
void check_ends_of_lerp(Checker& checker) {
  Case c{9, 1};
  c.state.clip_factor = 1;
  Generator generator(2);
  const std::vector<float> m(c.n, 1e30f), gradients = random_normal<float>(generator, c.n);
  const Moments got = momentum<float, float>(checker.stream, c, m, gradients, 0.0f);
  checker.same_bits("momentum 0: m is the gradient", got.m, gradients);
  checker.same_bits("  u is the gradient", got.u, gradients);
}

// ---------------------------------------------------------------------------------------------- update

struct Updated {
  std::vector<float> master, weights, amax;
};

template <class Master, class Update>
Updated update(Stream& stream, const Case& c, const std::vector<float>& p, const std::vector<float>& o,
               bool wants_weights, float amax_before = NAN, const MuonRates& rates = kRates) {
  const Array<StepState> state(stream, {c.state});
  const Shifted<Master> master(stream, c.shift, as<Master>(p));
  const Shifted<bf16> weights(stream, c.shift, c.n);
  const Shifted<Update> direction(stream, c.shift, as<Update>(o));
  const Array<float> amax(stream, std::vector<float>{amax_before});
  c.each_launch([&](size_t first, size_t n, const MuonSlice& slice) {
    muon_update(stream, master.tensor(first, n), wants_weights ? weights.tensor(first, n) : Tensor(),
                direction.tensor(first, n), state.data(), rates, slice,
                std::isnan(amax_before) ? Tensor() : amax.tensor());
  });
  return {as_floats(master.download()), as_floats(weights.download()), amax.download()};
}

float amax_of(const std::vector<float>& weights, float before) {
  float most = before;
  for (const float w : weights) most = std::max(most, std::fabs(w));
  return most;
}

void check_update(Checker& checker, const Case& c) {
  Stream& stream = checker.stream;
  const Numbers numbers(c);
  const Updated plain = update<float, float>(stream, c, numbers.p, numbers.o, false);
  const double rate = double(c.state.learning_rate) * double(kRates.factor);
  std::vector<double> want;
  for (size_t i = 0; i < c.n; ++i)
    want.push_back(double(numbers.p[i]) * (1 - rate * double(kRates.weight_decay)) -
                   rate * double(kRates.scale) * double(numbers.o[i]));
  // The factor of p, two products and a difference are rounded, rate and step three times: each by 2^-24 of the larger
  // term at most.
  const double size = largest(numbers.p) + rate * double(kRates.scale) * largest(numbers.o);
  checker.close("p " + c.name(), plain.master, want, {int(c.n)}, 0, 4 * 0x1p-24 * size);

  std::vector<float> drawn;
  for (size_t i = 0; i < c.n; ++i)
    drawn.push_back(stochastic_bf16(plain.master[i], adamw_draws(c.slice.key, c.slice.window[i], c.state.step).master));
  const std::vector<float> narrow = as_floats(as<bf16>(plain.master)), none(c.n, NAN);
  const auto is = [&](const char* types, const Updated& got, const std::vector<float>& master,
                      const std::vector<float>* weights) {
    checker.same_bits(format("  p, o in %s: p", types), got.master, master);
    if (weights) checker.same_bits("  weights", got.weights, *weights);
    else
      checker.that("  weights", std::all_of(got.weights.begin(), got.weights.end(), [](float w) { return w != w; }),
                   "none are written");
  };
  is("fp32, fp32", plain, plain.master, nullptr);
  is("fp32, fp32, with weights", update<float, float>(stream, c, numbers.p, numbers.o, true), plain.master, &narrow);
  is("fp32, bf16", update<float, bf16>(stream, c, numbers.p, numbers.o, false), plain.master, nullptr);
  is("fp32, bf16, with weights", update<float, bf16>(stream, c, numbers.p, numbers.o, true), plain.master, &narrow);
  is("bf16, fp32", update<bf16, float>(stream, c, numbers.p, numbers.o, false), drawn, nullptr);
  is("bf16, bf16", update<bf16, bf16>(stream, c, numbers.p, numbers.o, false), drawn, nullptr);
  for (const float before : {0.0f, 100.0f}) {
    const Updated wide = update<float, bf16>(stream, c, numbers.p, numbers.o, true, before),
                  alone = update<bf16, bf16>(stream, c, numbers.p, numbers.o, false, before);
    checker.same_bits(format("  largest weight, %g before", double(before)), wide.amax, {amax_of(narrow, before)});
    checker.same_bits("  of a bf16 master", alone.amax, {amax_of(drawn, before)});
    checker.same_bits("  which changes no weight", wide.weights, narrow);
  }
}

// ---------------------------------------------------------------------------------------------- where elements lie

// Elements first .. of a case as a case of their own: the same bits.
template <class Moment, class Master, class Update>
void check_places(Checker& checker, const std::string& name, const MuonSlice& slice) {
  Stream& stream = checker.stream;
  const size_t n = 2083;
  Case whole{n, 0, slice};
  const Numbers numbers(whole);
  const Moments moments = momentum<Moment, Update>(stream, whole, numbers.m, numbers.gradients);
  const Updated updated = update<Master, Update>(stream, whole, numbers.p, numbers.o, false);
  const auto tail = [](const std::vector<float>& values, size_t first) {
    return std::vector<float>(values.begin() + ptrdiff_t(first), values.end());
  };
  for (const size_t first : {1, 7, 8, 1040})
    for (const size_t shift : {0, 1, 3}) {
      const Case part{n - first, shift, {slice.key, slice.window.from(first)}};
      const Moments got =
          momentum<Moment, Update>(stream, part, tail(numbers.m, first), tail(numbers.gradients, first));
      const Updated after = update<Master, Update>(stream, part, tail(numbers.p, first), tail(numbers.o, first), false);
      const std::string what = format("%s, from %zu on, %zu after an aligned address", name.c_str(), first, shift);
      checker.same_bits(what + ": m", got.m, tail(moments.m, first));
      checker.same_bits("  u", got.u, tail(moments.u, first));
      checker.same_bits("  p", after.master, tail(updated.master, first));
    }
  for (const size_t launch : {8, 1000, 1}) {
    Case in_chunks = whole;
    in_chunks.launch = launch;
    if (launch == 1 && few_sizes()) continue;
    checker.same_bits(format("%s, %zu at once: m", name.c_str(), launch),
                      momentum<Moment, Update>(stream, in_chunks, numbers.m, numbers.gradients).m, moments.m);
    checker.same_bits("  p", update<Master, Update>(stream, in_chunks, numbers.p, numbers.o, false).master,
                      updated.master);
  }
}

// A held step leaves everything as it was; a number that is none is seen in all others.
template <class Moment, class Master>
void check_held(Checker& checker, const char* name) {
  Stream& stream = checker.stream;
  for (const size_t n : {size_t(333), size_t(4096)}) {
    Case c{n};
    const Numbers numbers(c);
    const std::vector<float> nan(n, NAN);
    c.state.clip_factor = NAN;
    const Moments moments = momentum<Moment, float>(stream, c, numbers.m, numbers.gradients);
    const auto hidden = std::count_if(moments.u.begin(), moments.u.end(), [](float x) { return x == x; }) +
                        std::count_if(moments.m.begin(), moments.m.end(), [](float x) { return x == x; });
    checker.that(format("%s: a clip factor that is NaN shows", name), hidden == 0,
                 format("%d of %zu numbers hide it", int(hidden), 2 * n));
    c.state.held = 1, c.state.learning_rate = NAN;
    const Moments kept = momentum<Moment, float>(stream, c, numbers.m, nan);
    checker.same_bits(format("%s, held, n=%zu: m", name, n), kept.m, numbers.m);
    checker.that("  u", kept.u[0] != kept.u[0] && kept.u[n - 1] != kept.u[n - 1], "is not written");
    const Updated after =
        update<Master, float>(stream, c, numbers.p, nan, std::is_same_v<Master, float>, 0.25f, {NAN, NAN, NAN});
    checker.same_bits("  p", after.master, numbers.p);
    checker.same_bits("  largest weight", after.amax, {0.25f});
    checker.that("  weights", after.weights[0] != after.weights[0], "are not written");
  }
}

// ---------------------------------------------------------------------------------------------- norm, windows

template <class T>
void check_norm(Checker& checker, const char* name, size_t n, double scale, bool nan = false) {
  Stream& stream = checker.stream;
  Generator generator(n);
  std::vector<T> values = random_normal<T>(generator, n, scale);
  if (nan) values[n / 2] = from_float<T>(NAN);
  double sum = 0;
  for (const T x : values) sum += to_double(x) * to_double(x);
  const Array<T> x(stream, values);
  const Array<double> square_sum(stream, std::vector<double>{sum});
  muon_normalize(stream, x.tensor(), square_sum.tensor());
  const std::vector<T> got = x.download();
  const float norm = to_float(from_float<T>(std::max(float(std::sqrt(sum)), 1e-7f)));
  const std::string what = format("%s, n=%zu, norm %g", name, n, std::sqrt(sum));
  if (nan) {
    const auto hidden = std::count_if(got.begin(), got.end(), [](T y) { return to_float(y) == to_float(y); });
    return checker.that(what, hidden == 0, format("%d of %zu numbers hide a NaN", int(hidden), n));
  }
  std::vector<T> want;
  for (const T y : values) want.push_back(from_float<T>(to_float(y) / norm));
  checker.same_bits(what, got, want);
}

template <class T>
void check_norms(Checker& checker, const char* name) {
  for (const size_t n : {1, 7, 8, 9, 2047, 2049}) check_norm<T>(checker, name, n, 0.3);
  check_norm<T>(checker, name, 100, 0);
  check_norm<T>(checker, name, 100, 1e-9);  // a norm of 1e-8, for which 1e-7 stands
  check_norm<T>(checker, name, 100, 1e-7);  // a norm of 1e-6
  check_norm<T>(checker, name, 3000, 1e15);
  check_norm<T>(checker, name, 100, 1, true);
}

// Columns of a matrix, from its parts and back.
template <class T>
void check_window(Checker& checker, const char* name, const ShardWindow& window, size_t n, size_t size) {
  Stream& stream = checker.stream;
  Generator generator(n);
  const std::vector<T> values = random_normal<T>(generator, n), whole = random_normal<T>(generator, size);
  std::vector<T> want = whole, back(n);
  for (size_t i = 0; i < n; ++i) want[window[i]] = values[i], back[i] = whole[window[i]];
  Array<T> packed(stream, values);
  const Array<T> matrix(stream, whole);
  gather_window(stream, packed.tensor(), matrix.tensor(), window);
  checker.same_bits(format("%s: gathered, %zu of %zu", name, n, size), packed.download(), back);
  packed.upload(values);
  scatter_window(stream, matrix.tensor(), packed.tensor(), window);
  checker.same_bits("  scattered", matrix.download(), want);
}

void check_windows(Checker& checker) {
  check_window<float>(checker, "all", {0}, 640, 640);
  check_window<bf16>(checker, "from 13 on", {13}, 300, 640);
  // 5 of 16 columns, from row 1, column 3 on, without the first 7 of them.
  check_window<float>(checker, "5 of 16 columns", {16 + 3, 7, 5, 16}, 150, 640);
  check_window<bf16>(checker, "5 of 16 columns", {16 + 3, 7, 5, 16}, 150, 640);
  check_window<bf16>(checker, "the last of 16 columns", {15, 0, 1, 16}, 40, 640);
}

void check_scale(Checker& checker) {
  const auto scale = [](MuonScale kind, int64_t rows, int64_t columns) {
    return double(muon_scale(kind, rows, columns));
  };
  checker.close("scales",
                std::vector<double>{scale(MuonScale::original, 4096, 1024), scale(MuonScale::original, 1024, 4096),
                                    scale(MuonScale::match_rms, 2500, 100), scale(MuonScale::match_rms, 100, 2500)},
                {2, 1, 10, 10}, {4}, 6e-8, 0);
}

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  const Array<float> a(stream, 64), b(stream, 64), c(stream, 64);
  const Array<bf16> narrow(stream, 64);
  const Array<double> sum(stream, 1);
  const Array<StepState> state(stream, {StepState{}});
  const auto momentum = [&](const char* name, const char* expected, const Tensor& m, const Tensor& u, const Tensor& g) {
    checker.refused(name, expected, [&] { muon_momentum(stream, m, u, g, state.data(), 0.9f, {}); });
  };
  const auto update = [&](const char* name, const char* expected, const Tensor& p, const Tensor& w, const Tensor& o,
                          const Tensor& amax = {}) {
    checker.refused(name, expected, [&] { muon_update(stream, p, w, o, state.data(), kRates, {}, amax); });
  };
  const Tensor x = a.tensor(), y = b.tensor(), z = c.tensor(), w = narrow.tensor();
  momentum("no gradients", "muon_momentum of no elements", x, y, z.columns(0, 0));
  momentum("gradients in bf16", "gradients is (64) of bf16", x, y, w);
  momentum("another length of m", "m is (63) of fp32\n  expected (64)", x.columns(0, 63), y, z);
  momentum("another length of u", "u is (63) of fp32\n  expected (64)", x, y.columns(0, 63), z);
  momentum("m in fp64", "there is no kernel for fp64", sum.tensor(), {}, z.columns(0, 1));
  update("no master", "muon_update of no elements", x.columns(0, 0), {}, y);
  update("weights in fp32", "weights is (64) of fp32", x, z, y);
  update("another length of o", "o is (63) of fp32\n  expected (64)", x, w, y.columns(0, 63));
  update("the amax of fp32", "the largest weight of no bf16 weights", x, {}, y, z.columns(0, 1));
  update("two amaxes", "amax is (2) of fp32\n  expected (1)", x, w, y, z.columns(0, 2));
  const auto refused = [&](const char* name, const char* expected, auto&& call) {
    checker.refused(name, expected, call);
  };
  refused("a norm of none", "no numbers", [&] { muon_normalize(stream, x.columns(0, 0), sum.tensor()); });
  refused("a norm in fp32", "square_sum is (1) of fp32", [&] { muon_normalize(stream, x, y.columns(0, 1)); });
  refused("misaligned", "not 16-byte aligned", [&] { muon_normalize(stream, x.columns(1, 8), sum.tensor()); });
  refused("beyond the end", "64 elements from 1 on, of 64", [&] { scatter_window(stream, x, y, {1}); });
  refused("columns beyond the end", "from 6 on, of 64", [&] {
    gather_window(stream, y.columns(0, 17), x, {6, 0, 2, 8});
  });
  refused("another type", "whole is (64) of fp32", [&] { gather_window(stream, w, x, {}); });
}

// With a state in fp32, and in bf16.
template <class State>
void time_types(Bencher& bencher, size_t n) {
  Stream& stream = bencher.stream;
  const Array<StepState> state(stream, {state_at(3, 0.9f)});
  const Array<State> moment(stream, std::vector<State>(n, from_float<State>(0.5f))),
      master(stream, std::vector<State>(n, from_float<State>(0.5f)));
  const Array<bf16> u(stream, std::vector<bf16>(n, from_float<bf16>(0.01f))), weights(stream, n);
  const Array<float> gradients(stream, std::vector<float>(n, 0.5f));
  const char* type = dtype_name(kDType<State>);
  const bool separate = std::is_same_v<State, float>;
  const double state_bytes = 2 * sizeof(State);  // read and written
  bencher.time(format("muon_momentum, moment %s, %zu elements", type, n), double(n) * (state_bytes + 4 + 2), 0, [&] {
    muon_momentum(stream, moment.tensor(), u.tensor(), gradients.tensor(), state.data(), kMomentum, {});
  });
  bencher.time(format("muon_update, master %s, %zu elements", type, n), double(n) * (state_bytes + 2 + 2 * separate), 0,
               [&] {
                 muon_update(stream, master.tensor(), separate ? weights.tensor() : Tensor(), u.tensor(), state.data(),
                             kRates, {});
               });
}

}  // namespace

void check(Checker& checker) {
  const MuonSlice cut{77, {3 * 40 + 11, 5, 13, 40}};  // 13 of 40 columns, from row 3, column 11 on, but 5
  std::vector<Case> cases;
  for (const size_t n : {1, 2, 7, 8, 9, 255, 257, 2047, 2048, 2049, 8200}) cases.push_back({n});
  for (const size_t shift : {1, 8}) cases.push_back({2048, shift}), cases.push_back({2049, shift, cut});
  for (const size_t n : {8, 100, 2048}) cases.push_back({n, 0, cut});
  cases.push_back({2048, 0, {5, {1}}});  // from an odd element on: pairs that share their draws are cut
  for (const Case& c : cases) check_momentum(checker, c), check_update(checker, c);
  check_ends_of_lerp(checker);
  check_places<float, float, float>(checker, "fp32", {});
  check_places<bf16, bf16, bf16>(checker, "bf16", {9, {1}});
  check_places<bf16, bf16, bf16>(checker, "bf16, cut", cut);
  check_held<float, float>(checker, "fp32");
  check_held<bf16, bf16>(checker, "bf16");
  check_norms<float>(checker, "a norm in fp32");
  check_norms<bf16>(checker, "a norm in bf16");
  check_windows(checker);
  check_scale(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  Stream& stream = bencher.stream;
  const size_t n = bencher.gpu_sizes() ? size_t(1) << 28 : size_t(1) << 20;
  time_types<float>(bencher, n), time_types<bf16>(bencher, n);
  const Array<bf16> x(stream, std::vector<bf16>(n, from_float<bf16>(1)));
  const Array<double> square_sum(stream, std::vector<double>{1});
  bencher.time(format("muon_normalize, %zu elements of bf16", n), double(n) * 4, 0,
               [&] { muon_normalize(stream, x.tensor(), square_sum.tensor()); });
  const Array<bf16> packed(stream, n / 2);
  const ShardWindow half{0, 0, 512, 1024};
  bencher.time(format("gather_window, %zu of %zu elements of bf16", n / 2, n), double(n) * 2, 0,
               [&] { gather_window(stream, packed.tensor(), x.tensor(), half); });
  bencher.time(format("scatter_window, %zu of %zu elements of bf16", n / 2, n), double(n) * 2, 0,
               [&] { scatter_window(stream, x.tensor(), packed.tensor(), half); });
}
