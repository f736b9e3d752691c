// The state of a training as it was after one step, in memory of the host, while the next steps change the original:
// of each unit this rank's share of the weights and moments. It travels on a stream of its own beside the next forward
// and backward; only the next update waits for it.
#pragma once

#include <functional>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/sharding.h"
#include "llmc/memory/state_store.h"

class Snapshot {
 public:
  // A share of each unit of a state, and so many other numbers.
  Snapshot(MemoryPlan& plan, std::vector<UnitShare> shares, const StateStore& state, size_t others, Device& device);
  void bind(const Arena& arena);

  // Where the share of a unit begins.
  using Source = std::function<StateView(StateKind kind, int unit)>;
  // Behind all that compute has enqueued. The snapshot before it is no longer read.
  void take(Stream& compute, const Source& source, const float* others);
  // What compute enqueues from here on may change what was taken.
  void before_update(Stream& compute);
  bool on_its_way() const { return on_its_way_; }  // and no update has waited for it
  // The host waits until all has come.
  void finish(Communicator& communicator);
  // Elements at .. at+count-1 of the share as fp32, where they lie or in `buffer`. Valid until the next take().
  const float* read(StateKind kind, int unit, size_t at, size_t count, std::vector<float>& buffer) const;
  const float* others() const { return others_; }

 private:
  size_t total() const { return starts_.back(); }

  const std::vector<UnitShare> shares_;
  const size_t other_count_;
  std::vector<size_t> starts_;  // of the units, and the end
  Device& device_;
  Stream stream_;
  Event computed_, copied_;
  bool on_its_way_ = false;
  DType types_[3];
  Planned<std::byte> planned_[3];
  Planned<float> planned_others_;
  std::byte* data_[3] = {};
  float* others_ = nullptr;
};
