#include "llmc/memory/gradient_store.h"

#include <algorithm>

#include "llmc/kernels/accumulate.h"
#include "llmc/kernels/initialize.h"

GradientStore::GradientStore(MemoryPlan& plan, const TensorLayout& layout, const Sharding& sharding, bool tied,
                             DType travels_as, Device& device, Stream& compute, Stream& communication)
    : layout_(layout),
      sharding_(sharding),
      tied_(tied),
      compute_(compute),
      communication_(communication),
      planned_(plan.add<float>(Segment::symmetric, "gradients", sharded() ? "gradients, a part" : "gradients",
                               sharded() ? sharding.total(layout) : layout.size)),
      reduced_(device) {
  for (size_t i = 0; i < layout.units.size(); ++i) computed_.emplace_back(device);
  if (travels_as == DType::bf16 && sharding.degree() > 1) {
    size_t largest = 0;
    for (const Unit& unit : layout.units) largest = std::max(largest, unit.size);
    planned_rounded_ = plan.add<bf16>(Segment::symmetric, "gradients", "gradients of a unit, rounded", largest);
  }
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
  if (planned_rounded_.count) rounded_ = arena[planned_rounded_];
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

void GradientStore::sum_whole(float* whole, size_t size) {
  if (!rounded_) return sharding_.reduce.all_reduce_sum(communication_, whole, size);
  cast(communication_, rounded_, whole, size);
  sharding_.reduce.all_reduce_sum(communication_, rounded_, size);
  accumulate(communication_, whole, rounded_, size, false);
}

void GradientStore::sum_part(int unit, float* sums, bool add) {
  const size_t size = layout_.part_size(unit), part = sharding_.part(layout_, unit);
  float* start = whole(unit);
  if (rounded_) {
    cast(communication_, rounded_, start, layout_.units[size_t(unit)].size);
    sharding_.reduce.reduce_scatter_sum(communication_, rounded_ + part, rounded_, size);
    accumulate(communication_, sums, rounded_ + part, size, add);
  } else if (add) {
    sharding_.reduce.reduce_scatter_sum(communication_, start + part, start, size);
    accumulate(communication_, sums, start + part, size);
  } else {
    sharding_.reduce.reduce_scatter_sum(communication_, sums, start, size);
  }
}

void GradientStore::reduce(int unit) {
  if (sharding_.degree() == 1 && sharding_.replicate.size() == 1) return;
  if (!sharded() && !last_) return;
  float* start = whole(unit);
  computed_[size_t(unit)].record(compute_);
  communication_.wait(computed_[size_t(unit)]);
  if (sharding_.stage == 0) {
    const size_t size = layout_.units[size_t(unit)].size;
    sum_whole(start, size);
    sharding_.replicate.all_reduce_sum(communication_, start, size);
    return;
  }
  float* sums = sharded() ? gradients_ + sharding_.at(layout_, unit) : start + sharding_.part(layout_, unit);
  sum_part(unit, sums, sharded() && !first_);
  if (sharded()) slot_free_[size_t(slot_of(unit))].record(communication_);
  if (last_) sharding_.replicate.all_reduce_sum(communication_, sums, layout_.part_size(unit));
}

void GradientStore::finish_step() {
  if (sharding_.degree() == 1 && sharding_.replicate.size() == 1) return;
  reduced_.record(communication_);
  compute_.wait(reduced_);
}
