// The weights, unit by unit (the embedding, a block, the head): gather(unit) makes a unit's weights whole on the
// communication stream, get(unit) lets the compute stream wait for them, release(unit) says that compute is done with
// them. What is whole already does not move: a unit that still lies in its buffer from the last time, all units in
// stage 0, and between two updates in stages 1 and 2. The order of the three is checked all the same: a unit that is
// used without gather, or gathered again before its release, is an error.
//
// Stage 3 has a buffer for each of `blocks_at_once` blocks, in turn, and one for the embedding and the head, or one for
// each where the head is tied and both are needed at once.
//
// Weights of FP8 products are quantized by the first get_block() after they changed or were gathered; or their bytes
// are what travels (fp8_gather.h).
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
  // `scales`: of FP8 products; null: there are none.
  ParameterStore(MemoryPlan& plan, const LlamaConfig& config, const TensorLayout& layout, const Sharding& sharding,
                 const Fp8Settings& fp8, ScaleStore* scales, int blocks_at_once, Device& device, Stream& compute,
                 Stream& communication);
  void bind(const Arena& arena);

  void gather(int unit, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // The start of the embedding or the head: add an offset of the layout; and a block's weights, of which those of FP8
  // products may be missing. Valid until release(unit).
  const T* get(int unit);
  BlockWeights<T> get_block(int layer);
  // Of a block for which get_block() was called.
  QuantizedWeight quantized(int layer, Product product) const {
    return quantized_ ? quantized_->get(layer, product) : QuantizedWeight{};
  }
  void release(int unit, const char* file = __builtin_FILE(), int line = __builtin_LINE());

  // What the optimizer writes and the next step computes with: sharding.count() elements of a unit.
  T* own_weights(int unit) const;
  // Words in which an update leaves this rank's largest weights, (L, kProducts), once they are clear; none where nobody
  // asks.
  AdamWAmax largest_weights() const {
    return {finds_largest_ ? largest_ : nullptr, finds_largest_ ? planned_largest_.count : 0};
  }
  // All of them were updated, on the compute stream. `found_largest`: the words have theirs.
  void updated(bool found_largest = false);
  // The same by work that is enqueued without this object, as the last update was: nothing is gathered or quantized.
  void changed();

 private:
  // Where units are whole, and which one is there.
  struct Slot {
    T* data;
    int unit = -1;
    Event released;
  };
  int slot_of(int unit) const;
  const T* whole(int unit) const;
  void await(int unit);
  // The ranks of a tensor-parallel group compare numbers, between two pieces of compute.
  void agree(float* numbers, size_t count);
  bool travels_in_fp8(int unit) const { return fp8_gather_ && fp8_gather_->takes(layout_.units[size_t(unit)].layer); }
  void plan_slots(MemoryPlan& plan, Device& device);

  static constexpr bool kSeparate = !std::is_same_v<T, float>;
  const TensorLayout& layout_;
  const Sharding sharding_;
  const bool tied_;
  const int blocks_at_once_;
  Stream &compute_, &communication_;
  Planned<T> planned_weights_;
  std::vector<Planned<T>> planned_slots_;
  T* weights_ = nullptr;            // whole in stages 0 to 2, else this rank's parts
  std::vector<size_t> weights_at_;  // a unit: where it lies in weights_
  std::vector<Slot> slots_;
  std::vector<bool> in_use_;     // a unit: between gather and release
  std::vector<Event> gathered_;  // a unit
  std::vector<bool> awaited_;    // a unit: the compute stream has waited for it
  Event updated_, computed_, agreed_;
  bool moved_since_update_ = true;  // the communication stream has waited for the last update
  Planned<float> planned_largest_;  // where a tensor has one scale
  float* largest_ = nullptr;
  bool finds_largest_ = false, found_largest_ = false;
  bool any_in_bf16_ = false;  // a block with FP8 products travels in bf16
  std::optional<Fp8Gather> fp8_gather_;
  std::optional<QuantizedWeights> quantized_;
  std::vector<bool> quantized_now_;  // a unit: its whole weights are those that were quantized
};
