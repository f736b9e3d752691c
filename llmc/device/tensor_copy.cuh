// Boxes of a tensor between device and shared memory by Hopper's copy engine (TMA), started by one thread.
//
// The engine and wgmma reach shared memory through a path of their own, the async proxy: what threads wrote with
// ordinary stores it sees only behind their fence_async_proxy(), and a barrier to whoever starts it. Such stores go
// through stage_shared, which the CPU world takes by its word: what was not staged and fenced, it does not see there.
#pragma once

#include "llmc/device/tensor_map.h"
#include "llmc/device/transaction_barrier.cuh"

#if LLMC_CUDA

// Starts to bring the box at these coordinates (dimension 0 first; may lie outside) to `to`, 1024-byte aligned; its
// bytes, those of the whole box always, are counted by `barrier`.
__device__ __forceinline__ void load_box(void* to, const TensorMap& map, TransactionBarrier& barrier, int c0, int c1,
                                         int c2, int c3) {
  HOPPER_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_window(to)),
      "l"(&map), "r"(shared_window(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// Starts to write the box at these coordinates from `from`, which stays as it is until stores_wait_read.
__device__ __forceinline__ void store_box(const TensorMap& map, const void* from, int c0, int c1, int c2, int c3) {
  HOPPER_ASM("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
             "r"(shared_window(from)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
             : "memory");
}
// This thread's stores since the last commit are a group …
__device__ __forceinline__ void stores_commit() { HOPPER_ASM("cp.async.bulk.commit_group;" ::: "memory"); }
// … and all groups have been read from shared memory.
__device__ __forceinline__ void stores_wait_read() { HOPPER_ASM("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// What this thread wrote to shared memory is seen by the copy engine and wgmma, if they start behind a barrier.
__device__ __forceinline__ void fence_async_proxy() { HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory"); }

template <class T>
__device__ __forceinline__ void stage_shared(T* to, const T& value) {
  *to = value;
}

#else

#define __grid_constant__

inline void load_box(void* to, const TensorMap& map, TransactionBarrier& barrier, int c0, int c1, int c2, int c3,
                     LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::load_box(to, map, &barrier.bits, {c0, c1, c2, c3}, {"load_box", file, line});
}
inline void store_box(const TensorMap& map, const void* from, int c0, int c1, int c2, int c3, LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::store_box(map, from, {c0, c1, c2, c3}, {"store_box", file, line});
}
inline void stores_commit(LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::stores_commit({"stores_commit", file, line});
}
inline void stores_wait_read(LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::stores_wait_read({"stores_wait_read", file, line});
}
inline void fence_async_proxy(LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::fence_async_proxy({"fence_async_proxy", file, line});
}
template <class T>
inline void stage_shared(T* to, const T& value, LLMC_PLACE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  cpu_world::stage_shared(to, &value, sizeof(T), {"stage_shared", file, line});
}

#endif
