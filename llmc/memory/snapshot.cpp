#include "llmc/memory/snapshot.h"

#include "llmc/base/error.h"
#include "llmc/device/number.h"

Snapshot::Snapshot(MemoryPlan& plan, const OptimizerState& state, const std::vector<Other>& others, Device& device)
    : state_(state), device_(device), stream_(device, "snapshot"), computed_(device), copied_(device) {
  for (const StateKind kind : kStateKinds)
    data_[kind] =
        plan.add(Segment::pinned, "snapshot", checkpoint_name(kind), state.type(kind), {state.saved()[kind].size()});
  for (const auto& [name, from] : others)
    others_.push_back({from, plan.add(Segment::pinned, "snapshot", name, from->type, {from->size()})});
}

void Snapshot::take(Stream& compute) {
  computed_.record(compute);
  stream_.wait(computed_);
  for (const StateKind kind : kStateKinds)
    for (const auto& [unit, shard, at] : state_.saved()[kind].entries())
      copy(stream_, data_[kind]->elements(at, shard.count), state_.view(kind, unit, shard));
  for (const auto& [from, to] : others_) copy(stream_, to, from);
  copied_.record(stream_);
  on_its_way_ = true;
}

void Snapshot::before_update(Stream& compute) {
  if (on_its_way_) compute.wait(copied_);
  on_its_way_ = false;
}

void Snapshot::finish(Communicator& communicator) {
  communicator.wait_for(copied_);
  host_accesses(device_, "the snapshot", {reads(data_.of[0]), reads(data_.of[1]), reads(data_.of[2])});
  for (const Copied& other : others_) host_accesses(device_, "the snapshot", {reads(other.to)});
}

const Tensor& Snapshot::copy_of(const Tensor& other) const {
  for (const auto& [from, to] : others_)
    if (from->data == other.data) return to;
  fail("a snapshot has no copy of a tensor %s", other.text().c_str());
}

const float* Snapshot::read(StateKind kind, int unit, const Shard& shard, std::vector<float>& buffer) const {
  const Tensor from = state_.saved()[kind].view(data_[kind], unit, shard);
  if (from.type == DType::fp32) return from.as<float>();
  buffer.resize(shard.count);
  for (size_t i = 0; i < shard.count; ++i) buffer[i] = to_float(from.as<bf16>()[i]);
  return buffer.data();
}
