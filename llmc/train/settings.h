// The run's numbers: those that the options give, and those that the program chooses for "auto", with the reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/config/config.h"
#include "llmc/device/device.h"
#include "llmc/device/number.h"
#include "llmc/kernels/attention.h"
#include "llmc/train/schedule.h"
#include "llmc/train/trainer_settings.h"
#include "llmc/train/training_stage.h"

struct RunSettings {
  DType dtype;
  int T;               // tokens per sequence
  int context_length;  // tokens that the model can see at once: T, or what a run without training needs
  int B;               // sequences per micro-batch
  int64_t G;           // sequences per step, over all data ranks
  int64_t micro_batches;
  int64_t steps;           // of the training, those of earlier stages included
  int64_t first_step = 0;  // of the stage (training_stage.h), and the tokens that earlier stages trained on
  int64_t tokens_before = 0;
  double lr, min_lr;
  int64_t warmup_steps;
  Schedule schedule;
  int64_t cooldown_steps;  // of wsd
  DecayShape cooldown_shape;
  int64_t val_every;     // 0: never
  int64_t val_windows;   // sequences of held-out tokens that a validation measures of each source, if there are so many
  int sources;           // of the training data: several of a mixture
  int64_t sample_every;  // 0: never; -1: halfway, unless the run is short, and at the end
  int head_chunk;
  AttentionKernel attention;
  Fp8Settings fp8;
  ActivationPolicy activations;
  double checkpoint_minutes;  // after which a checkpoint is due; 0: never
  bool snapshot;              // checkpoints are written from a copy in the host's memory, while training goes on
  std::vector<std::string> products;  // which products run in FP8, for the banner
  std::string precision;              // why the type was chosen, "fp32: …", for the banner; "": it was asked for
  std::vector<std::string> reasons;   // why a training's numbers were chosen, "micro-batch 8: …", for the banner

  int64_t step_tokens() const { return G * T; }
  // Lets the run's steps, which count from 0 so far, be those of a stage.
  void begin_at(const TrainingStage& stage) {
    first_step = stage.first_step, tokens_before = stage.tokens, steps += stage.first_step;
  }
  int64_t stage_steps() const { return steps - first_step; }
  int64_t tokens_after(int64_t step) const { return tokens_before + (step - first_step) * step_tokens(); }
  LearningRate learning_rate() const {
    return {schedule, stage_steps(), warmup_steps, lr, min_lr, cooldown_steps, cooldown_shape};
  }
  double learning_rate_at(int64_t step) const { return learning_rate().at(step - first_step); }
  bool samples_at(int64_t step) const;  // before this step, from 0
  bool validates_at(int64_t step) const;
  bool takes_samples(const Options& options) const {
    return options.sample_only || (options.trains() && sample_every != 0);
  }
  bool saves(const Options& options) const { return options.checkpoint_every > 0 || checkpoint_minutes > 0; }
};

// Returns whether --fp8-weights has something to choose: FP8 copies of weights that could stay, on the device or the
// host. `shards`: several ranks share the state.
bool has_fp8_weights_to_keep(const Options& options, bool shards);

// Returns the mesh of `world` ranks that the options ask for, for one rank of it.
Mesh mesh_of(const Options& options, int world, int rank);

// Returns the trainer's settings, which follow from both.
TrainerSettings trainer_settings(const Options& options, const RunSettings& settings);

// Chooses batch and precision, which the memory plan needs. `data_ranks` share the global batch; if they cannot share
// it evenly, this throws and names batches that they can share. `data_tokens`, the size of the training data, decides
// the length of a run with --epochs, which counts windows, and bounds its default batch: an epoch has 8 steps or more.
// `loaded` weights get a lower learning rate by default. What else follows from the model's size is in defaults.h.
// `asked` are the options of this start alone, if `options` also has those of a run that goes on: for the reasons.
RunSettings resolve_settings(const Options& options, const ModelConfig& config, const DeviceInfo& device,
                             int data_ranks, int64_t data_tokens, bool loaded = false, const Options* asked = nullptr);
