// Weights on their way between the ranks in FP8 (torchtitan's FSDP with tensorwise scales): blocks all of whose
// products are in FP8 travel as bytes, half of what bf16 takes. Each rank quantizes its part of a block with scales of
// the whole products, which the ranks agree on by one comparison: of a unit's products when it is gathered, or of all
// of a step's right after the update, in one launch. Norms travel beside them, those of all blocks at once.
//
// Bytes that a rank reads and writes after an update for each parameter of its part: 3 to quantize; and 2 before that
// to find the largest numbers, where the update has not left them (ParameterStore) and no scale is known beforehand. A
// gathered parameter costs 2 more, for the transpose.
//
// All of it runs on the communication stream.
#pragma once

#include <functional>
#include <vector>

#include "llmc/kernels/quantize_weights.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/quantized_weights.h"
#include "llmc/memory/scale_store.h"
#include "llmc/memory/sharding.h"

class Fp8Gather {
 public:
  // Slots 0 .. slots-1, in which blocks take turns, for what was gathered.
  Fp8Gather(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config, const TensorLayout& layout,
            const Sharding& sharding, ScaleStore& scales, int slots, Stream& communication);
  // `largest`, symmetric: of each product of all blocks, (L, kProducts). `own` of a block: this rank's part of it in
  // bf16.
  void bind(const Arena& arena, float* largest, const std::function<const bf16*(int layer)>& own);

  static bool takes(const Fp8Settings& settings, const Sharding& sharding, int layer) {
    return settings.all_gather && settings.has_one_scale() && sharding.stage > 0 && layer >= 0 &&
           settings.quantizes_block(layer);
  }
  bool takes(int layer) const { return takes(settings_, sharding_, layer); }

  // The weights changed. `found`: the largest numbers of this rank's parts are there.
  void updated(bool found);
  // The same by work that is enqueued without this object: what the last update enqueued was done again.
  void changed();
  void gather(int layer);
  // Of a block that was gathered: what QuantizedWeights takes; its norms.
  BlockSource gathered(int layer) const { return {nullptr, bytes(layer)}; }
  const bf16* norm1(int layer) const { return norms_ + size_t(2 * layer) * norm_stride_; }
  const bf16* norm2(int layer) const { return norm1(layer) + norm_stride_; }

 private:
  uint8_t* bytes(int layer) const { return bytes_ + size_t(layer % slots_) * block_size_; }
  uint8_t* own_bytes(int layer) const;
  // Of blocks first .. first+count-1.
  WeightStretches stretches(int first, int count) const;
  void find_scales(int first, int count);
  void quantize(int first, int count);
  void gather_norms();
  // Calls f with the stretches of products in this rank's part of a block, where they begin there and how long they
  // are.
  template <class F>
  void for_product_stretches(int layer, F&& f) const;

  const Fp8Settings& settings_;
  const LlamaConfig& config_;
  const TensorLayout& layout_;
  const Sharding sharding_;
  ScaleStore& scales_;
  Stream& communication_;
  const int slots_;
  const size_t block_size_, part_size_, norm_stride_;
  Planned<uint8_t> planned_bytes_, planned_own_;
  Planned<float> planned_spread_;
  Planned<bf16> planned_norms_;
  Planned<WeightStretch> planned_stretches_;
  Planned<RowStretch> planned_rows_;
  uint8_t *bytes_ = nullptr, *own_ = nullptr;     // own: stage 3, of all blocks; else a rank's part lies in `bytes`
  float *largest_ = nullptr, *spread_ = nullptr;  // spread: as norms, this rank's alone until the ranks sum them
  bf16* norms_ = nullptr;                         // (L, 2, norm_stride)
  std::vector<WeightStretch> stretches_;          // block by block
  std::vector<int> first_stretch_;                // a block, and the end
  std::vector<RowStretch> rows_;                  // (L, 2)
  WeightStretches table_{};
  TablePart<RowStretch> row_table_{};
  std::vector<bool> quantized_;  // a block: its part is that of the last update
  bool norms_gathered_ = false, found_ = false;
};
