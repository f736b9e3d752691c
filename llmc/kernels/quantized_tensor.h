// A matrix in FP8 with the reciprocals of its scales (scale_inv). It is an operand of a product out = a bᵀ, whose K
// runs along the columns of both operands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llmc/device/number.h"

// The elements that share a scale; K runs along the columns.
enum class Scaling : uint8_t { tensor, row, block_1x128, block_128x128 };

constexpr const char* scaling_name(Scaling scaling) {
  constexpr const char* names[] = {"one factor a tensor", "one a row", "one a 1x128 block", "one a 128x128 block"};
  return names[int(scaling)];
}

struct QuantizedTensor {
  uint8_t* data = nullptr;     // (padded_rows, stride); zeros beyond (rows, columns)
  float* scale_inv = nullptr;  // 1 / scale, scale_inv_count() of them; 256-byte aligned, like data
  int rows = 0, columns = 0;
  Fp8Format format = Fp8Format::e4m3;
  Scaling scaling = Scaling::tensor;
  // All rows share one scale, and its scale_inv is stored once per row. Such an operand can be multiplied with one that
  // has a scale per row. Only with Scaling::row.
  bool one_scale = false;

  explicit operator bool() const { return data != nullptr; }
  bool per_tensor_scale() const { return scaling == Scaling::tensor || one_scale; }
  bool has_row_scales() const { return scaling == Scaling::row && !one_scale; }

  static constexpr int kBlock = 128;
  // Rows and columns are padded to a multiple of this, as products require.
  HOST_DEVICE int padding() const {
    return scaling == Scaling::block_1x128 || scaling == Scaling::block_128x128 ? kBlock : 16;
  }
  HOST_DEVICE int padded(int n) const { return (n + padding() - 1) & -padding(); }  // padding() is a power of two
  HOST_DEVICE int padded_rows() const { return padded(rows); }
  HOST_DEVICE int stride() const { return padded(columns); }
  size_t bytes() const { return size_t(padded_rows()) * size_t(stride()); }

  // column_blocks: the number of blocks of 128 columns. block_stride: scale_inv from one row of 128x128 blocks to the
  // next, which products need to be a multiple of 4.
  HOST_DEVICE int column_blocks() const { return stride() / kBlock; }
  HOST_DEVICE int block_stride() const { return (column_blocks() + 3) / 4 * 4; }
  size_t scale_inv_count() const {
    switch (scaling) {
      case Scaling::tensor:
        return 1;
      case Scaling::row:
        return size_t(padded_rows());
      case Scaling::block_1x128:
        return size_t(column_blocks()) * size_t(padded_rows());
      case Scaling::block_128x128:
        return size_t(padded_rows() / kBlock) * size_t(block_stride());
    }
    return 0;
  }
  // Returns the index of the scale_inv of element (row, column).
  HOST_DEVICE size_t scale_inv_at(int row, int column) const {
    switch (scaling) {
      case Scaling::tensor:
        return 0;
      case Scaling::row:
        return size_t(row);
      case Scaling::block_1x128:
        return size_t(column / kBlock) * size_t(padded_rows()) + size_t(row);
      case Scaling::block_128x128:
        return size_t(row / kBlock) * size_t(block_stride()) + size_t(column / kBlock);
    }
    return 0;
  }
};
