// How long a thread of a kernel waits for another: for ever; in a debug build (make OPTIMIZE=-O0) for 2^34 clock
// cycles, which are about 9 s. It then notes what it waited for and goes on, so that the kernel ends, with wrong
// results, and launch() throws. A debug build's kernels are the release kernels and a clock: a printf or a trap, in
// a kernel that changes register counts, would make ptxas wait after every wgmma.
#pragma once

#include <cstdint>

#include "llmc/device/backend.h"

#ifndef LLMC_BOUNDED_WAITS
#define LLMC_BOUNDED_WAITS 0
#endif

#if LLMC_CUDA

// The first wait in vain of this file's kernels since the host looked.
struct VainWait {
  uint32_t any, block, thread;
  uint32_t address, parity;  // of the mbarrier, in shared memory; that it waited for
};

#if LLMC_BOUNDED_WAITS

namespace {
[[maybe_unused]] __device__ VainWait vain_wait;
}

struct BoundedWait {
  long long begin;
};
__device__ __forceinline__ BoundedWait bounded_wait() { return {clock64()}; }

// Called after a look that found nothing. Returns true if the thread must go on without what it waited for.
__device__ __forceinline__ bool in_vain(const BoundedWait& wait, uint32_t address, uint32_t parity) {
  const uint32_t before = *const_cast<volatile uint32_t*>(&vain_wait.any);
  if (!before && clock64() - wait.begin <= (1ll << 34)) return false;
  if (!before && !atomicCAS(&vain_wait.any, 0u, 1u)) {
    vain_wait.block = blockIdx.x, vain_wait.thread = threadIdx.x;
    vain_wait.address = address, vain_wait.parity = parity;
  }
  return true;
}

#else

struct BoundedWait {};
__device__ __forceinline__ BoundedWait bounded_wait() { return {}; }
__device__ __forceinline__ bool in_vain(const BoundedWait&, uint32_t, uint32_t) { return false; }

#endif
#endif
