// All-gathers of weights in FP8 (torchtitan's FSDP with tensorwise scales). A block is gathered as bytes, half of
// what bf16 takes, if all of its projections are in FP8. Each rank quantizes its part of a block with the scales of the
// whole matrices. The ranks agree on these by one all-reduce of the amaxes: for a block when it is gathered, or for all
// blocks of a step right after the update, in one launch. The other weights, such as norms, are gathered separately,
// those of all blocks at once.
//
// Memory traffic after an update, for each parameter of this rank's part: quantization reads 2 bytes and writes 1.
// Finding the amax reads 2 more; AdamW saves this pass by writing the amax itself, and a delayed scale needs none. The
// transpose of a gathered parameter reads 1 byte and writes 1.
//
// All work of this class runs on the gather stream.
#pragma once

#include <functional>
#include <vector>

#include "llmc/kernels/quantize_weights.h"
#include "llmc/memory/fp8_scales.h"
#include "llmc/memory/placement.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/quantized_weights.h"

class Fp8Gather {
 public:
  // Gathered blocks use slots 0 .. slots-1 in turn.
  Fp8Gather(MemoryPlan& plan, const Fp8Settings& settings, const ModelConfig& config, const ParameterLayout& layout,
            const Placement& placement, Fp8Scales& scales, int slots, Stream& gather_stream);
  // Call this once the plan has memory: it makes the tables. `weight_amax` (products), in symmetric memory, holds the
  // amax of each product of all blocks. `own` returns this rank's part of a block in bf16.
  void prepare(const Tensor& weight_amax, const std::function<Tensor(int layer)>& own);

  // Call this after the weights have changed. `amax_ready`: the amaxes of this rank's parts are in `weight_amax`.
  void updated(bool amax_ready);
  // Call this after a CUDA graph has updated the weights and repeated what updated() enqueued last. It enqueues
  // nothing.
  void changed();
  void gather(int layer);
  // For a block that was gathered: its FP8 bytes, and its weights that are not in FP8 (vectors, widest).
  Tensor gathered(int layer) const { return bytes_->at(layer % slots_); }
  Tensor vectors(int layer) const { return vectors_->at(layer); }

 private:
  const UnitPlacement& placed(int layer) const { return placement_[size_t(layout_.block_unit(layer))]; }
  Tensor own_bytes(int layer) const;
  // Returns the ranges of blocks first .. first+count-1.
  WeightSlices slices(int first, int count) const;
  void find_scales(int first, int count);
  void quantize(int first, int count);
  void gather_vectors();
  // Calls f(projection, begin, count) for each projection with elements in this rank's part of a block: they are
  // elements begin .. begin+count-1 of the part.
  template <class F>
  void for_projection_slices(int layer, F&& f) const;

  const Fp8Settings& settings_;
  const ModelConfig& config_;
  const ParameterLayout& layout_;
  const Placement& placement_;
  Fp8Scales& scales_;
  Stream& gather_stream_;
  const int slots_;
  const size_t part_size_;
  PlannedTensor bytes_, own_;  // (slots, unit); own: stage 3, (L, part) of all blocks; else parts lie in `bytes`
  PlannedTensor spread_;       // vectors with this rank's elements, as fp32; the ranks sum them
  PlannedTensor vectors_;      // (L, vectors of a block, widest)
  Tensor weight_amax_;
  PlannedArray<WeightSlice> stretches_on_device_;
  PlannedArray<RowRange> rows_on_device_;
  std::vector<WeightSlice> stretches_;  // those of all blocks, in order
  std::vector<int> first_stretch_;      // index of each block's first one, and the end
  std::vector<RowRange> rows_;          // one for each vector of each block
  WeightSlices table_{};
  DeviceTable<RowRange> row_table_{};
  std::vector<bool> quantized_;  // for each block: its part has been quantized since the last update
  bool vectors_gathered_ = false, amax_ready_ = false;
};
