// Learning-rate schedules: pure functions of the step, so that a resumed run needs no state for them.
//
//   warm-up   step s < W gets lr (s+1)/W: the first step lr/W, step W-1 the full rate. W = 0 is the same as W = 1.
//   after it  p runs from 0 at the end of the warm-up to 1 at the last step, `steps`-1:
//     cosine    min_lr + (lr - min_lr) (1 + cos(pi p)) / 2            Loshchilov & Hutter 2017, arXiv 1608.03983
//     linear    lr + (min_lr - lr) p
//     wsd       lr, then over the last fifth of the steps linearly to min_lr (warm-up, stable, decay)
//                                                                     Hu et al. 2024, arXiv 2404.06395
//     constant  lr
//
// So the last step of cosine, linear and wsd has exactly min_lr, and steps beyond it keep min_lr. The warm-up comes
// first: if it takes all the steps (W >= steps), nothing decays. A run of a single step trains with lr.
#pragma once

#include <cstdint>
#include <string>

enum class Schedule { kCosine, kLinear, kWsd, kConstant };

// "cosine", "linear", "wsd" or "constant"; throws on any other name.
Schedule parse_schedule(const std::string& name);
const char* schedule_name(Schedule schedule);

// Returns what follows the warm-up, "a cosine to 0.0004" or "constant for 112 steps, then linear to 0.0004 over 32".
std::string describe_schedule(Schedule schedule, int64_t steps, int64_t warmup_steps, double min_lr);

// Returns the rate of `step` (from 0) in a run of `steps` steps, the first `warmup_steps` of which warm up. Throws if
// steps < 1, on a negative step or warm-up, if lr <= 0, and if min_lr is outside [0, lr].
double learning_rate(Schedule schedule, int64_t step, int64_t steps, int64_t warmup_steps, double lr, double min_lr);
