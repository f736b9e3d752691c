// Copies a StepState to the device at the start of a step, and back at its end, with the sums of the losses by source
// where the data is a mixture. The host reads it one step later. Each step has a pinned slot for either direction, so
// that the device never waits for the host.
#pragma once

#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/device/device.h"
#include "llmc/kernels/step_state.h"
#include "llmc/memory/plan.h"

class StepStateQueue {
 public:
  StepStateQueue(MemoryPlan& plan, Device& device, int sources);
  const PlannedArray<StepState>& on_device() const { return on_device_; }
  // (sources, 2) fp64, as sum_losses_by_source() writes them; absent if there is one source.
  const PlannedTensor& source_sums() const { return source_sums_; }

  // Sends the state with which the next step begins. Throws if kUnderWay results have not been asked for yet.
  void send(Stream& stream, const StepState& state);
  // Must be called when the whole step is enqueued: its state comes back to the host.
  void fetch(Stream& stream);
  struct Returned {
    StepState state;
    std::vector<double> source_sums;  // (sources, 2); empty if there is one source
    double seconds;  // from the previous step's return if that was under way, else from send(), to this one's return
  };
  Returned wait_for_oldest(Communicator& communicator);
  int under_way() const { return under_way_; }  // steps whose state was not waited for

 private:
  static constexpr int kUnderWay = 2, kSlots = kUnderWay + 1;  // one more keeps the end time of the step before
  Device& device_;
  PlannedArray<StepState> pinned_, on_device_;
  PlannedTensor pinned_sums_, source_sums_;  // (kSlots, sources, 2), (sources, 2)
  std::vector<Event> begun_, returned_;      // per slot
  bool follows_[kSlots] = {};                // per slot: was sent while another step was under way
  int next_ = 0, under_way_ = 0;
};
