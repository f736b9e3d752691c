// AdamW (Loshchilov & Hutter 2019) over flat buffers, in PyTorch's order of operations. With g = gradient *
// clip_factor:
//
//   p -= lr * weight_decay * p
//   m  = beta1 m + (1 - beta1) g
//   v  = beta2 v + (1 - beta2) g²
//   p -= lr / bias_correction1 * m / (sqrt(v / bias_correction2) + eps)
//
// Learning rate, bias corrections and clip factor come from StepState on the device. Everything is fp32. Deterministic.
#pragma once

#include <cstddef>

#include "llmc/device/device.h"
#include "llmc/kernels/step_state.h"

struct AdamWConstants {
  float beta1, beta2, eps, weight_decay;
};

// master, m, v (n) are updated from gradients (n); `weights` (n), the rounding of master to T for the products, is
// written too unless it is null. All 16-byte aligned.
template <class T>
void adamw(Stream& stream, float* master, float* m, float* v, T* weights, const float* gradients,
           const StepState* state, size_t n, AdamWConstants constants);
