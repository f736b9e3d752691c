// Flags in global memory with which the blocks of a kernel wait for each other. A block that has waited for a flag sees
// everything that the setting block did before.
//
// A block may wait only for blocks that have started, because the GPU may have no room for the others while it waits.
// CUDA does not promise any order in which blocks start. So each block takes a ticket, does the work of that number,
// and waits only for lower tickets:
//
//   if (threadIdx.x == 0) shared.ticket = take_ticket(*tickets);          // 0, 1, 2, … as the blocks start
//   __syncthreads();
//   …
//   if (threadIdx.x == 0) flag_wait(*flag, shared.ticket);                // one thread waits for the block
//   __syncthreads();
//   …  the part that the blocks do one after another
//   __syncthreads();
//   if (threadIdx.x == 0) flag_set(*flag, shared.ticket + 1);
//
// The caller sets flags and tickets to 0 before it launches the kernel.
#pragma once

#include "llmc/device/bounded_wait.cuh"
#include "llmc/device/kernel.cuh"

#if LLMC_CUDA

__device__ __forceinline__ uint32_t take_ticket(uint32_t& tickets) { return atomicAdd(&tickets, 1u); }

__device__ __forceinline__ void flag_set(uint32_t& flag, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(&flag)), "r"(value) : "memory");
}

// Returns when the flag is at least `value`.
__device__ __forceinline__ void flag_wait(const uint32_t& flag, uint32_t value) {
  uint32_t seen;
  const BoundedWait wait = bounded_wait();
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(__cvta_generic_to_global(&flag)) : "memory");
  } while (seen < value && !in_vain(wait, VainWait::flag, seen, value));
}

#else

inline uint32_t take_ticket(uint32_t& tickets) {
  return std::atomic_ref<uint32_t>(tickets).fetch_add(1, std::memory_order_relaxed);
}
inline void flag_set(uint32_t& flag, uint32_t value, LLMC_PLACE) {
  cpu_backend::flag_set(&flag, value, {"flag_set", file, line});
}
inline void flag_wait(const uint32_t& flag, uint32_t value, LLMC_PLACE) {
  cpu_backend::flag_wait(&flag, value, {"flag_wait", file, line});
}

#endif
