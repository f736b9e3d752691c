// AdamW (Loshchilov & Hutter 2019) over flat buffers, in PyTorch's order of operations. With g = gradient *
// clip_factor:
//
//   p -= lr * weight_decay * p
//   m  = beta1 m + (1 - beta1) g
//   v  = beta2 v + (1 - beta2) g²
//   p -= lr / bias_correction1 * m / (sqrt(v / bias_correction2) + eps)
//
// The kernel reads the learning rate, the bias corrections and the clip factor from StepState on the device. If that
// says that the step is held, the kernel writes nothing: master, moments, weights and amaxes stay as they were. All
// arithmetic is fp32. Master and moments may be stored in bf16. They are then rounded stochastically (Gupta et al.
// 2015), up or down at random, so that the mean is the fp32 value. The random bits come from Philox4x32-10 of the
// tensor's key, the element's index in the tensor and the step. Deterministic: the bits of an element do not depend on
// its address, its neighbours or the ranks.
//
// An update reads and writes this many bytes per parameter: 30 with an fp32 state and bf16 weights, 28 with an fp32
// state alone, 18 with a bf16 state and separate bf16 weights, 16 with a bf16 state whose master is the weights.
// Finding the amax of the weights costs none; a separate pass would read 2 more.
#pragma once

#include <cstddef>
#include <vector>

#include "llmc/device/tensor.h"
#include "llmc/kernels/shard_window.h"
#include "llmc/kernels/step_state.h"

struct AdamWConstants {
  float beta1, beta2, eps;
};

// Returns 1 - beta^t, t >= 0, computed in double by repeated squaring and rounded once. It differs from
// float(1 - std::pow(double(beta), t)) in none of the first 100,000 steps for 0.9, 0.95 and 0.999.
HOST_DEVICE inline float bias_correction(float beta, int64_t t) {
  double power = 1, factor = double(beta);
  for (; t > 0; t >>= 1, factor *= factor)
    if (t & 1) power *= factor;
  return float(1 - power);
}

// Elements begin .. begin+count-1 of the flat buffers: a slice of one tensor. If nothing is rounded stochastically, a
// range may also span neighbouring tensors with the same weight decay.
struct AdamWRange {
  size_t begin, count;
  float weight_decay;
  uint64_t key = 0;         // philox_key of the tensor
  ShardWindow window = {};  // position of these elements in the tensor
  int amax = -1;            // its index in AdamWAmax::values; -1: none
};

// The kernel raises each value to the largest |weight|, rounded to bf16, of the ranges that name it. Quantization of
// the weights then needs no extra pass for their amax.
struct AdamWAmax {
  float* values = nullptr;  // null: not wanted
  size_t count = 0;
};

// The random bits with which element i of the tensor is rounded in a step: 16 for each of its three state values.
struct AdamWDraws {
  uint32_t master, m, v;
};
AdamWDraws adamw_draws(uint64_t key, uint64_t i, int64_t step);
// Returns x rounded to bf16 by the lower 16 bits of `bits`. With random bits, the probability of rounding up in
// magnitude is (the lower 16 bits of x) / 2^16.
float stochastic_bf16(float x, uint32_t bits);

// Throws unless there is at least one range, and the ranges are non-empty, ascending, disjoint and within n elements.
// adamw() relies on this. Call it where the table is made.
void require_ranges(const std::vector<AdamWRange>& ranges, size_t n);

// Updates master, m and v from gradients. Unless `weights` is absent, the kernel also writes there the master rounded
// to nearest, for the products. All tensors are (n) and hold elements offset .. offset+n-1, as ranges count; if all are
// 16-byte aligned, a thread updates 8 at once. master, and m and v together, are fp32 or bf16; weights is bf16, and
// gradients is fp32. `ranges` (range_count) is device memory and lists the elements to update: one launch does all
// tensors, and elements between ranges (padding) are neither read nor written. Throws on no elements, on another shape
// or type, and if `amax` is wanted without bf16 weights.
void adamw(Stream& stream, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& weights,
           const Tensor& gradients, const StepState* state, const AdamWRange* ranges, int range_count, size_t offset,
           AdamWConstants constants, AdamWAmax amax = {});
