// What changes from step to step and kernels need: it lives in device memory, written by the host's copy at the start
// of a step and by the kernels of that step, so that no kernel argument has to change between steps.
#pragma once

#include <cstdint>

// Tensors, after a step with delayed FP8 scales.
struct Fp8Counts {
  int64_t overflows;   // with a number beyond what their scale could hold
  int64_t underflows;  // all of whose numbers became 0 at their scale, and were not
  int64_t no_scale;    // that have had no number but 0 so far: their scale is 0, and stands for none
};

struct StepState {
  // From the host.
  float learning_rate;
  float bias_correction1, bias_correction2;  // 1 - beta1^t, 1 - beta2^t with t = step + 1
  float grad_clip;                           // largest gradient norm; 0: no clipping
  int64_t step;                              // 0 for the first

  // This rank's from the host, then summed over the ranks.
  int64_t label_count;       // labels of the global batch that are not ignored
  int64_t stop_requests;     // ranks that were asked to stop after this step
  int64_t saved, not_saved;  // ranks that are done with their part of a checkpoint, and that failed to write it

  // From the step itself.
  double loss_sum;    // sum of their losses in nats (this rank's until summed over ranks)
  double square_sum;  // of all gradients (this rank's until summed over ranks)
  float grad_norm;    // L2 over all gradients, before clipping
  float clip_factor;  // min(1, grad_clip / grad_norm)
  Fp8Counts fp8;
  uint32_t fp8_not_finite = ~0u;          // of a tensor with an infinity or NaN, the smallest
  uint32_t fp8_weights_not_finite = ~0u;  // the same of weights on their way to other ranks
};
