// The names that kernels use, in both backends: CUDA's own, and these wrappers.
//
//   shared_memory<T>()            the block's dynamic shared memory as one T (a struct of arrays), 1024-byte aligned;
//                                 kernels declare no __shared__ variables of their own (a CPU build refuses them)
//   named_barrier_sync            a barrier for some of a block's warps
//   warp_sum, warp_max, block_sum sums and maxima over a warp or block, in the same order of additions in both backends
//   atomic_max, atomic_min, atomic_add  on integers in device memory; the result does not depend on the order
//                                 (a CPU build refuses atomicAdd)
//   load_vector, store_vector     neighbouring elements at once, in 16-byte accesses; converts from and to fp32
//   exp_f32, exp2_f32, rsqrt_f32, reciprocal_f32, max_f32  fp32 functions that become vector code on the CPU
//   VECTOR_LOOP                   before a loop over a thread's few elements: `VECTOR_LOOP for (int i = 0; i < 8; ++i)`
//
// A device function in a header that reads threadIdx or blockIdx and is not __forceinline__ must be static. In the CPU
// backend each file has a threadIdx and a blockIdx of its own, and the linker would keep one file's copy of the
// function for all.
#pragma once

#include "llmc/device/backend.h"
#include "llmc/device/number.h"

#if LLMC_CUDA
#include <cstring>
#else
#include <atomic>

#include "llmc/device/cpu_kernel.h"
#endif

// A loop of fixed length over a thread's own elements. nvcc unrolls it. g++ must not: if it unrolls an inner loop of up
// to 16 iterations before its vectoriser runs, the loop stays scalar and takes 3 to 5 times as long. clang++ needs no
// hint.
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
  return *reinterpret_cast<T*>(cpu_backend::shared_bytes());
#endif
}

// Returns the shared-memory address of `pointer` as descriptors and instructions take it: below 256 KiB.
__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
#if LLMC_CUDA
  return uint32_t(__cvta_generic_to_shared(pointer));
#else
  return cpu_backend::smem_address(pointer);
#endif
}

// A barrier for `threads` threads of a block, which are whole warps and may call from different places in the kernel.
// `barrier` is 1 to 15.
#if LLMC_CUDA
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
#else
inline void named_barrier_sync(int barrier, int threads, LLMC_PLACE) {
  cpu_backend::sync_named(barrier, threads, {"named_barrier_sync", file, line});
}
#endif

// Reads blockIdx.x again, so that values computed from it need no register from the kernel's beginning to its end.
__device__ static __forceinline__ unsigned block_index_again() {
#if LLMC_CUDA
  unsigned x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
#else
  return blockIdx.x;
#endif
}

// Returns x but hides its value from the compiler, which then computes values that depend on x where they are used
// instead of keeping them in registers.
__device__ __forceinline__ int opaque(int x) {
#if LLMC_CUDA
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// Returns p and tells nvcc that it points to device memory. nvcc does not know this of a pointer that a kernel has read
// from memory, and would make loads through it wait for stores to shared memory.
template <class T>
__device__ __forceinline__ T* assume_global(T* p) {
#if LLMC_CUDA
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

// ---------------------------------------------------------------------------------------------- sums and maxima

#if !LLMC_CUDA
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
#endif

// warp_sum returns the sum over the warp's 32 lanes to every lane. It adds lanes that are 16 apart first, then 8, 4, 2
// and 1 apart. T is float or double. warp_max returns the maximum to every lane.
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
// Returns the sum over the block's threads to every thread: first the sum of each warp, then the sum of those, added as
// by one warp. The block consists of whole warps, and all threads must call. Contains two barriers, one before and one
// after the writes to shared memory.
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
#else
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
#endif

// ---------------------------------------------------------------------------------------------- atomics

// The maximum and the minimum look before they write: most values of a launch do not change the number, and atomic
// writes of one number wait for each other.
__device__ __forceinline__ void atomic_max(uint32_t* address, uint32_t value) {
#if LLMC_CUDA
  if (*static_cast<volatile uint32_t*>(address) < value) atomicMax(address, value);
#else
  std::atomic_ref<uint32_t> atom(*address);
  uint32_t seen = atom.load(std::memory_order_relaxed);
  while (seen < value && !atom.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
#endif
}
__device__ __forceinline__ void atomic_min(uint32_t* address, uint32_t value) {
#if LLMC_CUDA
  if (*static_cast<volatile uint32_t*>(address) > value) atomicMin(address, value);
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

// `width` numbers. `width` is a power of two: usually 8, which takes 16 or 32 bytes (in fp32 it also fills a vector
// register of the CPU), or 1. The address is aligned to the size of the vector, or to 16 bytes if the size is greater.
template <class T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Vector {
  T v[width];
};

#if !LLMC_CUDA
// Conversions and maxima of eight numbers at once, as vector code that a compiler does not generate by itself. The bits
// are those of to_float and from_float.
namespace cpu_backend {
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
inline void max_abs_into(bf16* largest, const bf16* x) {
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
}  // namespace cpu_backend
#endif

template <int width, class T>
__device__ __forceinline__ void load_vector(float (&to)[width], const T* from) {
#if !LLMC_CUDA
  if constexpr (width == 8 && std::is_same_v<T, bf16>) return cpu_backend::widen(to, from);
#endif
  const Vector<T, width> vector = *reinterpret_cast<const Vector<T, width>*>(from);
  if constexpr (LLMC_CUDA && width % 2 == 0 && std::is_same_v<T, bf16>) {  // whole words: one instruction per number
    uint32_t words[width / 2];
    memcpy(words, &vector, sizeof words);
#pragma unroll
    for (int j = 0; j < width; ++j) to[j] = bits_to_float(j % 2 ? words[j / 2] & 0xffff0000u : words[j / 2] << 16);
  } else {
#pragma unroll
    for (int j = 0; j < width; ++j) to[j] = to_float(vector.v[j]);
  }
}
template <class T, int width>
__device__ __forceinline__ Vector<T, width> rounded(const float (&from)[width]) {
  Vector<T, width> vector;
#if !LLMC_CUDA
  if constexpr (width == 8 && std::is_same_v<T, bf16>) {
    cpu_backend::narrow(vector.v, from);
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

// Raises each element of `largest` to the magnitude of the same element of x. Bits of magnitudes compare as the numbers
// do, with NaN above infinity.
template <int width>
__device__ __forceinline__ void max_abs_into(Vector<bf16, width>& largest, const Vector<bf16, width>& x) {
#if LLMC_CUDA
  constexpr int kPairs = width / 2;  // pairs of bf16, compared without conversion
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
  if constexpr (width == 8) return cpu_backend::max_abs_into(largest.v, x.v);
#endif
  for (int j = 2 * kPairs; j < width; ++j) {
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
// Returns the largest of the magnitudes, as the bits of an fp32 number.
template <class T, int width>
__device__ __forceinline__ uint32_t max_value(const Vector<T, width>& magnitudes) {
  // It begins with the first magnitude, not with 0: for `bits > 0` after __vmaxu2 with zeros, ptxas 13.0 takes both
  // predicates of VIMNMX.U16x2 in one register, and an H200 was seen to lose the first magnitude.
  uint32_t largest = float_to_bits(to_float(magnitudes.v[0]));
#pragma unroll
  for (int j = 1; j < width; ++j) {
    const uint32_t bits = float_to_bits(to_float(magnitudes.v[j]));
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// Stores numbers as FP8, saturated and rounded to nearest even. `width` is 8 or 16.
template <Fp8Format format, int width>
__device__ __forceinline__ void store_fp8(uint8_t* to, const float (&from)[width]) {
#if LLMC_CUDA
  constexpr __nv_fp8_interpretation_t type = format == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const auto pair = [&](int j) -> uint32_t {
    return __nv_cvt_float2_to_fp8x2(make_float2(from[j], from[j + 1]), __NV_SATFINITE, type);
  };
  Vector<uint32_t, width / 4> words;
#pragma unroll
  for (int j = 0; j < width; j += 4) words.v[j / 4] = pair(j) | pair(j + 2) << 16;
  *reinterpret_cast<Vector<uint32_t, width / 4>*>(to) = words;
#else
  Vector<uint8_t, width> vector;
  for (int j = 0; j < width; j += 8) cpu_backend::narrow<format == Fp8Format::e4m3 ? 4 : 5>(vector.v + j, from + j);
  *reinterpret_cast<Vector<uint8_t, width>*>(to) = vector;
#endif
}

// ---------------------------------------------------------------------------------------------- fp32 functions

// Returns e^x to within 2 units in the last place; infinity above 88.7. Below -87.3, where results are subnormal, the
// CPU returns 0.
__device__ __forceinline__ float exp_f32(float x) {
#if LLMC_CUDA
  return expf(x);
#else
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
#endif
}

// Returns 2^x with a relative error of at most 2^-22; infinity from 128 on. Results below 2^-126 become 0. One
// instruction on a GPU.
__device__ __forceinline__ float exp2_f32(float x) {
#if LLMC_CUDA
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
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
#endif
}

__device__ __forceinline__ float rsqrt_f32(float x) {
#if LLMC_CUDA
  return rsqrtf(x);
#else
  return 1.0f / sqrtf(x);
#endif
}

// Returns the greater of two numbers; if one is NaN, either of the two. fmaxf is one instruction on a GPU, but a
// function call with g++.
__device__ __forceinline__ float max_f32(float a, float b) {
#if LLMC_CUDA
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}

// Returns a * b + c with one rounding, whatever the compiler would do with that expression.
__device__ __forceinline__ float fma_f32(float a, float b, float c) {
#if LLMC_CUDA
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// Returns 1 / x with a relative error of at most 2^-23; 0 for an infinity. One instruction on a GPU, where a division
// takes eight.
__device__ __forceinline__ float reciprocal_f32(float x) {
#if LLMC_CUDA
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}
