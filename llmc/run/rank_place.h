// The place of a rank, in words for the user who looks for its machine.
#pragma once

#include <string>
#include <vector>

#include "llmc/comm/communicator.h"

struct RankPlace {
  std::string host, uuid, process;   // uuid: of the GPU; "" on a CPU
  std::string text(int rank) const;  // "rank 1 (host node2, GPU GPU-8a6e…)", "rank 1 (host node2, process 4711)"
};

// Returns the place of each rank. All ranks call.
std::vector<RankPlace> gather_places(Communicator& communicator, Device& device);
