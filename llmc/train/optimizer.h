// AdamW over what this rank updates: the gradients' norm and clip factor, the update of the state.
#pragma once

#include <vector>

#include "llmc/kernels/adamw.h"
#include "llmc/kernels/global_norm.h"
#include "llmc/kernels/step_state.h"
#include "llmc/memory/gradient_store.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/state_store.h"

class Optimizer {
 public:
  // The weight decay is that of matrices; norms have none. `seed`: of stochastic rounding. `fp8` says whose largest
  // weights an update leaves behind.
  Optimizer(MemoryPlan& plan, const TensorLayout& layout, const Sharding& sharding, StateStore& state,
            AdamWConstants constants, float weight_decay, uint64_t seed, const Fp8Settings& fp8, Device& device,
            Stream& compute, Stream& communication);
  void bind(const Arena& arena);

  // Moments as before the first step. To be called before it.
  void reset();
  // The squares of this rank's part of a unit, when its gradients are summed: of each unit once before step().
  void add_squares(Stream& stream, int unit, const float* part);
  // Norm and clip factor into `state`, then the update. The gradients are summed over the ranks already.
  template <class T>
  void step(const GradientStore& gradients, ParameterStore<T>& parameters, StepState* state);

 private:
  // Units whose gradients, weights and moments lie one behind the other: one launch.
  struct Span {
    int first_unit;
    size_t at, count;  // in the state
    int first_range, ranges;
  };
  void add_span(int first_unit, int end_unit, float weight_decay, const Fp8Settings& fp8);
  template <class T, class Master, class Moment>
  void update(const Span& span, const float* gradients, T* weights, const StepState* state, AdamWAmax amax);
  void plan_squares(int unit);
  void square_sum(StepState* state);

  const TensorLayout& layout_;
  const Sharding sharding_;
  StateStore& store_;
  AdamWConstants constants_;
  uint64_t seed_;
  Stream &compute_, &communication_;
  std::vector<Span> spans_;
  std::vector<AdamWRange> ranges_;
  Planned<AdamWRange> planned_ranges_;
  Planned<double> planned_partials_;
  AdamWRange* ranges_on_device_ = nullptr;
  double* partials_ = nullptr;
  // Of this rank's part of a unit, what no other rank squares; and where its partial sums go.
  struct Squared {
    size_t at, count, partials;
  };
  std::vector<std::vector<Squared>> squared_stretches_;  // a unit
  size_t partials_count_ = 0;
  Event squared_, summed_;
};
