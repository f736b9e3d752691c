// Barriers in shared memory that count arrivals and bytes (mbarrier, sm_90), and what else lets the warps of a block
// have roles of their own.
//
// A phase of a barrier is complete when as many threads have arrived as it was initialised for, and all bytes that they
// announced have come; then the next begins, with the same count. Phases are told apart by their parity: the first is
// 0. Waiting for a parity returns at once while the barrier is in the phase behind it: who waits for parity 1 of a new
// barrier goes on.
//
//   if (threadIdx.x == 0) { barrier_initialize(full, 1); barriers_publish(); }
//   __syncthreads();
//   producer: barrier_expect(full, bytes); load_box(…, full, …);      consumers: barrier_wait(full, 0);
#pragma once

#include <cstdio>

#include "llmc/device/hopper_asm.cuh"

// In a debug build (make OPTIMIZE=-O0) whoever waits longer than some seconds ends the kernel with the block, the
// barrier and the phase. In the CPU world the report of a hang says all of that.
#ifndef LLMC_BOUNDED_WAITS
#define LLMC_BOUNDED_WAITS 0
#endif

struct alignas(8) TransactionBarrier {
  uint64_t bits;
};

#if LLMC_CUDA

// By one thread; `arrivals` complete a phase.
__device__ __forceinline__ void barrier_initialize(TransactionBarrier& barrier, int arrivals) {
  HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_window(&barrier)), "r"(arrivals) : "memory");
}
// By the thread that initialised them, before a __syncthreads: the copy engine sees them too.
__device__ __forceinline__ void barriers_publish() {
  HOPPER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
  HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(TransactionBarrier& barrier) {
  HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_window(&barrier)) : "memory");
}
// Arrives, and the phase is not complete before `bytes` have come.
__device__ __forceinline__ void barrier_expect(TransactionBarrier& barrier, int bytes) {
  HOPPER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_window(&barrier)), "r"(bytes)
             : "memory");
}
// Returns when the phase of this parity is complete. What those who arrived did before, and the bytes that came, are
// seen.
__device__ __forceinline__ void barrier_wait(TransactionBarrier& barrier, int parity) {
  uint32_t done = 0;
#if LLMC_BOUNDED_WAITS
  const long long begin = clock64();
#endif
  do {
    HOPPER_ASM(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_window(&barrier)), "r"(parity)
        : "memory");
#if LLMC_BOUNDED_WAITS
    if (!done && clock64() - begin > (1ll << 34)) {
      printf("block %d, thread %d: waits in vain for parity %d of the barrier at %u\n", int(blockIdx.x),
             int(threadIdx.x), parity, shared_window(&barrier));
      __trap();
    }
#endif
  } while (!done);
}

// Comes to a named barrier and does not wait there: the others, `threads` with this one's warp, do.
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The registers of each thread of this warpgroup become kRegisters, fewer or more than the kernel was started with: a
// multiple of 8 from 24 to 256. Taking waits until others have given up as many. All four warps call; the kernel needs
// __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void give_up_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#if !LLMC_BOUNDED_WAITS  // whose reports call a function that takes what it needs
  HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#if !LLMC_BOUNDED_WAITS  // whose reports call a function that takes what it needs
  HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

#else

inline void barrier_initialize(TransactionBarrier& barrier, int arrivals, LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::barrier_initialize(&barrier.bits, arrivals, {"barrier_initialize", file, line});
}
inline void barriers_publish(LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::barriers_publish({"barriers_publish", file, line});
}
inline void barrier_arrive(TransactionBarrier& barrier, LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::barrier_arrive(&barrier.bits, 0, {"barrier_arrive", file, line});
}
inline void barrier_expect(TransactionBarrier& barrier, int bytes, LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::barrier_arrive(&barrier.bits, bytes, {"barrier_expect", file, line});
}
inline void barrier_wait(TransactionBarrier& barrier, int parity, LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::barrier_wait(&barrier.bits, parity, {"barrier_wait", file, line});
}
inline void named_barrier_arrive(int barrier, int threads, LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::arrive_named(barrier, threads, {"named_barrier_arrive", file, line});
}
template <int kRegisters>
inline void give_up_registers(LLMC_PLACE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  if (fault_skips(file, line)) return;
  cpu_world::change_registers(kRegisters, false, {"give_up_registers", file, line});
}
template <int kRegisters>
inline void take_registers(LLMC_PLACE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  if (fault_skips(file, line)) return;
  cpu_world::change_registers(kRegisters, true, {"take_registers", file, line});
}

#endif

// A place in a ring of kSlots stages, and how often the ring was gone round: the parity of the phase that is next
// there.
template <int kSlots>
struct RingPlace {
  int slot = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot < kSlots) return;
    slot = 0;
    parity ^= 1;
  }
};
