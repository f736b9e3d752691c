// The window by which a training tells spikes (spike_window.h), in planned memory, and what checkpoints have of it.
#pragma once

#include <cstddef>
#include <vector>

#include "llmc/kernels/spike_window.h"
#include "llmc/memory/plan.h"
#include "llmc/train/checkpoint.h"

class Spikes {
 public:
  Spikes(MemoryPlan& plan, double deviations, int64_t most_in_a_row, Stream& compute);

  SpikeRule rule() const;
  const PlannedTensor& state() const { return state_; }
  // Empties the window. The host waits.
  void reset() { set({}); }
  // The same, with what a checkpoint has. Throws on numbers that no training writes.
  void restore(const Checkpoint& checkpoint);
  // Returns what a checkpoint stores: the losses and norms of the window, oldest first, and the spikes in a row.
  // `copied` is a copy of state() on the host.
  static std::vector<NamedNumbers> numbers(const Tensor& copied);
  std::vector<NamedNumbers> numbers() const;  // of now; the host waits

 private:
  SpikeWindow* window() const { return static_cast<SpikeWindow*>(state_->data); }
  void set(const SpikeWindow& window);

  Stream& compute_;
  const double deviations_;
  const int64_t most_in_a_row_;
  PlannedTensor state_;  // a SpikeWindow: all of its numbers have 4 bytes
};
