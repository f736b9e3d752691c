#include "llmc/memory/parameter_store.h"

#include <algorithm>
#include <type_traits>

#include "llmc/base/error.h"
#include "llmc/device/faults.h"
#include "llmc/device/number.h"

template <class T>
ParameterStore<T>::ParameterStore(MemoryPlan& plan, const LlamaConfig& config, const ParameterLayout& layout,
                                  const Sharding& sharding, const Fp8Settings& fp8, Fp8Scales* scales,
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
      computed_(device),
      agreed_(device),
      quantized_now_(layout.units.size(), false) {
  const bool whole = !sharding.stage.shards_weights();
  const int block_slots = whole ? config.L : blocks_at_once;
  const auto gathered = [&](int layer) { return Fp8Gather::takes(fp8, sharding, layer); };
  if (scales) quantized_.emplace(plan, fp8, config, layout, *scales, block_slots, gathered);
  bool any_gathered = false;
  for (int layer = 0; layer < config.L; ++layer) {
    any_gathered = any_gathered || gathered(layer);
    for (const Product product : kEachProduct)
      any_in_bf16_ = any_in_bf16_ || (fp8.quantizes(layer, product) && !gathered(layer));
  }
  finds_largest_ = scales && fp8.finds_largest_weights();
  if (scales && fp8.per_tensor_scale())
    planned_largest_ =
        plan.add<float>(Segment::symmetric, "FP8 scales", "largest weights", size_t(config.L * kProducts));
  if (any_gathered) fp8_gather_.emplace(plan, fp8, config, layout, sharding, *scales, block_slots, communication);
  size_t size = 0;
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    weights_at_.push_back(size);
    size += whole && !travels_in_fp8(unit) ? layout.units[size_t(unit)].size : sharding.count(layout, unit);
    gathered_.emplace_back(device);
  }
  planned_weights_ = plan.add<T>(Segment::symmetric, "weights", whole ? "weights" : "weights, a part", size);
  if (!whole) plan_slots(plan, device);
}

template <class T>
void ParameterStore<T>::plan_slots(MemoryPlan& plan, Device& device) {
  const int slots = 1 + std::max(slot_of(layout_.embedding_unit()), slot_of(layout_.head_unit()));
  std::vector<size_t> sizes(size_t(slots), 0);
  for (int unit = 0; unit < int(layout_.units.size()); ++unit)
    if (!travels_in_fp8(unit))
      sizes[size_t(slot_of(unit))] = std::max(sizes[size_t(slot_of(unit))], layout_.units[size_t(unit)].size);
  for (size_t size : sizes) {
    planned_slots_.push_back(size ? plan.add<T>(Segment::symmetric, "gathered", "weights of a unit", size)
                                  : Planned<T>{});
    slots_.push_back({nullptr, -1, Event(device)});
  }
}

template <class T>
void ParameterStore<T>::bind(const Arena& arena) {
  weights_ = arena[planned_weights_];
  for (size_t i = 0; i < slots_.size(); ++i)
    slots_[i].data = planned_slots_[i].count ? arena[planned_slots_[i]] : nullptr;
  if constexpr (kSeparate) {
    if (planned_largest_.count) {
      largest_ = arena[planned_largest_];
      clear(compute_, largest_, planned_largest_.count);  // the ranks all-reduce the words of products in bf16, too
    }
    if (fp8_gather_)
      fp8_gather_->bind(arena, largest_, [&](int layer) { return local_shard(layout_.block_unit(layer)); });
    if (quantized_)
      quantized_->bind(arena, compute_, largest_, [&](int layer) {
        const int unit = layout_.block_unit(layer);
        return travels_in_fp8(unit) ? fp8_gather_->gathered(layer) : BlockSource{whole(unit)};
      });
  }
}

template <class T>
int ParameterStore<T>::slot_of(int unit) const {
  const Unit& u = layout_.units[size_t(unit)];
  if (u.kind == UnitKind::block) return u.layer % blocks_at_once_;
  return blocks_at_once_ + (tied_ && u.kind == UnitKind::embedding);
}

template <class T>
T* ParameterStore<T>::local_shard(int unit) const {
  const bool whole_here = !sharding_.stage.shards_weights() && !travels_in_fp8(unit);
  return weights_ + weights_at_[size_t(unit)] + (whole_here ? sharding_.first(layout_, unit) : 0);
}

template <class T>
const T* ParameterStore<T>::whole(int unit) const {
  return sharding_.stage.shards_weights() ? slots_[size_t(slot_of(unit))].data : weights_ + weights_at_[size_t(unit)];
}

template <class T>
void ParameterStore<T>::changed() {
  quantized_now_.assign(quantized_now_.size(), false);
  if (fp8_gather_) fp8_gather_->changed();
  moved_since_update_ = false;
  for (Slot& slot : slots_) slot.unit = -1;
  awaited_.assign(awaited_.size(), false);
}

template <class T>
void ParameterStore<T>::updated(bool found_largest) {
  changed();
  found_largest_ = found_largest;
  if (!sharding_.stage.shards_state() && found_largest) all_reduce_max(largest_, planned_largest_.count);
  if (!sharding_.stage.shards_state()) return;
  updated_.record(compute_);
  if constexpr (kSeparate) {
    const bool compare = found_largest && any_in_bf16_;
    if (!compare && !fp8_gather_) return;
    communication_.wait(updated_);
    moved_since_update_ = true;
    if (compare) sharding_.all_reduce_max(communication_, largest_, planned_largest_.count);
    if (fp8_gather_) fp8_gather_->updated(found_largest);
  }
}

template <class T>
void ParameterStore<T>::gather(int unit, const char* file, int line) {
  if (fault_skips(file, line)) return;
  REQUIRE(!in_use_.at(size_t(unit)), "%s:%d: unit %d of the model is gathered again before it was released", file, line,
          unit);
  in_use_[size_t(unit)] = true;
  if (!sharding_.stage.shards_state() || (!sharding_.stage.shards_weights() && awaited_[size_t(unit)])) return;
  if (sharding_.stage.shards_weights()) {
    Slot& slot = slots_[size_t(slot_of(unit))];
    if (slot.unit == unit) return;
    REQUIRE(slot.unit < 0 || !in_use_[size_t(slot.unit)],
            "%s:%d: unit %d of the model is gathered where unit %d is still in use", file, line, unit, slot.unit);
    communication_.wait(slot.released);
    slot.unit = unit;
    quantized_now_[size_t(unit)] = false;
  }
  if (!moved_since_update_) communication_.wait(updated_);
  moved_since_update_ = true;
  if constexpr (kSeparate) {
    if (travels_in_fp8(unit)) fp8_gather_->gather(layout_.units[size_t(unit)].layer);
  }
  if (!travels_in_fp8(unit))
    sharding_.gather.all_gather(communication_, const_cast<T*>(whole(unit)), local_shard(unit),
                                layout_.part_size(unit) * sizeof(T));
  gathered_[size_t(unit)].record(communication_);
  awaited_[size_t(unit)] = false;
}

template <class T>
void ParameterStore<T>::all_reduce_max(float* numbers, size_t count) {
  if (!sharding_.tensor_gather) return;
  computed_.record(compute_);
  communication_.wait(computed_);
  sharding_.tensor_gather->all_reduce_max(communication_, numbers, count);
  agreed_.record(communication_);
  compute_.wait(agreed_);
}

// The compute stream waits only once for each gather of a unit.
template <class T>
void ParameterStore<T>::await(int unit) {
  REQUIRE(in_use_.at(size_t(unit)), "the weights of unit %d are asked for, and nobody gathered them", unit);
  if (!sharding_.stage.shards_state() || awaited_[size_t(unit)]) return;
  compute_.wait(gathered_[size_t(unit)]);
  awaited_[size_t(unit)] = true;
}

template <class T>
const T* ParameterStore<T>::get(int unit) {
  REQUIRE(layout_.units.at(size_t(unit)).kind != UnitKind::block, "unit %d is a block: ask for get_block", unit);
  await(unit);
  return whole(unit);
}

template <class T>
BlockWeights<T> ParameterStore<T>::get_block(int layer) {
  const int unit = layout_.block_unit(layer);
  await(unit);
  if constexpr (kSeparate) {
    const bool as_bytes = travels_in_fp8(unit);
    if (quantized_ && !quantized_now_[size_t(unit)]) {
      quantized_->make(compute_, layer, found_largest_,
                       [this](float* numbers, size_t n) { all_reduce_max(numbers, n); });
      quantized_now_[size_t(unit)] = true;
    }
    if (as_bytes) return {fp8_gather_->norm1(layer), nullptr, nullptr, fp8_gather_->norm2(layer), nullptr, nullptr};
  }
  const T* base = whole(unit);
  const auto at = [&](const char* product) { return base + layout_.offset(unit, product); };
  return {at("norm1"), at("qkv"), at("o"), at("norm2"), at("gate_up"), at("down")};
}

template <class T>
void ParameterStore<T>::release(int unit, const char* file, int line) {
  if (fault_skips(file, line)) return;
  REQUIRE(in_use_.at(size_t(unit)), "%s:%d: unit %d of the model is released, and nobody gathered it", file, line,
          unit);
  in_use_[size_t(unit)] = false;
  if (sharding_.stage.shards_weights()) slots_[size_t(slot_of(unit))].released.record(compute_);
}

template class ParameterStore<float>;
template class ParameterStore<bf16>;
