// What a kernel is written with, in both worlds: CUDA's own names, and these wrappers.
//
//   shared_memory<T>()            the block's dynamic shared memory as one T (a struct of arrays), 1024-byte aligned;
//                                 kernels declare no __shared__ variables of their own (a CPU build refuses them)
//   named_barrier_sync            a barrier for some of a block's warps
//   warp_sum, warp_max, block_sum sums and maxima over a warp or block, in the same order of additions in both worlds
//   atomic_max, atomic_min, atomic_add  of integers in device memory, whose result does not depend on the order
//                                 (a CPU build refuses atomicAdd)
//   load_vector, store_vector     several neighbours at once, in 16-byte accesses, as fp32
//   exp_f32, exp2_f32, rsqrt_f32, reciprocal_f32, max_f32  fp32 functions that become vector code on the CPU
//   VECTOR_LOOP                   before a loop over a thread's few elements: `VECTOR_LOOP for (int i = 0; i < 8; ++i)`
//
// A device function in a header that asks for threadIdx or blockIdx and is not __forceinline__ must be static: in the
// CPU world these belong to each file, and the linker would keep one file's copy for all.
#pragma once

#include "llmc/device/number.h"
#include "llmc/device/world.h"

#if LLMC_CUDA
#include <cstring>
#else
#include <atomic>

#include "llmc/device/cpu_kernel.h"
#endif

// A loop of fixed length over a thread's own elements. A GPU's compiler unrolls it. g++ must not: an inner loop of up
// to 16 rounds that it unrolls before its vectoriser runs stays scalar, 3 to 5 times slower. clang++ finds its way
// alone.
#if LLMC_CUDA
#define VECTOR_LOOP _Pragma("unroll")
#elif defined(__clang__)
#define VECTOR_LOOP
#else
#define VECTOR_LOOP _Pragma("GCC unroll 1")
#endif

// ---------------------------------------------------------------------------------------------- shared memory

template <class T>
__device__ __forceinline__ T& shared_memory() {
#if LLMC_CUDA
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return *reinterpret_cast<T*>(dynamic_shared_memory);
#else
  return *reinterpret_cast<T*>(cpu_world::shared_bytes());
#endif
}

// A barrier for `threads` threads of a block, whole warps, wherever in the kernel they stand; `barrier` is 1 to 15.
#if LLMC_CUDA
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
#else
inline void named_barrier_sync(int barrier, int threads, LLMC_PLACE) {
  if (fault_skips(file, line)) return;
  cpu_world::sync_named(barrier, threads, {"named_barrier_sync", file, line});
}
#endif

// blockIdx.x, read anew: what follows from it then needs no register from the kernel's beginning to its end.
__device__ static __forceinline__ unsigned block_index_again() {
#if LLMC_CUDA
  unsigned x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
#else
  return blockIdx.x;
#endif
}

// x, of which a compiler knows nothing: so it computes what follows from x where it is used, and does not keep it.
__device__ __forceinline__ int opaque(int x) {
#if LLMC_CUDA
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// p, which lies in device memory: of a pointer that a kernel has read from memory nvcc does not know it, and loads
// through it then wait for stores to shared memory.
template <class T>
__device__ __forceinline__ T* in_device_memory(T* p) {
#if LLMC_CUDA
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

// ---------------------------------------------------------------------------------------------- sums and maxima

#if !LLMC_CUDA
namespace cpu_world {

template <class T>
inline T butterfly_sum(T (&lane)[32]) {  // every lane ends with the same bits, since x + y = y + x
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
    for (int l = 0; l < width; ++l) {  // fmaxf, of which g++ makes a call: a NaN gives way to the other
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

}  // namespace cpu_world
#endif

// The sum over the warp's 32 lanes, in every lane: lanes l and l+16 first, then 8, 4, 2, 1 apart. T is float or double.
#if LLMC_CUDA
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
// The sum over the block's threads, in every thread: each warp's sum, then the sum of those as of a warp. The block has
// whole warps, all of whose threads call. A barrier on both sides.
template <class T>
__device__ __forceinline__ T block_sum(T value) {
  __shared__ T warps[32];
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  value = warp_sum(value);
  __syncthreads();  // an earlier sum may still be read
  if (thread % 32 == 0) warps[thread / 32] = value;
  __syncthreads();
  const int count = blockDim.x * blockDim.y * blockDim.z / 32;
  return warp_sum(thread % 32 < count ? warps[thread % 32] : T(0));
}
#else
template <class T>
__device__ __forceinline__ T warp_sum(T value, LLMC_PLACE) {
  using namespace cpu_world;
  return from_posted<T>(sync_warp(~0u, &run_warp_sum<T>, to_posted(value), {"warp_sum", file, line}));
}
__device__ __forceinline__ float warp_max(float value, LLMC_PLACE) {
  using namespace cpu_world;
  return from_posted<float>(sync_warp(~0u, &run_warp_max, to_posted(value), {"warp_max", file, line}));
}
__device__ __forceinline__ uint32_t warp_max(uint32_t value, LLMC_PLACE) {
  return uint32_t(cpu_world::sync_warp(~0u, &cpu_world::run_warp_max_bits, value, {"warp_max", file, line}));
}
template <class T>
__device__ __forceinline__ T block_sum(T value, LLMC_PLACE) {
  using namespace cpu_world;
  return from_posted<T>(sync_block_operation(&run_block_sum<T>, to_posted(value), {"block_sum", file, line}));
}
#endif

// ---------------------------------------------------------------------------------------------- atomics

__device__ __forceinline__ void atomic_max(uint32_t* address, uint32_t value) {
#if LLMC_CUDA
  atomicMax(address, value);
#else
  std::atomic_ref<uint32_t> atom(*address);
  uint32_t seen = atom.load(std::memory_order_relaxed);
  while (seen < value && !atom.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
#endif
}
__device__ __forceinline__ void atomic_min(uint32_t* address, uint32_t value) {
#if LLMC_CUDA
  atomicMin(address, value);
#else
  std::atomic_ref<uint32_t> atom(*address);
  uint32_t seen = atom.load(std::memory_order_relaxed);
  while (seen > value && !atom.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
#endif
}
__device__ __forceinline__ void atomic_add(unsigned long long* address, unsigned long long value) {
#if LLMC_CUDA
  atomicAdd(address, value);
#else
  std::atomic_ref<unsigned long long>(*address).fetch_add(value, std::memory_order_relaxed);
#endif
}

// ---------------------------------------------------------------------------------------------- vectors

// `width` numbers, a power of two: usually 8, in 16 or 32 bytes (which fills the CPU's vector registers in fp32 too),
// or 1. The address is aligned to their size, or to 16 bytes if they are more.
template <class T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Vector {
  T v[width];
};

#if !LLMC_CUDA
// Eight numbers at once, which a compiler does not find by itself: the same bits as to_float and from_float.
namespace cpu_world {
using Bits8 = uint8_t __attribute__((vector_size(8)));
using Bits16 = uint16_t __attribute__((vector_size(16)));
using Bits32 = uint32_t __attribute__((vector_size(32)));
using Floats = float __attribute__((vector_size(32)));

inline void widen(float (&to)[8], const bf16* from) {
  Bits16 narrow;
  memcpy(&narrow, from, sizeof narrow);
  const Bits32 wide = __builtin_convertvector(narrow, Bits32) << 16;
  memcpy(to, &wide, sizeof wide);
}
inline void narrow(bf16* to, const float (&from)[8]) {
  Bits32 u;
  memcpy(&u, from, sizeof u);
  const Bits32 nan = (u & 0x7fffffffu) > 0x7f800000u, rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
  const Bits16 bits = __builtin_convertvector((nan & 0x7fffu) | (~nan & rounded), Bits16);
  memcpy(static_cast<void*>(to), &bits, sizeof bits);
}
inline void raise_to_magnitudes(bf16* largest, const bf16* x) {
  Bits16 before, bits;
  memcpy(&before, largest, sizeof before);
  memcpy(&bits, x, sizeof bits);
  bits &= 0x7fff;
  const Bits16 after = bits > before ? bits : before;
  memcpy(static_cast<void*>(largest), &after, sizeof after);
}
template <int exponent_bits>
inline void narrow(uint8_t* to, const float* from) {
  Bits32 u;
  memcpy(&u, from, sizeof u);
  const Bits8 bits = __builtin_convertvector((saturated_fp8_bits<exponent_bits, Floats>(u)), Bits8);
  memcpy(to, &bits, sizeof bits);
}
}  // namespace cpu_world
#endif

template <int width, class T>
__device__ __forceinline__ void load_vector(float (&to)[width], const T* from) {
#if !LLMC_CUDA
  if constexpr (width == 8 && std::is_same_v<T, bf16>) return cpu_world::widen(to, from);
#endif
  const Vector<T, width> vector = *reinterpret_cast<const Vector<T, width>*>(from);
#pragma unroll
  for (int j = 0; j < width; ++j) to[j] = to_float(vector.v[j]);
}
template <class T, int width>
__device__ __forceinline__ Vector<T, width> rounded(const float (&from)[width]) {
  Vector<T, width> vector;
#if !LLMC_CUDA
  if constexpr (width == 8 && std::is_same_v<T, bf16>) {
    cpu_world::narrow(vector.v, from);
    return vector;
  }
#endif
#pragma unroll
  for (int j = 0; j < width; ++j) vector.v[j] = from_float<T>(from[j]);
  return vector;
}
template <int width, class T>
__device__ __forceinline__ void store_vector(T* to, const float (&from)[width]) {
  *reinterpret_cast<Vector<T, width>*>(to) = rounded<T>(from);
}

// Raises `largest`, each by itself, to the magnitudes of x: as bits they order as numbers do, with NaN above infinity.
template <int width>
__device__ __forceinline__ void raise_to_magnitudes(Vector<bf16, width>& largest, const Vector<bf16, width>& x) {
#if LLMC_CUDA
  constexpr int kPairs = width / 2;  // two at once, and none is converted by itself
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    uint32_t a, b;
    memcpy(&a, &largest.v[2 * j], sizeof a);
    memcpy(&b, &x.v[2 * j], sizeof b);
    a = __vmaxu2(a, b & 0x7fff7fffu);
    memcpy(&largest.v[2 * j], &a, sizeof a);
  }
#else
  constexpr int kPairs = 0;
  if constexpr (width == 8) return cpu_world::raise_to_magnitudes(largest.v, x.v);
#endif
  for (int j = 2 * kPairs; j < width; ++j) {
    const uint16_t bits = x.v[j].bits & 0x7fff;
    largest.v[j].bits = bits > largest.v[j].bits ? bits : largest.v[j].bits;
  }
}
template <int width>
__device__ __forceinline__ void raise_to_magnitudes(Vector<float, width>& largest, const Vector<float, width>& x) {
  VECTOR_LOOP
  for (int j = 0; j < width; ++j) {
    const uint32_t bits = float_to_bits(x.v[j]) & 0x7fffffffu, before = float_to_bits(largest.v[j]);
    largest.v[j] = bits_to_float(bits > before ? bits : before);
  }
}
// The largest of them, as the bits of an fp32 number.
template <class T, int width>
__device__ __forceinline__ uint32_t largest_of(const Vector<T, width>& magnitudes) {
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < width; ++j) {
    const uint32_t bits = float_to_bits(to_float(magnitudes.v[j]));
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// Numbers as FP8, saturated, rounded to nearest even; `width` is 8 or 16.
template <int width>
__device__ __forceinline__ void store_fp8(uint8_t* to, const float (&from)[width], Fp8Format format) {
  Vector<uint8_t, width> vector;
#if LLMC_CUDA
  const __nv_fp8_interpretation_t type = format == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
#pragma unroll
  for (int j = 0; j < width; j += 2) {
    const uint32_t pair = __nv_cvt_float2_to_fp8x2(make_float2(from[j], from[j + 1]), __NV_SATFINITE, type);
    vector.v[j] = uint8_t(pair), vector.v[j + 1] = uint8_t(pair >> 8);
  }
#else
  for (int j = 0; j < width; j += 8)
    if (format == Fp8Format::e4m3) cpu_world::narrow<4>(vector.v + j, from + j);
    else cpu_world::narrow<5>(vector.v + j, from + j);
#endif
  *reinterpret_cast<Vector<uint8_t, width>*>(to) = vector;
}

// ---------------------------------------------------------------------------------------------- fp32 functions

// e^x to within 2 units in the last place, infinity above 88.7. Below -87.3, where results are subnormal, the CPU
// gives 0.
__device__ __forceinline__ float exp_f32(float x) {
#if LLMC_CUDA
  return expf(x);
#else
  // x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts; e^r by its series, minimax coefficients as in Cephes.
  const float t = x * 1.44269504f + 12582912.0f;  // rounds to an integer in the low bits
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
#endif
}

// 2^x to within 2^-22 of it, infinity from 128 on; results below 2^-126 are 0. One instruction on a GPU.
__device__ __forceinline__ float exp2_f32(float x) {
#if LLMC_CUDA
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  // x = n + r with |r| <= 1/2; 2^r by its Taylor series, whose next term is below 2^-24.
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
#endif
}

__device__ __forceinline__ float rsqrt_f32(float x) {
#if LLMC_CUDA
  return rsqrtf(x);
#else
  return 1.0f / sqrtf(x);
#endif
}

// The greater of two numbers; with a NaN, either. fmaxf is one instruction on a GPU, and a call to g++.
__device__ __forceinline__ float max_f32(float a, float b) {
#if LLMC_CUDA
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}

// a * b + c with one rounding, whatever the compiler would have made of it.
__device__ __forceinline__ float fma_f32(float a, float b, float c) {
#if LLMC_CUDA
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// 1 / x to within 2^-23 of it; 0 of an infinity. One instruction on a GPU, where a division takes eight.
__device__ __forceinline__ float reciprocal_f32(float x) {
#if LLMC_CUDA
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}
