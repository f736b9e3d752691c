#include "llmc/train/training_stage.h"

#include "llmc/base/error.h"
#include "llmc/base/philox.h"

std::vector<TrainingStage> stages_of(const Json& state) {
  if (!state.contains("stages")) return {TrainingStage{}};
  std::vector<TrainingStage> stages;
  for (const Json& of : state.at("stages").elements()) {
    TrainingStage stage{of.get_string("name"), of.get_int("first_step"), of.get_int("tokens"),
                        of.get_double("seconds")};
    for (const Json& change : of.at("changed").elements()) stage.changed.push_back(change.as_string());
    REQUIRE(stage.first_step >= (stages.empty() ? 0 : stages.back().first_step) && stage.tokens >= 0,
            "%s: stage \"%s\" begins after %lld steps and %lld tokens", of.where().c_str(), stage.name.c_str(),
            (long long)stage.first_step, (long long)stage.tokens);
    stages.push_back(std::move(stage));
  }
  REQUIRE(!stages.empty(), "%s: no stage", state.where().c_str());
  return stages;
}

Json to_json(const std::vector<TrainingStage>& stages) {
  Json::Array list;
  for (const TrainingStage& stage : stages)
    list.push_back(Json::object()
                       .set("name", stage.name)
                       .set("first_step", stage.first_step)
                       .set("tokens", stage.tokens)
                       .set("seconds", stage.seconds)
                       .set("changed", Json::Array(stage.changed.begin(), stage.changed.end())));
  return list;
}

uint64_t seed_of_stage(uint64_t seed, size_t number) {
  return number == 0 ? seed : philox_key(format("the data of stage %zu", number), seed);
}
