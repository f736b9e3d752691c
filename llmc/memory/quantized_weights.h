// The weights of blocks' products in FP8: of each the operand of forward, W, and of dgrad, Wᵀ, for as many blocks as
// their whole weights are kept of. Made anew when the weights are, those of a block together.
#pragma once

#include <functional>
#include <vector>

#include "llmc/kernels/quantize_weights.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/scale_store.h"
#include "llmc/model/tensors.h"

// What a block's operands are made of: its whole unit in bf16, or its bytes, laid out as the unit.
struct BlockSource {
  const bf16* unit = nullptr;
  uint8_t* bytes = nullptr;
};

class QuantizedWeights {
 public:
  // Slots 0 .. slots-1, in which blocks take turns.
  // `gathered` says of a block whether its bytes come from elsewhere: then W need not be here, unless it is padded.
  QuantizedWeights(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config, const TensorLayout& layout,
                   ScaleStore& scales, int slots, const std::function<bool(int layer)>& gathered);
  // `largest`: of each product of all blocks, (L, kProducts), where a tensor has one scale.
  void bind(const Arena& arena, Stream& stream, float* largest, const std::function<BlockSource(int layer)>& source);

  // The products of a block into its slot, from what its source now is. `found`: the largest numbers are there, also of
  // what has no bytes; else they are looked for, and `agree` makes (numbers, count) the largest of all ranks that share
  // a weight out.
  using Agree = std::function<void(float* numbers, size_t count)>;
  void make(Stream& stream, int layer, bool found, const Agree& agree);
  // Empty for a product that is not in FP8.
  QuantizedWeight get(int layer, Product product) const;

 private:
  struct Slot {
    Planned<uint8_t> planned_data[kProducts][2];  // by rows, by columns
    Planned<float> planned_factors[kProducts][2];
  };
  WeightMatrix matrix(const Arena& arena, int layer, Product product, const BlockSource& source) const;

  const Fp8Settings& settings_;
  const LlamaConfig& config_;
  const TensorLayout& layout_;
  ScaleStore& scales_;
  std::vector<Slot> slots_;
  // Largest numbers of the block that is quantized: of products, if they are not kept, and of their rows and columns,
  // as far as scales follow from them.
  size_t maxima_at_[3][kProducts] = {};
  Planned<float> planned_maxima_;
  Planned<WeightMatrix> planned_matrices_;
  std::vector<WeightMatrix> matrices_;  // block by block
  std::vector<int> matrix_of_;          // (L, kProducts); -1: not in FP8
  WeightMatrices table_{};
  float *maxima_ = nullptr, *largest_ = nullptr;
};
