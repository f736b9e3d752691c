// Stochastic rounding of an optimizer's state to bf16, for the kernels that update it (contract: adamw.h).
#pragma once

#include "llmc/base/philox.h"
#include "llmc/device/kernel.cuh"
#include "llmc/kernels/adamw.h"
#include "llmc/kernels/shard_window.h"

constexpr uint64_t kRoundingStream = uint64_t(1) << 63;  // the Philox stream; initial weights use stream 0

// Rounds x up or down in magnitude to a bf16 value, as the lower 16 bits of `bits` decide. Returns an infinity or NaN
// unchanged.
HOST_DEVICE inline float stochastically_rounded(float x, uint32_t bits) {
  const uint32_t u = float_to_bits(x);
  return (u & 0x7f800000u) == 0x7f800000u ? x : bits_to_float((u + (bits & 0xffffu)) & 0xffff0000u);
}

// Returns the bits of element i from the Philox block that it shares with its neighbour (elements 2k and 2k + 1).
HOST_DEVICE inline AdamWDraws draws_of(const PhiloxBlock& pair, uint64_t i) {
  const uint32_t low = i % 2 ? pair.words[2] : pair.words[0], high = i % 2 ? pair.words[3] : pair.words[1];
  return {low & 0xffffu, low >> 16, high & 0xffffu};
}

// Returns the Philox block of the pair of neighbours that contains element i.
__device__ __forceinline__ PhiloxBlock draws_of_pair(uint64_t key, uint64_t i, int64_t step) {
  return philox(key, i / 2, kRoundingStream | uint64_t(step));
}

// Calls f(i, draws) for `width` neighbours of a tensor: elements first .. first+width-1 of the slice with this window.
template <int width, class F>
__device__ __forceinline__ void for_draws(uint64_t key, const ShardWindow& window, size_t first, int64_t step,
                                          const F& f) {
  const bool cut = window.is_cut();
  uint64_t number = window[first];  // of the element in its tensor
  PhiloxBlock pair;
  for (int i = 0; i < width; ++i) {
    if (cut) number = window[first + size_t(i)];
    if (i == 0 || cut || number % 2 == 0) pair = draws_of_pair(key, number, step);
    f(i, draws_of(pair, number++));
  }
}
