// A copy in host memory of the state of a training after one step: this rank's share of the weights and moments of each
// unit. The next steps may change the original meanwhile. The copy is made on a stream of its own, at the same time as
// the next forward and backward; only the next update waits for it.
#pragma once

#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/memory/optimizer_state.h"
#include "llmc/memory/plan.h"

class Snapshot {
 public:
  // A planned tensor on the device that is copied, too.
  struct Other {
    const char* name;
    PlannedTensor tensor;
  };
  // Has room for OptimizerState::saved() and for `others`.
  Snapshot(MemoryPlan& plan, const OptimizerState& state, const std::vector<Other>& others, Device& device);

  // Starts the copy after all that compute has enqueued. The former snapshot must no longer be in use: this overwrites
  // it.
  void take(Stream& compute);
  // Compute waits for the copy, so that work it enqueues from here on may change the original.
  void before_update(Stream& compute);
  bool on_its_way() const { return on_its_way_; }  // and no update has waited for it yet
  // The host waits until the copy is complete.
  void finish(Communicator& communicator);
  // Returns a shard of what was saved as fp32, in place or converted into `buffer`. Valid until the next take().
  const float* read(StateKind kind, int unit, const Shard& shard, std::vector<float>& buffer) const;
  // Returns the copy of one of `others`.
  const Tensor& copy_of(const Tensor& other) const;

 private:
  const OptimizerState& state_;
  Device& device_;
  Stream stream_;
  Event computed_, copied_;
  bool on_its_way_ = false;
  PerKind<PlannedTensor> data_;
  struct Copied {
    PlannedTensor from, to;
  };
  std::vector<Copied> others_;
};
