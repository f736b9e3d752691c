// The weights of products in FP8. Each has two operands: W for forward and Wᵀ for dgrad. They are kept for as many
// blocks as whole weights are kept, and are made again, all those of a block together, when the weights change. On use
// (weights_on_use) all blocks share the place of one, and each makes its operands anew in forward and in backward.
//
// A block that is whole in bf16 is quantized on the compute stream. A block whose projections are all in FP8 may be
// gathered as bytes instead (torchtitan's FSDP with tensorwise scales), half of what bf16 takes. Each rank quantizes
// its part of such a block with the scales of the whole matrices. The ranks agree on these by one all-reduce of the
// amaxes: for a block when it is gathered or, with --fp8-precompute-scales, for all blocks right after the update, in
// one launch. The other weights of these blocks, such as norms, are gathered separately, those of all blocks at once.
// All this runs on the gather stream. Compute then makes the operands from the gathered bytes: W is the bytes
// themselves, unless it is padded, and Wᵀ is transposed from them.
//
// If the weights lie on the host, such a block comes as bytes, too. After an update its first gather() copies the bf16
// weights to the device, chunk by chunk, quantizes them there, and copies the bytes back; the gathers after it copy the
// bytes alone.
//
// Memory traffic of such a block after an update, for each parameter of this rank's part: quantization reads 2 bytes
// and writes 1. Finding the amax reads 2 more; AdamW saves this pass by writing the amax itself, and a delayed scale
// needs none. The transpose of a gathered parameter reads 1 byte and writes 1.
#pragma once

#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "llmc/config/parameters.h"
#include "llmc/kernels/quantize_weights.h"
#include "llmc/memory/fp8_scales.h"
#include "llmc/memory/fp8_scratch.h"
#include "llmc/memory/placement.h"
#include "llmc/memory/plan.h"

struct QuantizedWeight {
  QuantizedTensor rowwise, columnwise;  // W (OC, IC), Wᵀ (IC, OC)
};

class Fp8Weights {
 public:
  // Blocks use slots 0 .. slots-1 in turn; 0: each block has a slot of its own, and stays there. `chunk`: elements of
  // weights on the host that are quantized at once, a multiple of 128.
  Fp8Weights(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement, Fp8Scales& scales, int slots,
             size_t chunk, Stream& compute, Stream& gather_stream);
  // Call this once the plan has memory: it makes the tables. `weights` returns a block in bf16: this rank's part if the
  // block is gathered as bytes, else all of it.
  void prepare(const std::function<Tensor(int layer)>& weights);

  // Returns the memory (products of all blocks) for the amaxes of the weights that this rank updates:
  // global_norm_finish() clears it and adamw() raises it. Absent if the amaxes are not needed.
  Tensor weight_amax() const { return settings_.amax_from_update() ? *weight_amax_ : Tensor(); }
  // Call this after the weights were updated on the compute stream. `amax_ready`: their amaxes are in weight_amax().
  // If gather_stream_reads_update(), the gather stream must wait for the update first.
  void updated(bool amax_ready);
  bool gather_stream_reads_update(bool amax_ready) const;
  // Call this after a CUDA graph has updated the weights and repeated what updated() enqueued last. It enqueues
  // nothing.
  void changed();

  // Gathers a block as bytes.
  void gather(int layer);
  // Returns the weights that are not quantized of a block that was gathered as bytes: (n, widest), a row
  // for each, as UnitTensors takes them.
  Tensor unquantized(int layer) const { return unquantized_->at(layer); }
  // Makes the operands of a block from its weights or from the gathered bytes, for which compute must have waited. If
  // blocks share the place for their operands, it is then this block's.
  void make_operands(int layer);
  bool shares_place(int layer) const { return operand_slot(layer) == 0; }
  // Returns an empty weight for a product that is not in FP8.
  QuantizedWeight get(const LayerProjection& p) const;

 private:
  // Entries of all blocks, in order.
  template <class Entry>
  struct Table {
    std::vector<Entry> entries;
    std::vector<int> first;  // of each block, and the end
    PlannedArray<Entry> on_device;

    void begin_block() { first.push_back(int(entries.size())); }
    void plan(MemoryPlan& plan, const char* name, size_t count) {
      if (count) on_device = plan.add_array<Entry>(Segment::device, "FP8 weights", name, count);
    }
    void send(Stream& stream) const {
      if (!entries.empty()) copy(stream, on_device.get(), entries.data(), entries.size());
    }
    DeviceTable<Entry> blocks(int layer, int count) const {
      const int begin = first[size_t(layer)];
      return {entries.data() + begin, on_device + begin, first[size_t(layer + count)] - begin};
    }
  };
  // The place in its block at which a matrix begins, and the elements of the block that this rank's part has of it.
  struct MatrixLocation {
    const LayerProjection* projection;
    size_t first;
    Shard own;
  };
  // An operand of the blocks that use a slot: memory for the largest one. If
  // most_bytes is 0, the operand is the gathered bytes themselves.
  struct SlotOperand : PlannedOperand {
    size_t most_bytes = 0, most_scale_inv = 0;
  };

  const UnitPlacement& placed(int layer) const { return placement_[size_t(layout_.block_unit(layer))]; }
  // Calls f(first, count, placement) for each longest run of consecutive blocks that have the same ranks.
  template <class F>
  void for_groups(int first, int count, F&& f) const {
    for (int layer = first, end; layer < first + count; layer = end) {
      for (end = layer + 1; end < first + count && placed(end).group == placed(layer).group;) ++end;
      f(layer, end - layer, placed(layer));
    }
  }
  // Blocks whose weights are whole have operands of their own, unless they are made on use. The others share one place,
  // because compute makes the operands where it uses them.
  int operand_slot(int layer) const {
    return settings_.weights_on_use || (in_turn_ && placed(layer).needs_slot()) ? 0 : 1 + layer;
  }
  // The scales of all blocks are agreed on, and their bytes made, right after an update.
  bool precomputes() const { return settings_.precompute_scales && !on_host_; }
  Tensor gathered(int layer) const;
  Tensor own_bytes(int layer) const;
  Tensor amax_of(int first, int count) const;
  size_t amax_count(const WeightMatrix& m) const;

  void add_matrix(const LayerProjection& p);
  void plan_operands(MemoryPlan& plan);
  void plan_gathers(MemoryPlan& plan);
  void fill(WeightMatrix& m, const MatrixLocation& at, const Tensor& weights);
  void fill_unquantized(int layer, const Tensor& own);

  void all_reduce_max_over_tensor_ranks(const UnitPlacement& p, const Tensor& amax);
  template <class F>
  void for_slices(const WeightSlices& slices, F&& f);
  void quantize_own(int first, int count);
  void gather_unquantized();

  const Fp8Settings& settings_;
  const ParameterLayout& layout_;
  const Placement& placement_;
  Fp8Scales& scales_;
  const int layers_, slots_;
  const bool in_turn_, on_host_;
  const size_t chunk_;
  Stream &compute_, &gather_stream_;

  Table<WeightMatrix> matrices_;           // all that are quantized
  std::vector<MatrixLocation> locations_;  // one for each of them
  // By slot, projection, and whether the operand is columnwise.
  std::map<std::tuple<int, Projection, bool>, SlotOperand> operands_;
  PlannedTensor weight_amax_;  // (products of all blocks), if a tensor has one scale
  // Amaxes of one block, used by all blocks in turn. For each projection, from block_amax_at_ on: one of the matrix
  // (unless weight_amax_ has it), one for each row, and one for each column, as far as the scales need them.
  PlannedTensor block_amax_;
  size_t block_amax_at_[kProjectionCount] = {};
  Event computed_, agreed_;
  bool amax_ready_ = false;  // weight_amax_ holds the amaxes of the weights as they are now
  bool any_whole_ = false;   // a matrix belongs to a block that is not gathered as bytes

  // These serve blocks that are gathered as bytes.
  PlannedTensor bytes_;                 // (slots, largest unit)
  PlannedTensor own_;                   // stage 3, and on the host: (L, largest part); else the parts lie in bytes_
  PlannedTensor unquantized_;           // (L, most of a block, widest)
  PlannedTensor unquantized_sums_;      // the same in fp32: each rank sets its elements, and the ranks sum them
  Table<WeightSlice> slices_;           // this rank's parts of matrices
  Table<RowRange> unquantized_slices_;  // this rank's parts of unquantized_, a row each
  // These serve weights on the host: a chunk (chunk) and where each entry of slices_ comes from; this rank's parts of
  // unquantized_ (L, most of a block, widest) and where these come from.
  PlannedTensor staged_, staged_unquantized_;
  std::vector<const bf16*> slice_sources_;
  std::vector<std::pair<Tensor, Tensor>> unquantized_sources_;
  std::vector<bool> quantized_;  // for each block: its part has been quantized since the last update
  bool unquantized_gathered_ = false;
};
