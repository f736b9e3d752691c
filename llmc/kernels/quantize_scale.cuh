// Shared by the kernels that quantize: the scale formulas of quantize.h, and the counts.
#pragma once

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/quantize.h"

constexpr uint32_t kInfinityBits = 0x7f800000u;

HOST_DEVICE inline float power_of_two_below(float x) { return bits_to_float(float_to_bits(x) & kInfinityBits); }

// `amax_bits` are the bits of an fp32 value. The scale of a NaN or infinity means nothing; such a tensor is reported.
HOST_DEVICE inline float scale_of(uint32_t amax_bits, float largest, bool power_of_two) {
  const double amax = double(bits_to_float(amax_bits));
  const float scale = float(double(largest) / (amax > 1e-12 ? amax : 1e-12));
  return power_of_two ? power_of_two_below(scale) : scale;
}

// The scale of delayed scaling; amax is a positive number.
HOST_DEVICE inline float delayed_scale_of(float amax, float largest, int margin, bool power_of_two) {
  const double exact = ldexp(double(largest), -margin) / double(amax);
  const float scale = exact > 0x1.fffffep127 ? 0x1.fffffep127f : exact < 0x1p-126 ? 0x1p-126f : float(exact);
  return power_of_two ? power_of_two_below(scale) : scale;
}

// Returns true if |x| is beyond the largest value of the format by more than the roundings of a scale: the element that
// set the amax may be beyond it by that much.
__device__ __forceinline__ bool is_beyond(float x, float largest) { return fabsf(x) > largest * (1 + 0x1p-20f); }

// Returns true if the magnitude x becomes 0 in the format with that largest value: half of the smallest positive value
// does.
__device__ __forceinline__ bool becomes_zero(float x, float largest) {
  return x <= (largest == largest_fp8(Fp8Format::e4m3) ? 0x1p-10f : 0x1p-17f);
}

__device__ __forceinline__ void add_statistics(QuantizeStatistics& s, int values, int saturated, int underflowed) {
  if (values) atomic_add(&s.values, (unsigned long long)values);
  if (saturated) atomic_add(&s.saturated, (unsigned long long)saturated);
  if (underflowed) atomic_add(&s.underflowed, (unsigned long long)underflowed);
}
