// Covers: learning-rate schedules and cooldowns: formulas, edges, refusals; a cooldown as a branch is the one of a run
// that planned it
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "dev/test/test.h"
#include "llmc/train/schedule.h"

namespace {

constexpr Schedule kAll[] = {Schedule::kCosine, Schedule::kLinear, Schedule::kWsd, Schedule::kConstant};
constexpr Schedule kDecaying[] = {Schedule::kCosine, Schedule::kLinear, Schedule::kWsd};
constexpr DecayShape kShapes[] = {DecayShape::kLinear, DecayShape::kCosine, DecayShape::kOneMinusSqrt};

// The rate of a step, with the default cooldown, the last fifth of the steps.
double learning_rate(Schedule schedule, int64_t step, int64_t steps, int64_t warmup_steps, double lr, double min_lr) {
  return LearningRate{schedule, steps, warmup_steps, lr, min_lr, cooldown_steps(0.2, steps)}.at(step);
}

}  // namespace

TEST_CASE("a schedule is found by its name") {
  for (Schedule schedule : kAll) CHECK(parse_schedule(schedule_name(schedule)) == schedule);
  std::vector<std::string> names;
  for (Schedule schedule : kAll) names.push_back(schedule_name(schedule));
  CHECK(names == std::vector<std::string>{"cosine", "linear", "wsd", "constant"});
  const std::string message = error_of([] { parse_schedule("cosin"); });
  says(message, "unknown schedule 'cosin'", "cosine, linear, wsd or constant");
  CHECK(parse_decay_shape("linear") == DecayShape::kLinear);
  CHECK(parse_decay_shape("cosine") == DecayShape::kCosine);
  CHECK(parse_decay_shape("1-sqrt") == DecayShape::kOneMinusSqrt);
  says(error_of([] { parse_decay_shape("sqrt"); }), "shape of a cooldown 'sqrt'\n  expected linear, cosine or 1-sqrt");
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

TEST_CASE("each shape of a cooldown follows its formula") {
  // The cooldown is steps 16 to 19; the warm-up ends at step 1.
  const auto rate = [](DecayShape shape, int step) {
    return LearningRate{Schedule::kWsd, 20, 2, 1.0, 0.2, 4, shape}.at(step);
  };
  const std::tuple<DecayShape, double, double, double> cases[] = {
      {DecayShape::kLinear, 0.8, 0.6, 0.4},
      {DecayShape::kCosine, 0.2 + 0.4 * (1 + std::sqrt(0.5)), 0.6, 0.2 + 0.4 * (1 - std::sqrt(0.5))},
      {DecayShape::kOneMinusSqrt, 0.6, 1 - 0.8 * std::sqrt(0.5), 1 - 0.8 * std::sqrt(0.75)}};
  for (const auto& [shape, first, second, third] : cases) {
    for (int step = 1; step < 16; step++) CHECK(rate(shape, step) == 1.0);
    CHECK(rate(shape, 16) == doctest::Approx(first).epsilon(1e-12));
    CHECK(rate(shape, 17) == doctest::Approx(second).epsilon(1e-12));
    CHECK(rate(shape, 18) == doctest::Approx(third).epsilon(1e-12));
    for (int step = 19; step < 25; step++) CHECK(rate(shape, step) == 0.2);
  }
}

TEST_CASE("a cooldown has the steps that were given, or a share of the run, rounded up") {
  const std::tuple<double, int64_t, int64_t> cases[] = {{0.2, 15, 3}, {0.2, 16, 4}, {0.3, 10, 3},  {0.07, 100, 7},
                                                        {0, 100, 0},  {1, 100, 1},  {40, 100, 40}, {0.99, 100, 99}};
  for (const auto& [given, steps, cooldown] : cases) CHECK(cooldown_steps(given, steps) == cooldown);
  for (int64_t steps = 1; steps < 3000; steps++) CHECK(cooldown_steps(0.2, steps) == (steps + 4) / 5);
  for (const double given : {1.5, 0.995})
    says(error_of([&] { cooldown_steps(given, 100); }), "expected a whole number of steps, or a share");
}

TEST_CASE("a run that cools down from any step on has the rates of one that was planned so") {
  for (const DecayShape shape : kShapes)
    for (const double given : {1.0, 7.0, 0.2, 0.5, 0.07, 0.99})
      for (const int64_t done : {5, 6, 100, 301}) {
        CAPTURE(given);
        CAPTURE(done);
        const int64_t cooldown = cooldown_steps_after(given, done), steps = done + cooldown;
        CHECK(cooldown_steps(given, steps) == cooldown);  // the same text plans it
        const LearningRate longer{Schedule::kWsd, 100000, 5, 1e-3, 1e-4, 20000, shape};
        const LearningRate branch{Schedule::kWsd, steps, 5, 1e-3, 1e-4, cooldown, shape};
        for (int64_t step = 0; step < done; step++) CHECK(branch.at(step) == longer.at(step));
        CHECK(branch.at(done) < 1e-3);
        CHECK(branch.at(steps - 1) == 1e-4);
      }
}

TEST_CASE("a schedule is described") {
  const auto text = [](Schedule schedule, int64_t cooldown, DecayShape shape, int64_t warmup = 10) {
    return LearningRate{schedule, 100, warmup, 4e-3, 4e-4, cooldown, shape}.description();
  };
  CHECK(text(Schedule::kCosine, 20, DecayShape::kLinear) == "a cosine to 0.0004");
  CHECK(text(Schedule::kLinear, 20, DecayShape::kCosine) == "linear to 0.0004");
  CHECK(text(Schedule::kConstant, 20, DecayShape::kLinear) == "constant");
  CHECK(text(Schedule::kWsd, 20, DecayShape::kCosine) ==
        "constant for 70 steps, and a cosine to 0.0004 over the last 20 (wsd)");
  CHECK(text(Schedule::kWsd, 5, DecayShape::kOneMinusSqrt) ==
        "constant for 85 steps, and 1-sqrt to 0.0004 over the last 5 (wsd)");
  CHECK(text(Schedule::kWsd, 0, DecayShape::kLinear) == "constant, without a cooldown (wsd)");
  CHECK(text(Schedule::kWsd, 20, DecayShape::kLinear, 100) == "the run ends");
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
  for (const DecayShape shape : kShapes)
    CHECK(LearningRate{Schedule::kWsd, 100, 10, 3e-4, 3e-5, 30, shape}.at(99) == 3e-5);
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
  says(message(0, 10, -2, 1.0, 0.1), "a warm-up of -2 steps and a cooldown of 2");
  says(message(0, 10, 0, 0.0, 0.0), "learning rate of 0\n");
  says(message(0, 10, 0, NAN, 0.0), "learning rate of nan");
  says(message(0, 10, 0, INFINITY, 0.0), "learning rate of inf");
  says(message(0, 10, 0, 0.001, 0.002), "minimal learning rate of 0.002\n  expected 0 to the learning rate, 0.001");
  says(message(0, 10, 0, 0.001, -1.0), "minimal learning rate of -1\n");
  says(message(0, 10, 0, 0.001, NAN), "minimal learning rate of nan\n");
}
