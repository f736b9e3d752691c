// Adds tensors (contract: accumulate.h). Expected limit on a GPU: device memory.
#include "llmc/kernels/accumulate.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 4;   // elements that a thread processes at once
constexpr int kUnits = 4;  // units per thread; all loads come before the first store
constexpr size_t kBlock = size_t(kThreads) * kUnit * kUnits;

template <class T, bool kAdd>
__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(float* __restrict__ sum, const T* __restrict__ x, size_t n) {
  const size_t first = size_t(blockIdx.x) * kBlock + size_t(threadIdx.x) * kUnit;
  float a[kUnits][kUnit] = {}, b[kUnits][kUnit];
  for (int k = 0; k < kUnits; ++k) {
    const size_t i = first + size_t(k) * kThreads * kUnit;
    if (i + kUnit > n) continue;
    if (kAdd) load_vector(a[k], sum + i);
    load_vector(b[k], x + i);
  }
  for (int k = 0; k < kUnits; ++k) {
    const size_t i = first + size_t(k) * kThreads * kUnit;
    if (i + kUnit <= n) {
      for (int j = 0; j < kUnit; ++j) a[k][j] += b[k][j];
      store_vector(sum + i, a[k]);
    } else {
      for (size_t j = i; j < n; ++j) sum[j] = (kAdd ? sum[j] : 0) + to_float(x[j]);
    }
  }
}

constexpr int kNumbers = 8;  // of `add`, per thread: 16 bytes of bf16

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_kernel(T* sum, const T* a, const T* __restrict__ b, size_t n, float* amax) {
  const size_t i = (size_t(blockIdx.x) * kThreads + threadIdx.x) * kNumbers;
  Vector<T, kNumbers> largest = {};
  if (i + kNumbers <= n) {
    float x[kNumbers], y[kNumbers];
    load_vector(x, a + i);
    load_vector(y, b + i);
    for (int j = 0; j < kNumbers; ++j) x[j] += y[j];
    const Vector<T, kNumbers> numbers = rounded<T>(x);
    *reinterpret_cast<Vector<T, kNumbers>*>(sum + i) = numbers;
    max_abs_into(largest, numbers);
  } else {
    for (size_t j = i; j < n; ++j) {
      sum[j] = from_float<T>(to_float(a[j]) + to_float(b[j]));
      Vector<T, kNumbers> one = {};
      one.v[0] = sum[j];
      max_abs_into(largest, one);
    }
  }
  if (!amax) return;
  const uint32_t of_warp = warp_max(max_value(largest));
  if (threadIdx.x % 32 == 0) raise_amax(amax, of_warp);
}

}  // namespace

void accumulate(Stream& stream, const Tensor& sum, const Tensor& x, bool add) {
  const char* who = "accumulate";
  require_elements(who, "x", x, x.type, -1);
  require_elements(who, "sum", sum, DType::fp32, x.size());
  const size_t n = size_t(x.size());
  REQUIRE(n > 0, "accumulate of no numbers");
  for (const void* data : {sum.data, x.data})
    REQUIRE(reinterpret_cast<uintptr_t>(data) % 16 == 0, "accumulate: the buffer at %p is not 16-byte aligned", data);
  const Work work = {stream, who, {updates(sum), reads(x)}};
  with_type(who, x.type, [&](auto number) {
    using T = decltype(number);
    with_constant(add, [&](auto adds) {
      launch<accumulate_kernel<T, decltype(adds)::value>>(work, blocks_for(n, kBlock), kThreads, 0, sum.as<float>(),
                                                          x.as<T>(), n);
    });
  });
}

void add(Stream& stream, const Tensor& sum, const Tensor& a, const Tensor& b, float* amax) {
  const char* who = "add";
  require_elements(who, "a", a, a.type, -1);
  require_elements(who, "b", b, a.type, a.size());
  require_elements(who, "sum", sum, a.type, a.size());
  if (sum.data != a.data) require_apart(who, "sum", sum, "a", a);
  require_apart(who, "sum", sum, "b", b);
  const size_t n = size_t(a.size());
  REQUIRE(n > 0, "%s of no numbers", who);
  for (const void* data : {sum.data, a.data, b.data})
    REQUIRE(reinterpret_cast<uintptr_t>(data) % 16 == 0, "%s: the buffer at %p is not 16-byte aligned", who, data);
  const Work work = {stream, who, {writes(sum), reads(a), reads(b), updates(amax, 1)}};
  with_type(who, a.type, [&](auto number) {
    using T = decltype(number);
    launch<add_kernel<T>>(work, blocks_for(n, kThreads * kNumbers), kThreads, 0, sum.as<T>(), a.as<T>(), b.as<T>(), n,
                          amax);
  });
}
