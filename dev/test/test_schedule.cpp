// Covers: learning-rate schedules: formulas, edges, refusals
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "dev/test/test.h"
#include "llmc/train/schedule.h"

namespace {

constexpr Schedule kAll[] = {Schedule::kCosine, Schedule::kLinear, Schedule::kWsd, Schedule::kConstant};
constexpr Schedule kDecaying[] = {Schedule::kCosine, Schedule::kLinear, Schedule::kWsd};

}  // namespace

TEST_CASE("a schedule is found by its name") {
  for (Schedule schedule : kAll) CHECK(parse_schedule(schedule_name(schedule)) == schedule);
  std::vector<std::string> names;
  for (Schedule schedule : kAll) names.push_back(schedule_name(schedule));
  CHECK(names == std::vector<std::string>{"cosine", "linear", "wsd", "constant"});
  const std::string message = error_of([] { parse_schedule("cosin"); });
  says(message, "unknown schedule 'cosin'", "cosine, linear, wsd or constant");
}

TEST_CASE("the warm-up is a line from lr/W to lr, in every schedule") {
  for (Schedule schedule : kAll) {
    CAPTURE(schedule_name(schedule));
    for (int step = 0; step < 4; step++) CHECK(learning_rate(schedule, step, 100, 4, 8.0, 1.0) == 2.0 * (step + 1));
    // Without a warm-up, and with one of a single step, the first step has the full rate.
    CHECK(learning_rate(schedule, 0, 100, 0, 8.0, 1.0) == 8.0);
    CHECK(learning_rate(schedule, 0, 100, 1, 8.0, 1.0) == 8.0);
  }
}

TEST_CASE("each schedule follows its formula") {
  // Ten steps to decay over: the warm-up ends at step 4, the last step is 14.
  const auto rate = [](Schedule schedule, int step) { return learning_rate(schedule, step, 15, 5, 1.0, 0.2); };
  CHECK(rate(Schedule::kLinear, 5) == doctest::Approx(0.92).epsilon(1e-12));
  CHECK(rate(Schedule::kLinear, 9) == doctest::Approx(0.6).epsilon(1e-12));
  CHECK(rate(Schedule::kLinear, 13) == doctest::Approx(0.28).epsilon(1e-12));

  CHECK(rate(Schedule::kCosine, 9) == doctest::Approx(0.6).epsilon(1e-12));
  // p = 0.4: 0.2 + 0.8 (1 + cos(72 degrees)) / 2, cos(72 degrees) = (sqrt(5) - 1) / 4
  CHECK(rate(Schedule::kCosine, 8) == doctest::Approx(0.2 + 0.4 * (1 + (std::sqrt(5.0) - 1) / 4)).epsilon(1e-12));

  // A fifth of 15 is 3: steps 12, 13, 14 lie below the full rate.
  for (int step = 4; step <= 11; step++) CHECK(rate(Schedule::kWsd, step) == 1.0);
  CHECK(rate(Schedule::kWsd, 12) == doctest::Approx(1 - 0.8 / 3).epsilon(1e-12));
  CHECK(rate(Schedule::kWsd, 13) == doctest::Approx(1 - 1.6 / 3).epsilon(1e-12));
  CHECK(rate(Schedule::kWsd, 14) == 0.2);

  for (int step = 4; step < 100; step++) CHECK(rate(Schedule::kConstant, step) == 1.0);
}

TEST_CASE("the last step has exactly the minimal rate, also of numbers that binary rounds") {
  for (Schedule schedule : kDecaying)
    for (int64_t steps : {2, 3, 7, 100, 12345})
      for (int64_t warmup : {0, 1}) {
        CAPTURE(schedule_name(schedule));
        CAPTURE(steps);
        for (int64_t step : {steps - 1, steps, 10 * steps})
          CHECK(learning_rate(schedule, step, steps, warmup, 3e-4, 3e-5) == 3e-5);
        CHECK(learning_rate(schedule, steps - 1, steps, warmup, 1e-3, 0) == 0);
      }
}

TEST_CASE("after the warm-up the rate never rises, and stays within its bounds") {
  for (Schedule schedule : kAll) {
    double previous = 0;
    for (int64_t step = 0; step < 1000; step++) {
      const double rate = learning_rate(schedule, step, 1000, 100, 6e-4, 6e-5);
      CAPTURE(schedule_name(schedule));
      CAPTURE(step);
      if (step < 100) CHECK(rate > previous);
      if (step >= 100) CHECK(rate <= previous);
      if (step >= 100) CHECK(rate >= 6e-5);
      CHECK(rate <= 6e-4);
      previous = rate;
    }
  }
}

TEST_CASE("short runs and long warm-ups are defined") {
  // One step has the full rate. A warm-up as long as the run ends at the full rate; a longer one is cut off.
  const std::tuple<int64_t, int64_t, int64_t, double> cases[] = {{0, 1, 0, 1.0},   {0, 1, 1, 1.0}, {3, 4, 4, 1.0},
                                                                 {0, 4, 8, 0.125}, {3, 4, 8, 0.5}, {100, 4, 8, 1.0}};
  for (Schedule schedule : kAll)
    for (const auto& [step, steps, warmup, rate] : cases) {
      CAPTURE(schedule_name(schedule));
      CHECK(learning_rate(schedule, step, steps, warmup, 1.0, 0.1) == rate);
    }
  // The warm-up reaches into the last fifth: the decay starts where it ends.
  const std::tuple<int64_t, int64_t, int64_t, double, double> decays[] = {
      {8, 10, 9, 0.1, 1.0}, {9, 10, 9, 0.1, 0.1}, {18, 20, 18, 0.0, 0.5}, {19, 20, 18, 0.0, 0.0}};
  for (const auto& [step, steps, warmup, minimum, rate] : decays)
    CHECK(learning_rate(Schedule::kWsd, step, steps, warmup, 1.0, minimum) == rate);
  // Two trillion steps: no overflow on the way.
  CHECK(learning_rate(Schedule::kLinear, int64_t(1) << 40, (int64_t(1) << 41) + 1, 0, 1.0, 0.0) == 0.5);
}

TEST_CASE("impossible schedules are refused with their values") {
  const auto message = [](int64_t step, int64_t steps, int64_t warmup, double lr, double min_lr) {
    return error_of([&] { learning_rate(Schedule::kCosine, step, steps, warmup, lr, min_lr); });
  };
  CHECK(message(0, 10, 2, 1.0, 0.1) == "");
  says(message(0, 0, 0, 1.0, 0.1), "a schedule over 0 steps");
  says(message(-3, 10, 0, 1.0, 0.1), "step -3");
  says(message(0, 10, -2, 1.0, 0.1), "warm-up of -2 steps");
  says(message(0, 10, 0, 0.0, 0.0), "learning rate of 0\n");
  says(message(0, 10, 0, NAN, 0.0), "learning rate of nan");
  says(message(0, 10, 0, INFINITY, 0.0), "learning rate of inf");
  says(message(0, 10, 0, 0.001, 0.002), "minimal learning rate of 0.002\n  expected 0 to the learning rate, 0.001");
  says(message(0, 10, 0, 0.001, -1.0), "minimal learning rate of -1\n");
  says(message(0, 10, 0, 0.001, NAN), "minimal learning rate of nan\n");
}
