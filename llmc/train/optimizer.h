// AdamW over the part of the state that this rank updates: the gradient norm, the clip factor and the update. A step
// that is not finite makes no update, nor does any later one (global_norm.h).
#pragma once

#include <vector>

#include "llmc/kernels/adamw.h"
#include "llmc/kernels/global_norm.h"
#include "llmc/kernels/step_state.h"
#include "llmc/memory/gradient_store.h"
#include "llmc/memory/optimizer_state.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/plan.h"

class Optimizer {
 public:
  // The weight decay applies to matrices; norms have none. `seed` is for stochastic rounding. `fp8` says for which
  // weights an update records the amax.
  Optimizer(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement, OptimizerState& state,
            AdamWConstants constants, float weight_decay, uint64_t seed, const Fp8Settings& fp8, Device& device,
            Stream& compute, Stream& reduce_stream);

  // Clears the moments and uploads the table of ranges. The next update is number `updates` + 1. Must be called before
  // the first step.
  void reset(int64_t updates = 0);
  // Writes the partial sums of squares of this rank's part of a unit's gradients. Must be called once per unit before
  // begin_step(), when the unit's gradients are summed.
  void square_gradients(Stream& stream, int unit, const Tensor& part);
  // Writes norm, clip factor and whether the step is held to `state`. Its loss and its gradients must already be summed
  // over the ranks.
  void begin_step(const ParameterStore& parameters, StepState* state);
  // Then updates, unless the step is held.
  void step(const GradientStore& gradients, ParameterStore& parameters, StepState* state);

 private:
  // Consecutive units whose gradients, weights and moments are contiguous: one launch updates them.
  struct Span {
    int first_unit, units;
    size_t count;  // elements of the state
    int first_range, ranges;
  };
  void add_span(int first_unit, int end_unit, float weight_decay, const Fp8Settings& fp8);
  void update(const Span& span, const Tensor& gradients, const Tensor& weights, const StepState* state, AdamWAmax amax);
  void plan_squares(int unit);
  void square_sum(StepState* state);

  const ParameterLayout& layout_;
  const Placement& placement_;
  OptimizerState& state_;
  AdamWConstants constants_;
  uint64_t seed_;
  Stream &compute_, &reduce_stream_;
  std::vector<Span> spans_;
  std::vector<AdamWRange> ranges_;
  PlannedArray<AdamWRange> ranges_on_device_;
  PlannedArray<UpdateProgress> progress_;
  PlannedTensor partials_;
  // A stretch of this rank's part of a unit that no other rank squares, and where its partial sums go.
  struct Squared {
    size_t at, count, partials;
  };
  std::vector<std::vector<Squared>> squared_stretches_;  // per unit
  size_t partials_count_ = 0;
  Event squared_, summed_;
};
