// The weights, unit by unit (the embedding, a block, the head): gather(unit) makes a unit's weights whole on the
// communication stream, get(unit) lets the compute stream wait for them, release(unit) says that compute is done with
// them. Unsharded, the weights are whole from the start: gather and release have nothing to move, and get only returns.
//
// The optimizer's fp32 master copy is here too. With T = float it is the weights themselves.
#pragma once

#include "llmc/memory/plan.h"
#include "llmc/model/tensors.h"

template <class T>
class ParameterStore {
 public:
  ParameterStore(MemoryPlan& plan, const TensorLayout& layout);
  void bind(const Arena& arena);

  void gather(int unit);
  // The flat buffer's start: add an offset of the layout for a tensor of `unit`. Valid until release(unit).
  const T* get(int unit);
  void release(int unit);

  float* master() const { return master_; }
  // Where the optimizer writes what the next step computes with: null if that is the master itself.
  T* weights_to_update() const { return separate_ ? weights_ : nullptr; }

 private:
  const TensorLayout& layout_;
  bool separate_;
  Planned<float> planned_master_;
  Planned<T> planned_weights_;
  float* master_ = nullptr;
  T* weights_ = nullptr;
};
