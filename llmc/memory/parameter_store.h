// The weights, unit by unit (the embedding, a block, the head): gather(unit) makes a unit's weights whole on the
// communication stream, get(unit) lets the compute stream wait for them, release(unit) says that compute is done with
// them. Unsharded, the weights are whole from the start and nothing moves; the order of the three is checked all the
// same: a unit that is used without gather, or gathered again before its release, is an error.
//
// The optimizer's fp32 master copy is here too. With T = float it is the weights themselves.
#pragma once

#include <vector>

#include "llmc/memory/plan.h"
#include "llmc/model/tensors.h"

template <class T>
class ParameterStore {
 public:
  ParameterStore(MemoryPlan& plan, const TensorLayout& layout);
  void bind(const Arena& arena);

  void gather(int unit, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // The flat buffer's start: add an offset of the layout for a tensor of `unit`. Valid until release(unit).
  const T* get(int unit);
  void release(int unit, const char* file = __builtin_FILE(), int line = __builtin_LINE());

  float* master() const { return master_; }
  // Where the optimizer writes what the next step computes with: null if that is the master itself.
  T* weights_to_update() const { return separate_ ? weights_ : nullptr; }

 private:
  bool separate_;
  std::vector<bool> gathered_;  // a unit
  Planned<float> planned_master_;
  Planned<T> planned_weights_;
  float* master_ = nullptr;
  T* weights_ = nullptr;
};
