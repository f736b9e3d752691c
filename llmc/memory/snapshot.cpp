#include "llmc/memory/snapshot.h"

#include "llmc/device/number.h"

Snapshot::Snapshot(MemoryPlan& plan, const OptimizerState& state, size_t others, Device& device)
    : state_(state), device_(device), stream_(device, "snapshot"), computed_(device), copied_(device) {
  for (const StateKind kind : kStateKinds)
    data_[kind] =
        plan.add(Segment::pinned, "snapshot", checkpoint_name(kind), state.type(kind), {state.saved()[kind].size()});
  if (others) others_ = plan.add(Segment::pinned, "snapshot", "FP8 scales", DType::fp32, {others});
}

void Snapshot::take(Stream& compute, const Tensor& others) {
  computed_.record(compute);
  stream_.wait(computed_);
  for (const StateKind kind : kStateKinds)
    for (const auto& [unit, shard, at] : state_.saved()[kind].entries())
      copy(stream_, data_[kind]->elements(at, shard.count), state_.view(kind, unit, shard));
  if (others_) copy(stream_, others_, others);
  copied_.record(stream_);
  on_its_way_ = true;
}

void Snapshot::before_update(Stream& compute) {
  if (on_its_way_) compute.wait(copied_);
  on_its_way_ = false;
}

void Snapshot::finish(Communicator& communicator) {
  communicator.wait_for(copied_);
  host_accesses(device_, "the snapshot", {reads(data_.of[0]), reads(data_.of[1]), reads(data_.of[2]), reads(others_)});
}

const float* Snapshot::read(StateKind kind, int unit, const Shard& shard, std::vector<float>& buffer) const {
  const Tensor from = state_.saved()[kind].view(data_[kind], unit, shard);
  if (from.type == DType::fp32) return from.as<float>();
  buffer.resize(shard.count);
  for (size_t i = 0; i < shard.count; ++i) buffer[i] = to_float(from.as<bf16>()[i]);
  return buffer.data();
}
