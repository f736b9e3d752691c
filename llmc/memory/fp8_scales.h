// State from which FP8 scales follow, for each tensor that is quantized: the amax of the running pass and, for delayed
// scaling, the scales and the amaxes of earlier steps. Also holds the counts that reports ask for.
//
// The counts of a step cover all tensors that it computes with. For weights, that is everything that was quantized
// since the update of the step before.
//
// A delayed scale of 0 means: no scale yet, because every value of the tensor has been 0. Such a tensor uses the amax
// of the running pass, as all tensors do in the first step. The host learns one step later whether there is such a
// tensor. Until then it has the amaxes of each pass computed; the scales on the device decide whether they are used.
//
// Ranks share a delayed scale. The amaxes of a step are all-reduced once, after its last backward; while a scale is
// missing, each tensor's amax is also all-reduced when it is quantized. Without delayed scaling, the scale of an
// input or output gradient belongs to one rank, unless tensor-parallel ranks gather the tensor.
#pragma once

#include <functional>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/config/fp8.h"
#include "llmc/kernels/quantize_weights.h"
#include "llmc/kernels/step_state.h"
#include "llmc/memory/plan.h"

// Inputs and output gradients (WeightScaleRefs: weights): arrays with one entry for each tensor that is quantized,
// indexed by LayerProjection::id().
struct Fp8ScaleRefs {
  float* amax = nullptr;                     // of the running pass; cleared when it begins
  const float* scale = nullptr;              // delayed: the scales of the step; null: they follow from amax
  bool may_lack_scale = false;               // some scale may be 0: that tensor's scale follows from amax
  float* amax_step = nullptr;                // delayed: amax over the step so far; null: not recorded
  QuantizeStatistics* statistics = nullptr;  // null: not counted
  bool needs_amax() const { return !scale || may_lack_scale; }
};

class Fp8Scales {
 public:
  // Each `count_every`th step is counted; 0: no step is.
  Fp8Scales(MemoryPlan& plan, const Fp8Settings& settings, const LayerProjections& projections, int64_t count_every,
            Communicator& all_ranks, Device& device, Stream& compute, Stream& reduce_stream);
  Fp8Scales(const Fp8Scales&) = delete;
  // Call this once the plan has memory. `state`, on the device, receives the reports of overflows and of tensors with
  // an infinity or NaN.
  void prepare(StepState* state) { step_state_ = state; }

  // Sets all state as it was before the first step.
  void reset();
  // remember(false): passes, and the weights that they quantize, change neither the history nor the counts, until
  // remember(true).
  void remember(bool remembers) { remembers_ = remembers; }
  // begin_pass() begins a pass over the blocks. Only a pass that trains changes the history and the counts, and only in
  // such a pass do the ranks agree on amaxes for scales that are missing.
  void begin_step(int64_t step);
  void begin_pass(bool training);
  // Call count_not_finite() when the step's last backward is enqueued: it tells the step's state whether this rank met
  // an infinity or NaN. Call start_all_reduce() when `reduce_stream` waits for compute: the amaxes are all-reduced.
  // Call update_scales() when `compute` waits for that and the state says whether the step is held: it computes the
  // scales of the next step.
  void count_not_finite();
  void start_all_reduce();
  void update_scales();
  // Counts the step on the host. Call it after update_scales(), or when a captured graph is launched instead.
  void count_step();
  // Takes what the device says of a step that the host has waited for. Each step must be told, in order.
  void read_result(const StepState& step) {
    if (!step.held) may_lack_scale_ = step.fp8.no_scale > 0;
    else if (settings_.delayed()) --recorded_;
  }
  // True if the step enqueues the same work as other steps do, so that a captured graph can repeat it: nothing is
  // counted, and each tensor has a scale.
  bool is_regular(int64_t step) const {
    return !counts_weights_ && !counted(step) && !counted(step + 1) && !may_lack_scale_ &&
           (!settings_.delayed() || recorded_ > 0);
  }

  const Fp8Settings& settings() const { return settings_; }
  const Fp8ScaleRefs& refs() const { return refs_; }
  // For weights, which change the history and the counts in whatever pass they are quantized. `not_finite`: where the
  // kernels report, not_finite() or weights_not_finite().
  WeightScaleRefs weight_refs(uint32_t* not_finite) const;
  uint32_t* not_finite() const { return &step_state_->fp8_not_finite; }
  // The same for weights that are quantized on another stream than compute; count_not_finite() copies it to the state.
  uint32_t* weights_not_finite() const { return weights_not_finite_; }
  // Null if the ranks need not agree.
  const std::function<void(int)>* share_amax() const { return shares_amax_ ? &share_amax_ : nullptr; }

  // State of delayed scaling, for checkpoints: the scales (tensors), the amaxes of the steps that are remembered
  // (steps, tensors), the oldest first, and the settings with which they were made. On the device the state is one
  // tensor of state_size() numbers, state(). history(copied, recorded) converts a copy of it, which was
  // made when `recorded` steps had been recorded.
  struct History {
    std::vector<float> scales, amax, settings;
  };
  size_t state_size() const;
  const PlannedTensor& state() const { return state_; }
  int64_t recorded() const { return recorded_; }
  History history(const float* copied, int64_t recorded) const;
  History history();  // between steps
  // If the settings have changed since, the scales are computed anew from the history. If a tensor is in FP8 now and
  // was not then, it has no history, so the history of all tensors is dropped.
  void restore(History history);

  // Returns the statistics of a step that was counted, by LayerProjection::id(). Call it after the host has waited for
  // the step and before two more steps are enqueued.
  std::vector<QuantizeStatistics> statistics(int64_t step) const;

 private:
  bool counted(int64_t step) const { return count_every_ && step % count_every_ == 0; }
  // The parts of state_.
  Tensor scale() const { return state_->elements(0, tensors_); }
  Tensor earlier() const { return state_->elements(tensors_, tensors_ * settings_.history); }
  const float* scales() const { return settings_.delayed() && recorded_ > 0 ? scale().as<float>() : nullptr; }
  std::vector<float> settings_numbers() const;
  void adopt(History& history) const;
  size_t slot_of(int64_t step) const { return size_t(step % kCountedSteps) * size_t(tensors_); }

  static constexpr int kCountedSteps = 2;  // whose counts are on the host at once
  const Fp8Settings& settings_;
  const LayerProjections& projections_;
  const int tensors_;
  const int64_t count_every_;
  Device& device_;
  Communicator& all_ranks_;
  Stream &compute_, &reduce_stream_;
  StepState* step_state_ = nullptr;
  PlannedTensor amax_, amax_step_;  // (tensors); the ranks all-reduce both
  PlannedTensor state_;             // the scales (tensors), then the amaxes of earlier steps (history, tensors)
  PlannedTensor largest_;           // (tensors) the largest number of each tensor's format
  PlannedArray<uint32_t> entries_, weights_not_finite_;
  PlannedArray<QuantizeStatistics> statistics_, nothing_;  // on the device
  PlannedArray<QuantizeStatistics> counted_;               // on the host
  Fp8ScaleRefs refs_;
  std::function<void(int)> share_amax_;
  Event computed_, compared_;
  bool shares_amax_ = false, remembers_ = true;
  int64_t step_ = 0;  // the running step
  bool counts_ = false, counts_weights_ = false;
  int64_t recorded_ = 0;  // steps whose amaxes went into the history, if those under way are not held
  bool may_lack_scale_ = false;
};
