// The L2 norm of all gradients, the factor that clips them: min(1, grad_clip / norm), and whether the step's update is
// made.
//
// Sums of squares are fp64. Their number and order depend on the sizes alone: deterministic. The norm is computed in
// stages, so that a sum over ranks may come between them:
//
//   global_norm_squares(…) for each tensor    partial sums, each after those of the tensor before
//   global_norm_sum(…)                        their total, where ranks exchange one number
//   global_norm_finish(…)                     norm, clip factor and decision, from the total or from the partial sums
//
// Gradients are fp32, partial sums and their total fp64. Muon squares bf16 numbers, too. All tensors are contiguous and
// have at least one element. The functions throw otherwise.
#pragma once

#include <cstddef>

#include "llmc/device/tensor.h"
#include "llmc/kernels/adamw.h"
#include "llmc/kernels/spike_window.h"
#include "llmc/kernels/step_state.h"

// Returns the number of partial sums that global_norm_squares writes for n numbers.
size_t global_norm_partials(size_t n);

// Writes partials (global_norm_partials(n)), the sums of squares of chunks of n numbers, which have any shape and are
// fp32 or bf16. Throws unless they are 16-byte aligned.
void global_norm_squares(Stream& stream, const Tensor& partials, const Tensor& numbers);

// Writes total (1), the sum of partials (count).
void global_norm_sum(Stream& stream, const Tensor& total, const Tensor& partials);

// global_norm_finish begins an update with these.
struct UpdateStart {
  UpdateProgress* progress;  // on the device
  AdamWConstants constants;
  AdamWAmax amax = {};    // cleared if the update is made: adamw raises the values
  SpikeRule spikes = {};  // which finite steps are held
};

// Writes state->grad_norm, the root of the sum of partials (count), rounded to fp32 once. Writes state->clip_factor
// from it and state->grad_clip: 1 if grad_clip is 0 (no clipping) or the norm does not exceed it, else grad_clip /
// norm. A norm that is not finite always makes the factor NaN, so that nothing hides it.
//
// Then decides about the update. A step is finite if its norm and its loss_sum are and if no rank reports a tensor
// (not_finite_ranks). One that is not sets progress->halted, and so does the last of spikes.most_in_a_row spikes. If it
// is set, or if the step is a spike, the step is held: state->held says why. Otherwise state->held = 0,
// ++progress->made, the bias corrections are those of this update, and the values of `amax` are cleared. All ranks
// decide alike, since they have the same sums.
void global_norm_finish(Stream& stream, StepState* state, const Tensor& partials, const UpdateStart& start);
