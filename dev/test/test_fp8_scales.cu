// Covers: promise 4: a checkpoint's FP8 history goes on in a run that remembers more or fewer steps: with its newest
// steps, the oldest first, and with the scales that they give
#include <algorithm>
#include <optional>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"
#include "llmc/memory/fp8_scales.h"

namespace {

const LayerProjections& projections() {
  static const LayerProjections all(tiny());
  return all;
}
const size_t kTensors = size_t(projections().ids());

// The amaxes of a step, from 0. They rise with the steps for every other tensor, and fall for those between.
std::vector<float> amaxes(int step) {
  std::vector<float> values;
  for (size_t i = 0; i < kTensors; ++i) values.push_back(float(i % 2 ? 20 - step : 3 + step) * (1 + float(i) / 64));
  return values;
}

std::vector<float> joined(int first, int end) {
  std::vector<float> values;
  for (int step = first; step < end; ++step) {
    const std::vector<float> one = amaxes(step);
    values.insert(values.end(), one.begin(), one.end());
  }
  return values;
}

// The scales that the steps first .. end-1 give.
std::vector<float> scales_of(int first, int end) {
  std::vector<float> scales;
  for (size_t i = 0; i < kTensors; ++i) {
    float largest = 0;
    for (int step = first; step < end; ++step) largest = std::max(largest, amaxes(step)[i]);
    const Role role = projections().role(int(i));
    scales.push_back(
        delayed_scale(largest, role == Role::output_gradient ? Fp8Format::e5m2 : Fp8Format::e4m3, 0, false));
  }
  return scales;
}

class DelayedRun {
 public:
  DelayedRun(int history, bool latest) {
    settings_.recipe = Fp8Recipe::delayed, settings_.history = history, settings_.latest = latest;
    scales_.emplace(plan_, settings_, projections(), 0, alone_, device_, compute_, reduce_);
    state_ = plan_.add_array<StepState>(Segment::device, "scratch", "state", 1);
    arena_ = Arena(device_, plan_);
    scales_->prepare(state_.get());
    scales_->reset();
  }

  void train(int step) {
    scales_->begin_step(step);
    scales_->begin_pass(true);
    const StepState begun{};
    const std::vector<float> amax = amaxes(step);
    copy(compute_, state_.get(), &begun, 1);
    copy(compute_, scales_->refs().amax_step, amax.data(), amax.size());
    scales_->update_scales();
    scales_->count_step();
    StepState ended{};
    copy(compute_, &ended, state_.get(), 1);
    compute_.synchronize();
    scales_->read_result(ended);
  }

  Fp8Scales::History history() { return scales_->history(); }
  void restore(const Fp8Scales::History& history) { scales_->restore(history); }

 private:
  Device device_;
  Stream compute_{device_, "compute"}, reduce_{device_, "reduce"};
  SingleCommunicator alone_;
  Fp8Settings settings_;
  MemoryPlan plan_;
  PlannedArray<StepState> state_;
  std::optional<Fp8Scales> scales_;
  Arena arena_;
};

}  // namespace

TEST_CASE("a run goes on with the newest steps of a history") {
  constexpr int kSteps = 5;
  // The first run's ring has not gone round, has, and has just.
  for (const int before : {8, 3, 5})
    for (const int now : {1, 2, 3, 4, 8})
      for (const bool latest : {false, true}) {
        CAPTURE(before);
        CAPTURE(now);
        CAPTURE(latest);
        DelayedRun first(before, latest);
        for (int step = 0; step < kSteps; ++step) first.train(step);
        const Fp8Scales::History saved = first.history();
        const int oldest = std::max(0, kSteps - before);
        CHECK(saved.amax == joined(oldest, kSteps));
        CHECK(saved.scales == scales_of(latest ? kSteps - 1 : oldest, kSteps));

        DelayedRun second(now, latest);
        second.restore(saved);
        int kept = std::max(oldest, kSteps - now);
        CHECK(second.history().amax == joined(kept, kSteps));
        CHECK(second.history().scales == scales_of(latest ? kSteps - 1 : kept, kSteps));
        for (int end = kSteps + 1; end <= kSteps + 4; ++end) {  // the ring goes on where the restored steps end
          CAPTURE(end);
          second.train(end - 1);
          kept = std::max(oldest, end - now);
          CHECK(second.history().amax == joined(kept, end));
          CHECK(second.history().scales == scales_of(latest ? end - 1 : kept, end));
        }
      }
}

TEST_CASE("a run with other rules makes the scales of a history anew") {
  DelayedRun first(8, false), latest(8, true);
  for (int step = 0; step < 3; ++step) first.train(step);
  latest.restore(first.history());
  CHECK(latest.history().amax == joined(0, 3));
  CHECK(latest.history().scales == scales_of(2, 3));
  first.restore(latest.history());
  CHECK(first.history().scales == scales_of(0, 3));
}
