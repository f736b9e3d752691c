// The wrappers of kernel.cuh for nvcc. Only kernel.cuh includes this file, and says what they do.
#pragma once

#include <cstring>

#include "llmc/device/number.h"
#include "llmc/device/vector.h"

#define VECTOR_LOOP _Pragma("unroll")

// ---------------------------------------------------------------------------------------------- barriers

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ / 100 == 12)
constexpr bool kSmallMultiprocessor = true;
#else
constexpr bool kSmallMultiprocessor = false;
#endif

template <class T>
__device__ __forceinline__ T& shared_memory() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return *reinterpret_cast<T*>(dynamic_shared_memory);
}

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return uint32_t(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---------------------------------------------------------------------------------------------- hints for the compiler

__device__ static __forceinline__ unsigned block_index_again() {
  unsigned x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

template <class T>
__device__ __forceinline__ T* assume_global(T* p) {
  __builtin_assume(__isGlobal(p));
  return p;
}

// ---------------------------------------------------------------------------------------------- sums and maxima

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int width = 16; width; width >>= 1) value += __shfl_xor_sync(~0u, value, width);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int width = 16; width; width >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, width));
  return value;
}
__device__ __forceinline__ uint32_t warp_max(uint32_t value) { return __reduce_max_sync(~0u, value); }

template <class T>
__device__ __forceinline__ T block_sum(T value) {
  __shared__ T warps[32];
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  value = warp_sum(value);
  __syncthreads();  // other threads may still be reading an earlier sum
  if (thread % 32 == 0) warps[thread / 32] = value;
  __syncthreads();
  const int count = blockDim.x * blockDim.y * blockDim.z / 32;
  return warp_sum(thread % 32 < count ? warps[thread % 32] : T(0));
}

// ---------------------------------------------------------------------------------------------- atomics

__device__ __forceinline__ void atomic_max(uint32_t* address, uint32_t value) {
  if (*static_cast<volatile uint32_t*>(address) < value) atomicMax(address, value);
}
__device__ __forceinline__ void atomic_min(uint32_t* address, uint32_t value) {
  if (*static_cast<volatile uint32_t*>(address) > value) atomicMin(address, value);
}
__device__ __forceinline__ void atomic_add(unsigned long long* address, unsigned long long value) {
  atomicAdd(address, value);
}

// ---------------------------------------------------------------------------------------------- vectors

// Two bf16 are one word, so that each takes one instruction.
template <int width>
requires(width % 2 == 0) __device__ __forceinline__ void widen(float (&to)[width], const Vector<bf16, width>& from) {
  uint32_t words[width / 2];
  memcpy(words, &from, sizeof words);
#pragma unroll
  for (int j = 0; j < width; ++j) to[j] = bits_to_float(j % 2 ? words[j / 2] & 0xffff0000u : words[j / 2] << 16);
}
// Compares pairs of bf16 without conversion.
template <int width>
requires(width % 2 == 0) __device__ __forceinline__
    void max_abs_into(Vector<bf16, width>& largest, const Vector<bf16, width>& x) {
#pragma unroll
  for (int j = 0; j < width / 2; ++j) {
    uint32_t a, b;
    memcpy(&a, &largest.v[2 * j], sizeof a);
    memcpy(&b, &x.v[2 * j], sizeof b);
    a = __vmaxu2(a, b & 0x7fff7fffu);
    memcpy(&largest.v[2 * j], &a, sizeof a);
  }
}
template <Fp8Format format, int width>
__device__ __forceinline__ void store_fp8(uint8_t* to, const float (&from)[width]) {
  constexpr __nv_fp8_interpretation_t type = format == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const auto pair = [&](int j) -> uint32_t {
    return __nv_cvt_float2_to_fp8x2(make_float2(from[j], from[j + 1]), __NV_SATFINITE, type);
  };
  Vector<uint32_t, width / 4> words;
#pragma unroll
  for (int j = 0; j < width; j += 4) words.v[j / 4] = pair(j) | pair(j + 2) << 16;
  *reinterpret_cast<Vector<uint32_t, width / 4>*>(to) = words;
}

// ---------------------------------------------------------------------------------------------- functions in fp32

__device__ __forceinline__ float exp_f32(float x) { return expf(x); }
__device__ __forceinline__ float exp2_f32(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_f32(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float rsqrt_f32(float x) { return rsqrtf(x); }
__device__ __forceinline__ float max_f32(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float fma_f32(float a, float b, float c) { return __fmaf_rn(a, b, c); }
