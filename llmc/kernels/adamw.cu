// AdamW over flat buffers, all tensors in one launch (contract: adamw.h).
//
// A thread takes units of 8 elements. It finds the range of its first unit by bisection and walks on from there; a unit
// that lies in one range takes the quick loads and stores, any other goes element by element. The arithmetic stands
// once, for both, so that an element's bits are the same in either.
#include "llmc/kernels/adamw.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 8;                                      // elements a thread takes at once
constexpr int kUnits = 4;                                     // how often
constexpr size_t kBlock = size_t(kThreads) * kUnit * kUnits;  // elements of a block

__device__ __forceinline__ size_t end_of(const AdamWRange& range) { return range.begin + range.count; }

// The first range that ends behind element i; range_count if there is none.
__device__ __forceinline__ int range_of(const AdamWRange* ranges, int range_count, size_t i) {
  int low = 0, high = range_count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (end_of(ranges[middle]) <= i) low = middle + 1;
    else high = middle;
  }
  return low;
}

struct Unit {
  float p[kUnit], m[kUnit], v[kUnit], g[kUnit], decay[kUnit];
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(float* __restrict__ master, float* __restrict__ m, float* __restrict__ v, T* __restrict__ weights,
                 const float* __restrict__ gradients, const StepState* __restrict__ state,
                 const AdamWRange* __restrict__ ranges, int range_count, size_t n, AdamWConstants constants) {
  const float beta1 = constants.beta1, beta2 = constants.beta2, eps = constants.eps;
  const float clip = state->clip_factor, rate = state->learning_rate;
  const float step = rate / state->bias_correction1, root_correction = 1.0f / sqrtf(state->bias_correction2);
  size_t first = size_t(blockIdx.x) * kBlock + size_t(threadIdx.x) * kUnit;
  int range = range_of(ranges, range_count, first);

  for (int k = 0; k < kUnits && first < n; ++k, first += size_t(kThreads) * kUnit) {
    while (range < range_count && end_of(ranges[range]) <= first) ++range;
    if (range == range_count) return;
    const bool whole = ranges[range].begin <= first && first + kUnit <= end_of(ranges[range]);
    Unit unit = {};
    uint32_t mine = 0;  // bit i: element first + i lies in a range
    if (whole) {
      load_vector(unit.p, master + first);
      load_vector(unit.m, m + first);
      load_vector(unit.v, v + first);
      load_vector(unit.g, gradients + first);
      for (int i = 0; i < kUnit; ++i) unit.decay[i] = ranges[range].weight_decay;
    } else {
      int r = range;
      for (int i = 0; i < kUnit; ++i) {
        while (r < range_count && end_of(ranges[r]) <= first + i) ++r;
        if (r == range_count) break;
        if (first + i < ranges[r].begin) continue;
        mine |= 1u << i;
        unit.p[i] = master[first + i];
        unit.m[i] = m[first + i];
        unit.v[i] = v[first + i];
        unit.g[i] = gradients[first + i];
        unit.decay[i] = ranges[r].weight_decay;
      }
    }

    VECTOR_LOOP
    for (int i = 0; i < kUnit; ++i) {
      const float g = unit.g[i] * clip;
      const float p = unit.p[i] - rate * unit.decay[i] * unit.p[i];
      const float mean = beta1 * unit.m[i] + (1.0f - beta1) * g;
      const float square = beta2 * unit.v[i] + (1.0f - beta2) * g * g;
      unit.p[i] = p - step * mean / (sqrtf(square) * root_correction + eps);
      unit.m[i] = mean;
      unit.v[i] = square;
    }

    if (whole) {
      store_vector(master + first, unit.p);
      store_vector(m + first, unit.m);
      store_vector(v + first, unit.v);
      if (weights) store_vector(weights + first, unit.p);
    } else {
      for (int i = 0; i < kUnit; ++i) {
        if (!(mine >> i & 1)) continue;
        master[first + i] = unit.p[i];
        m[first + i] = unit.m[i];
        v[first + i] = unit.v[i];
        if (weights) weights[first + i] = from_float<T>(unit.p[i]);
      }
    }
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void require_ranges(const std::vector<AdamWRange>& ranges, size_t n) {
  REQUIRE(!ranges.empty(), "adamw: no ranges of elements");
  size_t end = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const AdamWRange& r = ranges[i];
    REQUIRE(r.count > 0 && r.begin >= end && r.begin <= n && r.count <= n - r.begin,
            "adamw: range %zu of %zu has %zu elements from %zu: expected at least one, from %zu on, within %zu", i,
            ranges.size(), r.count, r.begin, end, n);
    end = r.begin + r.count;
  }
}

template <class T>
void adamw(Stream& stream, float* master, float* m, float* v, T* weights, const float* gradients,
           const StepState* state, const AdamWRange* ranges, int range_count, size_t n, AdamWConstants constants) {
  REQUIRE(n > 0 && range_count > 0, "adamw of %zu elements in %d ranges", n, range_count);
  for (const void* data :
       {(const void*)master, (const void*)m, (const void*)v, (const void*)weights, (const void*)gradients})
    REQUIRE(reinterpret_cast<uintptr_t>(data) % 16 == 0, "adamw: the buffer at %p is not 16-byte aligned", data);
  launch<adamw_kernel<T>>({stream,
                           "adamw",
                           {updates(master, n), updates(m, n), updates(v, n), writes(weights, n), reads(gradients, n),
                            reads(state, 1), reads(ranges, size_t(range_count))}},
                          blocks_for(n, kBlock), kThreads, 0, master, m, v, weights, gradients, state, ranges,
                          range_count, n, constants);
}

template void adamw(Stream&, float*, float*, float*, float*, const float*, const StepState*, const AdamWRange*, int,
                    size_t, AdamWConstants);
template void adamw(Stream&, float*, float*, float*, bf16*, const float*, const StepState*, const AdamWRange*, int,
                    size_t, AdamWConstants);
