// Generates text with the model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/train/trainer.h"

struct Setup;

struct SamplingSettings {
  int tokens = 200;
  double temperature = 0.8;  // 0: always the most likely token
  double top_p = 1;          // only the most likely tokens that together have this probability (Holtzman et al. 2020)
  uint64_t seed = 0;
  int window = 1;              // most tokens of context: the trainer's T
  std::vector<int> ends = {};  // tokens that end a text
  // Takes this rank's token and returns the one that all ranks use. Empty: all ranks have bitwise equal logits, as they
  // do if each computes alone.
  std::function<int32_t(int32_t)> broadcast_token = {};
};

// Continues `tokens` and calls `emit` for each new token, until emit returns false or a token ends the text. Keys and
// values stay on the device, so that a token costs one row. When the window is full, only its newer half is kept.
void sample(Trainer& trainer, std::vector<int32_t> tokens, const SamplingSettings& settings,
            const std::function<bool(int32_t)>& emit);

// Prints "sample `when`:" and the text that continues --prompt, as the options say, token by token; with --chat the
// answer alone, and a warning if it has no end. Ends early if `stops` returns true after a token. Every rank takes the
// tokens that the first rank draws, and returns the text.
std::string print_sample(Setup& setup, Trainer& trainer, const std::string& when,
                         const std::function<bool()>& stops = {});
