// AdamW over flat buffers, all tensors in one launch (contract: adamw.h).
//
// A thread processes vectors of 8 elements. It finds the range of its first vector by binary search and walks on from
// there. A vector that lies in one range uses vector loads and stores; any other vector is processed element by
// element. Both paths share one update(), so an element has the same bits on either path.
#include "llmc/kernels/adamw.h"

#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kVectorSize = 8;  // elements that a thread processes at once
constexpr int kVectorsPerThread = 4;
constexpr size_t kBlock = size_t(kThreads) * kVectorSize * kVectorsPerThread;  // elements per block

__device__ __forceinline__ size_t end_of(const AdamWRange& range) { return range.begin + range.count; }

// Returns the index of the first range that ends after element i, or range_count if there is none.
__device__ __forceinline__ int range_of(const AdamWRange* ranges, int range_count, size_t i) {
  int low = 0, high = range_count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (end_of(ranges[middle]) <= i) low = middle + 1;
    else high = middle;
  }
  return low;
}

constexpr uint64_t kRoundingStream = uint64_t(1) << 63;  // the Philox stream; initial weights use stream 0

// Rounds x up or down in magnitude to a bf16 value, as the lower 16 bits of `bits` decide. Returns an infinity or NaN
// unchanged.
HOST_DEVICE inline float stochastically_rounded(float x, uint32_t bits) {
  const uint32_t u = float_to_bits(x);
  return (u & 0x7f800000u) == 0x7f800000u ? x : bits_to_float((u + (bits & 0xffffu)) & 0xffff0000u);
}

// Returns the bits of element i from the Philox block that it shares with its neighbour (elements 2k and 2k + 1).
HOST_DEVICE inline AdamWDraws draws_of(const PhiloxBlock& pair, uint64_t i) {
  const uint32_t low = i % 2 ? pair.words[2] : pair.words[0], high = i % 2 ? pair.words[3] : pair.words[1];
  return {low & 0xffffu, low >> 16, high & 0xffffu};
}

// Returns the Philox block of the pair of neighbours that contains element i.
__device__ __forceinline__ PhiloxBlock draws_of_pair(uint64_t key, uint64_t i, int64_t step) {
  return philox(key, i / 2, kRoundingStream | uint64_t(step));
}

// Pointers to the first element of a vector in each buffer.
template <class Master, class Moment>
struct Place {
  Master* master;
  Moment *m, *v;
  bf16* weights;
  const float* gradients;
};

struct LoadedVector {
  float p[kVectorSize], m[kVectorSize], v[kVectorSize], g[kVectorSize], decay[kVectorSize];
  uint32_t mine;                                   // bit i is set if element i lies in a range
  uint64_t key[kVectorSize], number[kVectorSize];  // for Philox: the key of its tensor, and its index in the tensor
};

// Loads a vector that lies in one range.
template <class Master, class Moment>
__device__ __forceinline__ void load_whole(LoadedVector& vector, const Place<Master, Moment>& at,
                                           const AdamWRange& range) {
  load_vector(vector.p, at.master);
  load_vector(vector.m, at.m);
  load_vector(vector.v, at.v);
  load_vector(vector.g, at.gradients);
  for (int i = 0; i < kVectorSize; ++i) vector.decay[i] = range.weight_decay;
}

// Loads a vector element by element and skips elements outside of all ranges. `first` is the index of the vector's
// first element, as ranges count; `count` is how many of its elements the buffers hold.
template <class Master, class Moment>
__device__ __forceinline__ void load_elements(LoadedVector& vector, const Place<Master, Moment>& at,
                                              const AdamWRange* ranges, int range, int range_count, size_t first,
                                              int count) {
  for (int i = 0; i < count; ++i) {
    while (range < range_count && end_of(ranges[range]) <= first + i) ++range;
    if (range == range_count) return;
    const AdamWRange& r = ranges[range];
    if (first + i < r.begin) continue;
    vector.mine |= 1u << i;
    vector.p[i] = to_float(at.master[i]);
    vector.m[i] = to_float(at.m[i]);
    vector.v[i] = to_float(at.v[i]);
    vector.g[i] = at.gradients[i];
    vector.decay[i] = r.weight_decay;
    vector.key[i] = r.key, vector.number[i] = r.place[first + i - r.begin];
  }
}

__device__ __forceinline__ void update(LoadedVector& vector, const StepState& state, const AdamWConstants& constants) {
  const float beta1 = constants.beta1, beta2 = constants.beta2, eps = constants.eps;
  const float clip = state.clip_factor, rate = state.learning_rate;
  const float step = rate / state.bias_correction1, root_correction = 1.0f / sqrtf(state.bias_correction2);
  VECTOR_LOOP
  for (int i = 0; i < kVectorSize; ++i) {
    const float g = vector.g[i] * clip;
    const float p = vector.p[i] - rate * vector.decay[i] * vector.p[i];
    const float mean = beta1 * vector.m[i] + (1.0f - beta1) * g;
    const float square = beta2 * vector.v[i] + (1.0f - beta2) * g * g;
    vector.p[i] = p - step * mean / (sqrtf(square) * root_correction + eps);
    vector.m[i] = mean;
    vector.v[i] = square;
  }
}

template <class Master, class Moment>
__device__ __forceinline__ void round_element(LoadedVector& vector, int i, const PhiloxBlock& pair, uint64_t number) {
  const AdamWDraws draws = draws_of(pair, number);
  if constexpr (std::is_same_v<Master, bf16>) vector.p[i] = stochastically_rounded(vector.p[i], draws.master);
  if constexpr (std::is_same_v<Moment, bf16>) {
    vector.m[i] = stochastically_rounded(vector.m[i], draws.m);
    vector.v[i] = stochastically_rounded(vector.v[i], draws.v);
  }
}

template <class Master, class Moment>
__device__ __forceinline__ void round_whole(LoadedVector& vector, const AdamWRange& range, size_t first, int64_t step) {
  const bool cut = range.place.is_cut();
  uint64_t number = range.place[first - range.begin];
  PhiloxBlock pair;
  for (int i = 0; i < kVectorSize; ++i) {
    if (cut) number = range.place[first - range.begin + i];
    if (i == 0 || cut || number % 2 == 0) pair = draws_of_pair(range.key, number, step);
    round_element<Master, Moment>(vector, i, pair, number++);
  }
}

template <class Master, class Moment>
__device__ __forceinline__ void round_elements(LoadedVector& vector, int64_t step) {
  for (int i = 0; i < kVectorSize; ++i)
    round_element<Master, Moment>(vector, i, draws_of_pair(vector.key[i], vector.number[i], step), vector.number[i]);
}

template <class Master, class Moment>
__device__ __forceinline__ void store_whole(const LoadedVector& vector, const Place<Master, Moment>& at) {
  store_vector(at.master, vector.p);
  store_vector(at.m, vector.m);
  store_vector(at.v, vector.v);
  if (at.weights) store_vector(at.weights, vector.p);
}

template <class Master, class Moment>
__device__ __forceinline__ void store_elements(const LoadedVector& vector, const Place<Master, Moment>& at) {
  for (int i = 0; i < kVectorSize; ++i) {
    if (!(vector.mine >> i & 1)) continue;
    at.master[i] = from_float<Master>(vector.p[i]);
    at.m[i] = from_float<Moment>(vector.m[i]);
    at.v[i] = from_float<Moment>(vector.v[i]);
    if (at.weights) at.weights[i] = from_float<bf16>(vector.p[i]);
  }
}

// Returns the largest |weight|, rounded to bf16, of a vector that lies in one range, as the bits of an fp32 value.
__device__ __forceinline__ uint32_t largest_weight(const LoadedVector& vector) {
  Vector<bf16, kVectorSize> magnitudes = {};
  max_abs_into(magnitudes, rounded<bf16>(vector.p));
  return max_value(magnitudes);
}

__device__ __forceinline__ void raise(float* words, int word, uint32_t value) {
  if (word >= 0) atomic_max(reinterpret_cast<uint32_t*>(words + word), value);
}

// Raises the amax words for a vector that was loaded element by element.
__device__ __forceinline__ void raise_elements(float* words, const LoadedVector& vector, const AdamWRange* ranges,
                                               int range, int range_count, size_t first) {
  for (int i = 0; i < kVectorSize; ++i) {
    while (range < range_count && end_of(ranges[range]) <= first + i) ++range;
    if (range == range_count) return;
    if (vector.mine >> i & 1)
      raise(words, ranges[range].amax, float_to_bits(to_float(from_float<bf16>(vector.p[i]))) & 0x7fffffffu);
  }
}

// With finds_amax the kernel also raises the amax words. If all elements of a block lie in one range, each thread
// raises the word of that range once, at the end: nvcc turns this into one atomic per warp, and no thread waits. The
// other blocks, of which there are few, raise words vector by vector.
template <class Master, class Moment, bool finds_amax>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(Master* __restrict__ master, Moment* __restrict__ m, Moment* __restrict__ v,
                 bf16* __restrict__ weights, const float* __restrict__ gradients, const StepState* __restrict__ state,
                 const AdamWRange* __restrict__ ranges, int range_count, size_t offset, size_t n,
                 AdamWConstants constants, float* amax) {
  constexpr bool kRounds = std::is_same_v<Master, bf16> || std::is_same_v<Moment, bf16>;
  if (state->held) return;
  const StepState now = *state;
  size_t at = size_t(blockIdx.x) * kBlock + size_t(threadIdx.x) * kVectorSize;  // index in the buffers
  int range = range_of(ranges, range_count, offset + at);
  int range_of_block = 0;
  bool one_range = false;
  uint32_t largest = 0;
  if constexpr (finds_amax) {
    const size_t begin = size_t(blockIdx.x) * kBlock, end = n - begin < kBlock ? n : begin + kBlock;
    range_of_block = range_of(ranges, range_count, offset + begin);
    one_range = range_of_block < range_count && end_of(ranges[range_of_block]) >= offset + end;
  }

  for (int k = 0; k < kVectorsPerThread && at < n; ++k, at += size_t(kThreads) * kVectorSize) {
    const size_t first = offset + at;
    while (range < range_count && end_of(ranges[range]) <= first) ++range;
    if (range == range_count) break;
    const AdamWRange& r = ranges[range];
    const Place<Master, Moment> place{master + at, m + at, v + at, weights ? weights + at : nullptr, gradients + at};
    LoadedVector vector = {};
    const bool whole = r.begin <= first && first + kVectorSize <= end_of(r) && at + kVectorSize <= n;
    if (whole) load_whole(vector, place, r);
    else
      load_elements(vector, place, ranges, range, range_count, first, n - at < kVectorSize ? int(n - at) : kVectorSize);
    update(vector, now, constants);
    if constexpr (kRounds) {
      if (whole) round_whole<Master, Moment>(vector, r, first, now.step);
      else round_elements<Master, Moment>(vector, now.step);
    }
    if (whole) store_whole(vector, place);
    else store_elements(vector, place);
    if constexpr (finds_amax) {
      const uint32_t of_vector = whole ? largest_weight(vector) : 0;
      if (whole && one_range) largest = of_vector > largest ? of_vector : largest;
      else if (whole) raise(amax, r.amax, of_vector);
      else raise_elements(amax, vector, ranges, range, range_count, first);
    }
  }
  if constexpr (finds_amax) {
    if (one_range) raise(amax, ranges[range_of_block].amax, largest);
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

void adamw(Stream& stream, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& weights,
           const Tensor& gradients, const StepState* state, const AdamWRange* ranges, int range_count, size_t offset,
           AdamWConstants constants, AdamWAmax amax) {
  const char* who = "adamw";
  const int64_t n = master.size();
  REQUIRE(n > 0 && range_count > 0, "adamw of %lld elements in %d ranges", (long long)n, range_count);
  require_tensor(who, "master", master, master.type, {n});
  require_tensor(who, "m", m, m.type, {n});
  require_tensor(who, "v", v, m.type, {n});
  require_tensor(who, "weights", weights, DType::bf16, {n}, true);
  require_tensor(who, "gradients", gradients, DType::fp32, {n});
  for (const Tensor* t : {&master, &m, &v, &weights, &gradients})
    REQUIRE(reinterpret_cast<uintptr_t>(t->data) % 16 == 0, "adamw: the buffer at %p is not 16-byte aligned", t->data);
  REQUIRE(!amax.words || weights || master.type == DType::bf16, "adamw: the largest weights of no bf16 weights");
  const Work work{stream,
                  who,
                  {updates(master), updates(m), updates(v), writes(weights), reads(gradients), reads(state, 1),
                   reads(ranges, size_t(range_count)), updates(amax.words, amax.count)}};
  const auto start = [&](auto master_number, auto moment_number, auto finds_amax) {
    using Master = decltype(master_number);
    using Moment = decltype(moment_number);
    launch<adamw_kernel<Master, Moment, decltype(finds_amax)::value>>(
        work, blocks_for(size_t(n), kBlock), kThreads, 0, master.as<Master>(), m.as<Moment>(), v.as<Moment>(),
        weights.as<bf16>(), gradients.as<float>(), state, ranges, range_count, offset, size_t(n), constants,
        amax.words);
  };
  with_type(who, master.type, [&](auto of_master) {
    with_type(who, m.type, [&](auto of_moments) {
      if (amax.words) start(of_master, of_moments, std::true_type{});
      else start(of_master, of_moments, std::false_type{});
    });
  });
}
