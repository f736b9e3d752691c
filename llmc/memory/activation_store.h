// What forward leaves for backward, block by block. Every block keeps its own set on the device.
#pragma once

#include <vector>

#include "llmc/memory/plan.h"
#include "llmc/model/block.h"

template <class T>
class ActivationStore {
 public:
  // For micro-batches of up to `tokens` tokens.
  ActivationStore(MemoryPlan& plan, const LlamaConfig& config, size_t tokens);
  void bind(const Arena& arena);

  const BlockActivations<T>& get(int layer) const { return blocks_[size_t(layer)]; }

 private:
  struct PlannedBlock {
    Planned<T> x, norm1, qkv, attention, middle, norm2, gate_up, swiglu;
    Planned<float> rstd1, lse, rstd2;
  };
  std::vector<PlannedBlock> planned_;
  std::vector<BlockActivations<T>> blocks_;
};
