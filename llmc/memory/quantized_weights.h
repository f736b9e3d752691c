// The weights of blocks' products in FP8. Each has two operands: W for forward and Wᵀ for dgrad. They are kept for as
// many blocks as whole weights are kept, and are made again, all products of a block together, when the weights change.
#pragma once

#include <functional>
#include <vector>

#include "llmc/kernels/quantize_weights.h"
#include "llmc/memory/fp8_scales.h"
#include "llmc/memory/plan.h"
#include "llmc/model/parameters.h"

// The source of a block's operands: its whole unit in bf16, or its FP8 bytes in the layout of the unit.
struct BlockSource {
  const bf16* unit = nullptr;
  uint8_t* bytes = nullptr;
};

class QuantizedWeights {
 public:
  // Blocks use slots 0 .. slots-1 in turn. `gathered` returns true for a block whose bytes come from elsewhere: then
  // this object needs no memory for W, unless W is padded.
  QuantizedWeights(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config,
                   const ParameterLayout& layout, Fp8Scales& scales, int slots,
                   const std::function<bool(int layer)>& gathered);
  // `largest` (L, kProducts): the amax of each product of all blocks; null unless a tensor has one scale.
  void bind(const Arena& arena, Stream& stream, float* largest, const std::function<BlockSource(int layer)>& source);

  // Makes the operands of a block in its slot from what its source now holds. `found`: `largest` holds the amaxes,
  // also of a block whose source is in bf16. Otherwise this function computes those of such a block, and
  // `all_reduce_max` must set numbers (count) to the maximum over all ranks that share a weight.
  using AllReduceMax = std::function<void(float* numbers, size_t count)>;
  void make(Stream& stream, int layer, bool found, const AllReduceMax& all_reduce_max);
  // Returns an empty weight for a product that is not in FP8.
  QuantizedWeight get(int layer, Product product) const;

 private:
  struct Slot {
    Planned<uint8_t> planned_data[kProducts][2];  // by rows, by columns
    Planned<float> planned_factors[kProducts][2];
  };
  WeightMatrix matrix(const Arena& arena, int layer, Product product, const BlockSource& source) const;

  const Fp8Settings& settings_;
  const LlamaConfig& config_;
  const ParameterLayout& layout_;
  Fp8Scales& scales_;
  std::vector<Slot> slots_;
  // Offsets of the amaxes of the block that is being quantized: of its products, if `largest` does not keep them, of
  // their rows, and of their columns. Only amaxes from which scales follow are planned.
  size_t maxima_at_[3][kProducts] = {};
  Planned<float> planned_maxima_;
  Planned<WeightMatrix> planned_matrices_;
  std::vector<WeightMatrix> matrices_;  // those of all blocks, in order
  std::vector<int> matrix_of_;          // (L, kProducts): index into matrices_; -1: not in FP8
  WeightMatrices table_{};
  float *maxima_ = nullptr, *largest_ = nullptr;
};
