#include "llmc/memory/snapshot.h"

#include "llmc/device/number.h"

Snapshot::Snapshot(MemoryPlan& plan, std::vector<UnitShare> shares, const OptimizerState& state, size_t others,
                   Device& device)
    : shares_(std::move(shares)),
      other_count_(others),
      starts_{0},
      device_(device),
      stream_(device, "snapshot"),
      computed_(device),
      copied_(device) {
  for (const UnitShare& share : shares_) starts_.push_back(total() + share.count);
  for (const StateKind kind : kStateKinds) {
    types_[int(kind)] = state.type(kind);
    planned_[int(kind)] =
        plan.add_elements(Segment::pinned, "snapshot", name_of(kind), total(), bytes_of(types_[int(kind)]));
  }
  if (others) planned_others_ = plan.add<float>(Segment::pinned, "snapshot", "FP8 scales", others);
}

void Snapshot::bind(const Arena& arena) {
  for (int kind = 0; kind < 3; ++kind) data_[kind] = arena[planned_[kind]];
  if (other_count_) others_ = arena[planned_others_];
}

void Snapshot::take(Stream& compute, const Source& source, const float* others) {
  computed_.record(compute);
  stream_.wait(computed_);
  for (const StateKind kind : kStateKinds)
    for (size_t unit = 0; unit < shares_.size(); ++unit) {
      const StateView from = source(kind, int(unit));
      copy_bytes(stream_, StateView{data_[int(kind)], from.type, true}.from(starts_[unit]).data, from.data,
                 from.bytes(shares_[unit].count));
    }
  copy(stream_, others_, others, other_count_);
  copied_.record(stream_);
  on_its_way_ = true;
}

void Snapshot::before_update(Stream& compute) {
  if (on_its_way_) compute.wait(copied_);
  on_its_way_ = false;
}

void Snapshot::finish(Communicator& communicator) {
  communicator.wait_for(copied_);
  const auto all = [&](StateKind kind) {
    return reads(data_[int(kind)], StateView{nullptr, types_[int(kind)], true}.bytes(total()));
  };
  host_accesses(device_, "the snapshot",
                {all(StateKind::weights), all(StateKind::first_moments), all(StateKind::second_moments),
                 reads(others_, other_count_)});
}

const float* Snapshot::read(StateKind kind, int unit, size_t at, size_t count, std::vector<float>& buffer) const {
  const std::byte* from = StateView{data_[int(kind)], types_[int(kind)], true}.from(starts_[size_t(unit)] + at).data;
  if (types_[int(kind)] == DType::fp32) return reinterpret_cast<const float*>(from);
  buffer.resize(count);
  for (size_t i = 0; i < count; ++i) buffer[i] = to_float(reinterpret_cast<const bf16*>(from)[i]);
  return buffer.data();
}
