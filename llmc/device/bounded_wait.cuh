// How long a thread of a kernel waits for another: for ever; in a debug build (make OPTIMIZE=-O0) for 2^34 clock
// cycles, which are about 9 s. It then notes what it waited for and goes on, so that the kernel ends, with wrong
// results, and launch() throws. A debug build's kernels are the release kernels and a clock: a printf or a trap beside
// a change of register counts would make ptxas wait after every wgmma.
#pragma once

#include <cstdint>

#include "llmc/device/backend.h"

#ifndef LLMC_BOUNDED_WAITS
#define LLMC_BOUNDED_WAITS 0
#endif

#if LLMC_CUDA

// The first wait in vain of this file's kernels since the host looked.
struct VainWait {
  enum What : uint32_t { none, mbarrier, flag };
  uint32_t what, block, thread;
  uint32_t first, second;  // mbarrier: its address in shared memory, the parity; flag: its value, the value waited for
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
__device__ __forceinline__ bool in_vain(const BoundedWait& wait, uint32_t what, uint32_t first, uint32_t second) {
  const uint32_t before = *const_cast<volatile uint32_t*>(&vain_wait.what);
  if (before == VainWait::none && clock64() - wait.begin <= (1ll << 34)) return false;
  if (before == VainWait::none && atomicCAS(&vain_wait.what, uint32_t(VainWait::none), what) == VainWait::none) {
    vain_wait.block = blockIdx.x, vain_wait.thread = threadIdx.x;
    vain_wait.first = first, vain_wait.second = second;
  }
  return true;
}

#else

struct BoundedWait {};
__device__ __forceinline__ BoundedWait bounded_wait() { return {}; }
__device__ __forceinline__ bool in_vain(const BoundedWait&, uint32_t, uint32_t, uint32_t) { return false; }

#endif
#endif
