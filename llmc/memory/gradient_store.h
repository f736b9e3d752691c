// The gradients, fp32, unit by unit. Those of a unit are summed over the ranks as soon as its backward is done, on the
// communication stream, while the backward of the next unit computes.
//
// Stages 0 and 1 keep whole gradients, to which a step's micro-batches add; the last one's are summed. Stages 2 and 3
// sum each micro-batch's and keep this rank's part of the sums: a unit is whole only while its backward computes, in
// one of two buffers for blocks, and one for the head and the embedding, or one for each where the head is tied.
//
// Offloaded, what is kept lies in pinned memory of the host: a unit is on the device only while its backward computes,
// in buffers as those of stages 2 and 3, and its gradients come back for the next micro-batch to add to, and for the
// update.
//
// Rounded to bf16 they take half the way between those that shard, where NCCL adds in bf16 too; micro-batches and
// replicas add in fp32.
#pragma once

#include <functional>
#include <vector>

#include "llmc/memory/host_streams.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/sharding.h"

class GradientStore {
 public:
  // `host`: null where they stay on the device.
  GradientStore(MemoryPlan& plan, const TensorLayout& layout, const Sharding& sharding, bool tied, DType travels_as,
                Device& device, Stream& compute, Stream& communication, HostStreams* host);
  void bind(const Arena& arena);
  // Is told of each unit, when a step's last sums of this rank's part of it are on the device: what it enqueues on the
  // stream finds them there.
  using Summed = std::function<void(Stream& stream, int unit, const float* part)>;
  void tell(Summed summed) { summed_ = std::move(summed); }

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

  // After finish_step: sums of what this rank updates, sharding.count() elements, on the host where they are offloaded.
  const float* to_update(int unit) const;
  // Between steps, a buffer for a whole unit on this rank.
  float* spare(int unit) const { return whole(unit); }

 private:
  bool sharded() const { return sharding_.stage >= 2; }
  int slot_of(int unit) const;
  // Over those that shard: a whole unit into itself, or this rank's part of it set into `sums` or added to it.
  void sum_whole(float* whole, size_t size);
  void sum_part(int unit, float* sums, bool add);
  // Over the ranks that have the same elements by tensor parallelism: of elements first .. first+count-1 of the unit.
  void sum_copies(int unit, float* sums, size_t first, size_t count);
  // What is there while the unit's backward computes.
  float* whole(int unit) const;
  // What lasts.
  float* kept(int unit) const;
  bool has_slots() const { return sharded() || host_; }
  bool sums_over_ranks() const { return sharding_.degree() > 1 || sharding_.replicate.size() > 1 || sharding_.tensor; }
  void clear_added(int unit);
  void reduce_whole(int unit);
  void reduce_part(int unit);
  void fetch(int unit);
  void fetch_sums(int unit);
  void send(int unit, Stream& after, float* to, const float* from, size_t count);
  int next_unit(int unit) const;

  const TensorLayout& layout_;
  const Sharding sharding_;
  const bool tied_;
  Stream &compute_, &communication_;
  HostStreams* host_;
  Summed summed_;
  Planned<float> planned_, planned_sums_;  // whole, or this rank's parts; a part of one unit on its way
  std::vector<Planned<float>> planned_slots_;
  Planned<bf16> planned_rounded_;
  float *gradients_ = nullptr, *sums_ = nullptr;
  std::vector<float*> slots_;
  bf16* rounded_ = nullptr;  // a unit on its way; null if it travels as it is
  std::vector<Event> slot_free_;
  std::vector<Event> computed_;  // a unit
  Event reduced_, sums_came_, sums_free_, summed_on_device_;
  std::vector<Event> came_;  // a slot
  int fetched_ = -1;         // the last unit that was
  bool first_ = true, last_ = true;
};
