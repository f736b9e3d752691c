// The sends and receives of a group as NCCL executes them ("Point-to-point communication" in its documentation): one
// kernel, in which those of different peers do not wait for each other and those of one peer are executed in order. Two
// ranks match by that order. The kernel ends when each of its messages was taken, so the ranks that neither send nor
// receive need not call.
#pragma once

#include <string>
#include <vector>

#include "dev/softgpu/nccl/collective.h"

namespace softgpu {

// Returns why NCCL refuses the messages of a rank to itself; "" if each has its counterpart in the group.
std::string wrong_messages_to_self(const std::vector<CollectiveCall>& calls, int rank);

// The kernel. `calls` are sends and receives.
Task messages_task(const std::vector<CollectiveCall>& calls, ncclComm_t comm);

}  // namespace softgpu
