// The gradients in fp32, unit by unit. The gradients of a unit are summed over the ranks as soon as its backward is
// done, on the reduce stream, while the backward of the next unit computes.
//
// Stages 0 and 1 keep whole gradients. The micro-batches of a step add to them, and after the last one they are summed
// over the ranks. Stages 2 and 3 sum the gradients of each micro-batch over the ranks and keep this rank's part of the
// sums. There a unit is whole only while its backward computes: in one of two slots for blocks, or in a slot for
// the head and the embedding. If the head is tied, the two have a slot each.
//
// If gradients are offloaded, the kept ones lie in pinned memory of the host. A unit is then on the device only while
// its backward computes, in slots like those of stages 2 and 3. Its gradients are copied back when the next
// micro-batch adds to them, and for the update.
//
// With `--reduce-dtype bf16`, gradients are rounded to bf16 before the reduce-scatter, which halves the bytes, and NCCL
// adds in bf16. Sums over micro-batches and replicas stay in fp32.
#pragma once

#include <functional>
#include <vector>

#include "llmc/memory/placement.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/slots.h"

class GradientStore {
 public:
  // `reduce_type`: of the gradients in the reduce-scatter, fp32 or bf16. `host`: null if gradients stay on the device.
  GradientStore(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement, DType reduce_type,
                Stream& compute, Stream& reduce_stream, HostStreams* host);
  // Called once per unit and step, when the sums of `own`, this rank's part of the unit's gradients, are final. Work
  // that the callback enqueues on `stream` sees these sums.
  using Reduced = std::function<void(Stream& stream, int unit, const Tensor& own)>;
  void on_reduced(Reduced reduced) { on_reduced_ = std::move(reduced); }

  // With `look`, reduce() calls it with the whole unit, in place of the sums, which are not made: work that it enqueues
  // on the compute stream sees this rank's own gradients of the pass. Empty: reduce() sums.
  using Look = std::function<void(int unit, const Tensor& whole)>;
  void look_at(Look look) { look_ = std::move(look); }

  // The next backward pass is the first of its step, or the last, or both, or neither.
  void begin_micro_batch(bool first, bool last);
  // True if the gradients of the unit's matrices are added to what is there; otherwise they are set. Those of norms and
  // of the embedding are always added.
  bool accumulates(int unit) const { return !placed(unit).reduces_each_micro_batch() && !first_; }
  // Call this before the unit's backward is enqueued: it clears the gradients that kernels only add to. Returns the
  // whole unit.
  Tensor begin(int unit);
  // Returns the whole unit between begin() and reduce().
  Tensor whole(int unit) const;
  // Call this after the unit's backward is enqueued. Sums the unit over the ranks: in stages 0 and 1 after the last
  // micro-batch, in stages 2 and 3 after each.
  void reduce(int unit);
  // The compute stream waits for all that was enqueued on the reduce stream: these sums, and the loss and the
  // amaxes, which are reduced there, too.
  void wait_for_sums();

  // Call this after wait_for_sums(). Returns the sums of elements that this rank updates, from the unit on, in
  // consecutive units. They are on the host if they are offloaded.
  Tensor sums_from(int unit, const Shard& elements) const { return shards_.view_from(gradients_, unit, elements); }
  // Between steps: returns a buffer for a whole unit on this rank. Its gradients are lost.
  Tensor borrow_buffer(int unit) const { return whole(unit); }

 private:
  static constexpr int kBlockSlots = 2;
  int slot_of(int unit) const { return ::slot_of(layout_, unit, kBlockSlots); }
  const UnitPlacement& placed(int unit) const { return placement_[size_t(unit)]; }
  const ShardGroup& group(int unit) const { return *placed(unit).group; }
  // True if the unit is whole only while its backward computes, in a slot.
  bool computes_in_slot(int unit) const { return placed(unit).reduces_each_micro_batch() || host_; }
  bool rounds(int unit) const { return rounded_ && group(unit).degree() > 1; }
  // sum_whole() sums a whole unit over the ranks that shard, in place. sum_part() sets `sums` to this rank's part of
  // that sum, or adds the part to `sums`.
  void sum_whole(int unit);
  void sum_part(int unit, const Tensor& sums, bool add);
  // `sums` are elements first, first + 1, … of the unit. Sums them over the tensor-parallel ranks that have the same
  // elements.
  void sum_copies(int unit, const Tensor& sums, size_t first);
  // This rank's part of the unit's buffer while its backward computes.
  Tensor part(int unit) const;
  // The memory in which the unit's gradients, or this rank's part of them, are kept.
  Tensor kept(int unit) const;
  void clear_added(int unit);
  void reduce_whole(int unit);
  void reduce_part(int unit);
  // From the host: the sums of earlier micro-batches, of the whole unit in stages 0 and 1, of this rank's part in
  // stages 2 and 3.
  void fetch_whole(int unit);
  void fetch_part(int unit);
  // To the host.
  void offload(int unit, Stream& after, const Tensor& to, const Tensor& from);

  const ParameterLayout& layout_;
  const Placement& placement_;
  const FlatShards shards_;  // in gradients_
  Stream &compute_, &reduce_stream_;
  HostStreams* host_;
  Reduced on_reduced_;
  Look look_;
  PlannedTensor gradients_;      // of all units: whole, or this rank's parts
  PlannedTensor sums_;           // sums of a part of one unit, if the gradients are on the host
  Slots slots_;                  // for whole units
  PlannedTensor rounded_;        // a unit in bf16; absent: gradients are summed in fp32
  std::vector<Event> computed_;  // one per unit
  Event reduced_, sums_loaded_, sums_free_, summed_on_device_;
  const std::vector<int> order_;  // of the units in backward
  int fetched_ = -1;              // the last unit that was copied from the host; -1: none
  bool first_ = true, last_ = true;
};
