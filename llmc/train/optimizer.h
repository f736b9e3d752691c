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
  Optimizer(MemoryPlan& plan, const TensorLayout& layout, AdamWConstants constants);
  void bind(const Arena& arena);

  // Moments as before the first step.
  void reset(Stream& stream);
  // Norm and clip factor into `state`, then the update. `gradients` are summed over the ranks already.
  template <class T>
  void step(Stream& stream, const float* gradients, ParameterStore<T>& parameters, StepState* state);

 private:
  struct Piece {
    size_t offset, count;
    float weight_decay;
  };
  const TensorLayout& layout_;
  AdamWConstants constants_;
  std::vector<Piece> pieces_;
  Planned<float> planned_m_, planned_v_;
  Planned<double> planned_partials_;
  float *m_ = nullptr, *v_ = nullptr;
  double* partials_ = nullptr;
};
