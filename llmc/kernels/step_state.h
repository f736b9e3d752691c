// The values that kernels need and that change from step to step. They live in device memory: the host's copy
// overwrites them at the start of a step, and the kernels of the step update them. So no kernel argument has to change
// between steps.
#pragma once

#include <cstdint>

// Counts of tensors, after a step with delayed FP8 scales.
struct Fp8Counts {
  int64_t overflows;   // tensors with a value beyond what their scale can represent
  int64_t underflows;  // tensors whose values all became 0 at their scale, and were not all 0
  int64_t no_scale;    // tensors that have had no value but 0 so far: their scale is 0, which stands for none
};

struct StepState {
  // Set by the host.
  float learning_rate;
  float bias_correction1, bias_correction2;  // 1 - beta1^t, 1 - beta2^t with t = step + 1
  float grad_clip;                           // largest gradient norm; 0: no clipping
  int64_t step;                              // 0 for the first step

  // Set by the host for this rank, then summed over the ranks.
  int64_t label_count;       // labels of the global batch that are not ignored
  int64_t stop_requests;     // ranks that were asked to stop after this step
  int64_t saved, not_saved;  // ranks that have written their part of a checkpoint; ranks that failed to

  // Written by the kernels of the step.
  double loss_sum;    // sum of the labels' losses in nats (this rank's until summed over ranks)
  double square_sum;  // sum of squares of all gradients (this rank's until summed over ranks)
  float grad_norm;    // L2 norm of all gradients, before clipping
  float clip_factor;  // min(1, grad_clip / grad_norm)
  Fp8Counts fp8;
  uint32_t fp8_not_finite = ~0u;          // smallest nonfinite_code() of a tensor with an infinity or NaN
  uint32_t fp8_weights_not_finite = ~0u;  // the same for weights that are sent to other ranks
};
