// The run's numbers: what the options say, and what the program chooses where they say "auto", with the reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/device/device.h"
#include "llmc/device/number.h"
#include "llmc/kernels/attention.h"
#include "llmc/model/config.h"
#include "llmc/train/schedule.h"
#include "llmc/train/trainer.h"

struct RunSettings {
  DType dtype;
  int T;        // tokens a sequence
  int context;  // tokens that the model can look at together: T, or what a run needs that does not train
  int B;        // sequences of a micro-batch
  int64_t G;    // sequences of a step, over all data ranks
  int64_t micro_steps;
  int64_t steps;
  double lr, min_lr;
  int64_t warmup_steps;
  Schedule schedule;
  int64_t val_every;     // 0: never
  int64_t sample_every;  // 0: never; -1: half way, unless it is short, and at the end
  int head_chunk;
  AttentionKernel attention;
  Fp8Settings fp8;
  ActivationPolicy activations;
  std::vector<std::string> products;  // which of them run in FP8, for the banner
  std::string precision;              // why it was chosen, "fp32: …", for the banner; "": it was asked for
  std::vector<std::string> reasons;   // of a training's numbers, "micro-batch 8: …", for the banner

  int64_t step_tokens() const { return G * T; }
  double learning_rate_at(int64_t step) const;
  bool samples_at(int64_t step) const;  // before this step, from 0
  bool validates_at(int64_t step) const;
};

// The trainer's part of both.
TrainerSettings trainer_settings(const Options& options, const RunSettings& settings);

// Batch and precision, which the memory plan needs. `data_ranks` share the global batch: an indivisible one is an error
// that names what would do. `data_tokens` of training data decide the length under --epochs, which counts windows.
// `loaded` weights have a lower learning rate by default.
RunSettings resolve_settings(const Options& options, const LlamaConfig& config, const DeviceInfo& device,
                             int data_ranks, int64_t data_tokens, bool loaded = false);
