// The gradient norm, the clip factor, and the update of what this rank updates of each unit: AdamW updates the tensors
// that have a second moment. A step that is not finite makes no update, nor does any later one (global_norm.h).
#pragma once

#include <vector>

#include "llmc/kernels/adamw.h"
#include "llmc/kernels/global_norm.h"
#include "llmc/kernels/step_state.h"
#include "llmc/memory/gradient_store.h"
#include "llmc/memory/optimizer_state.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/plan.h"
#include "llmc/train/trainer_settings.h"

class Optimizer {
 public:
  // `fp8` says for which weights an update records the amax.
  Optimizer(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement, OptimizerState& state,
            const OptimizerSettings& settings, const Fp8Settings& fp8, Stream& compute, Stream& reduce_stream);

  // Clears the moments and uploads the table of ranges. The next update is number `updates` + 1. Must be called before
  // the first step.
  void reset(int64_t updates = 0);
  // Writes the partial sums of squares of a unit's gradients in UnitPlacement::own. Must be called once per unit before
  // decide_update(), when they are summed over the ranks.
  void square_gradients(Stream& stream, int unit, const Tensor& own);
  // Writes norm, clip factor and whether the step is held to `state`. Its loss and its gradients must already be summed
  // over the ranks. `spikes` says which finite steps are held.
  void decide_update(const ParameterStore& parameters, StepState* state, const SpikeRule& spikes);
  // Updates the weights that have a second moment, unless the step is held. Must be called after decide_update() and
  // Sweep::begin(), as the last update of the step.
  void update(const GradientStore& gradients, ParameterStore& parameters, StepState* state);

 private:
  // Elements that one sweep updates: a shard of a unit and those after it that are contiguous with it in the state, the
  // gradients and the weights.
  struct Run {
    int unit;
    Shard elements;  // they begin in the unit, and may go on in the units after it
    int first_range, ranges;
  };
  void add_runs(const OptimizerSettings& settings, const Fp8Settings& fp8);
  void add_ranges(const Run& run, int unit, const Shard& shard, const OptimizerSettings& settings,
                  const Fp8Settings& fp8);
  void update_run(const Run& run, const Tensor& gradients, const StepState* state, AdamWAmax amax);
  void plan_squares(int unit);
  void square_sum(StepState* state);

  const ParameterLayout& layout_;
  const Placement& placement_;
  OptimizerState& state_;
  AdamWConstants constants_;
  Stream &compute_, &reduce_stream_;
  std::vector<Run> runs_;
  std::vector<AdamWRange> ranges_;
  PlannedArray<AdamWRange> ranges_on_device_;
  PlannedArray<UpdateProgress> progress_;
  PlannedTensor partials_;
  // Elements of UnitPlacement::own that no other rank squares, and where their partial sums go.
  struct Squared {
    size_t at, count, partials;
  };
  std::vector<std::vector<Squared>> squared_;  // per unit
  size_t partials_count_ = 0;
  Event partials_done_, summed_;
};
