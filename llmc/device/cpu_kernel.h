// CUDA C++ for kernels in the CPU backend: qualifiers, coordinates, barriers and warp collectives. cpu_wrappers.h
// includes this file.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "llmc/device/cpu_block.h"
#include "llmc/device/cpu_hopper.h"
#include "llmc/device/cpu_stream.h"

#define __global__ [[gnu::always_inline]] static inline
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// Kernels do not use these two CUDA names. The compiler's error says what to use instead in both backends.
#define __shared__ _Pragma("GCC error \"shared memory is declared by shared_memory<T>() (llmc/device/kernel.cuh)\"")
template <class T>
T atomicAdd(T*, std::type_identity_t<T>) {
  static_assert(!std::is_integral_v<T>, "integers are added by atomic_add (llmc/device/kernel.cuh)");
  static_assert(std::is_integral_v<T>,
                "the order in which atomicAdd adds floats is not deterministic, so results would differ from run to "
                "run: add with block_sum (llmc/device/kernel.cuh), whose order is fixed; atomic_add is for integers");
  return {};
}

using dim3 = CpuExtent;

// A kernel is inlined into the loop over the threads of a block, so these coordinates are variables of its own file.
[[maybe_unused]] static thread_local CpuIndex threadIdx, blockIdx;
[[maybe_unused]] static thread_local CpuExtent blockDim, gridDim;
static constexpr int warpSize = 32;

#define LLMC_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(LLMC_PLACE) { cpu_backend::sync_block({"__syncthreads", file, line}); }
inline void __syncwarp(uint32_t mask = ~0u, LLMC_PLACE) {
  cpu_backend::sync_warp(mask, nullptr, 0, {"__syncwarp", file, line});
}

namespace cpu_backend {

template <class T>
struct Shuffle {
  T value, result;
  int source;
  static void run(uint64_t* lanes, uint32_t mask) {
    for (int l = 0; l < 32; ++l) {
      if (!(mask >> l & 1)) continue;
      auto* me = from_posted<Shuffle*>(lanes[l]);
      if (mask >> me->source & 1) me->result = from_posted<Shuffle*>(lanes[me->source])->value;
      else memset(static_cast<void*>(&me->result), 0xff, sizeof(T));  // the source lane is not in the mask: undefined
    }
  }
};

template <class T>
T shuffle(uint32_t mask, T value, int source, const Place& place) {
  Shuffle<T> me{value, value, source};
  sync_warp(mask, &Shuffle<T>::run, to_posted(&me), place);
  return me.result;
}

// Returns the source lane of a shuffle within groups of `width` lanes. For a source outside the group, that is the lane
// itself.
inline int shuffle_source(int source, int width) {
  const int lane = lane_number();
  return (source & ~(width - 1)) == (lane & ~(width - 1)) ? source : lane;
}

inline void run_ballot(uint64_t* lanes, uint32_t mask) {
  uint32_t bits = 0;
  for (int l = 0; l < 32; ++l)
    if (mask >> l & 1) bits |= uint32_t(lanes[l]) << l;
  for (int l = 0; l < 32; ++l)
    if (mask >> l & 1) lanes[l] = bits;
}

template <auto kernel>
struct Signature;
template <class... P, void (*kernel)(P...)>
struct Signature<kernel> {
  using Arguments = std::tuple<P...>;
  static Arguments pack(P... parameters) { return Arguments(parameters...); }

  static void run_threads(const void* arguments, int first, int last, const bool& in_loop) {
    run(*static_cast<const Arguments*>(arguments), first, last, in_loop, std::index_sequence_for<P...>{});
  }

  template <size_t... I>
  static void run(const Arguments arguments, int first, int last, const bool& in_loop, std::index_sequence<I...>) {
    for (int t = first;;) {
      kernel(std::get<I>(arguments)...);
      if (!in_loop || ++t == last) return;
      if (++threadIdx.x < blockDim.x) continue;
      threadIdx.x = 0;
      if (++threadIdx.y < blockDim.y) continue;
      threadIdx.y = 0;
      ++threadIdx.z;
    }
  }

  static CpuIndex* enter_block(CpuIndex block, CpuExtent block_dim, CpuExtent grid_dim) {
    blockIdx = block;
    blockDim = block_dim;
    gridDim = grid_dim;
    return &threadIdx;
  }
};

}  // namespace cpu_backend

template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, LLMC_PLACE) {
  const int base = cpu_backend::lane_number() & ~(width - 1);
  return cpu_backend::shuffle(mask, value, base + (source & (width - 1)), {"__shfl_sync", file, line});
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32, LLMC_PLACE) {
  // Unlike the other shuffles, this one may read from an earlier group.
  const int lane = cpu_backend::lane_number(), source = lane ^ (lanes & 31);
  return cpu_backend::shuffle(mask, value, source <= (lane | (width - 1)) ? source : lane,
                              {"__shfl_xor_sync", file, line});
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned lanes, int width = 32, LLMC_PLACE) {
  const int source = cpu_backend::shuffle_source(cpu_backend::lane_number() + int(lanes), width);
  return cpu_backend::shuffle(mask, value, source, {"__shfl_down_sync", file, line});
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned lanes, int width = 32, LLMC_PLACE) {
  const int source = cpu_backend::shuffle_source(cpu_backend::lane_number() - int(lanes), width);
  return cpu_backend::shuffle(mask, value, source, {"__shfl_up_sync", file, line});
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate, LLMC_PLACE) {
  return uint32_t(
      cpu_backend::sync_warp(mask, &cpu_backend::run_ballot, predicate != 0, {"__ballot_sync", file, line}));
}
