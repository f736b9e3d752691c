// Quantization of weights (quantize.h), many tensors in one launch: whole matrices; stretches of matrices, wherever
// ranks cut them, to e4m3 with one scale that the ranks agree on; what becomes of such bytes when they are whole again;
// and the vectors beside them. Deterministic.
//
// A launch works on neighbours in a table, which is made once: it lies on the device, and on the host for the launcher.
#pragma once

#include <vector>

#include "llmc/kernels/quantize.h"

// Entries of a table, neighbours there.
template <class Entry>
struct TablePart {
  const Entry *on_host, *on_device;
  int count;
  TablePart part(int first, int number) const { return {on_host + first, on_device + first, number}; }
};

// What the tensors have in common. Pointers, as in Quantization, are those of the tensor with number 0.
struct WeightWords {
  const float* scale = nullptr;  // known beforehand: then amax is not read
  float* seen = nullptr;
  QuantizeStatistics* statistics = nullptr;
  uint32_t* not_finite = nullptr;
  bool power_of_two = false;
  bool may_lack_scale = false;  // some scale may be 0, which stands for none: it follows from amax then
  bool needs_amax() const { return !scale || may_lack_scale; }
};

// `count` numbers at x, 16-byte aligned, whose bytes are at q, 8-byte aligned.
struct WeightStretch {
  const bf16* x;
  uint8_t* q;
  size_t count;
  float* amax;      // of its tensor
  int tensor;       // its number among the words
  uint32_t number;  // what not_finite becomes
  unsigned first_block = 0;
};
using WeightStretches = TablePart<WeightStretch>;
// Gives each its blocks in a launch of all: to be called before the table is copied to the device. Throws if a stretch
// is empty or not aligned.
void place(std::vector<WeightStretch>& table);

// amax = max(amax, largest |x| of the stretch); the bits of a NaN are the largest.
void largest_magnitudes(Stream& stream, const WeightStretches& stretches);
void quantize(Stream& stream, const WeightStretches& stretches, const WeightWords& words);

// A matrix x (rows, columns), which becomes both orientations; or its bytes q (rows, columns), contiguous, which
// by_rows may be itself.
struct WeightMatrix {
  QuantizedTensor by_rows, by_columns;
  const bf16* x;
  const uint8_t* q;
  float *amax, *row_amax, *column_amax;  // as in Quantization; null where the scales do not follow from them
  int tensor;
  uint32_t number;
  unsigned first_tile = 0, across = 0;  // tiles of the launch before its own; tiles side by side
};
using WeightMatrices = TablePart<WeightMatrix>;
void place(std::vector<WeightMatrix>& table);

// Whether scales follow from a pass of their own.
bool needs_amax(const WeightMatrices& matrices, const WeightWords& words);
// amax, row_amax and column_amax are raised: the caller has cleared them.
void quantize_amax(Stream& stream, const WeightMatrices& matrices);
void quantize(Stream& stream, const WeightMatrices& matrices, const WeightWords& words);
// Of q, with a single scale: the transpose, zero-padded, and a padded copy unless by_rows.data is q; the factors of
// both.
void arrange_quantized(Stream& stream, const WeightMatrices& matrices, const WeightWords& words);

// Numbers first .. first+count-1 of a row, which are at x; none where count is 0.
struct RowStretch {
  const bf16* x;
  size_t first, count;
};
// out (rows, width) = the numbers of each row's stretch, -0 elsewhere: summed over ranks with different stretches they
// are whole rows to the bit, since adding -0 changes nothing.
void spread_rows(Stream& stream, float* out, size_t width, const TablePart<RowStretch>& rows);
