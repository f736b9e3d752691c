// Buffers that FP8 products use one after the other, on the compute stream: operands, the amaxes of rows and columns,
// outputs with their padding.
#pragma once

#include "llmc/memory/plan.h"
#include "llmc/model/linear.h"

class Fp8Scratch {
 public:
  // For passes of up to `tokens` tokens. `tensor`: the ranks that share products; null: there are none.
  Fp8Scratch(MemoryPlan& plan, const Fp8Settings& settings, const LayerProjections& projections, int tokens,
             bool backward, const TensorParallel* tensor);
  // Sets the scratch of a pass.
  void give(Fp8Pass& pass) const;

 private:
  // Bytes and scale_inv of an operand.
  struct Operand {
    PlannedTensor data, scale_inv;
    OperandMemory memory() const { return {data->as<uint8_t>(), scale_inv->as<float>()}; }
  };
  Operand by_rows_, by_columns_, input_;
  PlannedTensor row_amax_, column_amax_;
  PlannedTensor padded_;  // for fp32 or bf16
};
