// The values that kernels need and that change from step to step. They live in device memory: the host's copy
// overwrites them at the start of a step, and the kernels of the step update them. So no kernel argument has to change
// between steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llmc/device/number.h"

// Counts of tensors, after a step with delayed FP8 scales.
struct Fp8Counts {
  int64_t overflows;   // tensors with a value beyond what their scale can represent
  int64_t underflows;  // tensors whose values all became 0 at their scale, and were not all 0
  int64_t no_scale;    // tensors that have had no value but 0 so far: their scale is 0, which stands for none
};

// Kernels report a tensor with a number that FP8 cannot hold by its code, a word from 1 to kLargestCode
// (nonfinite_code() in fp8.h). Any other word means that everything was finite; memory filled with kFiniteByte holds
// such a word.
inline constexpr uint32_t kLargestCode = 0x40000000;
inline constexpr unsigned char kFiniteByte = 0x7f;
HOST_DEVICE constexpr bool is_finite_word(uint32_t word) { return word == 0 || word > kLargestCode; }

// What stays on the device from step to step, and decides with a step's results whether its update is made.
struct UpdateProgress {
  int64_t made;    // updates since the beginning of the training
  int64_t halted;  // 1: no later step makes an update until Optimizer::reset(), since a step was not finite, or was
                   // one spike too many in a row; else 0
};

// Why a step is held. StepState::held is a sum of these.
inline constexpr uint32_t kHalted = 1;     // UpdateProgress::halted: later steps are held, too
inline constexpr uint32_t kLossSpike = 2;  // its loss is a spike (spike_window.h)
inline constexpr uint32_t kNormSpike = 4;  // its gradient norm is a spike

struct StepState {
  // Set by the host.
  float learning_rate;
  float grad_clip;  // largest gradient norm; 0: no clipping
  int64_t step;     // 0 for the first step

  // Set by the host for this rank, then summed over the ranks before forward, as one array of kSummedAtBegin numbers.
  int64_t label_count;       // labels of the global batch that are not ignored
  int64_t stop_requests;     // ranks that were asked to stop after this step
  int64_t saved, not_saved;  // ranks that have written their part of a checkpoint; ranks that failed to
  int64_t checkpoints_due;   // ranks whose clock says that it is time for a checkpoint

  // Written by the kernels of the step. The first kSummedAtEnd are summed over the ranks as one array, and z_loss_sum
  // with them if there is a z-loss.
  double loss_sum;          // sum of the labels' losses in nats, without z-loss (this rank's until summed over ranks)
  double not_finite_ranks;  // ranks that report a tensor in fp8_not_finite (this rank's 1 or 0 until summed over ranks)
  double z_loss_sum;        // sum of the labels' z-losses in nats; 0 without z-loss
  double square_sum;        // sum of squares of all gradients (this rank's until summed over ranks)
  float grad_norm;          // L2 norm of all gradients, before clipping
  float clip_factor;        // min(1, grad_clip / grad_norm)
  float bias_correction1, bias_correction2;  // 1 - beta1^t, 1 - beta2^t; this update is number t, from 1
  int64_t updates;                           // UpdateProgress::made after this step
  // Not 0: the step's update is not made, so weights, moments, amaxes and FP8 history stay as they were.
  uint32_t held;
  uint32_t fp8_not_finite = ~0u;  // smallest nonfinite_code() of a tensor with an infinity or NaN
  Fp8Counts fp8;
};

inline constexpr size_t kSummedAtBegin = 5, kSummedAtEnd = 2;
static_assert(offsetof(StepState, checkpoints_due) - offsetof(StepState, label_count) ==
              (kSummedAtBegin - 1) * sizeof(int64_t));
static_assert(offsetof(StepState, not_finite_ranks) - offsetof(StepState, loss_sum) ==
              (kSummedAtEnd - 1) * sizeof(double));
static_assert(offsetof(StepState, z_loss_sum) - offsetof(StepState, loss_sum) == kSummedAtEnd * sizeof(double));
