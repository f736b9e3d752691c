// Which steps are spikes, and what the window remembers, against plain sums in long double.
//
// Covers: promise 7: spike_window: which losses and norms are spikes, and hold a step; constant, short and full
// windows; what the window keeps; spikes in a row, and what halts; the same bits in any order
#include "llmc/kernels/spike_window.h"

#include <deque>
#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"
#include "llmc/kernels/global_norm.h"

namespace {

constexpr int64_t kLabels = 77;
constexpr uint32_t kMost = SpikeWindow::kSteps;

struct Step {
  float loss, norm;
  bool finite = true;
  int64_t labels = kLabels;
};

// The decision that global_norm_finish must make.
struct Reference {
  double deviations;
  uint32_t most_in_a_row;
  std::deque<float> loss = {}, norm = {};
  uint32_t in_a_row = 0, held = 0;
  int64_t made = 0;
  bool halted = false;

  bool is_spike(const std::deque<float>& earlier, float number) const {
    if (earlier.size() < SpikeWindow::kFewest) return false;
    long double mean = 0, squares = 0;
    for (const float x : earlier) mean += (long double)x / earlier.size();
    for (const float x : earlier) squares += (x - mean) * (x - mean);
    const long double deviation = std::sqrt(squares / (earlier.size() - 1));
    return number > mean + deviations * std::max(deviation, 0.001L * std::fabs(mean));
  }
  void take(const Step& step) {
    halted = halted || !step.finite;
    uint32_t spike = 0;
    if (!halted && step.labels) {
      if (is_spike(loss, step.loss)) spike += kLossSpike;
      if (is_spike(norm, step.norm)) spike += kNormSpike;
      in_a_row = spike ? in_a_row + 1 : 0;
      for (auto [numbers, number] : {std::pair(&loss, step.loss), std::pair(&norm, step.norm)}) {
        if (!spike) numbers->push_back(number);
        if (numbers->size() > kMost) numbers->pop_front();
      }
    }
    halted = halted || (spike && in_a_row >= most_in_a_row);
    held = spike + (halted ? kHalted : 0);
    made += held == 0;
  }
};

// A training's state on the device.
struct Training {
  Training(Stream& stream, double deviations, uint32_t most_in_a_row)
      : stream(stream),
        window(stream, {SpikeWindow{}}),
        progress(stream, {UpdateProgress{}}),
        rule{window.data(), deviations, most_in_a_row} {}

  StepState take(const Step& step, Array<float>* amax = nullptr) {
    StepState before{};
    before.label_count = step.labels, before.held = ~0u;
    before.loss_sum = step.finite ? double(step.loss) * double(step.labels) : NAN;
    const Array<StepState> state(stream, {before});
    const Array<double> sum(stream, std::vector<double>{double(step.norm) * double(step.norm)});
    UpdateStart start{progress.data(), {0.9f, 0.95f, 1e-8f}, {}, rule};
    if (amax) start.amax = {amax->data(), amax->size()};
    global_norm_finish(stream, state.data(), sum.tensor(), start);
    return state.download()[0];
  }

  Stream& stream;
  Array<SpikeWindow> window;
  Array<UpdateProgress> progress;
  const SpikeRule rule;
};

// "" or what differs after a step.
std::string difference(const StepState& got, const Training& training, const Reference& want) {
  const SpikeWindow window = training.window.download()[0];
  const UpdateProgress progress = training.progress.download()[0];
  const auto is = [&](const float* numbers, const std::deque<float>& expected) {
    return std::equal(expected.begin(), expected.end(), numbers, numbers + window.count);
  };
  if (got.held != want.held) return format("held %u, expected %u", got.held, want.held);
  if (window.in_a_row != want.in_a_row) return format("%u in a row, expected %u", window.in_a_row, want.in_a_row);
  if (!is(window.loss, want.loss) || !is(window.grad_norm, want.norm))
    return format("the window has other numbers than these %zu", want.loss.size());
  if (progress.made != want.made || got.updates != want.made || (progress.halted != 0) != want.halted)
    return format("%lld updates, halted %lld", (long long)progress.made, (long long)progress.halted);
  return "";
}

// All of the steps, compared after each. Returns how many were spikes.
int check_steps(Checker& checker, const std::string& name, const std::vector<Step>& steps, double deviations,
                uint32_t most_in_a_row = 1000) {
  Training training(checker.stream, deviations, most_in_a_row);
  Reference reference{deviations, most_in_a_row};
  std::string wrong;
  int spikes = 0;
  for (size_t i = 0; i < steps.size() && wrong.empty(); ++i) {
    const StepState got = training.take(steps[i]);
    reference.take(steps[i]);
    spikes += (reference.held & ~kHalted) != 0;
    if (const std::string text = difference(got, training, reference); !text.empty())
      wrong = format("step %zu: ", i) + text;
  }
  checker.that(name, wrong.empty(), wrong.empty() ? format("%d spikes in %zu steps", spikes, steps.size()) : wrong);
  return spikes;
}

// Losses near 3 and norms near 1 that vary by 10%, and some far above.
std::vector<Step> noisy_steps(size_t count, size_t first_outlier, size_t each) {
  Generator generator(5);
  const std::vector<float> losses = random_normal<float>(generator, count, 0.3),
                           norms = random_normal<float>(generator, count, 0.1);
  std::vector<Step> steps;
  for (size_t i = 0; i < count; ++i) {
    steps.push_back({3 + losses[i], 1 + norms[i]});
    if (i < first_outlier || (i - first_outlier) % each) continue;
    const size_t which = (i - first_outlier) / each % 3;
    if (which != 1) steps.back().loss += 3;
    if (which != 0) steps.back().norm *= 50;
  }
  return steps;
}

std::vector<Step> constant_steps(size_t count, Step last = {3, 1}) {
  std::vector<Step> steps(count, {3, 1});
  steps.push_back(last);
  return steps;
}

// One step after so many equal ones. The least deviation is 0.1% of the mean, so with Z = 10 the limit is 1% above.
void check_one(Checker& checker, const std::string& name, size_t before, Step step, uint32_t held) {
  Training training(checker.stream, 10, 1000);
  for (const Step& other : std::vector<Step>(before, {3, 1})) training.take(other);
  Array<float> amax(checker.stream, std::vector<float>{1, 2});
  const uint32_t got = training.take(step, &amax).held;
  const bool kept = amax.download() == std::vector<float>{1, 2};
  checker.that(name, got == held && kept == (held != 0), format("held %u, amaxes %s", got, kept ? "kept" : "cleared"));
  check_steps(checker, name + ", by the reference", constant_steps(before, step), 10);
}

}  // namespace

void check(Checker& checker) {
  const std::vector<Step> noisy = noisy_steps(400, 70, 17);
  // Noise beyond 3 deviations is a spike now and then; the outliers are at any of these.
  for (const double deviations : {3.0, 6.0, 8.0}) {
    const int spikes = check_steps(checker, format("outliers, Z = %g", deviations), noisy, deviations);
    checker.that("  which are found", deviations < 6 ? spikes >= 20 : spikes == 20, format("%d of 20", spikes));
  }
  check_steps(checker, "outliers from the first step on", noisy_steps(200, 0, 17), 6);
  check_steps(
      checker, "a level that rises for good",
      [] {
        std::vector<Step> steps = noisy_steps(200, 1000, 1);
        for (size_t i = 100; i < steps.size(); ++i) steps[i].loss += 3;
        return steps;
      }(),
      6);

  // 32 numbers of 2 and 32 of 4 deviate by sqrt(64 / 63) from 3: 10 deviations above are 13.08.
  for (const float loss : {13.04f, 13.12f}) {
    std::vector<Step> steps;
    for (uint32_t i = 0; i < SpikeWindow::kFewest; ++i) steps.push_back({i % 2 ? 4.0f : 2.0f, 1});
    steps.push_back({loss, 1});
    const int spikes = check_steps(checker, format("a loss of %g at a limit of 13.08", double(loss)), steps, 10);
    checker.that("  which decides", spikes == (loss > 13.08f), format("%d spikes", spikes));
  }

  constexpr uint32_t kFew = SpikeWindow::kFewest;
  check_one(checker, "a loss that is a spike", kFew, {3.1f, 1}, kLossSpike);
  check_one(checker, "a norm that is a spike", kFew, {3, 1.1f}, kNormSpike);
  check_one(checker, "both", kFew, {3.1f, 1.1f}, kLossSpike | kNormSpike);
  check_one(checker, "both, with a full window", kMost + 9, {3.1f, 1.1f}, kLossSpike | kNormSpike);
  check_one(checker, "a full window less one", kMost - 1, {3.1f, 1}, kLossSpike);
  check_one(checker, "too few steps", kFew - 1, {300, 100}, 0);
  check_one(checker, "the first step", 0, {300, 100}, 0);
  check_one(checker, "equal numbers", kFew, {3, 1}, 0);
  check_one(checker, "within the least deviation", kFew, {3.02f, 1.009f}, 0);
  check_one(checker, "beyond the least deviation", kFew, {3, 1.011f}, kNormSpike);
  check_one(checker, "far below", kFew, {0.1f, 0.01f}, 0);
  check_one(checker, "no labels", kFew, {0, 0, true, 0}, 0);

  // Spikes in a row, and steps that are not finite.
  const Step spike{9, 1}, good{3, 1}, broken{3, 1, false};
  const auto after = [&](std::vector<Step> steps) {
    steps.insert(steps.begin(), kFew, good);
    return steps;
  };
  check_steps(checker, "three of three in a row", after({spike, spike, spike, good, spike}), 6, 3);
  check_steps(checker, "two of three, twice", after({spike, spike, good, spike, spike, good}), 6, 3);
  check_steps(checker, "the first one halts", after({good, spike, good}), 6, 1);
  check_steps(checker, "not finite between spikes", after({spike, broken, spike, good}), 6, 3);
  check_steps(checker, "no labels between spikes", after({spike, {0, 0, true, 0}, spike, spike, good}), 6, 3);

  const auto all = [&](Stream& stream) {
    Training training(stream, 6, 1000);
    std::vector<float> held;
    for (const Step& step : noisy) held.push_back(float(training.take(step).held));
    const SpikeWindow window = training.window.download()[0];
    return std::tuple(held, std::vector<float>(window.loss, window.loss + kMost),
                      std::vector<float>(window.grad_norm, window.grad_norm + kMost));
  };
  OtherSchedules().same_bits(checker, "in any order", all(checker.stream), all);
}

void bench(Bencher& bencher) {
  Stream& stream = bencher.stream;
  Training training(stream, 6, 1000);
  StepState labelled{};
  labelled.label_count = kLabels, labelled.loss_sum = 3 * kLabels;
  const Array<StepState> state(stream, {labelled});
  const Array<double> sum(stream, std::vector<double>{1.0});
  for (const Step& step : constant_steps(kMost)) training.take(step);
  bencher.time("global_norm_finish with a full window", sizeof(SpikeWindow), 0, [&] {
    global_norm_finish(stream, state.data(), sum.tensor(),
                       {training.progress.data(), {0.9f, 0.95f, 1e-8f}, {}, training.rule});
  });
}
