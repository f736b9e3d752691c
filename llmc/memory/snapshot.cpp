#include "llmc/memory/snapshot.h"

#include "llmc/device/number.h"

Snapshot::Snapshot(MemoryPlan& plan, std::vector<Shard> shares, const OptimizerState& state, size_t others,
                   Device& device)
    : shares_(std::move(shares)),
      starts_{0},
      device_(device),
      stream_(device, "snapshot"),
      computed_(device),
      copied_(device) {
  for (const Shard& share : shares_) starts_.push_back(total() + share.count);
  for (const StateKind kind : kStateKinds)
    data_[int(kind)] = plan.add(Segment::pinned, "snapshot", name_of(kind), state.type(kind), {total()});
  if (others) others_ = plan.add(Segment::pinned, "snapshot", "FP8 scales", DType::fp32, {others});
}

void Snapshot::take(Stream& compute, const Source& source, const Tensor& others) {
  computed_.record(compute);
  stream_.wait(computed_);
  for (const StateKind kind : kStateKinds)
    for (size_t unit = 0; unit < shares_.size(); ++unit)
      copy(stream_, data_[int(kind)]->elements(starts_[unit], shares_[unit].count), source(kind, int(unit)));
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
  host_accesses(device_, "the snapshot", {reads(data_[0]), reads(data_[1]), reads(data_[2]), reads(others_)});
}

const float* Snapshot::read(StateKind kind, int unit, size_t at, size_t count, std::vector<float>& buffer) const {
  const Tensor from = data_[int(kind)]->elements(starts_[size_t(unit)] + at, count);
  if (from.type == DType::fp32) return from.as<float>();
  buffer.resize(count);
  for (size_t i = 0; i < count; ++i) buffer[i] = to_float(from.as<bf16>()[i]);
  return buffer.data();
}
