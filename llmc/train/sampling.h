// Text from the model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/train/trainer.h"

struct SamplingSettings {
  int tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  double top_p = 1;          // only the likeliest tokens that have this probability together (Holtzman et al. 2020)
  uint64_t seed = 0;
  int window = 1;  // tokens of context at most: the trainer's T
  // What all ranks take for a token of this one; empty: all have the same bits of logits, as where each computes alone.
  std::function<int32_t(int32_t)> agree = {};
};

// Continues `tokens`, calling `emit` for each new one until it says no, or the model ends the text. Keys and values
// stay on the device, so that a token costs one row; when the window is full, all but its newer half is forgotten.
void sample(Trainer& trainer, const LlamaConfig& config, std::vector<int32_t> tokens, const SamplingSettings& settings,
            const std::function<bool(int32_t)>& emit);
