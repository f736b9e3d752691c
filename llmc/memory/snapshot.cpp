#include "llmc/memory/snapshot.h"

const char* name_of(StateKind kind) {
  const char* const names[] = {"weights", "first_moments", "second_moments"};
  return names[int(kind)];
}

Snapshot::Snapshot(MemoryPlan& plan, std::vector<UnitShare> shares, size_t others, Device& device)
    : shares_(std::move(shares)),
      other_count_(others),
      starts_{0},
      device_(device),
      stream_(device, "snapshot"),
      computed_(device),
      copied_(device) {
  for (const UnitShare& share : shares_) starts_.push_back(total() + share.count);
  for (const StateKind kind : kStateKinds)
    planned_[int(kind)] = plan.add<float>(Segment::pinned, "snapshot for checkpoints", name_of(kind), total());
  if (others) planned_others_ = plan.add<float>(Segment::pinned, "snapshot for checkpoints", "FP8 scales", others);
}

void Snapshot::bind(const Arena& arena) {
  for (int kind = 0; kind < 3; ++kind) data_[kind] = arena[planned_[kind]];
  if (other_count_) others_ = arena[planned_others_];
}

void Snapshot::take(Stream& compute, const Source& source, const float* others) {
  computed_.record(compute);
  stream_.wait(computed_);
  for (const StateKind kind : kStateKinds)
    for (size_t unit = 0; unit < shares_.size(); ++unit)
      copy(stream_, data_[int(kind)] + starts_[unit], source(kind, int(unit)), shares_[unit].count);
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
  host_accesses(
      device_, "the snapshot",
      {reads(data_[0], total()), reads(data_[1], total()), reads(data_[2], total()), reads(others_, other_count_)});
}

const float* Snapshot::data(StateKind kind, int unit) const { return data_[int(kind)] + starts_[size_t(unit)]; }
