// StepStates on their way to the device and, a step later, back: pinned slots, so that the host is never in a step's
// way.
#pragma once

#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/device/device.h"
#include "llmc/kernels/step_state.h"
#include "llmc/memory/plan.h"

class StateFeed {
 public:
  StateFeed(MemoryPlan& plan, Device& device);
  void bind(const Arena& arena);
  StepState* on_device() const { return on_device_; }

  // The next step begins with this state. Throws where kUnderWay results were not asked for yet.
  void send(Stream& stream, const StepState& state);
  // The step is enqueued: its state comes back.
  void fetch(Stream& stream);
  struct Returned {
    StepState state;
    double seconds;  // to its return, from the return of the one before if that was under way, else from its arrival
  };
  Returned wait_for_oldest(Communicator& communicator);

 private:
  static constexpr int kUnderWay = 2, kSlots = kUnderWay + 1;  // and the one before, whose end is looked at
  Device& device_;
  Planned<StepState> planned_pinned_, planned_device_;
  StepState *pinned_ = nullptr, *on_device_ = nullptr;
  std::vector<Event> begun_, returned_;  // a slot
  bool follows_[kSlots] = {};            // a slot: was sent while another step was under way
  int next_ = 0, under_way_ = 0;
};
