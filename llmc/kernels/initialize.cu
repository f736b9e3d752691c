// Initial values of weights, and casts to another precision (contract: initialize.h).
//
// Logarithm, sine and cosine are polynomials in fp32 (coefficients as in Cephes), accurate to some units in the last
// place. Each multiply-add is written as fmaf, and no sum of a product is left to the compiler's choice. Therefore g++,
// clang++ and nvcc give the same bits, and the loops become vector code.
#include "llmc/kernels/initialize.h"

#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kVectorSize = 8;  // elements that a thread processes at once
constexpr int kCounters = 8;    // Philox blocks per thread, four normal values each

// Returns ln x for a normal positive x.
__device__ __forceinline__ float log_f32(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t shifted = bits + (0x3f800000u - 0x3f3504f3u);  // brings the mantissa into sqrt(1/2) .. sqrt(2)
  const float exponent = float(int32_t(shifted >> 23) - 127);
  const float f = bits_to_float((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float p = 7.0376836292e-2f;
  p = fmaf(p, f, -1.1514610310e-1f);
  p = fmaf(p, f, 1.1676998740e-1f);
  p = fmaf(p, f, -1.2420140846e-1f);
  p = fmaf(p, f, 1.4249322787e-1f);
  p = fmaf(p, f, -1.6668057665e-1f);
  p = fmaf(p, f, 2.0000714765e-1f);
  p = fmaf(p, f, -2.4999993993e-1f);
  p = fmaf(p, f, 3.3333331174e-1f);
  const float square = f * f;
  p = fmaf(p * f, square, exponent * -2.12194440e-4f);  // ln 2 as a sum of two constants
  p = fmaf(square, -0.5f, p);
  return fmaf(exponent, 0.693359375f, f + p);
}

struct Pair {
  float a, b;
};

// Box & Muller: returns two normal values from the radius sqrt(-2 ln u) and the angle 2 pi w / 2^32.
__device__ __forceinline__ Pair normal_pair(uint32_t radius_bits, uint32_t angle_bits) {
  const float radius = sqrtf(-2.0f * log_f32(uniform(radius_bits)));
  // Split the angle into the nearest quarter turn and the rest, in -pi/4 .. pi/4.
  const uint32_t quarter = (angle_bits + 0x20000000u) >> 30;
  const float x = float(int32_t(angle_bits - (quarter << 30))) * 1.4629180792671596e-9f;  // 2 pi / 2^32
  const float square = x * x;
  float s = fmaf(square, -1.9515295891e-4f, 8.3321608736e-3f);
  s = fmaf(s, square, -1.6666654611e-1f);
  const float sine = fmaf(s * square, x, x);
  float c = fmaf(square, 2.443315711809948e-5f, -1.388731625493765e-3f);
  c = fmaf(c, square, 4.166664568298827e-2f);
  const float cosine = fmaf(c, square * square, fmaf(square, -0.5f, 1.0f));
  const bool odd = quarter & 1;
  const uint32_t sign_of_cosine = (quarter + 1) << 30 & 0x80000000u, sign_of_sine = quarter << 30 & 0x80000000u;
  const float a = bits_to_float(float_to_bits(odd ? sine : cosine) ^ sign_of_cosine);
  const float b = bits_to_float(float_to_bits(odd ? cosine : sine) ^ sign_of_sine);
  return {radius * a, radius * b};
}

// Element i comes from Philox block i / 4: words 0 and 1 give elements 0 and 1 of its four, words 2 and 3 the others.
__global__ void __launch_bounds__(kThreads)
    normal_kernel(float* __restrict__ data, size_t n, uint64_t key, uint64_t offset, float std) {
  const uint64_t block = offset / 4 + (size_t(blockIdx.x) * kThreads + threadIdx.x) * kCounters;
  const uint64_t first = block * 4, end = offset + n;  // elements of the unsharded tensor
  if (first >= end) return;
  float x[4][kCounters];
  VECTOR_LOOP
  for (int c = 0; c < kCounters; ++c) {
    const PhiloxBlock bits = philox(key, block + uint64_t(c), 0);
    const Pair one = normal_pair(bits.words[0], bits.words[1]), two = normal_pair(bits.words[2], bits.words[3]);
    x[0][c] = one.a * std;
    x[1][c] = one.b * std;
    x[2][c] = two.a * std;
    x[3][c] = two.b * std;
  }
  if (first >= offset && first + 4 * kCounters <= end) {
    float* to = data + (first - offset);
    VECTOR_LOOP
    for (int i = 0; i < 4 * kCounters; ++i) to[i] = x[i % 4][i / 4];
  } else {
    for (int i = 0; i < 4 * kCounters; ++i)
      if (first + uint64_t(i) >= offset && first + uint64_t(i) < end)
        data[first + uint64_t(i) - offset] = x[i % 4][i / 4];
  }
}

// The same bits for elements that are not contiguous in the tensor. One thread per element.
__global__ void __launch_bounds__(kThreads)
    normal_in_window_kernel(float* __restrict__ data, size_t n, uint64_t key, ShardWindow place, float std) {
  const size_t i = size_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const uint64_t element = place[i];
  const PhiloxBlock bits = philox(key, element / 4, 0);
  const int word = element % 4 < 2 ? 0 : 2;
  const Pair pair = normal_pair(bits.words[word], bits.words[word + 1]);
  data[i] = (element % 2 ? pair.b : pair.a) * std;
}

__global__ void __launch_bounds__(kThreads) constant_kernel(float* data, size_t n, float value) {
  const size_t first = (size_t(blockIdx.x) * kThreads + threadIdx.x) * kVectorSize;
  for (size_t i = first; i < first + kVectorSize && i < n; ++i) data[i] = value;
}

template <class T>
__global__ void __launch_bounds__(kThreads) cast_kernel(T* __restrict__ out, const float* __restrict__ in, size_t n) {
  const size_t first = (size_t(blockIdx.x) * kThreads + threadIdx.x) * kVectorSize;
  if (first + kVectorSize <= n) {
    VECTOR_LOOP
    for (int i = 0; i < kVectorSize; ++i) out[first + i] = from_float<T>(in[first + i]);
  } else {
    for (size_t i = first; i < n; ++i) out[i] = from_float<T>(in[i]);
  }
}

// ---------------------------------------------------------------------------------------------- launchers

// Checks that `x` is fp32 and returns the number of its elements, at least one.
size_t elements_of(const char* who, const char* name, const Tensor& x) {
  require_elements(who, name, x, DType::fp32, -1);
  REQUIRE(x.size() > 0, "%s of no numbers", who);
  return size_t(x.size());
}

}  // namespace

void initialize_normal(Stream& stream, const Tensor& data, uint64_t key, ShardWindow place, float std) {
  const char* who = "initialize_normal";
  const size_t n = elements_of(who, "data", data);
  REQUIRE(std >= 0, "%s of %zu numbers with standard deviation %g", who, n, double(std));
  const Work work{stream, who, {writes(data)}};
  if (place.is_cut())
    return launch<normal_in_window_kernel>(work, blocks_for(n, kThreads), kThreads, 0, data.as<float>(), n, key, place,
                                           std);
  const uint64_t offset = place[0];
  const size_t blocks = size_t((offset + n + 3) / 4 - offset / 4);
  launch<normal_kernel>(work, blocks_for(blocks, kThreads * kCounters), kThreads, 0, data.as<float>(), n, key, offset,
                        std);
}

void initialize_constant(Stream& stream, const Tensor& data, float value) {
  const char* who = "initialize_constant";
  const size_t n = elements_of(who, "data", data);
  launch<constant_kernel>({stream, who, {writes(data)}}, blocks_for(n, kThreads * kVectorSize), kThreads, 0,
                          data.as<float>(), n, value);
}

void cast(Stream& stream, const Tensor& out, const Tensor& in) {
  const char* who = "cast";
  const size_t n = elements_of(who, "in", in);
  require_elements(who, "out", out, out.type, in.size());
  with_type(who, out.type, [&](auto number) {
    using T = decltype(number);
    launch<cast_kernel<T>>({stream, who, {reads(in), writes(out)}}, blocks_for(n, kThreads * kVectorSize), kThreads, 0,
                           out.as<T>(), in.as<float>(), n);
  });
}
