// The wrappers of kernel.cuh for the CPU backend. Only kernel.cuh includes this file, and says what they do.
#pragma once

#include <atomic>
#include <cstring>

#include "llmc/device/cpu_kernel.h"
#include "llmc/device/number.h"
#include "llmc/device/vector.h"

// nvcc unrolls a VECTOR_LOOP. g++ must not: if it unrolls an inner loop of up to 16 iterations before its vectoriser
// runs, the loop stays scalar and takes 3 to 5 times as long. clang++ needs no hint.
#if defined(__clang__)
#define VECTOR_LOOP
#else
#define VECTOR_LOOP _Pragma("GCC unroll 1")
#endif

// ---------------------------------------------------------------------------------------------- barriers

constexpr bool kSmallMultiprocessor = false;

template <class T>
__device__ __forceinline__ T& shared_memory() {
  return *reinterpret_cast<T*>(cpu_backend::shared_bytes());
}

__device__ __forceinline__ uint32_t smem_address(const void* pointer) { return cpu_backend::smem_address(pointer); }

inline void named_barrier_sync(int barrier, int threads, LLMC_PLACE) {
  cpu_backend::sync_named(barrier, threads, {"named_barrier_sync", file, line});
}

// ---------------------------------------------------------------------------------------------- hints for the compiler

__device__ static __forceinline__ unsigned block_index_again() { return blockIdx.x; }
__device__ __forceinline__ int opaque(int x) { return x; }
template <class T>
__device__ __forceinline__ T* assume_global(T* p) {
  return p;
}

// ---------------------------------------------------------------------------------------------- sums and maxima

namespace cpu_backend {

template <class T>
inline T butterfly_sum(T (&lane)[32]) {  // all lanes get the same bits, since x + y = y + x
  for (int width = 16; width; width >>= 1)
    for (int l = 0; l < width; ++l) lane[l] = lane[l] + lane[l + width];
  return lane[0];
}

template <class T>
void run_warp_sum(uint64_t* lanes, uint32_t mask) {
  if (mask != ~0u) stop_kernel("warp_sum needs all 32 lanes, has %08x", mask);
  T x[32];
  for (int l = 0; l < 32; ++l) x[l] = from_posted<T>(lanes[l]);
  const uint64_t sum = to_posted(butterfly_sum(x));
  for (int l = 0; l < 32; ++l) lanes[l] = sum;
}

inline void run_warp_max_bits(uint64_t* lanes, uint32_t mask) {
  if (mask != ~0u) stop_kernel("warp_max needs all 32 lanes, has %08x", mask);
  uint64_t max = 0;
  for (int l = 0; l < 32; ++l) max = lanes[l] > max ? lanes[l] : max;
  for (int l = 0; l < 32; ++l) lanes[l] = max;
}

inline void run_warp_max(uint64_t* lanes, uint32_t mask) {
  if (mask != ~0u) stop_kernel("warp_max needs all 32 lanes, has %08x", mask);
  float x[32];
  for (int l = 0; l < 32; ++l) x[l] = from_posted<float>(lanes[l]);
  for (int width = 16; width; width >>= 1)
    for (int l = 0; l < width; ++l) {  // as fmaxf, which g++ would call: a NaN loses
      const float one = x[l] == x[l] ? x[l] : x[l + width];
      x[l] = x[l + width] > one ? x[l + width] : one;
    }
  const uint64_t max = to_posted(x[0]);
  for (int l = 0; l < 32; ++l) lanes[l] = max;
}

template <class T>
void run_block_sum(uint64_t* threads, int count) {
  if (count % 32) stop_kernel("block_sum needs whole warps, the block has %d threads", count);
  T warps[32] = {};
  for (int w = 0; w < count / 32; ++w) {
    T x[32];
    for (int l = 0; l < 32; ++l) x[l] = from_posted<T>(threads[w * 32 + l]);
    warps[w] = butterfly_sum(x);
  }
  const uint64_t sum = to_posted(butterfly_sum(warps));
  for (int t = 0; t < count; ++t) threads[t] = sum;
}

}  // namespace cpu_backend

template <class T>
__device__ __forceinline__ T warp_sum(T value, LLMC_PLACE) {
  using namespace cpu_backend;
  return from_posted<T>(sync_warp(~0u, &run_warp_sum<T>, to_posted(value), {"warp_sum", file, line}));
}
__device__ __forceinline__ float warp_max(float value, LLMC_PLACE) {
  using namespace cpu_backend;
  return from_posted<float>(sync_warp(~0u, &run_warp_max, to_posted(value), {"warp_max", file, line}));
}
__device__ __forceinline__ uint32_t warp_max(uint32_t value, LLMC_PLACE) {
  return uint32_t(cpu_backend::sync_warp(~0u, &cpu_backend::run_warp_max_bits, value, {"warp_max", file, line}));
}
template <class T>
__device__ __forceinline__ T block_sum(T value, LLMC_PLACE) {
  using namespace cpu_backend;
  return from_posted<T>(sync_block_operation(&run_block_sum<T>, to_posted(value), {"block_sum", file, line}));
}

// ---------------------------------------------------------------------------------------------- atomics

__device__ __forceinline__ void atomic_max(uint32_t* address, uint32_t value) {
  std::atomic_ref<uint32_t> atom(*address);
  uint32_t seen = atom.load(std::memory_order_relaxed);
  while (seen < value && !atom.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}
__device__ __forceinline__ void atomic_min(uint32_t* address, uint32_t value) {
  std::atomic_ref<uint32_t> atom(*address);
  uint32_t seen = atom.load(std::memory_order_relaxed);
  while (seen > value && !atom.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}
__device__ __forceinline__ void atomic_add(unsigned long long* address, unsigned long long value) {
  std::atomic_ref<unsigned long long>(*address).fetch_add(value, std::memory_order_relaxed);
}

// ---------------------------------------------------------------------------------------------- vectors

// Eight numbers at once, as vector code that a compiler does not generate by itself.
namespace cpu_backend {
using Bits8 = uint8_t __attribute__((vector_size(8)));
using Bits16 = uint16_t __attribute__((vector_size(16)));
using Bits32 = uint32_t __attribute__((vector_size(32)));
using Floats = float __attribute__((vector_size(32)));
}  // namespace cpu_backend

inline void widen(float (&to)[8], const Vector<bf16, 8>& from) {
  using namespace cpu_backend;
  Bits16 bits;
  memcpy(&bits, &from, sizeof bits);
  const Bits32 bits32 = __builtin_convertvector(bits, Bits32) << 16;
  memcpy(to, &bits32, sizeof bits32);
}
inline void narrow(Vector<bf16, 8>& to, const float (&from)[8]) {
  using namespace cpu_backend;
  Bits32 u;
  memcpy(&u, from, sizeof u);
  const Bits32 nan = (u & 0x7fffffffu) > 0x7f800000u, rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
  const Bits16 bits = __builtin_convertvector((nan & 0x7fffu) | (~nan & rounded), Bits16);
  memcpy(static_cast<void*>(&to), &bits, sizeof bits);
}
inline void max_abs_into(Vector<bf16, 8>& largest, const Vector<bf16, 8>& x) {
  using namespace cpu_backend;
  Bits16 before, bits;
  memcpy(&before, &largest, sizeof before);
  memcpy(&bits, &x, sizeof bits);
  bits &= 0x7fff;
  const Bits16 after = bits > before ? bits : before;
  memcpy(static_cast<void*>(&largest), &after, sizeof after);
}
template <Fp8Format format, int width>
inline void store_fp8(uint8_t* to, const float (&from)[width]) {
  using namespace cpu_backend;
  Vector<uint8_t, width> vector;
  for (int j = 0; j < width; j += 8) {
    Bits32 u;
    memcpy(&u, from + j, sizeof u);
    const Bits32 fp8 = saturated_fp8_bits < format == Fp8Format::e4m3 ? 4 : 5, Floats > (u);
    const Bits8 bits = __builtin_convertvector(fp8, Bits8);
    memcpy(vector.v + j, &bits, sizeof bits);
  }
  *reinterpret_cast<Vector<uint8_t, width>*>(to) = vector;
}

// ---------------------------------------------------------------------------------------------- functions in fp32

__device__ __forceinline__ float exp_f32(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is split into two parts. e^r is a polynomial with the minimax
  // coefficients of Cephes.
  const float t = x * 1.44269504f + 12582912.0f;  // puts the rounded integer into the low bits
  const float n = t - 12582912.0f;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = p * (r * r) + r + 1.0f;
  const uint32_t bits = float_to_bits(e) + (float_to_bits(t) << 23);  // e * 2^n
  float y = bits_to_float(bits);
  y = x < -87.3f ? 0.0f : y;
  y = x > 88.72f ? INFINITY : y;
  return x != x ? x : y;
}

__device__ __forceinline__ float exp2_f32(float x) {
  // x = n + r with |r| <= 1/2. 2^r is its Taylor series; the first omitted term is below 2^-24.
  const float inside = x < -127.0f ? -127.0f : x > 128.0f ? 128.0f : x;
  const float t = inside + 12582912.0f, r = inside - (t - 12582912.0f);
  float p = 1.5252734e-5f;
  p = p * r + 1.5403530e-4f;
  p = p * r + 1.3333558e-3f;
  p = p * r + 9.6181291e-3f;
  p = p * r + 5.5504109e-2f;
  p = p * r + 2.4022651e-1f;
  p = p * r + 6.9314718e-1f;
  p = p * r + 1.0f;
  const uint32_t bits = float_to_bits(p) + (float_to_bits(t) << 23);
  float y = bits_to_float(bits);
  y = x < -126.0f ? 0.0f : y;
  y = x >= 128.0f ? INFINITY : y;
  return x != x ? x : y;
}

__device__ __forceinline__ float reciprocal_f32(float x) { return 1.0f / x; }
__device__ __forceinline__ float rsqrt_f32(float x) { return 1.0f / sqrtf(x); }
__device__ __forceinline__ float max_f32(float a, float b) { return a > b ? a : b; }
__device__ __forceinline__ float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
