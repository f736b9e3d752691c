#include "llmc/memory/parameter_store.h"

#include <algorithm>
#include <type_traits>

#include "llmc/base/error.h"
#include "llmc/device/faults.h"
#include "llmc/device/number.h"

template <class T>
ParameterStore<T>::ParameterStore(MemoryPlan& plan, const LlamaConfig& config, const TensorLayout& layout,
                                  const Sharding& sharding, const Fp8Settings& fp8, ScaleStore* scales,
                                  int blocks_at_once, Device& device, Stream& compute, Stream& communication)
    : layout_(layout),
      sharding_(sharding),
      tied_(config.tied),
      blocks_at_once_(blocks_at_once),
      compute_(compute),
      communication_(communication),
      in_use_(layout.units.size(), false),
      awaited_(layout.units.size(), false),
      updated_(device),
      quantized_now_(layout.units.size(), false) {
  if (scales) quantized_.emplace(plan, fp8, config, layout, *scales, sharding.stage < 3 ? config.L : blocks_at_once);
  if (kSeparate)
    planned_master_ = plan.add<float>(Segment::device, "optimizer", "master weights", sharding.total(layout));
  const bool whole = sharding.stage < 3;
  planned_weights_ = plan.add<T>(Segment::symmetric, "weights", whole ? "weights" : "weights, a part",
                                 whole ? layout.size : sharding.total(layout));
  for (size_t i = 0; i < layout.units.size(); ++i) gathered_.emplace_back(device);
  if (whole) return;
  const int slots = slot_of(layout.embedding_unit()) + 1;
  std::vector<size_t> sizes(size_t(std::max(slots, slot_of(layout.head_unit()) + 1)), 0);
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    sizes[size_t(slot_of(int(unit)))] = std::max(sizes[size_t(slot_of(int(unit)))], layout.units[unit].size);
  for (size_t size : sizes) {
    planned_slots_.push_back(plan.add<T>(Segment::symmetric, "gathered", "weights of a unit", size));
    slots_.push_back({nullptr, -1, Event(device)});
  }
}

template <class T>
void ParameterStore<T>::bind(const Arena& arena) {
  weights_ = arena[planned_weights_];
  if (kSeparate) master_ = arena[planned_master_];
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].data = arena[planned_slots_[i]];
  if (quantized_) quantized_->bind(arena);
}

template <class T>
int ParameterStore<T>::slot_of(int unit) const {
  const Unit& u = layout_.units[size_t(unit)];
  if (u.kind == UnitKind::block) return u.layer % blocks_at_once_;
  return blocks_at_once_ + (tied_ && u.kind == UnitKind::embedding);
}

template <class T>
T* ParameterStore<T>::own_weights(int unit) const {
  if (sharding_.stage == 3) return weights_ + sharding_.at(layout_, unit);
  return weights_ + layout_.units[size_t(unit)].offset + sharding_.first(layout_, unit);
}

template <class T>
float* ParameterStore<T>::master(int unit) const {
  if constexpr (kSeparate) return master_ + sharding_.at(layout_, unit);
  else return own_weights(unit);
}

template <class T>
T* ParameterStore<T>::weights_to_update(int unit) const {
  return kSeparate ? own_weights(unit) : nullptr;
}

template <class T>
void ParameterStore<T>::updated() {
  quantized_now_.assign(quantized_now_.size(), false);
  if (sharding_.stage == 0) return;
  updated_.record(compute_);
  moved_since_update_ = false;
  for (Slot& slot : slots_) slot.unit = -1;
  awaited_.assign(awaited_.size(), false);
}

template <class T>
void ParameterStore<T>::gather(int unit, const char* file, int line) {
  if (fault_skips(file, line)) return;
  REQUIRE(!in_use_.at(size_t(unit)), "%s:%d: unit %d of the model is gathered again before it was released", file, line,
          unit);
  in_use_[size_t(unit)] = true;
  if (sharding_.stage == 0 || (sharding_.stage < 3 && awaited_[size_t(unit)])) return;
  T* whole = weights_ + layout_.units[size_t(unit)].offset;
  if (sharding_.stage == 3) {
    Slot& slot = slots_[size_t(slot_of(unit))];
    if (slot.unit == unit) return;
    REQUIRE(slot.unit < 0 || !in_use_[size_t(slot.unit)],
            "%s:%d: unit %d of the model is gathered where unit %d is still in use", file, line, unit, slot.unit);
    communication_.wait(slot.released);
    slot.unit = unit;
    whole = slot.data;
    quantized_now_[size_t(unit)] = false;
  }
  if (!moved_since_update_) communication_.wait(updated_);
  moved_since_update_ = true;
  sharding_.gather.all_gather(communication_, whole, own_weights(unit), layout_.part_size(unit) * sizeof(T));
  gathered_[size_t(unit)].record(communication_);
  awaited_[size_t(unit)] = false;
}

template <class T>
const T* ParameterStore<T>::get(int unit) {
  REQUIRE(in_use_.at(size_t(unit)), "the weights of unit %d are asked for, and nobody gathered them", unit);
  if (sharding_.stage > 0 && !awaited_[size_t(unit)]) {
    compute_.wait(gathered_[size_t(unit)]);
    awaited_[size_t(unit)] = true;
  }
  const T* whole =
      sharding_.stage == 3 ? slots_[size_t(slot_of(unit))].data : weights_ + layout_.units[size_t(unit)].offset;
  if constexpr (kSeparate) {
    const int layer = layout_.units[size_t(unit)].layer;
    if (quantized_ && layer >= 0 && !quantized_now_[size_t(unit)]) {
      quantized_->quantize(compute_, layer, whole);
      quantized_now_[size_t(unit)] = true;
    }
  }
  return whole;
}

template <class T>
void ParameterStore<T>::release(int unit, const char* file, int line) {
  if (fault_skips(file, line)) return;
  REQUIRE(in_use_.at(size_t(unit)), "%s:%d: unit %d of the model is released, and nobody gathered it", file, line,
          unit);
  in_use_[size_t(unit)] = false;
  if (sharding_.stage == 3) slots_[size_t(slot_of(unit))].released.record(compute_);
}

template class ParameterStore<float>;
template class ParameterStore<bf16>;
