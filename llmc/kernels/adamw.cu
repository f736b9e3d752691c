// AdamW: see adamw.h.
#include "llmc/kernels/adamw.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // elements of a thread

template <class T>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(float* __restrict__ master, float* __restrict__ m, float* __restrict__ v, T* __restrict__ weights,
                 const float* __restrict__ gradients, const StepState* __restrict__ state, size_t n,
                 AdamWConstants constants) {
  const size_t first = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * kEach;
  if (first >= n) return;
  const int count = n - first < size_t(kEach) ? int(n - first) : kEach;
  const float clip = state->clip_factor, beta1 = constants.beta1, beta2 = constants.beta2, eps = constants.eps;
  const float keep = 1.0f - state->learning_rate * constants.weight_decay;
  const float step = state->learning_rate / state->bias_correction1;
  const float root_correction = sqrtf(state->bias_correction2);
  float p[kEach] = {}, g[kEach] = {}, mean[kEach] = {}, square[kEach] = {};
  for (int i = 0; i < count; ++i) {
    p[i] = master[first + i];
    g[i] = gradients[first + i] * clip;
    mean[i] = m[first + i];
    square[i] = v[first + i];
  }
  for (int i = 0; i < kEach; ++i) {
    mean[i] = beta1 * mean[i] + (1.0f - beta1) * g[i];
    square[i] = beta2 * square[i] + (1.0f - beta2) * g[i] * g[i];
    p[i] = p[i] * keep - step * mean[i] / (sqrtf(square[i]) / root_correction + eps);
  }
  for (int i = 0; i < count; ++i) {
    master[first + i] = p[i];
    m[first + i] = mean[i];
    v[first + i] = square[i];
    if (weights) weights[first + i] = from_float<T>(p[i]);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

template <class T>
void adamw(Stream& stream, float* master, float* m, float* v, T* weights, const float* gradients,
           const StepState* state, size_t n, AdamWConstants constants) {
  REQUIRE(n > 0, "adamw of no elements");
  launch<adamw_kernel<T>>(
      {stream,
       "adamw",
       {updates(master, n), updates(m, n), updates(v, n), writes(weights, n), reads(gradients, n), reads(state, 1)}},
      blocks_for(n, kThreads * kEach), kThreads, 0, master, m, v, weights, gradients, state, n, constants);
}

#define INSTANTIATE(T) \
  template void adamw(Stream&, float*, float*, float*, T*, const float*, const StepState*, size_t, AdamWConstants);
INSTANTIATE(float)
INSTANTIATE(bf16)
