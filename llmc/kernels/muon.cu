// Muon's momentum, norm and update (contract: muon.h). Expected limit on a GPU: device memory.
#include "llmc/kernels/muon.h"

#include <cmath>

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/kernels/stochastic_rounding.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kVectorSize = 8;  // elements that a thread processes at once, if they are aligned; else 1

// Each multiply-add is written as fmaf, and no sum of a product is left to the compiler's choice: the kernels for one
// element at once and for kVectorSize have the same bits.

// torch.lerp, with the difference b - a: exact at both ends.
__device__ __forceinline__ float lerp(float a, float b, float difference, float w) {
  return w < 0.5f ? fmaf(w, difference, a) : fmaf(w - 1.0f, difference, b);
}

template <class Moment, class Update, int width>
__global__ void __launch_bounds__(kThreads)
    momentum_kernel(Moment* __restrict__ m, Update* __restrict__ u, const float* __restrict__ gradients,
                    const StepState* __restrict__ state, size_t n, float momentum, MuonSlice slice) {
  if (state->held) return;
  const size_t i = (size_t(blockIdx.x) * kThreads + threadIdx.x) * width;
  if (i >= n) return;
  const float clip = state->clip_factor;
  float mean[width], next[width], g[width];
  load_vector(mean, m + i);
  load_vector(g, gradients + i);
  VECTOR_LOOP
  for (int j = 0; j < width; ++j) {
    const float clipped = g[j] * clip;
    mean[j] = lerp(mean[j], clipped, fmaf(g[j], clip, -mean[j]), 1.0f - momentum);
    next[j] = lerp(clipped, mean[j], fmaf(-g[j], clip, mean[j]), momentum);
  }
  if constexpr (std::is_same_v<Moment, bf16>)
    for_draws<width>(slice.key, slice.window, i, state->step,
                     [&](int j, const AdamWDraws& draws) { mean[j] = stochastically_rounded(mean[j], draws.m); });
  store_vector(m + i, mean);
  if (u) store_vector(u + i, next);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    normalize_kernel(T* __restrict__ x, const double* __restrict__ square_sum, size_t n) {
  const size_t i = (size_t(blockIdx.x) * kThreads + threadIdx.x) * kVectorSize;
  const float root = to_float(from_float<T>(float(sqrt(*square_sum)))), least = to_float(from_float<T>(1e-7f));
  const float norm = root < least ? least : root;  // a NaN stays
  if (i + kVectorSize <= n) {
    float numbers[kVectorSize];
    load_vector(numbers, x + i);
    VECTOR_LOOP
    for (int j = 0; j < kVectorSize; ++j) numbers[j] /= norm;
    store_vector(x + i, numbers);
  } else {
    for (size_t j = i; j < n; ++j) x[j] = from_float<T>(to_float(x[j]) / norm);
  }
}

template <class Master, class Update, int width>
__global__ void __launch_bounds__(kThreads)
    update_kernel(Master* __restrict__ master, bf16* __restrict__ weights, const Update* __restrict__ o,
                  const StepState* __restrict__ state, size_t n, MuonRates rates, MuonSlice slice, float* amax) {
  if (state->held) return;
  const size_t i = (size_t(blockIdx.x) * kThreads + threadIdx.x) * width;
  Vector<bf16, width> magnitudes = {};
  if (i < n) {
    const float rate = state->learning_rate * rates.factor;
    const float kept = fmaf(-rate, rates.weight_decay, 1.0f), step = rate * rates.scale;
    float p[width], direction[width];
    load_vector(p, master + i);
    load_vector(direction, o + i);
    VECTOR_LOOP
    for (int j = 0; j < width; ++j) p[j] = fmaf(-step, direction[j], p[j] * kept);
    if constexpr (std::is_same_v<Master, bf16>)
      for_draws<width>(slice.key, slice.window, i, state->step,
                       [&](int j, const AdamWDraws& draws) { p[j] = stochastically_rounded(p[j], draws.master); });
    store_vector(master + i, p);
    if (weights) store_vector(weights + i, p);
    if (amax) max_abs_into(magnitudes, rounded<bf16>(p));
  }
  if (!amax) return;
  const uint32_t of_warp = warp_max(max_value(magnitudes));
  if (threadIdx.x % 32 == 0) raise_amax(amax, of_warp);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(T* __restrict__ whole, const T* __restrict__ packed, size_t n, ShardWindow window) {
  const size_t i = size_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) whole[window[i]] = packed[i];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(T* __restrict__ packed, const T* __restrict__ whole, size_t n, ShardWindow window) {
  const size_t i = size_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) packed[i] = whole[window[i]];
}

// Returns true if vectors of kVectorSize elements can be loaded from all of the tensors.
bool fit_vectors(int64_t n, std::initializer_list<const Tensor*> tensors) {
  bool fit = n % kVectorSize == 0;
  for (const Tensor* t : tensors) fit = fit && reinterpret_cast<uintptr_t>(t->data) % 16 == 0;
  return fit;
}

template <class F>
void with_width(bool vectors, const F& f) {
  if (vectors) f(std::integral_constant<int, kVectorSize>{});
  else f(std::integral_constant<int, 1>{});
}

// Throws unless the window ends within the matrix `whole`.
void require_window(const char* who, const Tensor& whole, const Tensor& packed, const ShardWindow& window) {
  require_elements(who, "packed", packed, packed.type, -1);
  require_elements(who, "whole", whole, packed.type, -1);
  const size_t n = size_t(packed.size());
  REQUIRE(n > 0 && window[n - 1] < size_t(whole.size()), "%s: %zu elements from %zu on, of %lld", who, n,
          size_t(window[0]), (long long)whole.size());
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

float muon_scale(MuonScale scale, int64_t rows, int64_t columns) {
  if (scale == MuonScale::match_rms) return float(0.2 * std::sqrt(double(std::max(rows, columns))));
  return float(std::sqrt(std::max(1.0, double(rows) / double(columns))));
}

void muon_momentum(Stream& stream, const Tensor& m, const Tensor& u, const Tensor& gradients, const StepState* state,
                   float momentum, const MuonSlice& slice) {
  const char* who = "muon_momentum";
  const int64_t n = gradients.size();
  REQUIRE(n > 0, "%s of no elements", who);
  require_tensor(who, "m", m, m.type, {n});
  require_tensor(who, "u", u, u ? u.type : m.type, {n}, true);
  require_tensor(who, "gradients", gradients, DType::fp32, {n});
  const Work work{stream, who, {updates(m), writes(u), reads(gradients), reads(state, 1)}};
  with_type(who, m.type, [&](auto of_moment) {
    with_type(who, u ? u.type : m.type, [&](auto of_update) {
      with_width(fit_vectors(n, {&m, &u, &gradients}), [&](auto width) {
        using Moment = decltype(of_moment);
        using Update = decltype(of_update);
        launch<momentum_kernel<Moment, Update, width.value>>(
            work, blocks_for(size_t(n), size_t(kThreads) * width.value), kThreads, 0, m.as<Moment>(), u.as<Update>(),
            gradients.as<float>(), state, size_t(n), momentum, slice);
      });
    });
  });
}

void muon_normalize(Stream& stream, const Tensor& x, const Tensor& square_sum) {
  const char* who = "muon_normalize";
  require_elements(who, "x", x, x.type, -1);
  require_tensor(who, "square_sum", square_sum, DType::fp64, {1});
  REQUIRE(x.size() > 0, "%s of no numbers", who);
  REQUIRE(reinterpret_cast<uintptr_t>(x.data) % 16 == 0, "%s: the numbers at %p are not 16-byte aligned", who, x.data);
  with_type(who, x.type, [&](auto number) {
    using T = decltype(number);
    launch<normalize_kernel<T>>({stream, who, {updates(x), reads(square_sum)}},
                                blocks_for(size_t(x.size()), size_t(kThreads) * kVectorSize), kThreads, 0, x.as<T>(),
                                square_sum.as<double>(), size_t(x.size()));
  });
}

void muon_update(Stream& stream, const Tensor& master, const Tensor& weights, const Tensor& o, const StepState* state,
                 const MuonRates& rates, const MuonSlice& slice, const Tensor& amax) {
  const char* who = "muon_update";
  const int64_t n = master.size();
  REQUIRE(n > 0, "%s of no elements", who);
  require_tensor(who, "master", master, master.type, {n});
  require_tensor(who, "weights", weights, DType::bf16, {n}, true);
  require_tensor(who, "o", o, o.type, {n});
  require_tensor(who, "amax", amax, DType::fp32, {1}, true);
  REQUIRE(!amax || weights || master.type == DType::bf16, "%s: the largest weight of no bf16 weights", who);
  const Work work{stream, who, {updates(master), writes(weights), reads(o), reads(state, 1), updates(amax)}};
  with_type(who, master.type, [&](auto of_master) {
    with_type(who, o.type, [&](auto of_update) {
      with_width(fit_vectors(n, {&master, &weights, &o}), [&](auto width) {
        using Master = decltype(of_master);
        using Update = decltype(of_update);
        launch<update_kernel<Master, Update, width.value>>(
            work, blocks_for(size_t(n), size_t(kThreads) * width.value), kThreads, 0, master.as<Master>(),
            weights.as<bf16>(), o.as<Update>(), state, size_t(n), rates, slice, amax.as<float>());
      });
    });
  });
}

void scatter_window(Stream& stream, const Tensor& whole, const Tensor& packed, const ShardWindow& window) {
  const char* who = "scatter_window";
  require_window(who, whole, packed, window);
  const size_t n = size_t(packed.size());
  with_type(who, packed.type, [&](auto number) {
    using T = decltype(number);
    launch<scatter_kernel<T>>({stream, who, {updates(whole), reads(packed)}}, blocks_for(n, kThreads), kThreads, 0,
                              whole.as<T>(), packed.as<T>(), n, window);
  });
}

void gather_window(Stream& stream, const Tensor& packed, const Tensor& whole, const ShardWindow& window) {
  const char* who = "gather_window";
  require_window(who, whole, packed, window);
  const size_t n = size_t(packed.size());
  with_type(who, packed.type, [&](auto number) {
    using T = decltype(number);
    launch<gather_kernel<T>>({stream, who, {writes(packed), reads(whole)}}, blocks_for(n, kThreads), kThreads, 0,
                             packed.as<T>(), whole.as<T>(), n, window);
  });
}
