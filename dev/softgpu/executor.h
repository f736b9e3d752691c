// Executes translated kernels on the CPU backend's blocks: a kernel's thread is a call of its translated function, and
// becomes a fiber when it waits.
#pragma once

#include <string>

#include "dev/softgpu/kernel.h"

namespace softgpu {

struct Launch {
  const KernelInfo* kernel;
  const u8* parameters;  // laid out as the kernel's parameters say, aligned to 128 bytes
  u32 grid[3], block[3];
  u32 dynamic_shared_bytes;
};

// Bytes of shared memory that a block of the launch has.
u32 shared_bytes(const Launch& launch);

// Executes the launch and returns when it is done. If a thread does what ends a kernel on a GPU, the report is printed,
// `failed` is called with the error that CUDA gives, and the calling thread stays here for ever: as on a GPU, nothing
// that was enqueued behind it will run.
//
// A kernel whose threads all wait for ever is reported, too. Like a GPU with a display, the software GPU then ends with
// a timeout; with LLMC_SOFTGPU_HANG=1 it hangs, as a GPU without one does.
enum class KernelError { illegal_address, misaligned_address, launch_failure, timeout };
using Failed = void (*)(KernelError error);
[[gnu::visibility("default")]] void execute(const Launch& launch, Failed failed);

}  // namespace softgpu
