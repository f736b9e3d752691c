// Reassembles, on the host, tensors that tensor parallelism has split: for exports and comparisons.
#pragma once

#include <string>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/config/parameters.h"

// of() returns all elements of each tensor of a unit, in the order of the layout. `own` is the unit on this rank's
// device. `ranks` is the tensor-parallel group, whose ranks all call. The host waits. Throws if copies of the same
// elements differ.
class FullTensors {
 public:
  FullTensors(const ModelConfig& config, int parts, Communicator& ranks, Stream& compute)
      : config_(config), parts_(parts), ranks_(ranks), compute_(compute) {}
  std::vector<std::vector<float>> of(int unit, const float* own) const;

 private:
  const ModelConfig& config_;  // of the whole model
  const int parts_;
  Communicator& ranks_;
  Stream& compute_;
};
