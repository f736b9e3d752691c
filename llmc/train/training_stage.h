// The stages of a training. --stage NAME begins one at a checkpoint: weights, moments and the count of steps go on,
// while data, batch, length and schedule may be others. Data order and schedule count from the stage's first step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/json.h"

struct TrainingStage {
  std::string name;  // "" for the first stage
  // Of all stages before this one: their steps, the tokens that they trained on, and the seconds that these took.
  int64_t first_step = 0, tokens = 0;
  double seconds = 0;
  std::vector<std::string> changed = {};  // from the stage before: "--seq-len 256 (was 128)"
};

// The "stages" of a checkpoint's state.json, in the order of time. A state without them has one.
std::vector<TrainingStage> stages_of(const Json& state);
Json to_json(const std::vector<TrainingStage>& stages);

// Returns the seed of the data's order in stage `number`, from 0: that of the first one is `seed` itself.
uint64_t seed_of_stage(uint64_t seed, size_t number);
