// Instructions that only sm_90a has. A kernel that uses them is compiled for every architecture of a build, but does
// nothing elsewhere: HOPPER_ASM is a trap there, and kBuildHasHopper tells launchers whether the build has the code.
#pragma once

#include "llmc/device/kernel.cuh"

#if LLMC_CUDA

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define HOPPER_ASM(...) __trap()
#endif

#ifdef LLMC_SM90A  // ARCH names 90a
inline constexpr bool kBuildHasHopper = true;
#else
inline constexpr bool kBuildHasHopper = false;
#endif

#else

inline constexpr bool kBuildHasHopper = true;  // the CPU world means the same by the wrappers

#endif

// Where a pointer to shared memory points, as descriptors and instructions name it: below 256 KiB.
__device__ __forceinline__ uint32_t shared_window(const void* pointer) {
#if LLMC_CUDA
  return uint32_t(__cvta_generic_to_shared(pointer));
#else
  return cpu_world::shared_window(pointer);
#endif
}
