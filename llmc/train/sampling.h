// Text from the model, token by token. Every rank computes the same tokens; the first one prints them.
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
};

// `prompt` as tokens: its bytes for a byte-level model (V <= 256), otherwise token numbers separated by spaces. An
// empty prompt is a newline, or the model's begin-of-text. Throws on a token that the model does not have.
std::vector<int32_t> prompt_tokens(const std::string& prompt, const LlamaConfig& config);
// Tokens as text: bytes for a byte-level model, else their numbers, each followed by a space.
std::string token_text(int32_t token, const LlamaConfig& config);

// Continues `tokens`, calling `emit` for each new one until it says no, or the model ends the text. Keys and values
// stay on the device, so that a token costs one row; when the window is full, all but its newer half is forgotten.
void sample(Trainer& trainer, const LlamaConfig& config, std::vector<int32_t> tokens, const SamplingSettings& settings,
            const std::function<bool(int32_t)>& emit);
