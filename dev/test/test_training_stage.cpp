// Covers: promise 4: the list of a training's stages in a checkpoint, and the seed of each stage's data
#include "dev/test/error_of.h"
#include "dev/test/test.h"
#include "llmc/train/settings.h"
#include "llmc/train/training_stage.h"

TEST_CASE("the list of stages goes to a checkpoint and back") {
  const std::vector<TrainingStage> stages = {
      {}, {"long", 100, 51200, 2.5, {"--seq-len 64 (was 32)", "--train-data b (was a)"}}};
  const Json state = Json::object().set("stages", to_json(stages));
  const std::vector<TrainingStage> read = stages_of(Json::parse(state.dump(), "state"));
  REQUIRE(read.size() == 2, "%zu stages", read.size());
  CHECK(read[0].name.empty());
  CHECK(read[0].first_step == 0);
  CHECK(read[1].name == "long");
  CHECK(read[1].first_step == 100);
  CHECK(read[1].tokens == 51200);
  CHECK(read[1].seconds == 2.5);
  CHECK(read[1].changed == stages[1].changed);
  CHECK(stages_of(Json::object()).size() == 1);
  const std::vector<TrainingStage> backwards = {{"late", 100, 5}, {"early", 50, 6}};
  CHECK(error_of([&] { stages_of(Json::object().set("stages", to_json(backwards))); }).find("\"early\"") !=
        std::string::npos);
  CHECK(error_of([] { stages_of(Json::object().set("stages", Json::array())); }).find("no stage") != std::string::npos);
}

TEST_CASE("the first stage has the seed itself, and each stage another") {
  CHECK(seed_of_stage(7, 0) == 7);
  CHECK(seed_of_stage(7, 1) != 7);
  CHECK(seed_of_stage(7, 1) != seed_of_stage(7, 2));
  CHECK(seed_of_stage(7, 1) != seed_of_stage(8, 1));
}

TEST_CASE("steps, tokens and rates of a stage count from its first step") {
  RunSettings s{};
  s.T = 10, s.G = 4, s.steps = 20, s.lr = 1, s.min_lr = 0, s.warmup_steps = 4, s.schedule = Schedule::kLinear;
  s.val_every = 5, s.sample_every = -1;
  RunSettings alone = s;
  s.begin_at({"next", 103, 777});
  CHECK(s.steps == 123);
  CHECK(s.stage_steps() == 20);
  CHECK(s.tokens_after(103) == 777);
  CHECK(s.tokens_after(105) == 777 + 80);
  for (int64_t step = 0; step < 20; ++step) {
    CHECK(s.learning_rate_at(103 + step) == alone.learning_rate_at(step));
    CHECK(s.validates_at(103 + step) == alone.validates_at(step));
    CHECK(s.samples_at(103 + step) == alone.samples_at(step));
  }
}
