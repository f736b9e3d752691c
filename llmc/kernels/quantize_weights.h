// Quantization of weights (quantize.h), many tensors in one launch. The first kernel quantizes whole matrices. The
// second kernel quantizes slices of matrices to e4m3. A slice may begin and end inside a row, and all ranks use one
// scale for each matrix. After the ranks have gathered the bytes, the third kernel makes both orientations of a matrix
// from them. scatter_rows is for parameters that are vectors. All outputs are set (=), but amaxes are raised, and
// statistics are added to. Deterministic.
//
// A launch processes neighbouring entries of a table, which is made once. The kernel reads the table on the device, and
// the launcher reads a copy on the host.
#pragma once

#include <vector>

#include "llmc/kernels/quantize.h"

// Neighbouring entries of a table.
template <class Entry>
struct DeviceTable {
  const Entry *on_host, *on_device;
  int count;
  DeviceTable part(int first, int part_count) const { return {on_host + first, on_device + first, part_count}; }
};

// The arguments that all tensors have in common, as in Quantization. `scale`, `amax_step` and `statistics` are arrays
// with one entry for each tensor; `not_finite` is one value for all.
struct WeightScaleRefs {
  const float* scale = nullptr;  // if known beforehand: amax is not read then
  float* amax_step = nullptr;
  QuantizeStatistics* statistics = nullptr;
  uint32_t* not_finite = nullptr;
  bool power_of_two = false;
  bool may_lack_scale = false;  // some scale may be 0, which stands for none: it is then computed from amax
  bool needs_amax() const { return !scale || may_lack_scale; }
};

// A slice of a matrix: `count` elements at x, 16-byte aligned. Their FP8 bytes are at q, 8-byte aligned.
struct WeightSlice {
  const bf16* x;
  uint8_t* q;
  size_t count;
  float* amax;              // of the tensor
  int tensor_id;            // its index in the arrays of WeightScaleRefs
  uint32_t nonfinite_code;  // reported in not_finite, as in Quantization
  unsigned first_block = 0;
};
using WeightSlices = DeviceTable<WeightSlice>;
// Assigns to each entry its blocks in a launch over the whole table. Call it before the table is copied to the device.
// Throws if a slice is empty or not aligned.
void assign_blocks(std::vector<WeightSlice>& table);

// Raises each slice's amax to the largest |x| of the slice; NaN counts as the largest, by its bits.
void find_weight_amax(Stream& stream, const WeightSlices& slices);
void quantize(Stream& stream, const WeightSlices& slices, const WeightScaleRefs& refs);

// A matrix x (rows, columns), which is quantized in both orientations; or its FP8 bytes q (rows, columns), contiguous.
// rowwise.data may be q itself.
struct WeightMatrix {
  QuantizedTensor rowwise, columnwise;
  const bf16* x;
  const uint8_t* q;
  float *amax, *row_amax, *column_amax;  // as in Quantization; null if the scales do not need them
  int tensor_id;
  uint32_t nonfinite_code;
  unsigned first_tile = 0, across = 0;  // tiles before its own in the launch; tiles per row of tiles
};
using WeightMatrices = DeviceTable<WeightMatrix>;
// Assigns to each entry its tiles likewise. Throws unless rowwise and columnwise are a matrix and its transpose,
// 16-byte aligned.
void assign_tiles(std::vector<WeightMatrix>& table);

// Returns true if quantize_amax must run before quantize.
bool needs_amax(const WeightMatrices& matrices, const WeightScaleRefs& refs);
// Raises amax, row_amax and column_amax, which the caller has cleared.
void quantize_amax(Stream& stream, const WeightMatrices& matrices);
void quantize(Stream& stream, const WeightMatrices& matrices, const WeightScaleRefs& refs);
// From each matrix's q, with one scale: writes the transpose, zero-padded, a padded copy unless rowwise.data is q, and
// the scale_inv of both. Throws unless both operands have one scale.
void transpose_gathered_weights(Stream& stream, const WeightMatrices& matrices, const WeightScaleRefs& refs);

// Elements first .. first+count-1 of a row, which are at x; none if count is 0.
struct RowRange {
  const bf16* x;
  size_t first, count;
};
// Writes to out (rows, width), in fp32, the elements of each row's slice, and -0 elsewhere. Summed over ranks with
// different slices these give the whole rows bit for bit, since adding -0 changes nothing. Throws unless `out` has a
// row for each entry of the table, and each slice fits into its row.
void scatter_rows(Stream& stream, const Tensor& out, const DeviceTable<RowRange>& rows);
