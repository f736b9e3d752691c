// The state of a training as it was after one step, in memory of the host, while the next steps change the original:
// of each unit this rank's share of the weights and moments. It travels on a stream of its own beside the next forward
// and backward; only the next update waits for it.
#pragma once

#include <functional>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/sharding.h"

// What a training keeps of each weight, in fp32.
enum class StateKind { weights, first_moments, second_moments };
inline constexpr StateKind kStateKinds[] = {StateKind::weights, StateKind::first_moments, StateKind::second_moments};
const char* name_of(StateKind kind);

class Snapshot {
 public:
  // A share of each unit, and so many other numbers.
  Snapshot(MemoryPlan& plan, std::vector<UnitShare> shares, size_t others, Device& device);
  void bind(const Arena& arena);

  // Where the share of a unit begins on the device.
  using Source = std::function<const float*(StateKind kind, int unit)>;
  // Behind all that compute has enqueued. The snapshot before it is no longer read.
  void take(Stream& compute, const Source& source, const float* others);
  // What compute enqueues from here on may change what was taken.
  void before_update(Stream& compute);
  // The host waits until all has come.
  void finish(Communicator& communicator);
  // Valid until the next take().
  const float* data(StateKind kind, int unit) const;
  const float* others() const { return others_; }

 private:
  size_t total() const { return starts_.back(); }

  const std::vector<UnitShare> shares_;
  const size_t other_count_;
  std::vector<size_t> starts_;  // of the units, and the end
  Device& device_;
  Stream stream_;
  Event computed_, copied_;
  bool on_its_way_ = false;  // and compute has not waited for it
  Planned<float> planned_[3], planned_others_;
  float *data_[3] = {}, *others_ = nullptr;
};
