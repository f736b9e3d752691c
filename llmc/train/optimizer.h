// AdamW over the flat buffers: the gradients' norm and clip factor, the moments, the update.
#pragma once

#include <vector>

#include "llmc/kernels/adamw.h"
#include "llmc/kernels/global_norm.h"
#include "llmc/kernels/step_state.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/plan.h"
#include "llmc/model/tensors.h"

class Optimizer {
 public:
  // The weight decay is that of matrices; norms have none.
  Optimizer(MemoryPlan& plan, const TensorLayout& layout, AdamWConstants constants, float weight_decay);
  void bind(const Arena& arena);

  // Moments as before the first step. To be called before it.
  void reset(Stream& stream);
  // Norm and clip factor into `state`, then the update. `gradients` are summed over the ranks already.
  template <class T>
  void step(Stream& stream, const float* gradients, ParameterStore<T>& parameters, StepState* state);

 private:
  const TensorLayout& layout_;
  AdamWConstants constants_;
  std::vector<AdamWRange> ranges_;
  Planned<float> planned_m_, planned_v_;
  Planned<AdamWRange> planned_ranges_;
  Planned<double> planned_partials_;
  float *m_ = nullptr, *v_ = nullptr;
  AdamWRange* ranges_on_device_ = nullptr;
  double* partials_ = nullptr;
};
