// What FP8 scales follow from, of each tensor that is quantized: the largest number of the running pass, and for
// delayed scaling the history of earlier steps', the scales, and the counts that reports ask for.
//
// What is counted of a step is of all that it computes with: of weights that is what was quantized since the update
// before it.
//
// A delayed scale of 0 stands for none: of a tensor that has had no number but 0. Its scale follows from the running
// pass, as all do in the first step. The host learns a step later whether there is such a tensor, and until then asks
// for the largest numbers of a pass; the scales on the device decide whether they are used.
//
// Ranks share a delayed scale: the largest numbers of a step are compared over all of them once, after its last
// backward; while there is no history yet, each tensor's as it is quantized. Scales of the running pass are a rank's
// own.
#pragma once

#include <functional>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/kernels/step_state.h"
#include "llmc/memory/plan.h"
#include "llmc/model/projection.h"

class ScaleStore {
 public:
  // Each `count_every`th step is counted; 0: none.
  ScaleStore(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config, int64_t count_every,
             Communicator& data_ranks, Device& device, Stream& compute, Stream& communication);
  ScaleStore(const ScaleStore&) = delete;
  // `state`: where a tensor with an infinity or NaN, and overflows, are reported.
  void bind(const Arena& arena, StepState* state);

  // As before the first step.
  void reset();
  // A pass over the blocks begins. Only one that trains leaves traces in the history and the counts, and its ranks
  // agree on what the history lacks.
  void begin_step(int64_t step);
  void begin_pass(bool training);
  // The step's last backward is enqueued, and `communication` waits for it: the ranks compare. Then, behind what
  // `compute` waited for meanwhile, the scales of the next step.
  void start_comparing();
  void finish_step();
  // Behind finish_step(), or in place of it where the step repeats what was captured: the step leaves its traces.
  void end_step();
  // What the last step that the host has waited for counted.
  void learn(const Fp8Counts& counts) { may_lack_scale_ = counts.no_scale > 0; }
  // Whether the step asks for the work that others do: nothing is counted, and each tensor has a scale.
  bool is_regular(int64_t step) const {
    return !counts_weights_ && !counted(step) && !counted(step + 1) && !may_lack_scale_ &&
           (!settings_.delayed() || recorded_ > 0);
  }

  const ScaleWords& words() const { return words_; }
  // Of weights, which leave their traces in whatever pass they are quantized: amax is not here.
  ScaleWords weight_words() const;
  uint32_t* not_finite() const { return &state_->fp8_not_finite; }
  // The same of weights that are quantized beside compute, until finish_step() puts it there.
  uint32_t* weights_not_finite() const { return weights_not_finite_; }
  // Null where the ranks need not agree.
  const std::function<void(int)>* agree() const { return agrees_ ? &agree_ : nullptr; }

  // What delayed scaling goes on from, for checkpoints: the scales, (tensors), the largest numbers of the steps that
  // are remembered, (steps, tensors), the oldest first, and the settings that they were made with. On the device they
  // are one stretch of state_size() numbers, from state() on, which `history` makes of a copy that was taken when
  // recorded() steps had left their traces.
  struct History {
    std::vector<float> scales, amax, settings;
  };
  size_t state_size() const;
  const float* state() const { return scale_; }
  int64_t recorded() const { return recorded_; }
  History history(const float* copied, int64_t recorded) const;
  History history();  // between steps
  // With other settings than it was made with, the scales follow from the history by these; of a tensor that was not in
  // FP8 there is no history, and so there is none of all.
  void restore(History history);

  // Of a step that was counted and that the host has waited for, until two more are enqueued: by fp8_number().
  std::vector<QuantizeStatistics> statistics(int64_t step) const;

 private:
  bool counted(int64_t step) const { return count_every_ && step % count_every_ == 0; }
  Fp8Format format_of(int number) const { return settings_.format(Role(number % kRoles)); }
  const float* scales() const { return settings_.delayed() && recorded_ > 0 ? scale_ : nullptr; }
  std::vector<float> settings_numbers() const;
  void adopt(History& history) const;
  size_t slot_of(int64_t step) const { return size_t(step % kCountedSteps) * size_t(tensors_); }

  static constexpr int kCountedSteps = 2;  // of which the counts are on the host
  const Fp8Settings& settings_;
  const int tensors_;
  const int64_t count_every_;
  Device& device_;
  Communicator& data_ranks_;
  Stream &compute_, &communication_;
  Planned<float> planned_amax_, planned_seen_, planned_state_, planned_largest_;
  Planned<uint32_t> planned_entries_, planned_weights_not_finite_;
  Planned<QuantizeStatistics> planned_statistics_, planned_nothing_, planned_counted_;
  float *amax_ = nullptr, *seen_ = nullptr, *scale_ = nullptr, *history_ = nullptr, *largest_ = nullptr;
  uint32_t *entries_ = nullptr, *weights_not_finite_ = nullptr;
  QuantizeStatistics *statistics_ = nullptr, *nothing_ = nullptr;  // on the device
  QuantizeStatistics* counted_ = nullptr;                          // on the host
  StepState* state_ = nullptr;
  ScaleWords words_;
  std::function<void(int)> agree_;
  Event computed_, compared_;
  bool agrees_ = false;
  int64_t step_ = 0;  // the running one
  bool counts_ = false, counts_weights_ = false;
  int64_t recorded_ = 0;  // steps whose largest numbers went into the history
  bool may_lack_scale_ = false;
};
