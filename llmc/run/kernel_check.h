// Before a GPU trains, the kernels that carry a run compute a small case each: the attention kernel, forward and
// backward, and the products of the FP8 recipe. They are compared with plain sums in double precision on the host. A
// driver, a library or a GPU that computes something else than what was tested ends the run here, and not after days.
#pragma once

#include <string>

#include "llmc/comm/communicator.h"
#include "llmc/comm/ranks.h"
#include "llmc/config/fp8.h"
#include "llmc/device/device.h"
#include "llmc/kernels/attention.h"

struct KernelCheck {
  AttentionKernel attention = AttentionKernel::automatic;
  DType dtype = DType::bf16;
  int HD = 64;
  Fp8Settings fp8;

  // Returns what is wrong on this device, with the option that goes round it and the command that shows more; "" if
  // nothing is. Takes a second, and some 40 MB of the device, which are free again afterwards.
  std::string run(Device& device) const;
};

// Runs the check on every rank. Throws if something is wrong: on all of them if MPI connects them, for that needs no
// GPU; else on that rank, and the others then find it gone. If a kernel does not end within 10 s, its rank prints that
// and ends the process.
void require_right_kernels(const KernelCheck& check, Device& device, Communicator& communicator, const Ranks& ranks);
