// A sweep over arrays of which some lie on the host, such as the optimizer state in an update.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "llmc/memory/slots.h"

// One array of a sweep. An array on the host has two slots on the device, which are filled before f and copied back
// after it if the array `stores`.
struct SweepArray {
  Tensor kept;          // all elements of the sweep; absent: f gets an absent tensor
  PlannedTensor slots;  // (2, chunk); absent: `kept` is on the device
  bool stores = true;
};

// Runs f over arrays of equal length, chunk by chunk: while one chunk is computed, the next is copied in and the former
// one out. Without an array on the host there is one chunk, which is everything.
class Sweep {
 public:
  // `host` may be null if no array is on the host. `chunk`: elements.
  Sweep(Device& device, Stream& compute, HostStreams* host, size_t chunk);
  // Call this before the sweeps of a step: the first chunks that they load may be the last that the former step stored.
  void begin();
  // Lets compute wait until all arrays of former sweeps are on the host.
  void finish();
  // `here` are the arrays of a chunk, on the device while the work that f enqueues on compute runs. `first` is the
  // chunk's first element. At least the last array is not absent.
  using F = std::function<void(std::span<const Tensor> here, size_t first)>;
  void run(std::span<const SweepArray> arrays, const F& f);

 private:
  Stream& compute_;
  HostStreams* host_;
  const size_t chunk_;
  std::vector<Event> loaded_, computed_, stored_;  // one per slot
  int slot_ = 0;                                   // goes on from sweep to sweep
};
