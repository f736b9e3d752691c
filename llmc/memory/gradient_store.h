// The gradients, fp32, unit by unit. Those of a unit are summed over the ranks as soon as its backward is done, on the
// communication stream, while the backward of the next unit computes.
//
// Stages 0 and 1 keep whole gradients, to which a step's micro-batches add; the last one's are summed. Stages 2 and 3
// sum each micro-batch's and keep this rank's part of the sums: a unit is whole only while its backward computes, in
// one of two buffers for blocks, and one for the head and the embedding, or one for each where the head is tied.
//
// Rounded to bf16 they take half the way between those that shard, where NCCL adds in bf16 too; micro-batches and
// replicas add in fp32.
#pragma once

#include <vector>

#include "llmc/memory/plan.h"
#include "llmc/memory/sharding.h"

class GradientStore {
 public:
  GradientStore(MemoryPlan& plan, const TensorLayout& layout, const Sharding& sharding, bool tied, DType travels_as,
                Device& device, Stream& compute, Stream& communication);
  void bind(const Arena& arena);

  // The next backward pass is the first or last of its step, or both, or neither.
  void begin_micro_step(bool first, bool last);
  // Whether matrices' gradients are added to what is there; else they are set. Norms', and the embedding's, always add.
  bool adds() const { return !sharded() && !first_; }
  // Compute begins with the unit: clears what its kernels only add to. Returns the unit's start.
  float* begin(int unit);
  // The unit's backward is enqueued: sums it over the ranks, if this is the time.
  void reduce(int unit);
  // The compute stream waits for all sums.
  void finish_step();

  // After finish_step: sums of what this rank updates, sharding.count() elements; and of its part of the unit.
  const float* to_update(int unit) const;
  const float* part(int unit) const;
  // Between steps, a buffer for a whole unit on this rank.
  float* spare(int unit) const { return whole(unit); }

 private:
  bool sharded() const { return sharding_.stage >= 2; }
  int slot_of(int unit) const;
  // Over those that shard: a whole unit into itself, or this rank's part of it set into `sums` or added to it.
  void sum_whole(float* whole, size_t size);
  void sum_part(int unit, float* sums, bool add);
  float* whole(int unit) const;

  const TensorLayout& layout_;
  const Sharding sharding_;
  const bool tied_;
  Stream &compute_, &communication_;
  Planned<float> planned_;  // whole, or this rank's parts
  std::vector<Planned<float>> planned_slots_;
  Planned<bf16> planned_rounded_;
  float* gradients_ = nullptr;
  std::vector<float*> slots_;
  bf16* rounded_ = nullptr;  // a unit on its way; null if it travels as it is
  std::vector<Event> slot_free_;
  std::vector<Event> computed_;  // a unit
  Event reduced_;
  bool first_ = true, last_ = true;
};
