// The weights, unit by unit (the embedding, a block, the head). gather(unit) makes a unit's weights whole on the
// communication stream. get(unit) lets the compute stream wait for them. release(unit) says that compute is done with
// them. Weights that are whole already are not gathered again: a unit that still lies in its buffer from the last time,
// all units in stage 0, and units in stages 1 and 2 between two updates. The order of the three calls is checked all
// the same: it is an error to use a unit that was not gathered, or to gather it again before its release.
//
// Stage 3 has `blocks_at_once` buffers for blocks, which they use in turn, and one buffer for the embedding and the
// head. If the head is tied, both are needed at once and have a buffer each.
//
// The weights of FP8 products are quantized by the first get_block() after they were changed or gathered, or
// they are gathered as FP8 bytes (fp8_gather.h).
#pragma once

#include <optional>
#include <vector>

#include "llmc/kernels/adamw.h"
#include "llmc/memory/fp8_gather.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/quantized_weights.h"
#include "llmc/memory/sharding.h"
#include "llmc/model/block.h"

template <class T>
class ParameterStore {
 public:
  // `scales`: for FP8 products; null: there are none.
  ParameterStore(MemoryPlan& plan, const LlamaConfig& config, const ParameterLayout& layout, const Sharding& sharding,
                 const Fp8Settings& fp8, Fp8Scales* scales, int blocks_at_once, Device& device, Stream& compute,
                 Stream& communication);
  void bind(const Arena& arena);

  void gather(int unit, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // get() returns the start of the embedding or the head, to which the caller adds an offset of the layout. get_block()
  // returns a block's weights; those of FP8 products may be null. Both are valid until release(unit).
  const T* get(int unit);
  BlockWeights<T> get_block(int layer);
  // get_block(layer) must have been called before.
  QuantizedWeight quantized(int layer, Product product) const {
    return quantized_ ? quantized_->get(layer, product) : QuantizedWeight{};
  }
  void release(int unit, const char* file = __builtin_FILE(), int line = __builtin_LINE());

  // Returns the weights of a unit that the optimizer writes and the next step uses: sharding.count() elements.
  T* local_shard(int unit) const;
  // Returns the memory (L, kProducts) in which an update leaves the amaxes of this rank's weights. The caller clears it
  // first. Empty if the amaxes are not needed.
  AdamWAmax largest_weights() const {
    return {finds_largest_ ? largest_ : nullptr, finds_largest_ ? planned_largest_.count : 0};
  }
  // Call this after all weights were updated on the compute stream. `found_largest`: largest_weights() holds their
  // amaxes.
  void updated(bool found_largest = false);
  // Call this after a CUDA graph has updated the weights. It marks all gathered and quantized copies as out of date,
  // and enqueues nothing.
  void changed();

 private:
  // A buffer for a whole unit, and the unit that is in it.
  struct Slot {
    T* data;
    int unit = -1;
    Event released;
  };
  int slot_of(int unit) const;
  const T* whole(int unit) const;
  void await(int unit);
  // numbers (count) = the maximum over the ranks of a tensor-parallel group. Compute waits for it.
  void all_reduce_max(float* numbers, size_t count);
  bool travels_in_fp8(int unit) const { return fp8_gather_ && fp8_gather_->takes(layout_.units[size_t(unit)].layer); }
  void plan_slots(MemoryPlan& plan, Device& device);

  static constexpr bool kSeparate = !std::is_same_v<T, float>;
  const ParameterLayout& layout_;
  const Sharding sharding_;
  const bool tied_;
  const int blocks_at_once_;
  Stream &compute_, &communication_;
  Planned<T> planned_weights_;
  std::vector<Planned<T>> planned_slots_;
  T* weights_ = nullptr;            // whole units in stages 0 to 2, unless they travel in FP8; else parts
  std::vector<size_t> weights_at_;  // for each unit: where it lies in weights_
  std::vector<Slot> slots_;
  std::vector<bool> in_use_;     // for each unit: gathered and not released yet
  std::vector<Event> gathered_;  // one per unit
  std::vector<bool> awaited_;    // for each unit: the compute stream has waited for it
  Event updated_, computed_, agreed_;
  bool moved_since_update_ = true;  // the communication stream has waited for the last update
  Planned<float> planned_largest_;  // set if a tensor has one scale
  float* largest_ = nullptr;
  bool finds_largest_ = false, found_largest_ = false;
  bool any_in_bf16_ = false;  // a block with FP8 products travels in bf16
  std::optional<Fp8Gather> fp8_gather_;
  std::optional<QuantizedWeights> quantized_;
  std::vector<bool> quantized_now_;  // for each unit: its whole weights are the ones that were quantized
};
