// AdamW over what this rank updates: the gradients' norm and clip factor, the moments, the update.
#pragma once

#include <vector>

#include "llmc/kernels/adamw.h"
#include "llmc/kernels/global_norm.h"
#include "llmc/kernels/step_state.h"
#include "llmc/memory/gradient_store.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/snapshot.h"

class Optimizer {
 public:
  // The weight decay is that of matrices; norms have none.
  Optimizer(MemoryPlan& plan, const TensorLayout& layout, const Sharding& sharding, AdamWConstants constants,
            float weight_decay, Device& device, Stream& compute, Stream& communication);
  void bind(const Arena& arena);

  // Moments as before the first step. To be called before it.
  void reset();
  // Norm and clip factor into `state`, then the update. The gradients are summed over the ranks already.
  template <class T>
  void step(const GradientStore& gradients, ParameterStore<T>& parameters, StepState* state);

  // First or second moments of what this rank updates of a unit.
  float* moments(StateKind kind, int unit) const {
    return (kind == StateKind::first_moments ? m_ : v_) + sharding_.at(layout_, unit);
  }

 private:
  // Units whose gradients, weights and moments lie one behind the other: one launch.
  struct Span {
    int first_unit;
    size_t at, count;  // in the moments
    int first_range, ranges;
  };
  void add_span(int first_unit, int end_unit, float weight_decay);
  void square_sum(const GradientStore& gradients, StepState* state);

  const TensorLayout& layout_;
  const Sharding sharding_;
  AdamWConstants constants_;
  Stream &compute_, &communication_;
  std::vector<Span> spans_;
  std::vector<AdamWRange> ranges_;
  Planned<float> planned_m_, planned_v_;
  Planned<AdamWRange> planned_ranges_;
  Planned<double> planned_partials_;
  float *m_ = nullptr, *v_ = nullptr;
  AdamWRange* ranges_on_device_ = nullptr;
  double* partials_ = nullptr;
  Event squared_, summed_;
};
