#include "llmc/memory/gradient_store.h"

#include <algorithm>

#include "llmc/kernels/accumulate.h"

GradientStore::GradientStore(MemoryPlan& plan, const TensorLayout& layout, const Sharding& sharding, bool tied,
                             Device& device, Stream& compute, Stream& communication)
    : layout_(layout),
      sharding_(sharding),
      tied_(tied),
      compute_(compute),
      communication_(communication),
      planned_(plan.add<float>(Segment::symmetric, "gradients", sharded() ? "gradients, a part" : "gradients",
                               sharded() ? sharding.total(layout) : layout.size)),
      reduced_(device) {
  for (size_t i = 0; i < layout.units.size(); ++i) computed_.emplace_back(device);
  if (!sharded()) return;
  std::vector<size_t> sizes(tied ? 4 : 3, 0);
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    sizes[size_t(slot_of(int(unit)))] = std::max(sizes[size_t(slot_of(int(unit)))], layout.units[unit].size);
  for (size_t size : sizes) {
    planned_slots_.push_back(plan.add<float>(Segment::symmetric, "gradients", "gradients of a unit", size));
    slot_free_.emplace_back(device);
  }
}

void GradientStore::bind(const Arena& arena) {
  gradients_ = arena[planned_];
  for (const Planned<float>& slot : planned_slots_) slots_.push_back(arena[slot]);
}

int GradientStore::slot_of(int unit) const {
  const Unit& u = layout_.units[size_t(unit)];
  if (u.kind == UnitKind::block) return u.layer % 2;
  return 2 + (tied_ && u.kind == UnitKind::embedding);
}

float* GradientStore::whole(int unit) const {
  return sharded() ? slots_[size_t(slot_of(unit))] : gradients_ + layout_.units[size_t(unit)].offset;
}

const float* GradientStore::to_update(int unit) const {
  return sharded() ? gradients_ + sharding_.at(layout_, unit) : whole(unit) + sharding_.first(layout_, unit);
}

const float* GradientStore::part(int unit) const {
  return sharded() ? to_update(unit) : whole(unit) + sharding_.part(layout_, unit);
}

void GradientStore::begin_micro_step(bool first, bool last) {
  first_ = first;
  last_ = last;
}

float* GradientStore::begin(int unit) {
  float* start = whole(unit);
  if (sharded()) compute_.wait(slot_free_[size_t(slot_of(unit))]);
  if (!sharded() && !first_) return start;
  // Everything but the blocks' and head's matrices, as few pieces as there are gaps between those.
  const Unit& u = layout_.units[size_t(unit)];
  size_t begin = 0;
  for (const Piece& piece : layout_.pieces(unit, 0, u.size)) {
    if (!piece.tensor->is_matrix() || u.kind == UnitKind::embedding) continue;
    if (piece.at > begin) clear(compute_, start + begin, piece.at - begin);
    begin = piece.at + piece.count;
  }
  if (u.size > begin) clear(compute_, start + begin, u.size - begin);
  return start;
}

void GradientStore::reduce(int unit) {
  if (sharding_.degree() == 1 && sharding_.replicate.size() == 1) return;
  if (!sharded() && !last_) return;
  float* start = whole(unit);
  computed_[size_t(unit)].record(compute_);
  communication_.wait(computed_[size_t(unit)]);
  if (sharding_.stage == 0) {
    const size_t size = layout_.units[size_t(unit)].size;
    sharding_.reduce.all_reduce_sum(communication_, start, size);
    sharding_.replicate.all_reduce_sum(communication_, start, size);
    return;
  }
  const size_t size = layout_.part_size(unit);
  float* own = start + sharding_.part(layout_, unit);
  float* sums = sharded() ? gradients_ + sharding_.at(layout_, unit) : own;
  if (sharded() && !first_) {
    sharding_.reduce.reduce_scatter_sum(communication_, own, start, size);
    accumulate(communication_, sums, own, size);
  } else {
    sharding_.reduce.reduce_scatter_sum(communication_, sums, start, size);
  }
  if (sharded()) slot_free_[size_t(slot_of(unit))].record(communication_);
  if (last_) sharding_.replicate.all_reduce_sum(communication_, sums, size);
}

void GradientStore::finish_step() {
  if (sharding_.degree() == 1 && sharding_.replicate.size() == 1) return;
  reduced_.record(communication_);
  compute_.wait(reduced_);
}
