#include "llmc/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace {

constexpr Schedule kSchedules[] = {Schedule::kCosine, Schedule::kLinear, Schedule::kWsd, Schedule::kConstant};
constexpr std::pair<const char*, DecayShape> kDecayShapes[] = {
    {"linear", DecayShape::kLinear}, {"cosine", DecayShape::kCosine}, {"1-sqrt", DecayShape::kOneMinusSqrt}};

// Interpolates from `from` at p = 0 to `to` at p = 1. Both ends are exact: from + (to - from) p would round at p = 1.
double line(double from, double to, double p) { return from * (1 - p) + to * p; }

// Returns how far `step` is on the way from step `first` (0) to step `last` (1); beyond `last` it stays 1.
double progress(int64_t step, int64_t first, int64_t last) {
  return step >= last ? 1.0 : double(step - first) / double(last - first);
}

// Returns how much of the way from lr to min_lr the rate has fallen at p: 0 at 0, and exactly 1 at 1.
double fallen(DecayShape shape, double p) {
  if (shape == DecayShape::kCosine) return (1 - std::cos(std::numbers::pi * p)) / 2;
  return shape == DecayShape::kLinear ? p : std::sqrt(p);
}

// A share such as 0.3 is no exact number: 0.3 of 10 steps are 3 of them.
int64_t rounded_up(double steps) { return int64_t(std::ceil(steps - 1e-6)); }

}  // namespace

const char* schedule_name(Schedule schedule) {
  switch (schedule) {
    case Schedule::kCosine:
      return "cosine";
    case Schedule::kLinear:
      return "linear";
    case Schedule::kWsd:
      return "wsd";
    case Schedule::kConstant:
      return "constant";
  }
  fail("a schedule has the number %d\n  expected 0 to 3", int(schedule));
}

Schedule parse_schedule(const std::string& name) {
  for (Schedule schedule : kSchedules)
    if (name == schedule_name(schedule)) return schedule;
  fail("unknown schedule '%s'\n  expected cosine, linear, wsd or constant", name.c_str());
}

DecayShape parse_decay_shape(const std::string& name) {
  for (const auto& [shape_name, shape] : kDecayShapes)
    if (name == shape_name) return shape;
  fail("unknown shape of a cooldown '%s'\n  expected linear, cosine or 1-sqrt", name.c_str());
}

int64_t cooldown_steps(double given, int64_t steps) {
  REQUIRE(given <= 0.99 || given == std::floor(given),
          "--cooldown-steps %g\n  expected a whole number of steps, or a share of the run of at most 99%%", given);
  return given < 1 ? rounded_up(double(steps) * given) : int64_t(given);
}

int64_t cooldown_steps_after(double given, int64_t done) {
  const int64_t of_done = cooldown_steps(given, done);
  return given < 1 ? rounded_up(double(done) * given / (1 - given)) : of_done;
}

int64_t LearningRate::peak() const { return std::max<int64_t>(warmup_steps, 1) - 1; }

int64_t LearningRate::last_at_peak() const {
  if (schedule != Schedule::kWsd) return peak();
  const int64_t first = warmup_steps == 0 && steps > 1 ? -1 : peak();  // without a warm-up all may be a cooldown
  return std::max(first, steps - 1 - cooldown_steps);
}

DecayShape LearningRate::shape() const {
  if (schedule == Schedule::kWsd) return cooldown_shape;
  return schedule == Schedule::kCosine ? DecayShape::kCosine : DecayShape::kLinear;
}

std::string LearningRate::description() const {
  constexpr const char* kNames[] = {"linear", "a cosine", "1-sqrt"};
  const int64_t last = steps - 1;
  if (last <= peak()) return "the run ends";
  if (schedule == Schedule::kConstant) return "constant";
  if (last == last_at_peak()) return "constant, without a cooldown (wsd)";
  const std::string falls = format("%s to %g", kNames[int(shape())], min_lr);
  if (schedule != Schedule::kWsd) return falls;
  const int64_t stable = last_at_peak() - peak();
  return format("%s%s over the last %lld (wsd)",
                stable > 0 ? format("constant for %s, and ", counted(stable, "step").c_str()).c_str() : "",
                falls.c_str(), (long long)(last - last_at_peak()));
}

double LearningRate::at(int64_t step) const {
  REQUIRE(steps >= 1, "a schedule over %lld steps\n  expected at least 1", (long long)steps);
  REQUIRE(step >= 0, "the learning rate of step %lld\n  expected 0 or more", (long long)step);
  REQUIRE(warmup_steps >= 0 && cooldown_steps >= 0,
          "a warm-up of %lld steps and a cooldown of %lld\n  expected 0 or more", (long long)warmup_steps,
          (long long)cooldown_steps);
  REQUIRE(std::isfinite(lr) && lr > 0, "a learning rate of %g\n  expected a finite number above 0", lr);
  REQUIRE(min_lr >= 0 && min_lr <= lr, "a minimal learning rate of %g\n  expected 0 to the learning rate, %g", min_lr,
          lr);

  if (step < peak()) return lr * double(step + 1) / double(warmup_steps);
  // The warm-up may take all the steps, and a cooldown may have none.
  if (schedule == Schedule::kConstant || step <= last_at_peak() || steps - 1 <= last_at_peak()) return lr;
  return line(lr, min_lr, fallen(shape(), progress(step, last_at_peak(), steps - 1)));
}
