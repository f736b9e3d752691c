#include "llmc/memory/optimizer_state.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/accumulate.h"
#include "llmc/kernels/initialize.h"

const char* checkpoint_name(StateKind kind) {
  const char* const names[] = {"weights", "first_moments", "second_moments"};
  return names[int(kind)];
}

namespace {

constexpr PerKind<const char*> kPlanNames = {"master weights", "first moments", "second moments"};

}  // namespace

OptimizerState::OptimizerState(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement,
                               const StateSettings& settings, const ParameterStore& parameters, bool moments,
                               Stream& compute, HostStreams* host)
    : settings_(settings),
      master_type_(parameters.type() == DType::fp32 ? DType::fp32 : settings.master),
      compute_(compute),
      parameters_(parameters) {
  REQUIRE(!settings.in_chunks() || host, "an offloaded state needs streams on which it is copied");
  REQUIRE(settings.chunk > 0 && settings.chunk % 128 == 0, "chunks of %zu elements: expected a multiple of 128",
          settings.chunk);
  for (const StateKind kind : kStateKinds) {
    const auto has = [&](const ParameterInfo& tensor) {
      return kind == StateKind::master || (moments && settings.has_moment(tensor, kind));
    };
    shards_[kind] = shards_with(layout, placement, &UnitPlacement::state, has);
    saved_[kind] = shards_with(layout, placement, &UnitPlacement::saved, has);
  }
  size_t largest_slice = 0, without_second = 0;  // of one tensor
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    const Shard& shard = placement[size_t(unit)].state;
    for (const Slice& slice : layout.slices(unit, shard.first, shard.count)) {
      largest_slice = std::max(largest_slice, slice.count);
      if (!settings.has_moment(*slice.tensor, StateKind::second_moment))
        without_second = std::max(without_second, slice.count);
    }
  }
  // A sweep covers tensors with a second moment, as far as they are contiguous (Optimizer), or one tensor without it
  // (Muon).
  const size_t with_second = std::min(settings.chunk, longest_run(updates_contiguous(placement)));
  const size_t chunk = std::max(with_second, std::min(settings.chunk, without_second));
  sweep_.emplace(compute.device(), compute, settings.in_chunks() ? host : nullptr, chunk);
  // Weights on the host are set, and read, by chunks, too.
  bool stages = parameters.on_host() && parameters.type() == DType::fp32;
  bool narrows = parameters.on_host() && parameters.type() == DType::bf16;
  for (const StateKind kind : kStateKinds) {
    const bool is_kept = kind == StateKind::master ? parameters.type() == DType::bf16 && settings.master == DType::fp32
                                                   : shards(kind).size() > 0;
    const bool is_offloaded = is_kept && settings.on_host && moments;
    stages = stages || is_offloaded || (type(kind) == DType::bf16 && (is_kept || kind == StateKind::master));
    narrows = narrows || (is_offloaded && type(kind) == DType::bf16);
    if (!is_kept) continue;
    kept_[kind] = plan.add(is_offloaded ? Segment::pinned : Segment::device, "optimizer", kPlanNames[kind], type(kind),
                           {shards(kind).size()});
    if (is_offloaded)
      slots_[kind] = plan.add(Segment::device, "update slots", kPlanNames[kind], type(kind),
                              {2, kind == StateKind::second_moment ? with_second : chunk});
  }
  if (settings.gradients_on_host && moments)
    gradient_slots_ = plan.add(Segment::device, "update slots", "gradients", DType::fp32, {2, chunk});
  if (parameters.on_host() && moments)
    weight_slots_ = plan.add(Segment::device, "update slots", "weights", parameters.type(), {2, chunk});
  if (!stages && !narrows) return;
  const int64_t staged = std::max<int64_t>(128, int64_t(std::min(kStaged, largest_slice) / 128 * 128));
  if (stages) staged_ = plan.add(Segment::device, "scratch", "optimizer state as fp32", DType::fp32, {staged});
  if (narrows) narrow_ = plan.add(Segment::device, "scratch", "optimizer state as bf16", DType::bf16, {staged});
}

// Returns the most elements with a second moment that lie one after the other, if the shards of consecutive units are
// contiguous, or else in one shard.
size_t OptimizerState::longest_run(bool contiguous) const {
  size_t longest = 0, run = 0, end = 0;
  for (const auto& [unit, shard, _] : shards(StateKind::second_moment).entries()) {
    const size_t at = shards(StateKind::master).at(unit, shard);
    run = contiguous && at == end ? run + shard.count : shard.count;
    end = at + shard.count;
    longest = std::max(longest, run);
  }
  return longest;
}

Tensor OptimizerState::view(StateKind kind, int unit, const Shard& shard) const {
  if (kind == StateKind::master && !has_master()) return parameters_.kept(unit, shard);
  return shards(kind).view(kept_[kind], unit, shard);
}

void OptimizerState::widen(const Tensor& to, const Tensor& from, bool from_host) {
  if (from.type == DType::fp32) return copy(compute_, to, from);
  const Tensor here = from_host ? narrow_->elements(0, from.size()) : from;
  if (from_host) copy(compute_, here, from);
  accumulate(compute_, to, here, false);
}

void OptimizerState::narrow(const Tensor& to, const Tensor& from, bool to_host) {
  if (to.type == DType::fp32) return copy(compute_, to, from);
  const Tensor here = to_host ? narrow_->elements(0, to.size()) : to;
  cast(compute_, here, from);
  if (to_host) copy(compute_, to, here);
}

void OptimizerState::set(StateKind kind, int unit, const Shard& shard, const Fill& fill) {
  const Tensor target = view(kind, unit, shard);
  if (is_plain(kind)) return fill(target, 0);
  for (int64_t done = 0, n; done < target.size(); done += n) {
    n = std::min(staged_->size(), target.size() - done);
    const Tensor staged = staged_->elements(0, n);
    fill(staged, size_t(done));
    narrow(target.elements(done, n), staged, on_host(kind));
  }
}

void OptimizerState::get(StateKind kind, int unit, const Shard& shard, const Use& use) {
  const Tensor source = view(kind, unit, shard);
  if (is_plain(kind)) return use(source, 0);
  for (int64_t done = 0, n; done < source.size(); done += n) {
    n = std::min(staged_->size(), source.size() - done);
    const Tensor staged = staged_->elements(0, n);
    widen(staged, source.elements(done, n), on_host(kind));
    use(staged, size_t(done));
  }
}

void OptimizerState::set_weights() {
  if (!has_master()) return;
  const int64_t most = parameters_.on_host() ? narrow_->size() : INT64_MAX;
  for (const auto& [unit, shard, _] : shards(StateKind::master).entries()) {
    const Tensor weights = parameters_.kept(unit, shard);
    get(StateKind::master, unit, shard, [&](const Tensor& from, size_t first) {
      for (int64_t done = 0, n; done < from.size(); done += n) {
        n = std::min(most, from.size() - done);
        narrow(weights.elements(int64_t(first) + done, n), from.elements(done, n), parameters_.on_host());
      }
    });
  }
}

void OptimizerState::read(StateKind kind, int unit, const Shard& shard, float* to) {
  const Tensor source = view(kind, unit, shard);
  std::vector<bf16> narrow(source.type == DType::bf16 ? shard.count : 0);
  copy(compute_, narrow.empty() ? Tensor(to, {source.size()}) : Tensor(narrow.data(), {source.size()}), source);
  compute_.synchronize();
  for (size_t i = 0; i < narrow.size(); ++i) to[i] = to_float(narrow[i]);
}

SweepArray OptimizerState::sweep_array(StateKind kind, int unit, const Shard& elements) const {
  if (!kept_[kind]) return {};
  return {shards(kind).view_from(kept_[kind], unit, elements), slots_[kind]};
}
