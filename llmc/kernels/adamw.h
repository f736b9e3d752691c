// AdamW (Loshchilov & Hutter 2019) over flat buffers, in PyTorch's order of operations. With g = gradient *
// clip_factor:
//
//   p -= lr * weight_decay * p
//   m  = beta1 m + (1 - beta1) g
//   v  = beta2 v + (1 - beta2) g²
//   p -= lr / bias_correction1 * m / (sqrt(v / bias_correction2) + eps)
//
// Learning rate, bias corrections and clip factor come from StepState on the device. Everything is fp32. Deterministic,
// and the bits of an element do not depend on where it lies or on its neighbours.
#pragma once

#include <cstddef>
#include <vector>

#include "llmc/device/device.h"
#include "llmc/kernels/step_state.h"

struct AdamWConstants {
  float beta1, beta2, eps;
};

// Elements begin .. begin+count-1 of the flat buffers: a tensor, or neighbours with the same decay.
struct AdamWRange {
  size_t begin, count;
  float weight_decay;
};

// Throws unless the ranges are not empty, in ascending order, apart, and within n elements: what adamw() relies on. To
// be called where the table is made.
void require_ranges(const std::vector<AdamWRange>& ranges, size_t n);

// master, m, v (n) are updated from gradients (n); `weights` (n), the rounding of master to T for the products, is
// written too unless it is null. Buffers are 16-byte aligned. `ranges` (range_count), on the device, say which elements
// these are: one launch does all tensors, and what lies between ranges (padding) is neither read nor written.
template <class T>
void adamw(Stream& stream, float* master, float* m, float* v, T* weights, const float* gradients,
           const StepState* state, const AdamWRange* ranges, int range_count, size_t n, AdamWConstants constants);
