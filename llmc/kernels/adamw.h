// AdamW (Loshchilov & Hutter 2019) over flat buffers, in PyTorch's order of operations. With g = gradient *
// clip_factor:
//
//   p -= lr * weight_decay * p
//   m  = beta1 m + (1 - beta1) g
//   v  = beta2 v + (1 - beta2) g²
//   p -= lr / bias_correction1 * m / (sqrt(v / bias_correction2) + eps)
//
// Learning rate, bias corrections and clip factor come from StepState on the device. Everything is computed in fp32.
// Master and moments may be kept in bf16: these are rounded stochastically (Gupta et al. 2015), up or down so that the
// mean is the fp32 number, by Philox4x32-10 of the tensor's key, the element's place in it and the step. Deterministic,
// and the bits of an element do not depend on where it lies, on its neighbours or on the ranks.
//
// Bytes that an update reads and writes for each parameter: 30 with an fp32 state and bf16 weights, 28 without these,
// 18 with all of the state in bf16. The largest weights cost none; a pass that looks for them would cost 2.
#pragma once

#include <cstddef>
#include <vector>

#include "llmc/device/device.h"
#include "llmc/device/number.h"
#include "llmc/kernels/step_state.h"
#include "llmc/kernels/tensor_window.h"

struct AdamWConstants {
  float beta1, beta2, eps;
};

// Elements begin .. begin+count-1 of the flat buffers: a piece of a tensor; where nothing is rounded stochastically
// also neighbours with the same decay.
struct AdamWRange {
  size_t begin, count;
  float weight_decay;
  uint64_t key = 0;         // philox_key of the tensor
  TensorWindow place = {};  // which elements of the tensor they are
  int amax = -1;            // whose word of AdamWAmax its largest weight goes to; -1: nobody's
};

// Words that are raised to the largest |weight|, as rounded to bf16, of the ranges that name them: who quantizes the
// weights then needs no pass over them for it.
struct AdamWAmax {
  float* words = nullptr;  // null: nobody asks
  size_t count = 0;
};

// The bits by which element i of the tensor is rounded in a step: 16 for each number of its state.
struct AdamWDraws {
  uint32_t master, m, v;
};
AdamWDraws adamw_draws(uint64_t key, uint64_t i, int64_t step);
// x rounded to bf16, up with the probability (16 bits + x's lower half) / 2^16 says.
float stochastic_bf16(float x, uint32_t bits);

// Throws unless the ranges are not empty, in ascending order, apart, and within n elements: what adamw() relies on. To
// be called where the table is made.
void require_ranges(const std::vector<AdamWRange>& ranges, size_t n);

// master, m, v (n) are updated from gradients (n); `weights` (n), the master rounded to nearest for the products, is
// written too unless it is null. The buffers hold elements offset .. offset+n-1 of what the ranges speak of, and are
// 16-byte aligned. `ranges` (range_count), on the device, say which elements these are: one launch does all tensors,
// and what lies between ranges (padding) is neither read nor written.
template <class Master, class Moment>
void adamw(Stream& stream, Master* master, Moment* m, Moment* v, bf16* weights, const float* gradients,
           const StepState* state, const AdamWRange* ranges, int range_count, size_t offset, size_t n,
           AdamWConstants constants, AdamWAmax amax = {});
