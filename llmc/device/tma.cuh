// Copies boxes of a tensor between device and shared memory with Hopper's copy engine (TMA). One thread starts a copy.
//
// TMA and wgmma access shared memory through a path of their own, the async proxy. They see what threads wrote with
// ordinary stores only after those threads have called fence_async_proxy() and then passed a barrier with the thread
// that starts the copy or the product. Such stores go through store_for_async_proxy. The CPU backend relies on it: its
// async proxy does not see a byte that was not stored that way and fenced.
#pragma once

#include "llmc/device/mbarrier.cuh"
#include "llmc/device/tensor_map.h"

#if LLMC_CUDA

// Fetches a tensor map, which is a parameter of the kernel, before the first copy needs it.
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
  SM90_ASM("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Starts to load the box at these coordinates (dimension 0 first; the box may lie outside the tensor) to `to`, which is
// 1024-byte aligned. c0 is a multiple of 16 bytes: else an H200 reports an illegal instruction. `barrier` counts the
// bytes, always those of the whole box.
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, Mbarrier& barrier, int c0, int c1, int c2,
                                         int c3) {
  SM90_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(smem_address(to)),
      "l"(&map), "r"(smem_address(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// Starts to store the box from `from` at these coordinates. c0 is a multiple of 16 bytes and no coordinate is negative,
// or an H200 reports an illegal instruction; a row of the tensor is whole 16 bytes, or it writes beyond the row. `from`
// must not change until tma_store_wait_group_read.
__device__ __forceinline__ void tma_store(const TensorMap& map, const void* from, int c0, int c1, int c2, int c3) {
  SM90_ASM("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
           "r"(smem_address(from)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
           : "memory");
}
// Makes this thread's stores since the last commit a group.
__device__ __forceinline__ void tma_store_commit_group() { SM90_ASM("cp.async.bulk.commit_group;" ::: "memory"); }
// Returns when all groups of this thread have been read from shared memory. They are written when the kernel has ended,
// and this is enough for kernels that end right after it. A kernel that tells anybody before its end that its stores
// are there, by a flag in memory or by a programmatic launch of the next kernel, must first wait for
// cp.async.bulk.wait_group, without .read.
__device__ __forceinline__ void tma_store_wait_group_read() {
  SM90_ASM("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Makes what this thread wrote to shared memory visible to TMA and wgmma, if they start after a barrier.
__device__ __forceinline__ void fence_async_proxy() { SM90_ASM("fence.proxy.async.shared::cta;" ::: "memory"); }

template <class T>
__device__ __forceinline__ void store_for_async_proxy(T* to, const T& value) {
  *to = value;
}

#else

#define __grid_constant__

inline void prefetch_tensor_map(const TensorMap& map, LLMC_PLACE) {
  cpu_backend::require_tensor_map(map, {"prefetch_tensor_map", file, line});
}
inline void tma_load(void* to, const TensorMap& map, Mbarrier& barrier, int c0, int c1, int c2, int c3, LLMC_PLACE) {
  cpu_backend::tma_load(to, map, &barrier.bits, {c0, c1, c2, c3}, {"tma_load", file, line});
}
inline void tma_store(const TensorMap& map, const void* from, int c0, int c1, int c2, int c3, LLMC_PLACE) {
  cpu_backend::tma_store(map, from, {c0, c1, c2, c3}, {"tma_store", file, line});
}
inline void tma_store_commit_group(LLMC_PLACE) {
  cpu_backend::tma_store_commit_group({"tma_store_commit_group", file, line});
}
inline void tma_store_wait_group_read(LLMC_PLACE) {
  cpu_backend::tma_store_wait_group_read({"tma_store_wait_group_read", file, line});
}
inline void fence_async_proxy(LLMC_PLACE) { cpu_backend::fence_async_proxy({"fence_async_proxy", file, line}); }
template <class T>
inline void store_for_async_proxy(T* to, const T& value, LLMC_PLACE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  cpu_backend::store_for_async_proxy(to, &value, sizeof(T), {"store_for_async_proxy", file, line});
}

#endif
