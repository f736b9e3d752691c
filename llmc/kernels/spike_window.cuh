// The kernel's part of spike_window.h.
#pragma once

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/spike_window.h"
#include "llmc/kernels/step_state.h"

// All threads of a block call these functions, at least SpikeWindow::kSteps of them. They contain barriers.

// True if `number` is far above the first n numbers of `earlier`. The same in every thread.
__device__ __forceinline__ bool is_far_above(const float* earlier, uint32_t n, float number, double deviations) {
  const bool here = threadIdx.x < n;
  const double x = here ? double(earlier[threadIdx.x]) : 0;
  const double mean = block_sum(x) / n, apart = here ? x - mean : 0;
  const double deviation = sqrt(block_sum(apart * apart) / (n - 1)), least = 0.001 * fabs(mean);
  return double(number) > mean + deviations * (deviation > least ? deviation : least);
}

// Appends `number` to the first n numbers of a window. If it is full, the oldest one goes.
__device__ __forceinline__ void append(float* numbers, uint32_t n, float number) {
  const uint32_t at = threadIdx.x, from = n < SpikeWindow::kSteps ? at : at + 1;
  const float kept = from < n ? numbers[from] : number;
  __syncthreads();
  if (at <= n && at < SpikeWindow::kSteps) numbers[at] = kept;
}

// Returns kLossSpike or kNormSpike, or their sum, if the step is a spike, else 0 and the window has the step.
__device__ __forceinline__ uint32_t judge_step(SpikeWindow& window, double deviations, float loss, float norm) {
  const uint32_t n = window.count;
  uint32_t spike = 0;
  if (n >= SpikeWindow::kFewest) {
    if (is_far_above(window.loss, n, loss, deviations)) spike |= kLossSpike;
    if (is_far_above(window.grad_norm, n, norm, deviations)) spike |= kNormSpike;
  }
  if (!spike) {
    append(window.loss, n, loss);
    append(window.grad_norm, n, norm);
  }
  if (threadIdx.x == 0) {
    if (!spike && n < SpikeWindow::kSteps) window.count = n + 1;
    window.in_a_row = spike ? window.in_a_row + 1 : 0;
  }
  return spike;
}
