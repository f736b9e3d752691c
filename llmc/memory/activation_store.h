// What forward leaves for backward, block by block. Every block keeps its own set on the device; without a backward
// pass two sets take turns, since a block reads what the one before it left. Only qkv is each block's own always: the
// keys and values there are the cache from which a sequence is continued.
#pragma once

#include <vector>

#include "llmc/memory/plan.h"
#include "llmc/model/block.h"

template <class T>
class ActivationStore {
 public:
  // For micro-batches of up to `tokens` tokens.
  ActivationStore(MemoryPlan& plan, const LlamaConfig& config, size_t tokens, bool backward);
  void bind(const Arena& arena);

  const BlockActivations<T>& get(int layer) const { return blocks_[size_t(layer)]; }

 private:
  struct PlannedBlock {
    Planned<T> x, norm1, attention, middle, norm2, gate_up, swiglu;
    Planned<float> rstd1, lse, rstd2;
  };
  std::vector<PlannedBlock> planned_;
  std::vector<Planned<T>> planned_qkv_;
  std::vector<BlockActivations<T>> blocks_;
};
