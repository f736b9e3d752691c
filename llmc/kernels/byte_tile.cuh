// A tile of 128 x 128 bytes of an FP8 matrix, transposed by one block of threads.
//
// Shared memory is swizzled: the order of groups of 16 columns differs from one 16 rows to the next. In
// write_transposed a warp spans 8 threads along the rows and 4 along the columns, each of which reads 16 rows of 4
// columns. With the swizzle these 32 threads use different banks.
#pragma once

#include "llmc/kernels/quantize_tile.cuh"

constexpr int kBytes = 16;  // bytes that a thread moves at once

struct ByteTile {
  uint8_t q[kTile][kTile];
};
// Returns the column of shared memory in which byte (row, column) of the tile lies.
__device__ __forceinline__ int swizzled_byte(int row, int column) { return column ^ (row / kBytes % 8 * kBytes); }

// Loads the tile from q (rows, columns), whose rows are `stride` bytes apart, with zeros beyond the matrix. Unless
// `copy` is null, the tile is also written there, with the padding of `copy`. `width`: bytes per load.
template <int width>
__device__ __forceinline__ void load_bytes(ByteTile& tile, const uint8_t* __restrict__ q, int rows, int columns,
                                           int stride, TileCoord at, const QuantizedTensor* copy) {
#pragma unroll
  for (int k = 0; k < kTile * kTile / kBytes / kTileThreads; ++k) {
    const int task = k * kTileThreads + threadIdx.x, r = task / (kTile / kBytes), c = task % (kTile / kBytes) * kBytes;
    const int row = at.row() + r, column = at.column() + c;
    Vector<uint8_t, kBytes> bytes = {};
#pragma unroll
    for (int j = 0; j < kBytes; j += width)
      if (row < rows && column + j < columns)
        *reinterpret_cast<Vector<uint8_t, width>*>(bytes.v + j) =
            *reinterpret_cast<const Vector<uint8_t, width>*>(q + size_t(row) * stride + column + j);
    *reinterpret_cast<Vector<uint8_t, kBytes>*>(&tile.q[r][swizzled_byte(r, c)]) = bytes;
    if (copy && row < copy->padded_rows() && column < copy->stride())
      *reinterpret_cast<Vector<uint8_t, kBytes>*>(copy->data + size_t(row) * copy->stride() + column) = bytes;
  }
}

// Writes the tile's part of the transpose, with its padding. Call it after load_bytes and a barrier.
__device__ __forceinline__ void write_transposed(const ByteTile& tile, const QuantizedTensor& transposed,
                                                 TileCoord at) {
  static_assert(kTile * kTile == kTileThreads * kBytes * 4, "a thread has 16 rows of 4 columns");
  const int r = threadIdx.x % (kTile / kBytes) * kBytes, c = threadIdx.x / (kTile / kBytes) * 4;
  uint32_t word[kBytes];
#pragma unroll
  for (int i = 0; i < kBytes; ++i) word[i] = *reinterpret_cast<const uint32_t*>(&tile.q[r + i][swizzled_byte(r, c)]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int column = at.column() + c + j, row = at.row() + r;
    Vector<uint32_t, 4> turned;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      turned.v[i] = (word[4 * i] >> 8 * j & 0xff) | (word[4 * i + 1] >> 8 * j & 0xff) << 8 |
                    (word[4 * i + 2] >> 8 * j & 0xff) << 16 | (word[4 * i + 3] >> 8 * j & 0xff) << 24;
    if (column < transposed.padded_rows() && row < transposed.stride())
      *reinterpret_cast<Vector<uint32_t, 4>*>(transposed.data + size_t(column) * transposed.stride() + row) = turned;
  }
}
