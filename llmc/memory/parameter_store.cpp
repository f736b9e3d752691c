#include "llmc/memory/parameter_store.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/number.h"

ParameterStore::ParameterStore(MemoryPlan& plan, DType type, const ModelConfig& config, const ParameterLayout& layout,
                               const Placement& placement, const Fp8Settings& fp8, Fp8Scales* scales,
                               int blocks_at_once, Device& device, Stream& compute, Stream& gather_stream)
    : layout_(layout),
      placement_(placement),
      shards_(placement, &UnitPlacement::weights),
      tied_(config.tied),
      blocks_at_once_(blocks_at_once),
      compute_(compute),
      gather_stream_(gather_stream),
      in_use_(layout.units.size(), false),
      awaited_(layout.units.size(), false),
      updated_(device),
      computed_(device),
      agreed_(device),
      quantized_now_(layout.units.size(), false) {
  // The embedding is never gathered as FP8 bytes, so it shows whether whole weights are kept.
  const bool whole = !placement.front().needs_slot();
  const int block_slots = whole ? config.L : blocks_at_once;
  const auto gathered = [&](int layer) { return in_bytes(layout.block_unit(layer)); };
  if (scales) quantized_.emplace(plan, fp8, config, layout, *scales, block_slots, gathered);
  bool any_gathered = false;
  for (const LayerProjection& p : layout.projections.all()) {
    any_gathered = any_gathered || gathered(p.layer);
    any_in_bf16_ = any_in_bf16_ || (fp8.quantizes(p) && !gathered(p.layer));
  }
  amax_from_update_ = scales && fp8.amax_from_update();
  if (scales && fp8.per_tensor_scale())
    weight_amax_ =
        plan.add(Segment::symmetric, "FP8 scales", "largest weights", DType::fp32, {layout.projections.count()});
  if (any_gathered) fp8_gather_.emplace(plan, fp8, config, layout, placement, *scales, block_slots, gather_stream);
  for (size_t unit = 0; unit < layout.units.size(); ++unit) gathered_.emplace_back(device);
  weights_ = plan.add(Segment::symmetric, "weights", whole ? "weights" : "weights, a part", type, {shards_.size()});
  if (!whole) plan_slots(plan, device);
}

void ParameterStore::plan_slots(MemoryPlan& plan, Device& device) {
  const int slots = 1 + std::max(slot_of(layout_.embedding_unit()), slot_of(layout_.head_unit()));
  std::vector<size_t> sizes(size_t(slots), 0);
  for (int unit = 0; unit < int(layout_.units.size()); ++unit)
    if (!in_bytes(unit))
      sizes[size_t(slot_of(unit))] = std::max(sizes[size_t(slot_of(unit))], layout_.units[size_t(unit)].size);
  for (size_t size : sizes)
    slots_.add(device,
               size ? plan.add(Segment::symmetric, "gathered", "weights of a unit", type(), {size}) : PlannedTensor());
  unit_in_.assign(size_t(slots), -1);
}

void ParameterStore::prepare() {
  if (weight_amax_) clear(compute_, weight_amax_);  // the ranks all-reduce the words of products in bf16, too
  if (fp8_gather_)
    fp8_gather_->prepare(weight_amax_, [&](int layer) { return local_shard(layout_.block_unit(layer)); });
  if (quantized_)
    quantized_->prepare(compute_, weight_amax_, [&](int layer) {
      const int unit = layout_.block_unit(layer);
      return in_bytes(unit) ? fp8_gather_->gathered(layer) : whole(unit);
    });
}

Tensor ParameterStore::local_shard(int first_unit, int units) const {
  size_t count = 0;
  for (int unit = first_unit; unit < first_unit + units; ++unit) count += placement_[size_t(unit)].state.count;
  return weights_->elements(shards_.at(first_unit, placement_[size_t(first_unit)].state), count);
}

Tensor ParameterStore::whole(int unit) const {
  const UnitPlacement& p = placement_[size_t(unit)];
  return p.needs_slot() ? slots_.memory(slot_of(unit), p.whole.count) : kept(unit, p.whole);
}

void ParameterStore::changed() {
  quantized_now_.assign(quantized_now_.size(), false);
  if (fp8_gather_) fp8_gather_->changed();
  awaited_update_ = false;
  unit_in_.assign(unit_in_.size(), -1);
  awaited_.assign(awaited_.size(), false);
}

void ParameterStore::updated(bool amax_ready) {
  changed();
  amax_ready_ = amax_ready;
  if (!placement_.front().weights_go_stale()) {
    if (amax_ready) all_reduce_max(weight_amax_);
    return;
  }
  updated_.record(compute_);
  const bool compare = amax_ready && any_in_bf16_;
  if (!compare && !fp8_gather_) return;
  gather_stream_.wait(updated_);
  awaited_update_ = true;
  if (compare) placement_.front().group->all_reduce_max(gather_stream_, weight_amax_);
  if (fp8_gather_) fp8_gather_->updated(amax_ready);
}

void ParameterStore::gather(int unit) {
  REQUIRE(!in_use_.at(size_t(unit)), "unit %d of the model is gathered again before it was released", unit);
  in_use_[size_t(unit)] = true;
  const UnitPlacement& p = placement_[size_t(unit)];
  if (!p.weights_go_stale() || (slots_.empty() && awaited_[size_t(unit)])) return;
  if (!slots_.empty()) {
    int& here = unit_in_[size_t(slot_of(unit))];
    if (here == unit) return;
    REQUIRE(here < 0 || !in_use_[size_t(here)], "unit %d of the model is gathered where unit %d is still in use", unit,
            here);
    slots_.begin_write(slot_of(unit), gather_stream_);
    here = unit;
    quantized_now_[size_t(unit)] = false;
  }
  if (!awaited_update_) gather_stream_.wait(updated_);
  awaited_update_ = true;
  if (in_bytes(unit)) fp8_gather_->gather(layout_.units[size_t(unit)].layer);
  else p.group->gather.all_gather(gather_stream_, whole(unit), local_shard(unit));
  gathered_[size_t(unit)].record(gather_stream_);
  awaited_[size_t(unit)] = false;
}

void ParameterStore::all_reduce_max(const Tensor& numbers) {
  Communicator* const ranks = placement_.front().group->tp_gather;
  if (!ranks) return;
  computed_.record(compute_);
  gather_stream_.wait(computed_);
  ranks->all_reduce_max(gather_stream_, numbers);
  agreed_.record(gather_stream_);
  compute_.wait(agreed_);
}

// The compute stream waits only once for each gather of a unit.
void ParameterStore::await(int unit) {
  REQUIRE(in_use_.at(size_t(unit)), "the weights of unit %d are asked for, and nobody gathered them", unit);
  if (!placement_[size_t(unit)].weights_go_stale() || awaited_[size_t(unit)]) return;
  compute_.wait(gathered_[size_t(unit)]);
  awaited_[size_t(unit)] = true;
}

UnitTensors ParameterStore::get(int unit) {
  await(unit);
  const int layer = layout_.units[size_t(unit)].layer;
  if (quantized_ && layer >= 0 && !quantized_now_[size_t(unit)]) {
    quantized_->make(compute_, layer, amax_ready_, [this](const Tensor& numbers) { all_reduce_max(numbers); });
    quantized_now_[size_t(unit)] = true;
  }
  if (in_bytes(unit)) return {layout_, unit, {}, fp8_gather_->vectors(layer)};
  return {layout_, unit, whole(unit)};
}

void ParameterStore::release(int unit) {
  REQUIRE(in_use_.at(size_t(unit)), "unit %d of the model is released, and nobody gathered it", unit);
  in_use_[size_t(unit)] = false;
  if (!slots_.empty()) slots_.end_read(slot_of(unit), compute_);
}
