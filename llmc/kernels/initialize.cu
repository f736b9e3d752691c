// First values: see initialize.h.
#include "llmc/kernels/initialize.h"

#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;
constexpr double kTwoPi = 6.283185307179586;

// Element i is one half of a Box-Muller pair of counter i / 2.
__global__ void __launch_bounds__(kThreads)
    normal_kernel(float* __restrict__ data, size_t n, uint64_t key, uint64_t offset, float std) {
  const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint64_t element = offset + i;
  const PhiloxBlock bits = philox(key, element / 2, 0);
  const double u = (double(bits.words[0]) + 1) * 0x1p-32,
               angle = kTwoPi * (double(bits.words[1]) * 0x1p-32);  // u in (0, 1]
  const double radius = sqrt(-2 * log(u));
  data[i] = float(double(std) * radius * (element % 2 ? sin(angle) : cos(angle)));
}

__global__ void __launch_bounds__(kThreads) constant_kernel(float* __restrict__ data, size_t n, float value) {
  const size_t first = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * kEach;
  for (size_t i = first; i < first + kEach && i < n; ++i) data[i] = value;
}

template <class T>
__global__ void __launch_bounds__(kThreads) cast_kernel(T* __restrict__ out, const float* __restrict__ in, size_t n) {
  const size_t first = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * kEach;
  if (first + kEach <= n)
    for (int j = 0; j < kEach; ++j) out[first + j] = from_float<T>(in[first + j]);
  else
    for (size_t i = first; i < n; ++i) out[i] = from_float<T>(in[i]);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void initialize_normal(Stream& stream, float* data, size_t n, uint64_t key, uint64_t offset, float std) {
  REQUIRE(n > 0 && std >= 0, "initialize_normal of %zu numbers with standard deviation %g", n, double(std));
  launch<normal_kernel>({stream, "initialize_normal", {writes(data, n)}}, blocks_for(n, kThreads), kThreads, 0, data, n,
                        key, offset, std);
}

void initialize_constant(Stream& stream, float* data, size_t n, float value) {
  REQUIRE(n > 0, "initialize_constant of no numbers");
  launch<constant_kernel>({stream, "initialize_constant", {writes(data, n)}}, blocks_for(n, kThreads * kEach), kThreads,
                          0, data, n, value);
}

template <class T>
void cast(Stream& stream, T* out, const float* in, size_t n) {
  REQUIRE(n > 0, "cast of no numbers");
  launch<cast_kernel<T>>({stream, "cast", {reads(in, n), writes(out, n)}}, blocks_for(n, kThreads * kEach), kThreads, 0,
                         out, in, n);
}
template void cast(Stream&, float*, const float*, size_t);
template void cast(Stream&, bf16*, const float*, size_t);
