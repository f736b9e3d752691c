// cp.async (sm_80 and newer) copies 16 or 4 bytes from global to shared memory without passing through registers.
//
//   cp_async16(to, from);  cp_async_commit_group();  …  cp_async_wait_group<N>();  __syncthreads();
//
// The copies of each thread form groups; commit closes a group. wait<N> returns when at most the N newest groups of
// this thread are still under way. Only a barrier after the wait makes a copy visible to other threads. In the CPU
// backend a copy lands as late as the wait allows (or early, or at random: LLMC_CPU_COPIES), so that after a missing
// wait the kernel reads poison.
#pragma once

#include "llmc/device/kernel.cuh"

#if LLMC_CUDA

// Both addresses are aligned to the size of the copy; `to` lies in shared memory. If `there` is false, the copy writes
// zeros and does not read `from`.
__device__ __forceinline__ void cp_async16(void* to, const void* from, bool there = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async4(void* to, const void* from, bool there = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_address(to)), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

namespace cpu_backend {
alignas(16) inline constexpr unsigned char kZeros[16] = {};
}
inline void cp_async16(void* to, const void* from, bool there = true, LLMC_PLACE) {
  cpu_backend::async_copy(to, there ? from : cpu_backend::kZeros, 16, {"cp_async16", file, line});
}
inline void cp_async4(void* to, const void* from, bool there = true, LLMC_PLACE) {
  cpu_backend::async_copy(to, there ? from : cpu_backend::kZeros, 4, {"cp_async4", file, line});
}
inline void cp_async_commit_group() { cpu_backend::async_copy_commit(); }
template <int N>
inline void cp_async_wait_group() {
  cpu_backend::async_copy_wait(N);
}

#endif
