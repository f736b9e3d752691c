// The learning rate of a run: a pure function of the step, so that a resumed run needs no state for it.
//
//   warm-up   step s < W gets lr (s+1)/W: the first step lr/W, step W-1 the full rate. W = 0 is the same as W = 1.
//   after it  the rate falls from lr to min_lr while p runs from 0 to 1, by one of these shapes:
//     linear    lr + (min_lr - lr) p
//     cosine    min_lr + (lr - min_lr) (1 + cos(pi p)) / 2            Loshchilov & Hutter 2017, arXiv 1608.03983
//     1-sqrt    min_lr + (lr - min_lr) (1 - sqrt(p))                  Hägele et al. 2024, arXiv 2405.18392
//
//   cosine, linear   p runs from the end of the warm-up to the last step, `steps`-1
//   wsd              lr until the cooldown, which is the last cooldown_steps steps: p is 1/cooldown_steps in the first
//                    of them, and 1 in the last (warm-up, stable, decay)     Hu et al. 2024, arXiv 2404.06395
//   constant         lr
//
// So the last step of cosine, linear and wsd has exactly min_lr, and steps beyond it keep min_lr. The warm-up comes
// first: if it takes all the steps (W >= steps), nothing decays; it shortens a cooldown that would begin within it.
// Without a warm-up all steps may be a cooldown. A run of a single step trains with lr.
//
// Before its cooldown, wsd has the same rates whatever the number of steps. So a run with a cooldown of N steps that
// goes on from step K of another run has the bits of one that was planned with K + N steps.
#pragma once

#include <cstdint>
#include <string>

enum class Schedule { kCosine, kLinear, kWsd, kConstant };
enum class DecayShape { kLinear, kCosine, kOneMinusSqrt };

// "cosine", "linear", "wsd" or "constant"; throws on any other name.
Schedule parse_schedule(const std::string& name);
const char* schedule_name(Schedule schedule);
// "linear", "cosine" or "1-sqrt"; throws on any other name.
DecayShape parse_decay_shape(const std::string& name);

// Returns the steps of the cooldown that --cooldown-steps gives a run of `steps` steps: `given` itself if it is 1 or
// more, else that share of the run, rounded up. Throws if it is neither a whole number nor a share of at most 99%.
int64_t cooldown_steps(double given, int64_t steps);
// Returns the steps of a cooldown that begins after `done` steps and ends the run; a share is one of all its steps.
int64_t cooldown_steps_after(double given, int64_t done);

struct LearningRate {
  Schedule schedule = Schedule::kCosine;
  int64_t steps = 1;         // of the run
  int64_t warmup_steps = 0;  // the first of them
  double lr = 0, min_lr = 0;
  int64_t cooldown_steps = 0;  // the last of them, for wsd
  DecayShape cooldown_shape = DecayShape::kLinear;

  // Returns the rate of `step`, from 0. Throws if steps < 1, on a negative step, warm-up or cooldown, if lr <= 0, and
  // if min_lr is outside [0, lr].
  double at(int64_t step) const;
  // Returns what follows the warm-up, "a cosine to 0.0004" or "constant for 112 steps, and linear to 0.0004 over the
  // last 32 (wsd)".
  std::string description() const;

 private:
  int64_t peak() const;          // the step that ends the warm-up
  int64_t last_at_peak() const;  // the last step that has the full rate
  DecayShape shape() const;
};
