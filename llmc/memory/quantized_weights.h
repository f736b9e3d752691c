// The weights of blocks' products in FP8: of each the operand of forward, W, and of dgrad, Wᵀ, for as many blocks as
// their whole weights are kept of. Made anew when the weights are.
#pragma once

#include <functional>
#include <vector>

#include "llmc/kernels/quantize_flat.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/scale_store.h"
#include "llmc/model/tensors.h"

class QuantizedWeights {
 public:
  // Slots 0 .. slots-1, in which blocks take turns.
  // `gathered` says of a block whether its bytes come from elsewhere: then W need not be here, unless it is padded.
  QuantizedWeights(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config, const TensorLayout& layout,
                   ScaleStore& scales, int slots, const std::function<bool(int layer)>& gathered);
  void bind(const Arena& arena);

  // The products of a block, whose whole unit begins at `unit`, into its slot.
  void quantize(Stream& stream, int layer, const bf16* unit);
  // A product of a block from its bytes (OC, IC), which stay where they are.
  void take(Stream& stream, int layer, Product product, uint8_t* bytes, const SharedScale& shared);
  // Empty for a product that is not in FP8.
  QuantizedWeight get(int layer, Product product) const;

 private:
  struct Slot {
    Planned<uint8_t> planned_data[kProducts][2];
    Planned<float> planned_factors[kProducts][2];
    OperandMemory memory[kProducts][2];  // by rows, by columns
  };
  Quantization quantization(int layer, Product product) const;

  const Fp8Settings& settings_;
  const LlamaConfig& config_;
  const TensorLayout& layout_;
  ScaleStore& scales_;
  std::vector<Slot> slots_;
  Planned<float> planned_amax_, planned_row_amax_, planned_column_amax_;
  float *amax_ = nullptr, *row_amax_ = nullptr, *column_amax_ = nullptr;
};
