#include "llmc/memory/parameter_store.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/number.h"

ParameterStore::ParameterStore(MemoryPlan& plan, const WeightSettings& settings, const ParameterLayout& layout,
                               const Placement& placement, Fp8Scales* scales, Stream& compute, Stream& gather_stream)
    : layout_(layout),
      placement_(placement),
      shards_(placement, &UnitPlacement::weights),
      compute_(compute),
      gather_stream_(gather_stream),
      updated_(compute.device()) {
  // In stage 3, and with weights on the host, units take slots in turn. Otherwise, in stages 1 and 2, only blocks that
  // are gathered as bytes are not kept whole; each has memory of its own for the bytes, and stays gathered until the
  // next update.
  const bool none_in_turn =
      std::none_of(placement.begin(), placement.end(), [](const auto& p) { return p.needs_slot() && !p.in_bytes; });
  if (scales)
    fp8_.emplace(plan, layout, placement, *scales, none_in_turn ? 0 : settings.blocks_at_once, settings.chunk, compute,
                 gather_stream);
  const bool in_parts = std::any_of(placement.begin(), placement.end(),
                                    [](const auto& p) { return p.weights != p.whole && !p.in_bytes; });
  weights_ = plan.add(on_host() ? Segment::pinned : Segment::symmetric, "weights",
                      in_parts ? "weights, a part" : "weights", settings.type, {shards_.size()});
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    const UnitPlacement& p = placement[size_t(unit)];
    const bool stays = !p.updates_part() && !p.weights_on_host;
    units_.push_back({.ranks = &p.group->gather,
                      .layer = layout.units[size_t(unit)].layer,
                      .slot = none_in_turn || !p.needs_slot() ? -1 : slot_of(layout, unit, settings.blocks_at_once),
                      .in_bytes = p.in_bytes,
                      .update_ends = !stays,
                      .current = stays,
                      .waited = stays,
                      .gathered = Event(compute.device())});
  }
  const auto needs_memory = [&](int unit) { return units_[size_t(unit)].slot >= 0 && !units_[size_t(unit)].in_bytes; };
  for (const size_t size : slot_sizes(layout, settings.blocks_at_once, needs_memory))
    slots_.add(
        compute.device(),
        size ? plan.add(Segment::symmetric, "gathered", "weights of a unit", settings.type, {size}) : PlannedTensor());
}

void ParameterStore::prepare() {
  for (int unit = 0; unit < int(units_.size()); ++unit) {
    UnitWeights& u = units_[size_t(unit)];
    const UnitPlacement& p = placement_[size_t(unit)];
    u.own = kept(unit, p.state);
    if (u.in_bytes) u.unquantized = fp8_->unquantized(u.layer);
    else u.whole = u.slot < 0 ? kept(unit, p.whole) : slots_.memory(u.slot, p.whole.count);
  }
  if (fp8_)
    fp8_->prepare([&](int layer) {
      const UnitWeights& u = units_[size_t(layout_.block_unit(layer))];
      return u.in_bytes ? u.own : u.whole;
    });
}

void ParameterStore::changed() {
  for (UnitWeights& u : units_) u.current = u.waited = !u.update_ends, u.operands_current = false;
  if (fp8_) fp8_->changed();
  awaited_update_ = false;
}

void ParameterStore::updated(bool amax_ready) {
  changed();
  if (std::any_of(units_.begin(), units_.end(), [](const UnitWeights& u) { return u.update_ends; }))
    updated_.record(compute_);
  if (!fp8_) return;
  if (fp8_->gather_stream_reads_update(amax_ready)) wait_for_update();
  fp8_->updated(amax_ready);
}

void ParameterStore::wait_for_update() {
  if (!awaited_update_) gather_stream_.wait(updated_);
  awaited_update_ = true;
}

void ParameterStore::gather(int unit) {
  UnitWeights& u = units_.at(size_t(unit));
  REQUIRE(!u.in_use, "unit %d of the model is gathered again before it was released", unit);
  u.in_use = true;
  if (u.current) return;
  if (u.slot >= 0) take_slot(u, unit);
  wait_for_update();
  if (u.in_bytes) fp8_->gather(u.layer);
  else if (on_host()) load(u, placement_[size_t(unit)]);
  else u.ranks->all_gather(gather_stream_, u.whole, u.own);
  u.gathered.record(gather_stream_);
  u.current = true, u.waited = u.operands_current = false;
}

// Copies what this rank keeps of a unit from the host to its place in the slot. The ranks gather the rest.
void ParameterStore::load(const UnitWeights& u, const UnitPlacement& p) {
  const Tensor here = u.whole.elements(int64_t(p.weights.first), int64_t(p.weights.count));
  copy(gather_stream_, here, kept(int(&u - units_.data()), p.weights));
  if (p.weights != p.whole) u.ranks->all_gather(gather_stream_, u.whole, here);
}

// Takes the unit's slot: the unit that was there is no longer whole, and the gather waits until compute has read it.
void ParameterStore::take_slot(const UnitWeights& u, int unit) {
  for (UnitWeights& former : units_) {
    if (former.slot != u.slot || !former.current) continue;
    REQUIRE(!former.in_use, "unit %d of the model is gathered where unit %d is still in use", unit,
            int(&former - units_.data()));
    former.current = false;
  }
  slots_.begin_write(u.slot, gather_stream_);
}

UnitTensors ParameterStore::get(int unit) {
  UnitWeights& u = units_.at(size_t(unit));
  REQUIRE(u.in_use, "the weights of unit %d are asked for, and nobody gathered them", unit);
  if (!u.waited) compute_.wait(u.gathered);  // once for each gather
  u.waited = true;
  if (fp8_ && u.layer >= 0 && !u.operands_current) {
    fp8_->make_operands(u.layer);
    if (fp8_->shares_place(u.layer))
      for (UnitWeights& other : units_)
        if (other.layer >= 0 && fp8_->shares_place(other.layer)) other.operands_current = false;
  }
  u.operands_current = true;
  return {layout_, unit, u.whole, u.unquantized};
}

void ParameterStore::release(int unit) {
  UnitWeights& u = units_.at(size_t(unit));
  REQUIRE(u.in_use, "unit %d of the model is released, and nobody gathered it", unit);
  u.in_use = false;
  if (u.slot >= 0) slots_.end_read(u.slot, compute_);
}
