// Weights on their way between the ranks in FP8 (torchtitan's FSDP with tensorwise scales): blocks all of whose
// products are in FP8 travel as bytes, half of what bf16 takes. Each rank quantizes its part of a block with scales of
// the whole products, which the ranks agree on by one comparison: of a unit's products when it is gathered, or of all
// of a step's right after the update. Norms travel beside them in bf16.
//
// All of it runs on the communication stream.
#pragma once

#include <vector>

#include "llmc/kernels/quantize_flat.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/quantized_weights.h"
#include "llmc/memory/scale_store.h"
#include "llmc/memory/sharding.h"

class Fp8Gather {
 public:
  // Slots 0 .. slots-1, in which blocks take turns, for what was gathered.
  Fp8Gather(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config, const TensorLayout& layout,
            const Sharding& sharding, ScaleStore& scales, int slots, Stream& communication);
  void bind(const Arena& arena);

  static bool takes(const Fp8Settings& settings, const Sharding& sharding, int layer) {
    return settings.all_gather && settings.has_one_scale() && sharding.stage > 0 && layer >= 0 &&
           settings.quantizes_block(layer);
  }
  bool takes(int layer) const { return takes(settings_, sharding_, layer); }

  // The weights changed. `own` of a unit: this rank's part of it in bf16.
  template <class Own>
  void updated(const Own& own);
  void gather(int layer, const bf16* own);
  // Of a block that was gathered: W and Wᵀ of its products; its norms.
  void arrange(Stream& stream, int layer, QuantizedWeights& weights) const;
  const bf16* norm1(int layer) const { return slot(layer).norms; }
  const bf16* norm2(int layer) const { return slot(layer).norms + norm_stride_; }

 private:
  struct Slot {
    Planned<uint8_t> planned_bytes;
    Planned<bf16> planned_norms;
    uint8_t* bytes = nullptr;
    bf16* norms = nullptr;
  };
  const Slot& slot(int layer) const { return slots_[size_t(layer) % slots_.size()]; }
  uint8_t* own_bytes(int layer) const;
  SharedScale shared(int layer, Product product) const;
  void find_amax(int layer, const bf16* own);
  void compare(float* amax, size_t count);
  void quantize(int layer, const bf16* own);
  void gather_norms(int layer, const bf16* own);
  // Pieces of the block's norms in a rank's part of it, one behind the other where they are packed.
  template <class F>
  void for_norm_pieces(int layer, int rank, F&& f) const;

  const Fp8Settings& settings_;
  const LlamaConfig& config_;
  const TensorLayout& layout_;
  const Sharding sharding_;
  ScaleStore& scales_;
  Stream& communication_;
  const size_t norm_stride_;
  size_t packed_norms_ = 0;  // elements of a rank's norms, as many as any rank has
  std::vector<Slot> slots_;
  Planned<uint8_t> planned_own_;  // stage 3: of all blocks; else a rank's part of the slot
  Planned<float> planned_amax_;
  Planned<bf16> planned_packed_;
  uint8_t* own_ = nullptr;
  float* amax_ = nullptr;  // (L, kProducts)
  bf16* packed_ = nullptr;
  std::vector<bool> quantized_;  // a block: its part is that of the last update
};

template <class Own>
void Fp8Gather::updated(const Own& own) {
  quantized_.assign(quantized_.size(), false);
  if (!settings_.precompute_scales) return;
  clear(communication_, amax_, size_t(config_.L * kProducts));
  const bool known = scales_.weight_words().scale != nullptr;
  for (int layer = 0; layer < config_.L && !known; ++layer)
    if (takes(layer)) find_amax(layer, own(layer));
  if (!known) compare(amax_, size_t(config_.L * kProducts));
  for (int layer = 0; layer < config_.L; ++layer)
    if (takes(layer)) quantize(layer, own(layer));
}
