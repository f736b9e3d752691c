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
  // For micro-batches of up to `tokens` tokens. Inputs of FP8 products are kept only as backward wants them.
  ActivationStore(MemoryPlan& plan, const LlamaConfig& config, const Fp8Settings& fp8, size_t tokens, bool backward);
  void bind(const Arena& arena);

  const BlockActivations<T>& get(int layer) const { return blocks_[size_t(layer)]; }
  // The input of a block's FP8 product by columns; empty where nothing of the kind is kept.
  OperandMemory quantized_input(int layer, Product product) const {
    return quantized_.empty() ? OperandMemory{} : quantized_[size_t(layer)].memory[int(product)];
  }

 private:
  struct PlannedBlock {
    Planned<T> x, norm1, attention, middle, norm2, gate_up, swiglu;
    Planned<float> rstd1, lse, rstd2;
  };
  struct QuantizedInputs {
    Planned<uint8_t> planned_data[kProducts];
    Planned<float> planned_factors[kProducts];
    OperandMemory memory[kProducts];
  };
  void plan_quantized(MemoryPlan& plan, const LlamaConfig& config, const Fp8Settings& fp8, int tokens);

  std::vector<PlannedBlock> planned_;
  std::vector<QuantizedInputs> quantized_;
  std::vector<Planned<T>> planned_qkv_;
  std::vector<BlockActivations<T>> blocks_;
};
