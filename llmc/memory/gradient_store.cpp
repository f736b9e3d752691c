#include "llmc/memory/gradient_store.h"

#include <algorithm>

#include "llmc/kernels/accumulate.h"
#include "llmc/kernels/initialize.h"

GradientStore::GradientStore(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement,
                             DType reduce_type, Stream& compute, Stream& reduce_stream, HostStreams* host)
    : layout_(layout),
      placement_(placement),
      shards_(placement, &UnitPlacement::gradients),
      compute_(compute),
      reduce_stream_(reduce_stream),
      host_(host),
      gradients_(plan.add(host ? Segment::pinned : Segment::symmetric, "gradients",
                          placement.front().reduces_each_micro_batch() ? "gradients, a part" : "gradients", DType::fp32,
                          {shards_.size()})),
      reduced_(compute.device()),
      sums_loaded_(compute.device()),
      sums_free_(compute.device()),
      summed_on_device_(compute.device()),
      order_(backward_order(layout)) {
  Device& device = compute.device();
  size_t rounded = 0, sums = 0;  // elements of the largest unit that needs them
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    const UnitPlacement& p = placed(unit);
    computed_.emplace_back(device);
    if (reduce_type == DType::bf16 && p.group->degree() > 1) rounded = std::max(rounded, p.whole.count);
    if (host && p.reduces_each_micro_batch()) sums = std::max(sums, p.own.count);
  }
  if (rounded)
    rounded_ = plan.add(Segment::symmetric, "gradient slots", "gradients of a unit, rounded", DType::bf16, {rounded});
  if (sums) sums_ = plan.add(Segment::symmetric, "gradient slots", "sums of a part of a unit", DType::fp32, {sums});
  for (const size_t size : slot_sizes(layout, kBlockSlots, [&](int unit) { return computes_in_slot(unit); }))
    slots_.add(device, plan.add(Segment::symmetric, "gradient slots", "gradients of a unit", DType::fp32, {size}));
}

Tensor GradientStore::whole(int unit) const {
  const Shard& all = placed(unit).whole;
  return computes_in_slot(unit) ? slots_.memory(slot_of(unit), all.count) : shards_.view(gradients_, unit, all);
}

Tensor GradientStore::part(int unit) const {
  const Shard& own = placed(unit).own;
  return whole(unit).elements(own.first, own.count);
}

Tensor GradientStore::kept(int unit) const { return shards_.view(gradients_, unit, placed(unit).gradients); }

void GradientStore::begin_micro_batch(bool first, bool last) {
  first_ = first;
  last_ = last;
  fetched_ = -1;
}

// Copies the sums of earlier micro-batches into the unit's slot.
void GradientStore::fetch_whole(int unit) {
  slots_.begin_write(slot_of(unit), host_->in);
  copy(host_->in, whole(unit), kept(unit));
  slots_.end_write(slot_of(unit), host_->in);
  fetched_ = unit;
}

Tensor GradientStore::begin(int unit) {
  if (computes_in_slot(unit)) slots_.begin_write(slot_of(unit), compute_);
  if (!accumulates(unit)) {
    clear_added(unit);
  } else if (host_) {
    if (fetched_ != unit) fetch_whole(unit);
    slots_.begin_read(slot_of(unit), compute_);
    // The next unit's sums are copied meanwhile, once the former ones have left its slot.
    const auto next = std::find(order_.begin(), order_.end(), unit) + 1;
    if (next != order_.end() && accumulates(*next)) fetch_whole(*next);
  }
  return whole(unit);
}

// Clears everything but the matrices of the blocks and the head, which are set. It clears one range for each gap
// between these matrices.
void GradientStore::clear_added(int unit) {
  const Tensor start = whole(unit);
  const Unit& u = layout_.units[size_t(unit)];
  size_t begin = 0;
  for (const Slice& slice : layout_.slices(unit, 0, u.size)) {
    if (!slice.tensor->is_matrix() || u.kind == UnitKind::embedding) continue;
    if (slice.at > begin) clear(compute_, start.elements(begin, slice.at - begin));
    begin = slice.at + slice.count;
  }
  if (u.size > begin) clear(compute_, start.elements(begin, u.size - begin));
}

void GradientStore::sum_whole(int unit) {
  const Tensor all = whole(unit);
  if (!rounds(unit)) return group(unit).reduce.all_reduce_sum(reduce_stream_, all);
  const Tensor rounded = rounded_->elements(0, all.size());
  cast(reduce_stream_, rounded, all);
  group(unit).reduce.all_reduce_sum(reduce_stream_, rounded);
  accumulate(reduce_stream_, all, rounded, false);
}

void GradientStore::sum_part(int unit, const Tensor& sums, bool add) {
  const Tensor all = whole(unit), own = part(unit);
  Communicator& ranks = group(unit).reduce;
  if (rounds(unit)) {
    const Tensor rounded = rounded_->elements(0, all.size());
    const Tensor own_rounded = rounded.elements(placed(unit).own.first, own.size());
    cast(reduce_stream_, rounded, all);
    ranks.reduce_scatter_sum(reduce_stream_, own_rounded, rounded);
    accumulate(reduce_stream_, sums, own_rounded, add);
  } else if (add) {
    ranks.reduce_scatter_sum(reduce_stream_, own, all);
    accumulate(reduce_stream_, sums, own);
  } else {
    ranks.reduce_scatter_sum(reduce_stream_, sums, all);
  }
}

void GradientStore::sum_copies(int unit, const Tensor& sums, size_t first) {
  if (!group(unit).tp_reduce) return;
  const std::vector<Slice> slices = layout_.slices(unit, first, size_t(sums.size()));
  for (Communicator* copies : {group(unit).tp_reduce, group(unit).kv_replicas})
    copies->group([&] {
      for (const Slice& slice : slices)
        if (group(unit).ranks_with_copies(*slice.tensor) == copies)
          copies->all_reduce_sum(reduce_stream_, sums.elements(slice.at, slice.count));
    });
}

void GradientStore::reduce(int unit) {
  if (look_) return look_(unit, whole(unit));
  if (placed(unit).reduces_each_micro_batch()) reduce_part(unit);
  else reduce_whole(unit);
}

// Copies to the host after all that `after` has enqueued; then the unit's slot is free.
void GradientStore::offload(int unit, Stream& after, const Tensor& to, const Tensor& from) {
  summed_on_device_.record(after);
  host_->out.wait(summed_on_device_);
  copy(host_->out, to, from);
  slots_.end_read(slot_of(unit), host_->out);
}

// Stages 0 and 1: micro-batches add up on this rank. After the last one the sums are reduced over the ranks.
void GradientStore::reduce_whole(int unit) {
  const Tensor all = whole(unit), own = part(unit);
  const size_t first = placed(unit).own.first;
  const bool over_ranks = last_ && group(unit).sums_gradients();
  Stream& stream = over_ranks ? reduce_stream_ : compute_;
  if (over_ranks) {
    computed_[size_t(unit)].record(compute_);
    reduce_stream_.wait(computed_[size_t(unit)]);
    if (placed(unit).updates_part()) {
      sum_part(unit, own, false);
      group(unit).replicate.all_reduce_sum(reduce_stream_, own);
      sum_copies(unit, own, first);
    } else {
      sum_whole(unit);
      group(unit).replicate.all_reduce_sum(reduce_stream_, all);
      sum_copies(unit, all, 0);
    }
  }
  if (last_ && on_reduced_) on_reduced_(stream, unit, own);
  if (!host_) return;
  if (last_ && placed(unit).updates_part()) offload(unit, stream, kept(unit).elements(first, own.size()), own);
  else offload(unit, stream, kept(unit), all);
}

// Stages 2 and 3: each micro-batch's gradients are reduced over the ranks and added to this rank's part.
void GradientStore::reduce_part(int unit) {
  Tensor sums = kept(unit);
  if (host_ && first_) sums = part(unit);
  else if (host_) sums = sums_->elements(0, placed(unit).own.count);
  if (host_ && !first_) fetch_part(unit);
  computed_[size_t(unit)].record(compute_);
  reduce_stream_.wait(computed_[size_t(unit)]);
  if (host_ && !first_) reduce_stream_.wait(sums_loaded_);
  sum_part(unit, sums, !first_);
  if (!host_) slots_.end_read(slot_of(unit), reduce_stream_);
  if (last_) group(unit).replicate.all_reduce_sum(reduce_stream_, sums);
  if (last_) sum_copies(unit, sums, placed(unit).own.first);
  if (last_ && on_reduced_) on_reduced_(reduce_stream_, unit, sums);
  if (!host_) return;
  offload(unit, reduce_stream_, kept(unit), sums);
  sums_free_.record(host_->out);
}

// Copies the sums of earlier micro-batches of this rank's part to the device.
void GradientStore::fetch_part(int unit) {
  host_->in.wait(sums_free_);
  copy(host_->in, sums_->elements(0, placed(unit).own.count), kept(unit));
  sums_loaded_.record(host_->in);
}

void GradientStore::wait_for_sums() {
  // The update copies gradients back from the host, so host_->in waits until all have arrived there. The last event of
  // a slot comes after all earlier ones.
  for (int slot = 0; host_ && slot < slots_.count(); ++slot) slots_.begin_write(slot, host_->in);
  if (std::none_of(placement_.begin(), placement_.end(), [](auto& p) { return p.group->sums_gradients(); })) return;
  reduced_.record(reduce_stream_);
  compute_.wait(reduced_);
}
