// Covers: the line of a step: the speed of all GPUs together, and of each where there are several; what is skipped
#include "dev/test/test.h"
#include "llmc/base/console.h"
#include "llmc/run/report.h"

TEST_CASE("several GPUs: the speed of all, and of each, as predictions have it") {
  StepReport step{};
  step.step = 1, step.steps = 10, step.loss = 2, step.labels = 1, step.seconds = 2, step.tokens = 730'000;
  const auto says = [&](int gpus) {
    step.gpus = gpus;
    return step_line(step);
  };
  CHECK(says(32).find(" | 365k tok/s, 11.4k a GPU | ") != std::string::npos);
  CHECK(says(1).find(" | 365k tok/s | ") != std::string::npos);
  CHECK(says(0).find(" | 365k tok/s | ") != std::string::npos);
}

TEST_CASE("a step that is skipped is told with what is a spike in it") {
  StepReport step{};
  step.step = 1, step.steps = 10, step.loss = 2, step.labels = 1, step.seconds = 2, step.tokens = 730'000;
  CHECK(step_line(step).find("skipped") == std::string::npos);
  CHECK(!step_json(step).contains("skipped"));
  step.skipped = "loss, norm";
  CHECK(step_line(step).find(" | skipped: loss, norm | ") != std::string::npos);
  CHECK(step_json(step).get_string("skipped") == "loss, norm");
}
