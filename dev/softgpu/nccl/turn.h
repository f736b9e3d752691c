// When a kernel of NCCL's may begin. Those of one communicator are executed in the order of the calls.
// LLMC_SOFTGPU_RESIDENT kernels at most (4: a quarter of an H100 each) are executed at the same time: a rank that has
// begun others may never get to the one that its peers wait for.
#pragma once

#include "dev/softgpu/nccl/collective.h"

namespace softgpu {

class Turn {
 public:
  explicit Turn(ncclComm_t comm) : comm_(comm), number_(++comm->begun) {}
  bool has_come();  // the kernel begins when this is first true
  void end();

 private:
  const ncclComm_t comm_;
  const uint64_t number_;
  bool resident_ = false;
};

}  // namespace softgpu
