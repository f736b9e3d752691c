#include "llmc/memory/gradient_store.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/accumulate.h"
#include "llmc/kernels/initialize.h"

GradientStore::GradientStore(MemoryPlan& plan, const ParameterLayout& layout, const Sharding& sharding, bool tied,
                             DType travels_as, Device& device, Stream& compute, Stream& communication,
                             HostStreams* host)
    : layout_(layout),
      sharding_(sharding),
      tied_(tied),
      compute_(compute),
      communication_(communication),
      host_(host),
      planned_(plan.add<float>(host ? Segment::pinned : Segment::symmetric, "gradients",
                               sharded() ? "gradients, a part" : "gradients",
                               sharded() ? sharding.total(layout) : layout.size)),
      reduced_(device),
      sums_came_(device),
      sums_free_(device),
      summed_on_device_(device) {
  size_t largest = 0, largest_part = 0;
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    computed_.emplace_back(device);
    largest = std::max(largest, layout.units[size_t(unit)].size);
    largest_part = std::max(largest_part, layout.part_size(unit));
  }
  if (travels_as == DType::bf16 && sharding.degree() > 1)
    planned_rounded_ = plan.add<bf16>(Segment::symmetric, "gradient slots", "gradients of a unit, rounded", largest);
  if (host && sharded())
    planned_sums_ = plan.add<float>(Segment::symmetric, "gradient slots", "sums of a part of a unit", largest_part);
  if (!has_slots()) return;
  std::vector<size_t> sizes(tied ? 4 : 3, 0);
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    sizes[size_t(slot_of(int(unit)))] = std::max(sizes[size_t(slot_of(int(unit)))], layout.units[unit].size);
  for (size_t size : sizes) {
    planned_slots_.push_back(plan.add<float>(Segment::symmetric, "gradient slots", "gradients of a unit", size));
    slot_free_.emplace_back(device), came_.emplace_back(device);
  }
}

void GradientStore::bind(const Arena& arena) {
  gradients_ = arena[planned_];
  if (planned_rounded_.count) rounded_ = arena[planned_rounded_];
  if (planned_sums_.count) sums_ = arena[planned_sums_];
  for (const Planned<float>& slot : planned_slots_) slots_.push_back(arena[slot]);
}

int GradientStore::slot_of(int unit) const {
  const Unit& u = layout_.units[size_t(unit)];
  if (u.kind == UnitKind::block) return u.layer % 2;
  return 2 + (tied_ && u.kind == UnitKind::embedding);
}

float* GradientStore::whole(int unit) const {
  return has_slots() ? slots_[size_t(slot_of(unit))] : gradients_ + layout_.units[size_t(unit)].offset;
}

float* GradientStore::kept(int unit) const {
  return gradients_ + (sharded() ? sharding_.at(layout_, unit) : layout_.units[size_t(unit)].offset);
}

const float* GradientStore::reduced_shard(int unit) const {
  return kept(unit) + (sharded() ? 0 : sharding_.first(layout_, unit));
}

void GradientStore::begin_micro_step(bool first, bool last) {
  first_ = first;
  last_ = last;
  fetched_ = -1;
}

// Returns the unit that follows in backward, -1 after the last. A tied embedding comes right after the head.
int GradientStore::next_unit(int unit) const {
  const int head = layout_.head_unit(), embedding = layout_.embedding_unit();
  const int blocks = int(layout_.units.size()) - 2;
  const int last_block = blocks > 0 ? layout_.block_unit(blocks - 1) : -1;
  if (unit == head) return tied_ ? embedding : last_block;
  if (unit == embedding) return tied_ ? last_block : -1;
  const int layer = layout_.units[size_t(unit)].layer;
  if (layer > 0) return layout_.block_unit(layer - 1);
  return tied_ ? -1 : embedding;
}

// Copies the sums of earlier micro-batches into the unit's slot.
void GradientStore::fetch(int unit) {
  const size_t slot = size_t(slot_of(unit));
  host_->in.wait(slot_free_[slot]);
  copy(host_->in, slots_[slot], kept(unit), layout_.units[size_t(unit)].size);
  came_[slot].record(host_->in);
  fetched_ = unit;
}

float* GradientStore::begin(int unit) {
  float* start = whole(unit);
  if (has_slots()) compute_.wait(slot_free_[size_t(slot_of(unit))]);
  if (sharded() || first_) {
    clear_added(unit);
  } else if (host_) {
    if (fetched_ < 0) fetch(unit);
    REQUIRE(fetched_ == unit, "the gradients of unit %d come from the host, and backward is at unit %d", fetched_,
            unit);
    compute_.wait(came_[size_t(slot_of(unit))]);
    // The next unit's sums are copied meanwhile, once the former ones have left its slot.
    if (const int next = next_unit(unit); next >= 0) fetch(next);
  }
  return start;
}

// Clears everything but the matrices of the blocks and the head, which are set. It clears one range for each gap
// between these matrices.
void GradientStore::clear_added(int unit) {
  float* start = whole(unit);
  const Unit& u = layout_.units[size_t(unit)];
  size_t begin = 0;
  for (const ParameterSlice& piece : layout_.slices(unit, 0, u.size)) {
    if (!piece.tensor->is_matrix() || u.kind == UnitKind::embedding) continue;
    if (piece.at > begin) clear(compute_, start + begin, piece.at - begin);
    begin = piece.at + piece.count;
  }
  if (u.size > begin) clear(compute_, start + begin, u.size - begin);
}

void GradientStore::sum_whole(float* whole, size_t size) {
  if (!rounded_) return sharding_.reduce.all_reduce_sum(communication_, whole, size);
  const Tensor wide(whole, {int64_t(size)}), rounded(rounded_, {int64_t(size)});
  cast(communication_, rounded, wide);
  sharding_.reduce.all_reduce_sum(communication_, rounded_, size);
  accumulate(communication_, wide, rounded, false);
}

void GradientStore::sum_part(int unit, float* sums, bool add) {
  const size_t size = layout_.part_size(unit), part = sharding_.part(layout_, unit);
  const int64_t all = int64_t(layout_.units[size_t(unit)].size), own = int64_t(size);
  float* start = whole(unit);
  if (rounded_) {
    cast(communication_, Tensor(rounded_, {all}), Tensor(start, {all}));
    sharding_.reduce.reduce_scatter_sum(communication_, rounded_ + part, rounded_, size);
    accumulate(communication_, Tensor(sums, {own}), Tensor(rounded_ + part, {own}), add);
  } else if (add) {
    sharding_.reduce.reduce_scatter_sum(communication_, start + part, start, size);
    accumulate(communication_, Tensor(sums, {own}), Tensor(start + part, {own}));
  } else {
    sharding_.reduce.reduce_scatter_sum(communication_, sums, start, size);
  }
}

void GradientStore::sum_copies(int unit, float* sums, size_t first, size_t count) {
  if (!sharding_.tensor) return;
  for (const ParameterSlice& piece : layout_.slices(unit, first, count))
    if (Communicator* copies = sharding_.copies(*piece.tensor))
      copies->all_reduce_sum(communication_, sums + piece.at, piece.count);
}

void GradientStore::reduce(int unit) {
  if (sharded()) reduce_part(unit);
  else reduce_whole(unit);
}

// Copies to the host after all that `after` has enqueued; then the unit's slot is free.
void GradientStore::send(int unit, Stream& after, float* to, const float* from, size_t count) {
  summed_on_device_.record(after);
  host_->out.wait(summed_on_device_);
  copy(host_->out, to, from, count);
  slot_free_[size_t(slot_of(unit))].record(host_->out);
}

// Stages 0 and 1: micro-batches add up on this rank. After the last one the sums are reduced over the ranks.
void GradientStore::reduce_whole(int unit) {
  const size_t size = layout_.units[size_t(unit)].size, part = sharding_.part(layout_, unit);
  float* start = whole(unit);
  const bool over_ranks = last_ && sums_over_ranks();
  Stream& stream = over_ranks ? communication_ : compute_;
  if (over_ranks) {
    computed_[size_t(unit)].record(compute_);
    communication_.wait(computed_[size_t(unit)]);
    if (sharding_.stage == 0) {
      sum_whole(start, size);
      sharding_.replicate.all_reduce_sum(communication_, start, size);
      sum_copies(unit, start, 0, size);
    } else {
      sum_part(unit, start + part, false);
      sharding_.replicate.all_reduce_sum(communication_, start + part, layout_.part_size(unit));
      sum_copies(unit, start + part, part, layout_.part_size(unit));
    }
  }
  if (last_ && on_reduced_) on_reduced_(stream, unit, start + part);
  if (!host_) return;
  if (last_ && sharding_.stage == 1) send(unit, stream, kept(unit) + part, start + part, layout_.part_size(unit));
  else send(unit, stream, kept(unit), start, size);
}

// Stages 2 and 3: each micro-batch's gradients are reduced over the ranks and added to this rank's part.
void GradientStore::reduce_part(int unit) {
  const size_t size = layout_.part_size(unit);
  float* start = whole(unit);
  float* sums = !host_ ? kept(unit) : first_ ? start + sharding_.part(layout_, unit) : sums_;
  if (host_ && !first_) fetch_sums(unit);
  computed_[size_t(unit)].record(compute_);
  communication_.wait(computed_[size_t(unit)]);
  if (host_ && !first_) communication_.wait(sums_came_);
  sum_part(unit, sums, !first_);
  if (!host_) slot_free_[size_t(slot_of(unit))].record(communication_);
  if (last_) sharding_.replicate.all_reduce_sum(communication_, sums, size);
  if (last_) sum_copies(unit, sums, sharding_.part(layout_, unit), size);
  if (last_ && on_reduced_) on_reduced_(communication_, unit, sums);
  if (!host_) return;
  send(unit, communication_, kept(unit), sums, size);
  sums_free_.record(host_->out);
}

// Copies the sums of earlier micro-batches of this rank's part to the device.
void GradientStore::fetch_sums(int unit) {
  host_->in.wait(sums_free_);
  copy(host_->in, sums_, kept(unit), layout_.part_size(unit));
  sums_came_.record(host_->in);
}

void GradientStore::finish_step() {
  // The update copies gradients back from the host, so host_->in waits until all have arrived there. The last event of
  // a slot comes after all earlier ones.
  for (size_t slot = 0; host_ && slot < slot_free_.size(); ++slot) host_->in.wait(slot_free_[slot]);
  if (!sums_over_ranks()) return;
  reduced_.record(communication_);
  compute_.wait(reduced_);
}
