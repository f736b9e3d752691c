// Tensors that tensor parallelism has cut, put together again on the host: for exports and comparisons.
#pragma once

#include <string>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/model/tensors.h"

// Of each tensor of a unit all its numbers, in the order of the layout. `own` is the unit on this rank's device;
// `ranks` the tensor-parallel group, which all call. The host waits. Throws where copies of the same numbers differ.
class WholeTensors {
 public:
  WholeTensors(const LlamaConfig& config, int parts, Communicator& ranks, Stream& compute)
      : config_(config), parts_(parts), ranks_(ranks), compute_(compute) {}
  std::vector<std::vector<float>> of(int unit, const float* own) const;

 private:
  const LlamaConfig& config_;  // of the whole model
  const int parts_;
  Communicator& ranks_;
  Stream& compute_;
};
