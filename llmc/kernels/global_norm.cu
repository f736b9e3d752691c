// The global norm: see global_norm.h.
#include "llmc/kernels/global_norm.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kEach = 16;           // elements that a thread squares at a time
constexpr size_t kPiece = 1 << 16;  // elements of a block

__global__ void __launch_bounds__(kThreads)
    squares_kernel(double* __restrict__ partials, const float* __restrict__ gradients, size_t n) {
  const size_t begin = size_t(blockIdx.x) * kPiece, end = begin + kPiece < n ? begin + kPiece : n;
  double sum = 0;
  for (size_t i = begin + size_t(threadIdx.x) * kEach; i < end; i += size_t(kThreads) * kEach) {
    // fp64 lanes: an fp32 square would overflow beyond 1.8e19.
    double lanes[kEach] = {};
    if (i + kEach <= end)
      for (int j = 0; j < kEach; ++j) lanes[j] = double(gradients[i + j]) * double(gradients[i + j]);
    else
      for (int j = 0; i + j < end; ++j) lanes[j] = double(gradients[i + j]) * double(gradients[i + j]);
    for (int j = 0; j < kEach; ++j) sum += lanes[j];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    finish_kernel(StepState* __restrict__ state, const double* __restrict__ partials, size_t count) {
  double sum = 0;
  for (size_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const float norm = float(sqrt(sum)), limit = state->grad_clip;
  state->grad_norm = norm;
  state->clip_factor = limit == 0.0f || norm <= limit ? 1.0f : limit / norm;
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

size_t global_norm_partials(size_t n) { return (n + kPiece - 1) / kPiece; }

void global_norm_squares(Stream& stream, double* partials, const float* gradients, size_t n) {
  REQUIRE(n > 0, "global_norm of no gradients");
  const size_t count = global_norm_partials(n);
  launch<squares_kernel>({stream, "global_norm_squares", {reads(gradients, n), writes(partials, count)}},
                         unsigned(count), kThreads, 0, partials, gradients, n);
}

void global_norm_finish(Stream& stream, StepState* state, const double* partials, size_t count) {
  REQUIRE(count > 0, "global_norm of no partial sums");
  launch<finish_kernel>({stream, "global_norm_finish", {reads(partials, count), updates(state, 1)}}, 1, kThreads, 0,
                        state, partials, count);
}
