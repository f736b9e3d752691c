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
      : ranks_(ranks), compute_(compute) {
    for (int rank = 0; rank < ranks.size(); ++rank)
      layouts_.emplace_back(config, parts, TensorSplit{ranks.size(), rank});
  }
  std::vector<std::vector<float>> of(int unit, const float* own) const;

 private:
  Communicator& ranks_;
  Stream& compute_;
  std::vector<ParameterLayout> layouts_;  // of each rank
};
