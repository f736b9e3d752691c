// AdamW over flat buffers, all tensors in one launch (contract: adamw.h).
//
// A thread takes units of 8 elements. It finds the range of its first unit by bisection and walks on from there; a unit
// that lies in one range takes the quick loads and stores, any other goes element by element. The arithmetic stands
// once, for both, so that an element's bits are the same in either.
#include "llmc/kernels/adamw.h"

#include "llmc/base/error.h"
#include "llmc/base/philox.h"
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

constexpr uint64_t kRoundingStream = uint64_t(1) << 63;  // of Philox; initial weights have 0

// Up or down to a number of bf16: an infinity or NaN stays.
HOST_DEVICE inline float stochastically_rounded(float x, uint32_t bits) {
  const uint32_t u = float_to_bits(x);
  return (u & 0x7f800000u) == 0x7f800000u ? x : bits_to_float((u + (bits & 0xffffu)) & 0xffff0000u);
}

// Element i's of the block that it shares with its neighbour.
HOST_DEVICE inline AdamWDraws draws_of(const PhiloxBlock& pair, uint64_t i) {
  const uint32_t low = pair.words[i % 2 * 2], high = pair.words[i % 2 * 2 + 1];
  return {low & 0xffffu, low >> 16, high & 0xffffu};
}

struct Unit {
  float p[kUnit], m[kUnit], v[kUnit], g[kUnit], decay[kUnit];
};

// Of two neighbours, the first of which has an even place.
__device__ __forceinline__ PhiloxBlock draws_of_pair(uint64_t key, uint64_t i, int64_t step) {
  return philox(key, i / 2, kRoundingStream | uint64_t(step));
}

template <class T>
__device__ __forceinline__ void round_to(float& x, uint32_t bits) {
  if constexpr (std::is_same_v<T, bf16>) x = stochastically_rounded(x, bits);
}

template <class Master, class Moment>
__device__ __forceinline__ void round_element(Unit& unit, int i, const PhiloxBlock& pair, uint64_t place) {
  const AdamWDraws draws = draws_of(pair, place);
  round_to<Master>(unit.p[i], draws.master);
  round_to<Moment>(unit.m[i], draws.m);
  round_to<Moment>(unit.v[i], draws.v);
}

template <class Master, class Moment>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(Master* __restrict__ master, Moment* __restrict__ m, Moment* __restrict__ v,
                 bf16* __restrict__ weights, const float* __restrict__ gradients, const StepState* __restrict__ state,
                 const AdamWRange* __restrict__ ranges, int range_count, size_t offset, size_t n,
                 AdamWConstants constants) {
  constexpr bool kRounds = std::is_same_v<Master, bf16> || std::is_same_v<Moment, bf16>;
  const float beta1 = constants.beta1, beta2 = constants.beta2, eps = constants.eps;
  const float clip = state->clip_factor, rate = state->learning_rate;
  const float step = rate / state->bias_correction1, root_correction = 1.0f / sqrtf(state->bias_correction2);
  size_t at = size_t(blockIdx.x) * kBlock + size_t(threadIdx.x) * kUnit;  // in the buffers
  int range = range_of(ranges, range_count, offset + at);

  for (int k = 0; k < kUnits && at < n; ++k, at += size_t(kThreads) * kUnit) {
    const size_t first = offset + at;
    while (range < range_count && end_of(ranges[range]) <= first) ++range;
    if (range == range_count) return;
    const bool whole = ranges[range].begin <= first && first + kUnit <= end_of(ranges[range]) && at + kUnit <= n;
    Unit unit = {};
    uint32_t mine = 0;  // bit i: element first + i lies in a range
    uint64_t key[kUnit] = {}, place[kUnit] = {};
    if (whole) {
      load_vector(unit.p, master + at);
      load_vector(unit.m, m + at);
      load_vector(unit.v, v + at);
      load_vector(unit.g, gradients + at);
      for (int i = 0; i < kUnit; ++i) unit.decay[i] = ranges[range].weight_decay;
    } else {
      int r = range;
      for (int i = 0; i < kUnit && at + i < n; ++i) {
        while (r < range_count && end_of(ranges[r]) <= first + i) ++r;
        if (r == range_count) break;
        if (first + i < ranges[r].begin) continue;
        mine |= 1u << i;
        unit.p[i] = to_float(master[at + i]);
        unit.m[i] = to_float(m[at + i]);
        unit.v[i] = to_float(v[at + i]);
        unit.g[i] = gradients[at + i];
        unit.decay[i] = ranges[r].weight_decay;
        if constexpr (kRounds) key[i] = ranges[r].key, place[i] = ranges[r].first + (first + i - ranges[r].begin);
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

    if constexpr (kRounds) {
      const uint64_t begin = ranges[range].first + (first - ranges[range].begin);
      PhiloxBlock pair;
      for (int i = 0; i < kUnit; ++i) {
        const uint64_t of = whole ? begin + i : place[i];
        if (!whole || i == 0 || of % 2 == 0) pair = draws_of_pair(whole ? ranges[range].key : key[i], of, state->step);
        round_element<Master, Moment>(unit, i, pair, of);
      }
    }

    if (whole) {
      store_vector(master + at, unit.p);
      store_vector(m + at, unit.m);
      store_vector(v + at, unit.v);
      if (weights) store_vector(weights + at, unit.p);
    } else {
      for (int i = 0; i < kUnit; ++i) {
        if (!(mine >> i & 1)) continue;
        master[at + i] = from_float<Master>(unit.p[i]);
        m[at + i] = from_float<Moment>(unit.m[i]);
        v[at + i] = from_float<Moment>(unit.v[i]);
        if (weights) weights[at + i] = from_float<bf16>(unit.p[i]);
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

AdamWDraws adamw_draws(uint64_t key, uint64_t i, int64_t step) {
  return draws_of(philox(key, i / 2, kRoundingStream | uint64_t(step)), i);
}

float stochastic_bf16(float x, uint32_t bits) { return stochastically_rounded(x, bits); }

template <class Master, class Moment>
void adamw(Stream& stream, Master* master, Moment* m, Moment* v, bf16* weights, const float* gradients,
           const StepState* state, const AdamWRange* ranges, int range_count, size_t offset, size_t n,
           AdamWConstants constants) {
  REQUIRE(n > 0 && range_count > 0, "adamw of %zu elements in %d ranges", n, range_count);
  for (const void* data :
       {(const void*)master, (const void*)m, (const void*)v, (const void*)weights, (const void*)gradients})
    REQUIRE(reinterpret_cast<uintptr_t>(data) % 16 == 0, "adamw: the buffer at %p is not 16-byte aligned", data);
  launch<adamw_kernel<Master, Moment>>({stream,
                                        "adamw",
                                        {updates(master, n), updates(m, n), updates(v, n), writes(weights, n),
                                         reads(gradients, n), reads(state, 1), reads(ranges, size_t(range_count))}},
                                       blocks_for(n, kBlock), kThreads, 0, master, m, v, weights, gradients, state,
                                       ranges, range_count, offset, n, constants);
}

#define INSTANTIATE(Master, Moment)                                                                                 \
  template void adamw(Stream&, Master*, Moment*, Moment*, bf16*, const float*, const StepState*, const AdamWRange*, \
                      int, size_t, size_t, AdamWConstants);
INSTANTIATE(float, float)
INSTANTIATE(float, bf16)
INSTANTIATE(bf16, float)
INSTANTIATE(bf16, bf16)
