// Buffers that FP8 products use one after the other, on the compute stream: operands, the amaxes of rows and columns,
// outputs with their padding.
#pragma once

#include "llmc/memory/plan.h"
#include "llmc/model/projection.h"
#include "llmc/model/tensor_parallel.h"

class Fp8Scratch {
 public:
  // For passes of up to `tokens` tokens. `tensor`: the ranks that share products; null: there are none.
  Fp8Scratch(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config, int tokens, bool backward,
             const TensorParallel* tensor);
  void bind(const Arena& arena);
  // Sets the pointers to scratch in a block's FP8 state.
  void give(BlockFp8& block) const;

 private:
  Planned<uint8_t> planned_by_rows_, planned_by_columns_, planned_input_;
  Planned<float> planned_row_factors_, planned_column_factors_, planned_input_factors_, planned_row_amax_,
      planned_column_amax_;
  Planned<float> planned_padded_;  // for fp32 or bf16
  OperandMemory by_rows_, by_columns_, input_;
  Tensor row_amax_, column_amax_;
  std::byte* padded_ = nullptr;
};
