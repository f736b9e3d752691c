// AdamW against float64; state in bf16 against the fp32 kernel and its own draws, to the bit.
//
// Covers: promise 7: adamw: ranges of ugly lengths with and without decay, padding untouched, with and without weights
// in bf16; a step that is held writes nothing; stochastic rounding of a state in bf16 is unbiased, and the same
// wherever an element lies; largest weights
#include "llmc/kernels/adamw.h"

#include "dev/kernels/check.h"

namespace {

constexpr AdamWConstants kConstants = {0.9f, 0.95f, 1e-8f};

StepState state_at(int step, double rate, float clip) {
  StepState state{};
  state.learning_rate = float(rate);
  state.bias_correction1 = float(1 - std::pow(double(kConstants.beta1), step + 1));
  state.bias_correction2 = float(1 - std::pow(double(kConstants.beta2), step + 1));
  state.clip_factor = clip;
  state.step = step;
  return state;
}

// The flat buffers of a case, on the device.
template <class Master = float, class Moment = float>
struct Buffers {
  Array<Master> master;
  Array<Moment> m, v;
  Array<float> gradients;
  Array<bf16> weights;
  Array<AdamWRange> ranges;
  size_t n;

  Buffers(Stream& stream, const std::vector<AdamWRange>& ranges, size_t n, const std::vector<float>& first)
      : master(stream, as<Master>(first)),
        m(stream, as<Moment>(std::vector<float>(n, 0))),
        v(stream, as<Moment>(std::vector<float>(n, 0))),
        gradients(stream, n),
        weights(stream, n),
        ranges(stream, ranges),
        n(n) {
    require_ranges(ranges, n);
  }
  // All elements at once, or in chunks of `chunk`, as states are updated that are not on the device as a whole.
  void step(Stream& stream, const Array<StepState>& state, bool write_weights = true, size_t chunk = 0,
            AdamWAmax amax = {}) {
    if (chunk == 0) chunk = n;
    for (size_t at = 0; at < std::max<size_t>(n, 1); at += chunk) {
      const int64_t count = int64_t(std::min(chunk, n - at));
      adamw(stream, Tensor(master.data() + at, {count}), Tensor(m.data() + at, {count}), Tensor(v.data() + at, {count}),
            write_weights ? Tensor(weights.data() + at, {count}) : Tensor{}, Tensor(gradients.data() + at, {count}),
            state.data(), ranges.data(), int(ranges.size()), at, kConstants, amax);
    }
  }
};

// Ranges with the given counts, `gap` elements of padding after each; every other one decays.
std::vector<AdamWRange> ranges_of(const std::vector<size_t>& counts, size_t gap, size_t& n) {
  std::vector<AdamWRange> ranges;
  n = 0;
  for (const size_t count : counts) {
    ranges.push_back({n, count, ranges.size() % 2 ? 0.0f : 0.1f, 0x1234567 * ranges.size(), 13 * (ranges.size() % 3)});
    n += count + gap;
  }
  return ranges;
}

void check_case(Checker& checker, const std::string& name, const std::vector<AdamWRange>& ranges, size_t n) {
  Stream& stream = checker.stream;
  Generator generator(n);
  std::vector<float> first = random_normal<float>(generator, n, 0.1);
  std::vector<bool> used(n, false);
  std::vector<double> decay(n, 0);
  for (const AdamWRange& r : ranges)
    for (size_t i = r.begin; i < r.begin + r.count; ++i) used[i] = true, decay[i] = double(r.weight_decay);
  for (size_t i = 0; i < n; ++i)
    if (!used[i]) first[i] = NAN;  // padding: if somebody computed with it, it would show

  Buffers<> b(stream, ranges, n, first);
  std::vector<double> p = to_doubles(first), m(n, 0), v(n, 0);
  for (int step = 0; step < 3; ++step) {
    const StepState s = state_at(step, 3e-3, step == 1 ? 0.37f : 1.0f);
    const Array<StepState> state(stream, {s});
    const std::vector<float> gradients = random_normal<float>(generator, n, step == 2 ? 1e-4 : 1);
    b.gradients.upload(gradients);
    b.step(stream, state);
    for (size_t i = 0; i < n; ++i) {
      if (!used[i]) continue;
      const double g = double(gradients[i]) * double(s.clip_factor), beta1 = double(kConstants.beta1),
                   beta2 = double(kConstants.beta2), rate = double(s.learning_rate);
      p[i] -= rate * decay[i] * p[i];
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      p[i] -= rate / (1 - std::pow(beta1, step + 1)) * m[i] /
              (std::sqrt(v[i] / (1 - std::pow(beta2, step + 1))) + double(kConstants.eps));
    }
  }
  const std::vector<float> got_p = b.master.download(), got_m = b.m.download(), got_v = b.v.download();
  const std::vector<bf16> weights = b.weights.download();
  int touched = 0, misrounded = 0;
  std::vector<float> used_p, used_m, used_v;
  std::vector<double> want_p, want_m, want_v;
  for (size_t i = 0; i < n; ++i) {
    if (!used[i]) {
      touched += !std::isnan(got_p[i]) || got_m[i] != 0 || got_v[i] != 0 || !std::isnan(to_float(weights[i]));
      continue;
    }
    misrounded += to_float(weights[i]) != to_float(from_float<bf16>(got_p[i]));
    used_p.push_back(got_p[i]), used_m.push_back(got_m[i]), used_v.push_back(got_v[i]);
    want_p.push_back(p[i]), want_m.push_back(m[i]), want_v.push_back(v[i]);
  }
  const std::vector<int> shape = {int(used_p.size())};
  // p is rounded twice in each of three steps, 2^-24 each time; m may cancel, at the size of its terms. A step moves p
  // by up to the rate, with the relative error of m / sqrt(v): 1e-6 of 3e-3.
  checker.close(name + " master", used_p, want_p, shape, 4e-7, 3e-3 * 2e-6);
  checker.close(name + " m", used_m, want_m, shape, 1e-6, 3e-7);
  checker.close(name + " v", used_v, want_v, shape, 1e-6, 0);
  checker.that(name + " weights", misrounded == 0, format("%d are not the rounding of the master", misrounded));
  checker.that(name + " padding", touched == 0, format("%d elements between ranges were touched", touched));
}

// The same element at another place, in ranges cut elsewhere: the same bits.
void check_places(Checker& checker) {
  Stream& stream = checker.stream;
  const size_t n = 5000;
  Generator generator(5);
  const std::vector<float> first = random_normal<float>(generator, n, 0.1),
                           gradients = random_normal<float>(generator, n);
  const Array<StepState> state(stream, {state_at(0, 1e-3, 0.9f)});
  const auto run = [&](const std::vector<AdamWRange>& ranges, size_t shift, bool write_weights, size_t chunk = 0) {
    std::vector<float> p(n + shift, 1), g(n + shift, 1);
    std::copy(first.begin(), first.end(), p.begin() + std::ptrdiff_t(shift));
    std::copy(gradients.begin(), gradients.end(), g.begin() + std::ptrdiff_t(shift));
    Buffers<> b(stream, ranges, n + shift, p);
    b.gradients.upload(g);
    b.step(stream, state, write_weights, chunk);
    p = b.master.download();
    if (!write_weights) {
      int written = 0;
      for (const bf16 w : b.weights.download()) written += !std::isnan(to_float(w));
      checker.that("no weights asked for", written == 0, format("%d written", written));
    }
    return std::vector<float>(p.begin() + std::ptrdiff_t(shift), p.end());
  };
  const std::vector<float> want = run({{0, n, 0.1f}}, 0, true);
  checker.same_bits("twice", run({{0, n, 0.1f}}, 0, true), want);
  checker.same_bits("shifted by 3", run({{3, n, 0.1f}}, 3, true), want);
  checker.same_bits("shifted by 2049", run({{0, 2049, 0.0f}, {2049, n, 0.1f}}, 2049, false), want);
  checker.same_bits("in chunks that are not aligned", run({{0, n, 0.1f}}, 0, true, 333), want);
  std::vector<AdamWRange> cut;
  for (size_t begin = 0; begin < n; begin += 7) cut.push_back({begin, std::min<size_t>(7, n - begin), 0.1f});
  checker.same_bits("cut in sevens", run(cut, 0, true), want);
}

// The state in bf16 is what the fp32 kernel makes of the same numbers, rounded by the draws.
template <class Master, class Moment>
void check_rounded(Checker& checker, const std::string& name, const std::vector<AdamWRange>& ranges, size_t n) {
  Stream& stream = checker.stream;
  Generator generator(n + 1);
  Buffers<Master, Moment> b(stream, ranges, n, random_normal<float>(generator, n, 0.1));
  int wrong = 0, touched = 0;
  for (int step = 0; step < 3; ++step) {
    const Array<StepState> state(stream, {state_at(step, 3e-3, 0.8f)});
    const std::vector<float> gradients = random_normal<float>(generator, n);
    const std::vector<float> p = as_floats(b.master.download()), m = as_floats(b.m.download()),
                             v = as_floats(b.v.download());
    Buffers<> in_fp32(stream, ranges, n, p);
    in_fp32.m.upload(m), in_fp32.v.upload(v), in_fp32.gradients.upload(gradients), b.gradients.upload(gradients);
    in_fp32.step(stream, state), b.step(stream, state, std::is_same_v<Master, float>);
    std::vector<float> want_p = in_fp32.master.download(), want_m = in_fp32.m.download(), want_v = in_fp32.v.download();
    std::vector<bool> used(n, false);
    for (const AdamWRange& r : ranges)
      for (size_t i = r.begin; i < r.begin + r.count; ++i) {
        const AdamWDraws draws = adamw_draws(r.key, r.window[i - r.begin], step);
        if (std::is_same_v<Master, bf16>) want_p[i] = stochastic_bf16(want_p[i], draws.master);
        if (std::is_same_v<Moment, bf16>)
          want_m[i] = stochastic_bf16(want_m[i], draws.m), want_v[i] = stochastic_bf16(want_v[i], draws.v);
        used[i] = true;
      }
    const std::vector<float> got_p = as_floats(b.master.download()), got_m = as_floats(b.m.download()),
                             got_v = as_floats(b.v.download());
    for (size_t i = 0; i < n; ++i)
      if (used[i]) wrong += got_p[i] != want_p[i] || got_m[i] != want_m[i] || got_v[i] != want_v[i];
      else touched += got_p[i] != p[i] || got_m[i] != 0 || got_v[i] != 0;
  }
  checker.that(name, wrong == 0 && touched == 0,
               format("%d of %zu elements differ, %d between ranges were touched", wrong, n, touched));
}

// In chunks, each with a launch of its own: the same bits.
template <class Master, class Moment>
void check_chunks(Checker& checker, const char* name) {
  Stream& stream = checker.stream;
  size_t n = 0;
  const auto ranges = ranges_of({5, 300, 64, 7, 2048, 8, 8193, 1, 500}, 3, n);
  const Array<StepState> state(stream, {state_at(2, 1e-3, 0.9f)});
  const auto run = [&](size_t chunk) {
    Generator generator(8);
    Buffers<Master, Moment> b(stream, ranges, n, random_normal<float>(generator, n, 0.1));
    b.gradients.upload(random_normal<float>(generator, n));
    b.step(stream, state, false, chunk);
    std::vector<float> all = as_floats(b.master.download());
    for (const auto& part : {as_floats(b.m.download()), as_floats(b.v.download())})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const std::vector<float> want = run(0);
  for (const size_t chunk : {8, 64, 264, 4096})
    checker.same_bits(format("%s in chunks of %zu", name, chunk), run(chunk), want);
}

// Words are raised to the largest bf16 weight of the ranges that name them, whole or in chunks, and nothing else
// changes.
template <class Master, class Moment>
void check_amax(Checker& checker, const char* name) {
  Stream& stream = checker.stream;
  constexpr bool separate = std::is_same_v<Master, float>;
  for (const size_t gap : {0, 3, 9000}) {
    size_t n = 0;
    auto ranges = ranges_of({5, 300, 64, 7, 2048, 8, 40000, 8193, 1, 500, 16384}, gap, n);
    const int words[] = {0, 1, -1, 1, 2, 3, 4, -1, 0, 5, 6};  // some share one, some have none
    for (size_t i = 0; i < ranges.size(); ++i) ranges[i].amax = words[i];
    const Array<StepState> state(stream, {state_at(2, 1e-3, 0.9f)});
    for (const size_t chunk : {size_t(0), size_t(264), size_t(8192)}) {
      const auto run = [&](const Array<float>* amax) {
        Generator generator(8);
        Buffers<Master, Moment> b(stream, ranges, n, random_normal<float>(generator, n, 0.1));
        b.gradients.upload(random_normal<float>(generator, n));
        b.step(stream, state, separate, chunk, amax ? AdamWAmax{amax->data(), amax->size()} : AdamWAmax{});
        std::vector<float> all = as_floats(b.master.download());
        for (const auto& part : {as_floats(b.m.download()), as_floats(b.v.download())})
          all.insert(all.end(), part.begin(), part.end());
        return all;
      };
      const std::vector<float> before = {0, 0, 0, 100, 0.01f, 0, 0, 0.5f};  // 100 stays; number 7 is nobody's
      const Array<float> amax(stream, before);
      const std::vector<float> plain = run(nullptr), all = run(&amax);
      std::vector<float> want = before;
      for (const AdamWRange& r : ranges)
        for (size_t i = r.begin; r.amax >= 0 && i < r.begin + r.count; ++i)
          want[size_t(r.amax)] = std::max(want[size_t(r.amax)], std::fabs(to_float(from_float<bf16>(plain[i]))));
      const std::string what = format("%s, ranges %zu apart, in chunks of %zu: ", name, gap, chunk);
      checker.same_bits(what + "largest weights", amax.download(), want);
      checker.same_bits(what + "the state", all, plain);
    }
  }
}

// Over a million draws the mean of what a number is rounded to is the number, within 4 standard errors; and each result
// is one of its two neighbours.
void check_unbiased(Checker& checker) {
  constexpr int kDraws = 1000000;
  for (const float x : {1.0f, 1.001f, -3.1415927f, 0.0033333333f, 1e-20f, 254.99f, -0.99999f}) {
    double sum = 0, least = 1e30, largest = -1e30;
    for (int i = 0; i < kDraws; ++i) {
      const double rounded = double(stochastic_bf16(x, adamw_draws(77, uint64_t(i), 5).master));
      sum += rounded, least = std::min(least, rounded), largest = std::max(largest, rounded);
    }
    const double mean = sum / kDraws, spacing = largest - least, part = spacing > 0 ? (double(x) - least) / spacing : 0;
    const double sigma = spacing * std::sqrt(part * (1 - part) / kDraws);
    const double exact_spacing = std::ldexp(1.0, std::ilogb(x) - 7);
    // 16 bits decide: the lower half of an fp32 number is exactly so long.
    checker.that(format("the mean of %d roundings of %g", kDraws, double(x)),
                 std::fabs(mean - double(x)) <= 4 * sigma && spacing <= exact_spacing,
                 format("%.9g, %.2f sigma away; %g apart", mean, sigma > 0 ? (mean - double(x)) / sigma : 0, spacing));
  }
  // Master, moments and neighbours are rounded independently: pairs of bits that are both below one half are a quarter.
  int both[3] = {};
  for (int i = 0; i < kDraws; ++i) {
    const AdamWDraws a = adamw_draws(77, uint64_t(i), 5), next = adamw_draws(77, uint64_t(i) + 1, 5);
    both[0] += a.master < 0x8000 && a.m < 0x8000;
    both[1] += a.m < 0x8000 && a.v < 0x8000;
    both[2] += a.v < 0x8000 && next.master < 0x8000;
  }
  for (const int count : both)
    checker.that("draws are independent", std::abs(count - kDraws / 4) < 4 * std::sqrt(kDraws * 3 / 16.0),
                 format("%d of %d", count, kDraws));
}

// A held step leaves master, moments, weights and the amaxes as they were, also in chunks.
template <class Master, class Moment>
void check_held(Checker& checker, const char* name) {
  Stream& stream = checker.stream;
  size_t n = 0;
  auto ranges = ranges_of({64, 5, 8193, 333}, 3, n);
  for (size_t i = 0; i < ranges.size(); ++i) ranges[i].amax = int(i % 2) - 1;
  Generator generator(17);
  StepState held = state_at(3, 1e-2, NAN);
  held.held = 1;
  for (const size_t chunk : {size_t(0), size_t(1024)}) {
    Buffers<Master, Moment> b(stream, ranges, n, random_normal<float>(generator, n, 0.1));
    const Array<float> amax(stream, std::vector<float>{0.25f});
    const auto all = [&] {
      std::vector<float> all = as_floats(b.master.download());
      for (const auto& part :
           {as_floats(b.m.download()), as_floats(b.v.download()), as_floats(b.weights.download()), amax.download()})
        all.insert(all.end(), part.begin(), part.end());
      return all;
    };
    b.gradients.upload(random_normal<float>(generator, n));
    b.step(stream, Array<StepState>(stream, {state_at(0, 1e-2, 1)}), true, chunk, {amax.data(), 1});
    const std::vector<float> before = all();
    b.gradients.upload(std::vector<float>(n, NAN));
    b.step(stream, Array<StepState>(stream, {held}), true, chunk, {amax.data(), 1});
    checker.same_bits(format("%s, held, in chunks of %zu", name, chunk), all(), before);
  }
}

void check_nothing_hidden(Checker& checker) {
  Stream& stream = checker.stream;
  Buffers<> b(stream, {{0, 100, 0.1f}}, 100, std::vector<float>(100, 1));
  b.gradients.upload(std::vector<float>(100, 0));
  const Array<StepState> state(stream, {state_at(0, 1e-3, NAN)});
  b.step(stream, state);
  int hidden = 0;
  for (const float p : b.master.download()) hidden += !std::isnan(p);
  checker.that("a clip factor that is NaN shows", hidden == 0, format("%d of 100 elements hide it", hidden));
}

}  // namespace

void check(Checker& checker) {
  for (const size_t n : {1, 2, 7, 8, 9, 31, 63, 65, 255, 257, 2047, 2049, 8191, 8192, 8193, 20000}) {
    check_case(checker, format("one range of %zu", n), {{0, n, 0.1f}}, n);
  }
  for (const size_t gap : {0, 1, 5, 64, 9000}) {
    size_t n = 0;
    const auto ranges = ranges_of({5, 1, 3, 64, 7, 2048, 8, 8193, 1, 1, 500}, gap, n);
    check_case(checker, format("ranges %zu apart", gap), ranges, n);
    check_rounded<float, bf16>(checker, format("fp32 master, bf16 moments, ranges %zu apart", gap), ranges, n);
    check_rounded<bf16, float>(checker, format("bf16 master, fp32 moments, ranges %zu apart", gap), ranges, n);
    check_rounded<bf16, bf16>(checker, format("all in bf16, ranges %zu apart", gap), ranges, n);
  }
  for (const uint64_t columns : {1, 7, 8, 24, 33}) {  // of each tensor, cut from wider ones
    size_t n = 0;
    auto ranges = ranges_of({64, 5, 2048, 333, 8193}, 3, n);
    for (size_t i = 0; i < ranges.size(); ++i) ranges[i].window = {i, i % columns, columns, columns + 2 * i + 1};
    check_rounded<bf16, bf16>(
        checker, format("all in bf16, %llu columns of wider tensors", (unsigned long long)columns), ranges, n);
  }
  check_case(checker, "a late first range", {{11, 3, 0.0f}, {8200, 1, 0.1f}}, 17000);
  check_places(checker);
  check_chunks<float, float>(checker, "fp32");
  check_chunks<bf16, bf16>(checker, "bf16");
  check_amax<float, float>(checker, "fp32");
  check_amax<float, bf16>(checker, "bf16 moments");
  check_amax<bf16, float>(checker, "bf16 master");
  check_amax<bf16, bf16>(checker, "all in bf16");
  check_held<float, float>(checker, "fp32");
  check_held<float, bf16>(checker, "bf16 moments");
  check_held<bf16, float>(checker, "bf16 master");
  check_held<bf16, bf16>(checker, "all in bf16");
  check_unbiased(checker);
  check_nothing_hidden(checker);

  const auto refused = [&](const char* what, const char* expected, const std::vector<AdamWRange>& ranges) {
    checker.refused(what, expected, [&] { require_ranges(ranges, 100); });
  };
  refused("no ranges", "no ranges", {});
  refused("an empty range", "0 elements from 5", {{5, 0, 0}});
  refused("ranges that overlap", "10 elements from 9", {{0, 10, 0}, {9, 10, 0}});
  refused("ranges out of order", "5 elements from 0", {{50, 10, 0}, {0, 5, 0}});
  refused("a range past the end", "51 elements from 50", {{50, 51, 0}});
  refused("a count that wraps around", "from 50", {{50, size_t(-10), 0}});
  Buffers<> b(checker.stream, {{0, 8, 0}}, 8, std::vector<float>(8, 1));
  const Array<StepState> state(checker.stream, {state_at(0, 1e-3, 1)});
  checker.refused("no elements", "0 elements", [&] {
    b.n = 0;
    b.step(checker.stream, state);
  });
  const Tensor master = b.master.tensor({8}), m = b.m.tensor({8}), v = b.v.tensor({8}), weights = b.weights.tensor({8}),
               gradients = b.gradients.tensor({8});
  const auto refused_tensors = [&](const char* what, const char* expected, const Tensor& master, const Tensor& v,
                                   const Tensor& weights, const Tensor& gradients, AdamWAmax amax = {}) {
    checker.refused(what, expected, [&] {
      adamw(checker.stream, master, m, v, weights, gradients, state.data(), b.ranges.data(), 1, 0, kConstants, amax);
    });
  };
  refused_tensors("largest weights of no weights", "no bf16 weights", master, v, {}, gradients,
                  {b.gradients.data(), 1});
  refused_tensors("moments of two types", "v is (8) of bf16", master, weights, weights, gradients);
  refused_tensors("other lengths", "gradients is (4) of fp32", master, v, weights, gradients.first({4}));
  refused_tensors("weights in fp32", "weights is (8) of fp32", master, v, gradients, gradients);
}

void bench(Bencher& bencher) {
  Stream& stream = bencher.stream;
  // Layers of matrices with norms between them.
  const bool large = bencher.gpu_sizes();
  const size_t matrix = large ? size_t(1) << 24 : size_t(1) << 18;
  for (const int layers : {4, 32}) {
    size_t n = 0;
    const auto ranges = ranges_of(
        [&] {
          std::vector<size_t> counts;
          for (int l = 0; l < layers; ++l) counts.push_back(matrix / 8), counts.push_back(128);
          return counts;
        }(),
        0, n);
    Buffers<> b(stream, ranges, n, std::vector<float>(n, 0.5f));
    b.gradients.upload(std::vector<float>(n, 0.25f));
    const Array<StepState> state(stream, {state_at(5, 1e-6, 1)});
    bencher.time(format("adamw, bf16 weights, %zu elements", n), double(n) * 30, double(n) * 16,
                 [&] { b.step(stream, state); });
    auto named = ranges;
    for (size_t i = 0; i < named.size(); ++i) named[i].amax = i % 2 ? -1 : int(i / 2);
    b.ranges.upload(named);
    const Array<float> amax(stream, std::vector<float>(size_t(layers)));
    bencher.time(format("adamw, bf16 weights and the largest of them, %zu elements", n), double(n) * 30, double(n) * 16,
                 [&] {
                   b.step(stream, state, true, 0, {amax.data(), amax.size()});
                 });
    bencher.time(format("adamw, fp32 master only, %zu elements", n), double(n) * 28, double(n) * 16,
                 [&] { b.step(stream, state, false); });
  }
}
