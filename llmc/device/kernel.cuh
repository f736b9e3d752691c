// Kernels are written with CUDA's own names and with these wrappers, in both backends. cuda_wrappers.cuh has the
// wrappers for nvcc, and cpu_wrappers.h for the CPU, where cpu_kernel.h has CUDA's own names.
//
// Shared memory and barriers
//   shared_memory<T>()     the block's dynamic shared memory as one T (a struct of arrays), 1024-byte aligned. Kernels
//                          declare no __shared__ variables of their own (a CPU build refuses them).
//   smem_address(pointer)  the address of shared memory as descriptors and instructions take it: below 256 KiB
//   kSmallMultiprocessor   whether a multiprocessor has 100 KiB of it (compute capability 8.6, 8.9 and 12), not 164 or
//                          more
//   named_barrier_sync(barrier, threads)  a barrier for so many threads of a block, which are whole warps and may call
//                          from different places in the kernel. `barrier` is 1 to 15.
//
// Sums and maxima, with the same order of additions in both backends. All threads of the warp or block call.
//   warp_sum(x)            the sum over the warp's 32 lanes, to every lane: adds lanes that are 16 apart first, then 8,
//                          4, 2 and 1 apart. x is a float or a double.
//   warp_max(x)            the maximum over the lanes, to every lane. x is a float, of which a NaN loses, or a
//                          uint32_t.
//   block_sum(x)           the sum over the block's threads, to every thread: the sum of each warp, and then the sum of
//                          those, added as by one warp. The block consists of whole warps. Contains two barriers, one
//                          before and one after the writes to shared memory.
//
// Atomics on integers in device memory. The result does not depend on the order (a CPU build refuses atomicAdd).
//   atomic_max, atomic_min on a uint32_t. They look before they write: most values of a launch do not change the
//                          number, and atomic writes of one number wait for each other.
//   atomic_add             on an unsigned long long
//   raise_amax(amax, bits) *amax = max(*amax, x), where `bits` are the fp32 bits of x >= 0. Such bits compare as the
//                          numbers do, with NaN above infinity.
//
// Functions in fp32, which become vector code on the CPU
//   exp_f32(x)             e^x to within 2 units in the last place; infinity above 88.7. Below -87.3, where results are
//                          subnormal, the CPU returns 0.
//   exp2_f32(x)            2^x with a relative error of at most 2^-22; infinity from 128 on. Results below 2^-126
//                          become 0. One instruction on a GPU.
//   reciprocal_f32(x)      1 / x with a relative error of at most 2^-23; 0 for an infinity. One instruction on a GPU,
//                          where a division takes eight.
//   rsqrt_f32(x)           1 / sqrt(x)
//   max_f32(a, b)          the greater of two numbers; if one is NaN, either of the two. fmaxf is one instruction on a
//                          GPU, but a function call with g++.
//   fma_f32(a, b, c)       a * b + c with one rounding, whatever the compiler would do with that expression
//
// Hints for the compiler
//   VECTOR_LOOP            unrolls the loop after it on a GPU, and lets the compiler vectorize it on a CPU. The loop has
//                          a fixed length and goes over a thread's own elements: `VECTOR_LOOP for (int i = 0; i < 8;
//                          ++i)`
//   block_index_again()    reads blockIdx.x again, so that values computed from it need no register from the kernel's
//                          beginning to its end
//   opaque(x)              returns x but hides its value from the compiler, which then computes values that depend on x
//                          where they are used instead of keeping them in registers
//   assume_global(p)       returns p and tells nvcc that it points to device memory. nvcc does not know this of a
//                          pointer that a kernel has read from memory, and would make loads through it wait for stores
//                          to shared memory.
//
// Vectors (vector.h), accessed 16 bytes at a time
//   load_vector(to, p)     loads neighbouring elements as fp32
//   store_vector(p, from)  stores numbers, rounded to the type to which p points
//   rounded<T>(from)       the numbers, rounded to T
//   store_fp8<format>(p, from)  stores 8 or 16 numbers as FP8, saturated and rounded to nearest even
//   max_abs_into(largest, x)  raises each element of `largest` to the magnitude of the same element of x
//   max_value(magnitudes)  the largest of the magnitudes, as the bits of an fp32 number
//
// A device function in a header that reads threadIdx or blockIdx and is not __forceinline__ must be static. In the CPU
// backend each file has a threadIdx and a blockIdx of its own, and the linker would keep one file's copy of the
// function for all.
#pragma once

#include "llmc/device/backend.h"
#include "llmc/device/number.h"
#include "llmc/device/vector.h"

#if LLMC_CUDA
#include "llmc/device/cuda_wrappers.cuh"
#else
#include "llmc/device/cpu_wrappers.h"
#endif

constexpr float kLog2e = 1.4426950408889634f;  // e^x = 2^(kLog2e x)

__device__ __forceinline__ void raise_amax(float* amax, uint32_t bits) {
  atomic_max(reinterpret_cast<uint32_t*>(amax), bits);
}

// widen, narrow and max_abs_into: a call prefers what a backend has for vectors of bf16, which is faster and has the
// same bits.
template <class T, int width>
__device__ __forceinline__ void widen(float (&to)[width], const Vector<T, width>& from) {
#pragma unroll
  for (int j = 0; j < width; ++j) to[j] = to_float(from.v[j]);
}
template <class T, int width>
__device__ __forceinline__ void narrow(Vector<T, width>& to, const float (&from)[width]) {
#pragma unroll
  for (int j = 0; j < width; ++j) to.v[j] = from_float<T>(from[j]);
}
template <int width>
__device__ __forceinline__ void max_abs_into(Vector<bf16, width>& largest, const Vector<bf16, width>& x) {
  for (int j = 0; j < width; ++j) {
    const uint16_t bits = x.v[j].bits & 0x7fff;
    largest.v[j].bits = bits > largest.v[j].bits ? bits : largest.v[j].bits;
  }
}
template <int width>
__device__ __forceinline__ void max_abs_into(Vector<float, width>& largest, const Vector<float, width>& x) {
  VECTOR_LOOP
  for (int j = 0; j < width; ++j) {
    const uint32_t bits = float_to_bits(x.v[j]) & 0x7fffffffu, before = float_to_bits(largest.v[j]);
    largest.v[j] = bits_to_float(bits > before ? bits : before);
  }
}

template <int width, class T>
__device__ __forceinline__ void load_vector(float (&to)[width], const T* from) {
  const Vector<T, width> vector = *reinterpret_cast<const Vector<T, width>*>(from);
  widen(to, vector);
}
template <class T, int width>
__device__ __forceinline__ Vector<T, width> rounded(const float (&from)[width]) {
  Vector<T, width> vector;
  narrow(vector, from);
  return vector;
}
template <int width, class T>
__device__ __forceinline__ void store_vector(T* to, const float (&from)[width]) {
  *reinterpret_cast<Vector<T, width>*>(to) = rounded<T>(from);
}

template <class T, int width>
__device__ __forceinline__ uint32_t max_value(const Vector<T, width>& magnitudes) {
  // It begins with the first magnitude, not with 0: for `bits > 0` after __vmaxu2 with zeros, ptxas 13.0 allocates
  // both predicates of VIMNMX.U16x2 in one register, and an H200 was seen to lose the first magnitude.
  uint32_t largest = float_to_bits(to_float(magnitudes.v[0]));
#pragma unroll
  for (int j = 1; j < width; ++j) {
    const uint32_t bits = float_to_bits(to_float(magnitudes.v[j]));
    largest = bits > largest ? bits : largest;
  }
  return largest;
}
