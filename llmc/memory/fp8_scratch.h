// Buffers that FP8 products use one after the other, on the compute stream: operands, the amaxes of rows and columns,
// outputs with their padding.
#pragma once

#include <cstddef>
#include <optional>

#include "llmc/config/fp8.h"
#include "llmc/memory/plan.h"

// Memory for an FP8 operand, large enough for the largest operand that uses it.
struct OperandMemory {
  uint8_t* data = nullptr;
  float* scale_inv = nullptr;
};
struct PlannedOperand {
  PlannedTensor data, scale_inv;
  OperandMemory memory() const { return {data->as<uint8_t>(), scale_inv->as<float>()}; }
};

// The buffers of a pass.
struct Fp8ScratchTensors {
  OperandMemory rowwise, columnwise;
  OperandMemory input_columnwise;  // the input of a weight gradient, if forward did not save it columnwise
  Tensor row_amax, column_amax;    // absent unless rows have scales
  std::byte* padded;               // of fp8_matmul()
};

class Fp8Scratch {
 public:
  // For passes of up to `tokens` tokens. `partial_sums`: the type of the sums that tensor-parallel ranks add; none:
  // there are no such ranks.
  Fp8Scratch(MemoryPlan& plan, const Fp8Settings& settings, const LayerProjections& projections, int tokens,
             bool backward, std::optional<DType> partial_sums);
  Fp8ScratchTensors tensors() const;

 private:
  PlannedOperand rowwise_, columnwise_, input_;
  PlannedTensor row_amax_, column_amax_;
  PlannedTensor padded_;  // for fp32 or bf16
};
