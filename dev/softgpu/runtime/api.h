// What the files that implement CUDA's functions share.
#pragma once

#include <cuda_runtime.h>

#define SOFTGPU_API extern "C" __attribute__((visibility("default")))

namespace softgpu {

// Remembers an error as the calling thread's last one (cudaGetLastError) and returns it.
cudaError_t give(cudaError_t error);

// Prints, once for each text: what the documentation forbids and drivers do not notice.
[[gnu::format(printf, 1, 2), gnu::visibility("default")]] void warn(const char* pattern, ...);

// LLMC_SOFTGPU_LOSE="WHERE NUMBER HOW": this process is lost at call NUMBER (from 1) of the kind WHERE: start (it
// chooses its GPU), all_reduce, all_gather, reduce_scatter, broadcast, send or receive, or capture for any of them
// inside one. HOW: kill, stop (SIGSTOP) or late (it sleeps for a minute, in its next launch: not inside NCCL). For
// tests of the ranks that wait.
[[gnu::visibility("default")]] void lose(const char* where);
void be_late();  // called by every launch

// A call that a capture forbids to its thread ("unsafe" in the documentation of cudaStreamBeginCapture) returns an
// error and spoils the capture. cudaSuccess: the thread captures nothing.
cudaError_t unsafe_during_capture(const char* call);

}  // namespace softgpu
