// Barriers in shared memory that count arrivals and bytes (mbarrier, sm_90), and the other instructions that let the
// warps of a block have different roles (warp specialization).
//
// A phase of a barrier is complete when the number of threads given to mbarrier_init have arrived and all announced
// bytes have come. Then the next phase begins with the same number. The parity tells phases apart; it is 0 in the first
// phase. Waiting for a parity returns at once if the phase before the current one had that parity. So waiting for
// parity 1 of a new barrier returns at once.
//
//   if (threadIdx.x == 0) { mbarrier_init(full, 1); fence_mbarrier_init(); }
//   __syncthreads();
//   producer: mbarrier_arrive_expect_tx(full, bytes); tma_load(…, full, …);      consumers: mbarrier_wait(full, 0);
#pragma once

#include "llmc/device/bounded_wait.cuh"
#include "llmc/device/sm90_asm.cuh"

struct alignas(8) Mbarrier {
  uint64_t bits;
};

#if LLMC_CUDA

// One thread calls. `arrivals` arrivals complete a phase.
__device__ __forceinline__ void mbarrier_init(Mbarrier& barrier, int arrivals) {
  SM90_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(&barrier)), "r"(arrivals) : "memory");
}
// The thread that initialised the barriers calls this before a __syncthreads, so that TMA sees the barriers too.
__device__ __forceinline__ void fence_mbarrier_init() {
  SM90_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
  SM90_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(Mbarrier& barrier) {
  SM90_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(&barrier)) : "memory");
}
// Arrives and announces `bytes`: the phase is not complete before they have come.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(Mbarrier& barrier, int bytes) {
  SM90_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(&barrier)), "r"(bytes)
           : "memory");
}
// Returns when the phase of this parity is complete. The caller then sees what the arriving threads wrote before they
// arrived, and the bytes that came.
__device__ __forceinline__ void mbarrier_wait(Mbarrier& barrier, int parity) {
  uint32_t done = 0;
  const BoundedWait wait = bounded_wait();
  do {
    SM90_ASM(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(smem_address(&barrier)), "r"(parity)
        : "memory");
  } while (!done && !in_vain(wait, smem_address(&barrier), uint32_t(parity)));
}

// Arrives at a named barrier without waiting there. `threads` counts the threads that wait and those that only arrive.
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Changes the number of registers of each thread of this warpgroup to kRegisters, a multiple of 8 from 24 to 256.
// setmaxnreg_dec gives registers up; setmaxnreg_inc takes more, and waits until other warpgroups have given up enough.
// All four warps must call. The kernel needs __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  SM90_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  SM90_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#else

inline void mbarrier_init(Mbarrier& barrier, int arrivals, LLMC_PLACE) {
  cpu_backend::mbarrier_init(&barrier.bits, arrivals, {"mbarrier_init", file, line});
}
inline void fence_mbarrier_init(LLMC_PLACE) { cpu_backend::fence_mbarrier_init({"fence_mbarrier_init", file, line}); }
inline void mbarrier_arrive(Mbarrier& barrier, LLMC_PLACE) {
  cpu_backend::mbarrier_arrive(&barrier.bits, 0, {"mbarrier_arrive", file, line});
}
inline void mbarrier_arrive_expect_tx(Mbarrier& barrier, int bytes, LLMC_PLACE) {
  cpu_backend::mbarrier_arrive(&barrier.bits, bytes, {"mbarrier_arrive_expect_tx", file, line});
}
inline void mbarrier_wait(Mbarrier& barrier, int parity, LLMC_PLACE) {
  cpu_backend::mbarrier_wait(&barrier.bits, parity, {"mbarrier_wait", file, line});
}
inline void named_barrier_arrive(int barrier, int threads, LLMC_PLACE) {
  cpu_backend::arrive_named(barrier, threads, {"named_barrier_arrive", file, line});
}
template <int kRegisters>
inline void setmaxnreg_dec(LLMC_PLACE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  cpu_backend::change_registers(kRegisters, false, {"setmaxnreg_dec", file, line});
}
template <int kRegisters>
inline void setmaxnreg_inc(LLMC_PLACE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  cpu_backend::change_registers(kRegisters, true, {"setmaxnreg_inc", file, line});
}

#endif

// A position in a ring of kSlots stages: the stage `slot`, and the parity of the phase that comes next there, which
// changes each time round the ring.
template <int kSlots>
struct PipelineState {
  int slot = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot < kSlots) return;
    slot = 0;
    parity ^= 1;
  }
};
