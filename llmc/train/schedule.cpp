#include "llmc/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace {

constexpr Schedule kSchedules[] = {Schedule::kCosine, Schedule::kLinear, Schedule::kWsd, Schedule::kConstant};

// Interpolates from `from` at p = 0 to `to` at p = 1. Both ends are exact: from + (to - from) p would round at p = 1.
double line(double from, double to, double p) { return from * (1 - p) + to * p; }

// Returns how far `step` is on the way from step `first` (0) to step `last` (1); beyond `last` it stays 1.
double progress(int64_t step, int64_t first, int64_t last) {
  return step >= last ? 1.0 : double(step - first) / double(last - first);
}

// Returns the last step at which wsd has the full rate: a fifth of the steps, rounded up, are below it.
int64_t end_of_stable(int64_t steps, int64_t peak) { return std::max(peak, steps - 1 - (steps + 4) / 5); }

// Returns the step that ends the warm-up.
int64_t peak_of(int64_t warmup_steps) { return std::max<int64_t>(warmup_steps, 1) - 1; }

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

std::string describe_schedule(Schedule schedule, int64_t steps, int64_t warmup_steps, double min_lr) {
  const int64_t peak = peak_of(warmup_steps), stable = end_of_stable(steps, peak);
  if (steps - 1 <= peak) return "the run ends";
  if (schedule == Schedule::kConstant) return "constant";
  if (schedule == Schedule::kWsd)
    return format("constant for %s, and linear to %g over the last %lld (wsd)", counted(stable - peak, "step").c_str(),
                  min_lr, (long long)(steps - 1 - stable));
  return format("%s to %g", schedule == Schedule::kCosine ? "a cosine" : "linear", min_lr);
}

double learning_rate(Schedule schedule, int64_t step, int64_t steps, int64_t warmup_steps, double lr, double min_lr) {
  REQUIRE(steps >= 1, "a schedule over %lld steps\n  expected at least 1", (long long)steps);
  REQUIRE(step >= 0, "the learning rate of step %lld\n  expected 0 or more", (long long)step);
  REQUIRE(warmup_steps >= 0, "a warm-up of %lld steps\n  expected 0 or more", (long long)warmup_steps);
  REQUIRE(std::isfinite(lr) && lr > 0, "a learning rate of %g\n  expected a finite number above 0", lr);
  REQUIRE(min_lr >= 0 && min_lr <= lr, "a minimal learning rate of %g\n  expected 0 to the learning rate, %g", min_lr,
          lr);

  const int64_t peak = peak_of(warmup_steps);
  if (step < peak) return lr * double(step + 1) / double(warmup_steps);
  if (step == peak) return lr;

  const int64_t last = steps - 1;
  if (last <= peak) return lr;  // the warm-up took all the steps
  switch (schedule) {
    case Schedule::kCosine: {
      const double p = progress(step, peak, last);
      return line(lr, min_lr, (1 - std::cos(std::numbers::pi * p)) / 2);
    }
    case Schedule::kLinear:
      return line(lr, min_lr, progress(step, peak, last));
    case Schedule::kWsd: {
      const int64_t stable_end = end_of_stable(steps, peak);
      return step <= stable_end ? lr : line(lr, min_lr, progress(step, stable_end, last));
    }
    case Schedule::kConstant:
      return lr;
  }
  fail("a schedule has the number %d\n  expected 0 to 3", int(schedule));
}
