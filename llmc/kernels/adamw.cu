// AdamW over flat buffers, all tensors in one launch (contract: adamw.h).
//
// A thread processes vectors of 8 elements. It finds the range of its first vector by binary search and walks on from
// there. It updates a vector that lies in one range, in aligned buffers, at once, and the elements of any other vector
// one after the other. Both go through the same instructions of update(), so the bits of an element do not depend on
// its neighbours.
#include "llmc/kernels/adamw.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/kernels/stochastic_rounding.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kVectorSize = 8;  // elements that a thread processes at once
constexpr int kVectorsPerThread = 4;
constexpr size_t kElementsPerBlock = size_t(kThreads) * kVectorSize * kVectorsPerThread;

__device__ __forceinline__ size_t end_of(const AdamWRange& range) { return range.begin + range.count; }

// Returns the index of the first range that ends after element i, or range_count if there is none.
__device__ __forceinline__ int range_of(const AdamWRange* ranges, int range_count, size_t i) {
  int low = 0, high = range_count;
  while (low < high) {
    const int mid = (low + high) / 2;
    if (end_of(ranges[mid]) <= i) low = mid + 1;
    else high = mid;
  }
  return low;
}

// Pointers to the first of some neighbours in each buffer.
template <class Master, class Moment>
struct VectorPointers {
  Master* master;
  Moment *m, *v;
  bf16* weights;  // null if there are none
  const float* gradients;
};

struct LoadedVector {
  float p[kVectorSize], m[kVectorSize], v[kVectorSize], g[kVectorSize];
};

// Returns the first `width` elements of x.
template <int width>
__device__ __forceinline__ float (&prefix_of(float (&x)[kVectorSize]))[width] {
  return *reinterpret_cast<float(*)[width]>(x);
}

template <int width, class Master, class Moment>
__device__ __forceinline__ void load(LoadedVector& vector, const VectorPointers<Master, Moment>& at) {
  load_vector(prefix_of<width>(vector.p), at.master);
  load_vector(prefix_of<width>(vector.m), at.m);
  load_vector(prefix_of<width>(vector.v), at.v);
  load_vector(prefix_of<width>(vector.g), at.gradients);
}

__device__ __forceinline__ void update(LoadedVector& vector, float decay, const StepState& state,
                                       const AdamWConstants& constants) {
  const float beta1 = constants.beta1, beta2 = constants.beta2, eps = constants.eps;
  const float clip = state.clip_factor, rate = state.learning_rate;
  const float step = rate / state.bias_correction1, root_correction = 1.0f / sqrtf(state.bias_correction2);
  VECTOR_LOOP
  for (int i = 0; i < kVectorSize; ++i) {
    const float g = vector.g[i] * clip;
    const float p = vector.p[i] - rate * decay * vector.p[i];
    const float mean = beta1 * vector.m[i] + (1.0f - beta1) * g;
    const float square = beta2 * vector.v[i] + (1.0f - beta2) * g * g;
    vector.p[i] = p - step * mean / (sqrtf(square) * root_correction + eps);
    vector.m[i] = mean;
    vector.v[i] = square;
  }
}

// Rounds `width` neighbours in `range` stochastically to the types of the buffers. `first_in_ranges` is the index of
// the first of them, which counts as AdamWRange::begin does: index in the buffers + offset.
template <int width, class Master, class Moment>
__device__ __forceinline__ void round_stochastically(LoadedVector& vector, const AdamWRange& range,
                                                     size_t first_in_ranges, int64_t step) {
  for_draws<width>(range.key, range.window, first_in_ranges - range.begin, step, [&](int i, const AdamWDraws& draws) {
    if constexpr (std::is_same_v<Master, bf16>) vector.p[i] = stochastically_rounded(vector.p[i], draws.master);
    if constexpr (std::is_same_v<Moment, bf16>) {
      vector.m[i] = stochastically_rounded(vector.m[i], draws.m);
      vector.v[i] = stochastically_rounded(vector.v[i], draws.v);
    }
  });
}

// Rounds and stores `width` neighbours in `range`. Returns the largest |weight|, rounded to bf16, as the bits of an
// fp32 value.
template <int width, class Master, class Moment>
__device__ __forceinline__ uint32_t store(LoadedVector& vector, const VectorPointers<Master, Moment>& at,
                                          const AdamWRange& range, size_t first_in_ranges, int64_t step) {
  if constexpr (std::is_same_v<Master, bf16> || std::is_same_v<Moment, bf16>)
    round_stochastically<width, Master, Moment>(vector, range, first_in_ranges, step);
  store_vector(at.master, prefix_of<width>(vector.p));
  store_vector(at.m, prefix_of<width>(vector.m));
  store_vector(at.v, prefix_of<width>(vector.v));
  if (at.weights) store_vector(at.weights, prefix_of<width>(vector.p));
  Vector<bf16, width> magnitudes = {};
  max_abs_into(magnitudes, rounded<bf16>(prefix_of<width>(vector.p)));
  return max_value(magnitudes);
}

// With finds_amax the kernel also raises the amaxes. If all elements of a block lie in one range, each thread
// raises the amax of that range once, at the end: nvcc turns this into one atomic per warp, and no thread waits. The
// other blocks, of which there are few, raise amaxes at once.
template <class Master, class Moment, bool finds_amax>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(Master* __restrict__ master, Moment* __restrict__ m, Moment* __restrict__ v,
                 bf16* __restrict__ weights, const float* __restrict__ gradients, const StepState* __restrict__ state,
                 const AdamWRange* __restrict__ ranges, int range_count, size_t offset, size_t n, bool aligned,
                 AdamWConstants constants, float* amax) {
  if (state->held) return;
  const StepState state_now = *state;
  size_t at = size_t(blockIdx.x) * kElementsPerBlock + size_t(threadIdx.x) * kVectorSize;  // index in the buffers
  int range = range_of(ranges, range_count, offset + at);
  int range_of_block = 0;
  bool one_range = false;
  uint32_t largest = 0;
  if constexpr (finds_amax) {
    const size_t begin = size_t(blockIdx.x) * kElementsPerBlock,
                 end = n - begin < kElementsPerBlock ? n : begin + kElementsPerBlock;
    range_of_block = range_of(ranges, range_count, offset + begin);
    one_range = range_of_block < range_count && end_of(ranges[range_of_block]) >= offset + end;
  }
  const auto raise = [&](const AdamWRange& r, uint32_t magnitude) {
    if (r.amax >= 0) raise_amax(amax + r.amax, magnitude);
  };

  for (int k = 0; k < kVectorsPerThread; ++k, at += size_t(kThreads) * kVectorSize) {
    const size_t end = at + kVectorSize;
#pragma unroll 1
    for (size_t i = at; i < end && i < n;) {
      const size_t first_in_ranges = offset + i;
      while (range < range_count && end_of(ranges[range]) <= first_in_ranges) ++range;
      if (range == range_count) break;
      const AdamWRange& r = ranges[range];
      const bool full = aligned && i == at && r.begin <= first_in_ranges && offset + end <= end_of(r) && end <= n;
      const VectorPointers<Master, Moment> pointers{master + i, m + i, v + i, weights ? weights + i : nullptr,
                                                    gradients + i};
      i += full ? kVectorSize : 1;
      if (first_in_ranges < r.begin) continue;
      LoadedVector vector = {};
      if (full) load<kVectorSize>(vector, pointers);
      else load<1>(vector, pointers);
      update(vector, r.weight_decay, state_now, constants);
      const uint32_t magnitude = full ? store<kVectorSize>(vector, pointers, r, first_in_ranges, state_now.step)
                                      : store<1>(vector, pointers, r, first_in_ranges, state_now.step);
      if constexpr (finds_amax) {
        if (!one_range) raise(r, magnitude);
        else largest = magnitude > largest ? magnitude : largest;
      }
    }
  }
  if (finds_amax && one_range) raise(ranges[range_of_block], largest);
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
  // A buffer that begins between two matrices of Muon is not aligned if a matrix has an odd size.
  bool aligned = true;
  for (const Tensor* t : {&master, &m, &v, &weights, &gradients})
    aligned = aligned && reinterpret_cast<uintptr_t>(t->data) % 16 == 0;
  REQUIRE(!amax.values || weights || master.type == DType::bf16, "adamw: the largest weights of no bf16 weights");
  const Work work{stream,
                  who,
                  {updates(master), updates(m), updates(v), writes(weights), reads(gradients), reads(state, 1),
                   reads(ranges, size_t(range_count)), updates(amax.values, amax.count)}};
  const auto start = [&](auto master_number, auto moment_number, auto finds_amax) {
    using Master = decltype(master_number);
    using Moment = decltype(moment_number);
    launch<adamw_kernel<Master, Moment, decltype(finds_amax)::value>>(
        work, blocks_for(size_t(n), kElementsPerBlock), kThreads, 0, master.as<Master>(), m.as<Moment>(),
        v.as<Moment>(), weights.as<bf16>(), gradients.as<float>(), state, ranges, range_count, offset, size_t(n),
        aligned, constants, amax.values);
  };
  with_type(who, master.type, [&](auto of_master) {
    with_type(who, m.type, [&](auto of_moments) {
      if (amax.values) start(of_master, of_moments, std::true_type{});
      else start(of_master, of_moments, std::false_type{});
    });
  });
}
