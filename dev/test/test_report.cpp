// Covers: the line of a step: the speed of all GPUs together, and of each where there are several; the z-loss, and
// where there is none; what is skipped; the losses of the sources of a mixture
#include <cmath>
#include <string>

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

TEST_CASE("a step's z-loss stands next to its loss, which is without it") {
  StepReport step{};
  step.step = 1, step.steps = 10, step.loss = 2, step.labels = 1, step.seconds = 2, step.tokens = 1;
  says(step_line(step), "| loss 2.0000 | norm");
  CHECK(!step_json(step).contains("z_loss"));
  step.z_loss = 0.0025;
  says(step_line(step), "| loss 2.0000 + z-loss 2.50e-03 | norm");
  CHECK(step_json(step).get_double("loss") == 2);
  CHECK(step_json(step).get_double("z_loss") == 0.0025);
  step.labels = 0;
  says(step_line(step), "| nothing to learn | norm");
  CHECK(step_json(step).at("z_loss").is_null());
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

TEST_CASE("the losses of a mixture's sources, of those that have labels in the step") {
  StepReport step{};
  step.step = 1, step.steps = 10, step.loss = 2, step.labels = 3, step.seconds = 2, step.tokens = 64;
  CHECK(step_line(step).find(" | loss 2.0000 | norm") != std::string::npos);
  CHECK(step_json(step).find("loss/web") == nullptr);
  step.sources = {{"web", 1.5}, {"code", 3}};
  CHECK(step_line(step).find(" | loss 2.0000 (web 1.5000, code 3.0000) | norm") != std::string::npos);
  CHECK(step_json(step).get_double("loss/web") == 1.5);
  CHECK(step_json(step).get_double("loss/code") == 3);
  step.sources = {{"code", NAN}};
  CHECK(step_line(step).find(" (code ") != std::string::npos);
  CHECK(step_json(step).get_string("loss/code") == json_number(NAN).as_string());
}
