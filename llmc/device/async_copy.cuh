// cp.async (sm_80 and newer): 16 or 4 bytes from global to shared memory without passing through registers.
//
//   cp_async16(to, from);  cp_async_commit();  …  cp_async_wait<N>();  __syncthreads();
//
// Each thread's copies form groups, closed by commit; wait<N> returns when at most the N newest groups of this thread
// are under way. Only a barrier after it makes other threads' copies visible. In the CPU world a copy lands as late as
// the wait allows (or early, or at random: LLMC_CPU_COPIES), so that a missing wait reads poison.
#pragma once

#include "llmc/device/kernel.cuh"

#if LLMC_CUDA

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return uint32_t(__cvta_generic_to_shared(pointer));
}
// Both addresses are aligned to the size; `to` lies in shared memory. Zeros where there is nothing (`from` is not
// read).
__device__ __forceinline__ void cp_async16(void* to, const void* from, bool there = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async4(void* to, const void* from, bool there = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

namespace cpu_world {
alignas(16) inline constexpr unsigned char kZeros[16] = {};
}
inline void cp_async16(void* to, const void* from, bool there = true, LLMC_PLACE) {
  cpu_world::async_copy(to, there ? from : cpu_world::kZeros, 16, {"cp_async16", file, line});
}
inline void cp_async4(void* to, const void* from, bool there = true, LLMC_PLACE) {
  cpu_world::async_copy(to, there ? from : cpu_world::kZeros, 4, {"cp_async4", file, line});
}
inline void cp_async_commit(LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::async_copy_commit();
}
template <int N>
inline void cp_async_wait(LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::async_copy_wait(N);
}

#endif
