// The losses and gradient norms of a training's last steps, by which a spike is told: a step whose loss, or whose norm,
// is far above them. With the n numbers of the window, oldest first, in fp64:
//
//   mean      = sum(x) / n
//   deviation = sqrt(sum((x - mean)²) / (n - 1)), at least 0.001 |mean|
//   a spike   : the step's number > mean + Z deviation
//
// The loss is the mean over the global batch's labels; the norm is that before clipping. Each is judged by its own
// numbers, which are rounded to fp32: a checkpoint stores them without loss. Once a window has 64 steps, it judges. It
// keeps the last 128 steps that were no spikes, so that a spike does not widen the limit for the next one. A step
// without labels is neither judged nor kept. The least deviation keeps rounding from being a spike where all numbers
// are equal. Sums have a fixed order: the decision depends on these numbers alone, and is the same after a resume.
#pragma once

#include <cstdint>

struct SpikeWindow {
  static constexpr uint32_t kSteps = 128, kFewest = 64;
  uint32_t count;                         // steps in the window
  uint32_t in_a_row;                      // spikes since the last step that was none
  float loss[kSteps], grad_norm[kSteps];  // the first `count` of each, oldest first
};

struct SpikeRule {
  SpikeWindow* window = nullptr;  // on the device; null: nothing is a spike
  double deviations = 0;          // Z
  uint32_t most_in_a_row = 1;     // so many spikes in a row halt the training
};
