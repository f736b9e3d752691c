// Quantization of stretches of weights, wherever ranks cut them, to e4m3 with one scale (quantize.h) that the ranks
// agree on; and what becomes of the bytes when they are whole again. Stretches begin at multiples of 8 numbers, 16-byte
// aligned. Deterministic.
#pragma once

#include "llmc/kernels/quantize.h"

// amax = max(amax, largest |x[n]|); the bits of a NaN are the largest.
void largest_magnitude(Stream& stream, float* amax, const bf16* x, size_t n);

// Where a single scale comes from, and what is left behind: as in Quantization.
struct SharedScale {
  const float* amax = nullptr;   // of the whole tensor
  const float* scale = nullptr;  // known beforehand: then there is no amax
  bool power_of_two = false;
  float* seen = nullptr;
  uint32_t* not_finite = nullptr;
  uint32_t number = 0;
  QuantizeStatistics* statistics = nullptr;
};
void quantize_flat(Stream& stream, uint8_t* q, const bf16* x, size_t n, const SharedScale& shared);

// Of the whole q (rows, columns), contiguous: its transpose, zero-padded, and a padded copy unless by_rows.data is q
// itself; the factors of both.
void arrange_quantized(Stream& stream, const QuantizedTensor& by_rows, const QuantizedTensor& by_columns,
                       const uint8_t* q, const SharedScale& shared);
