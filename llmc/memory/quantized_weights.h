// The weights of blocks' products in FP8. Each has two operands: W for forward and Wᵀ for dgrad. They are kept for as
// many blocks as whole weights are kept, and are made again, all products of a block together, when the weights change.
#pragma once

#include <functional>
#include <vector>

#include "llmc/config/parameters.h"
#include "llmc/kernels/quantize_weights.h"
#include "llmc/memory/fp8_scales.h"
#include "llmc/memory/plan.h"

class QuantizedWeights {
 public:
  // Blocks use slots 0 .. slots-1 in turn. `gathered` returns true for a block whose bytes come from elsewhere: then
  // this object needs no memory for W, unless W is padded.
  QuantizedWeights(MemoryPlan& plan, const Fp8Settings& settings, const ModelConfig& config,
                   const ParameterLayout& layout, Fp8Scales& scales, int slots,
                   const std::function<bool(int layer)>& gathered);
  // Call this once the plan has memory: it makes the tables. `weight_amax` (products): the amax of each product of
  // all blocks; absent unless a tensor has one scale. `source` returns the memory in which a block is found:
  // its whole unit in bf16, or its FP8 bytes (uint8) in the layout of the unit.
  void prepare(Stream& stream, const Tensor& weight_amax, const std::function<Tensor(int layer)>& source);

  // Makes the operands of a block in its slot from what its source now holds. `amax_ready`: `weight_amax` holds the
  // amaxes, also of a block whose source is in bf16. Otherwise this function computes those of such a block, and
  // `all_reduce_max` must set numbers to the maximum over all ranks that share a weight.
  using AllReduceMax = std::function<void(const Tensor& numbers)>;
  void make(Stream& stream, int layer, bool amax_ready, const AllReduceMax& all_reduce_max);
  // Returns an empty weight for a product that is not in FP8.
  QuantizedWeight get(const LayerProjection& p) const;

 private:
  struct Slot {
    PlannedTensor data[kProjectionCount][2], scale_inv[kProjectionCount][2];  // by rows, by columns
  };
  WeightMatrix matrix(const LayerProjection& p, const Tensor& source) const;

  const Fp8Settings& settings_;
  const ParameterLayout& layout_;
  Fp8Scales& scales_;
  std::vector<Slot> slots_;
  // Offsets of the amaxes of the block that is being quantized: of its products, if `weight_amax` does not keep them,
  // of their rows, and of their columns. Only amaxes from which scales follow are planned.
  size_t maxima_at_[3][kProjectionCount] = {};
  PlannedTensor maxima_;
  PlannedArray<WeightMatrix> matrices_on_device_;
  std::vector<WeightMatrix> matrices_;  // those of all blocks, in order
  std::vector<int> matrix_of_;          // (products): index into matrices_; -1: not in FP8
  WeightMatrices table_{};
  Tensor weight_amax_;
};
