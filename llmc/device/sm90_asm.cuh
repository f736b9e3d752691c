// Instructions that only sm_90a has. A kernel that uses them is compiled for every architecture of the build, but works
// only on sm_90a: elsewhere SM90_ASM is a trap. kBuildHasHopper tells launchers whether the build has the code.
#pragma once

#include "llmc/device/kernel.cuh"

#if LLMC_CUDA

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SM90_ASM(...) asm volatile(__VA_ARGS__)
#else
#define SM90_ASM(...) __trap()
#endif

#ifdef LLMC_SM90A  // ARCH names 90a
inline constexpr bool kBuildHasHopper = true;
#else
inline constexpr bool kBuildHasHopper = false;
#endif

#else

inline constexpr bool kBuildHasHopper = true;  // the CPU backend emulates the wrappers

#endif
