// Quantizes a tile of 128 x 128 of a matrix with one block of threads. Shared by quantize.cu, which has one matrix, and
// quantize_weights.cu, which has several (contract: quantize.h).
//
// A block computes its tile's elements once, rounds them to bf16 into shared memory, finds their scales and writes both
// orientations from there, 16 bytes per thread at a time. Shared memory is swizzled: the order of groups of 8 columns
// differs from one 16 rows to the next, so that 8 threads that read 16 rows each of one column use different banks.
#pragma once

#include "llmc/kernels/quantize_scale.cuh"
#include "llmc/kernels/quantize_sources.cuh"

constexpr int kTileThreads = 256, kTile = 128, kTileWarps = kTileThreads / 32;
constexpr int kTilePitch = kTile + 8;  // elements per row in shared memory
constexpr int kSegment = 16;           // elements that a thread writes at once

// The tile's position in the matrix, counted in tiles.
struct TilePlace {
  int down, across;
  __device__ int row() const { return down * kTile; }
  __device__ int column() const { return across * kTile; }
};

struct Tile {
  bf16 x[kTile][kTilePitch];
  float row_scale[kTile], column_scale[kTile];
  bf16 column_amax[kTile / kSegment][kTile];  // each entry covers kSegment rows
  uint32_t warp_amax[kTileWarps];
};

__device__ __forceinline__ int place(int row, int column) { return column ^ (row / kSegment % 8 * 8); }

// Loads the tile into shared memory, with zeros beyond the matrix. Returns the largest magnitude among this thread's
// elements, as the bits of an fp32 value.
template <class Source, int width>
__device__ __forceinline__ uint32_t load_tile(Tile& tile, const Source& source, int rows, int columns, TilePlace at) {
  const int first_row = at.row(), first_column = at.column();
  Vector<bf16, width> largest = {};
#pragma unroll 4  // several loads in flight
  for (int k = 0; k < kTile * kTile / width / kTileThreads; ++k) {
    const int task = k * kTileThreads + threadIdx.x, r = task / (kTile / width), c = task % (kTile / width) * width;
    const int row = first_row + r, column = first_column + c;
    // Beyond the matrix the thread reads the last elements and masks them: a branch would wait for each load.
    float v[width];
    load_source(v, source, row < rows ? row : rows - 1, column < columns ? column : columns - width, columns);
    Vector<bf16, width> x = rounded<bf16>(v);
    const uint16_t mask = row < rows && column < columns ? 0xffff : 0;
    VECTOR_LOOP
    for (int j = 0; j < width; ++j) x.v[j].bits &= mask;
    max_abs_into(largest, x);
    *reinterpret_cast<Vector<bf16, width>*>(&tile.x[r][place(r, c)]) = x;
  }
  return max_value(largest);
}

// Returns the largest magnitude of a row of the tile in the first half of the threads, and of a column in the others.
// Call it after load_tile and a barrier.
__device__ __forceinline__ uint32_t row_or_column_amax(Tile& tile) {
  const int i = threadIdx.x % kTile;
  const bool of_row = threadIdx.x < kTile;
  // Each thread reads 16 vectors: those of a row, in any order, or those of 16 rows at the same 8 columns.
  const int first_row = of_row ? i : i / (kTile / 8) * kSegment, column = i % (kTile / 8) * 8;
  Vector<bf16, 8> largest = {};
  for (int k = 0; k < kTile / 8; ++k) {
    const bf16* from = of_row ? &tile.x[i][k * 8] : &tile.x[first_row + k][place(first_row, column)];
    max_abs_into(largest, *reinterpret_cast<const Vector<bf16, 8>*>(from));
  }
  if (!of_row) *reinterpret_cast<Vector<bf16, 8>*>(&tile.column_amax[first_row / kSegment][column]) = largest;
  __syncthreads();
  if (of_row) return max_value(largest);
  Vector<bf16, kTile / kSegment> of_column;
#pragma unroll
  for (int k = 0; k < kTile / kSegment; ++k) of_column.v[k] = tile.column_amax[k][i];
  return max_value(of_column);
}

__device__ __forceinline__ uint32_t* bits_of(float* amax) { return reinterpret_cast<uint32_t*>(amax); }
__device__ __forceinline__ uint32_t bits_at(const float* amax) { return float_to_bits(*amax); }

// Raises amax, row_amax and column_amax by the magnitudes of the tile; null pointers are skipped.
template <class Source, int width>
__device__ __forceinline__ void raise_amax_of_tile(float* amax, float* row_amax, float* column_amax,
                                                   const Source& source, int rows, int columns, TilePlace at) {
  auto& tile = shared_memory<Tile>();
  const uint32_t of_warp = warp_max(load_tile<Source, width>(tile, source, rows, columns, at));
  if (threadIdx.x % 32 == 0) tile.warp_amax[threadIdx.x / 32] = of_warp;
  __syncthreads();
  if (row_amax || column_amax) {
    const uint32_t of_mine = row_or_column_amax(tile);
    const int i = threadIdx.x % kTile, row = at.row() + i, column = at.column() + i;
    if (threadIdx.x < kTile) {
      if (row_amax && row < rows) atomic_max(bits_of(row_amax + row), of_mine);
    } else if (column_amax && column < columns) {
      atomic_max(bits_of(column_amax + column), of_mine);
    }
  }
  if (!amax || threadIdx.x != 0) return;
  uint32_t largest = 0;
  for (int w = 0; w < kTileWarps; ++w) largest = tile.warp_amax[w] > largest ? tile.warp_amax[w] : largest;
  atomic_max(bits_of(amax), largest);
}

struct TileArguments {
  QuantizedTensor by_rows, by_columns;
  bool power_of_two;
  const float *amax, *row_amax, *column_amax, *scale;
  float* seen;
  uint32_t* not_finite;
  uint32_t number;
  QuantizeStatistics* statistics;
};

// Returns the scale of row `row` of an operand within this tile. `rows_amax`: the amax of whole rows, for an operand
// with one scale per row. `part_amax`: the amax of the row's part in the tile. `tile_amax`: the amax of the tile.
__device__ __forceinline__ float scale_of_row(const TileArguments& a, const QuantizedTensor& operand, int row,
                                              const float* rows_amax, uint32_t part_amax, uint32_t tile_amax) {
  const bool single = operand.scaling == Scaling::tensor || operand.one_scale;
  if (single && a.scale && *a.scale != 0) return *a.scale;
  const uint32_t amax = single                                      ? bits_at(a.amax)
                        : operand.scaling == Scaling::row           ? bits_at(rows_amax + row)
                        : operand.scaling == Scaling::block_128x128 ? tile_amax
                                                                    : part_amax;
  return scale_of(amax, largest_fp8(operand.format), a.power_of_two);
}

// Each factor is written by one thread of one block. `row` is the operand's row that the thread has, `block` its block
// of 128 columns.
__device__ __forceinline__ void write_factor(const QuantizedTensor& operand, int row, int block, float scale) {
  if (row >= operand.padded_rows()) return;
  const float factor = row < operand.rows ? 1.0f / scale : 1.0f;
  switch (operand.scaling) {
    case Scaling::tensor:
      if (row == 0 && block == 0) operand.factors[0] = factor;
      break;
    case Scaling::row:
      if (block == 0) operand.factors[row] = factor;
      break;
    case Scaling::block_1x128:
      if (block < operand.column_blocks()) operand.factors[operand.factor_at(row, block * kTile)] = factor;
      break;
    case Scaling::block_128x128:
      if (row % kTile != 0 || block >= operand.column_blocks()) break;
      operand.factors[operand.factor_at(row, block * kTile)] = factor;
      for (int b = operand.column_blocks(); block == 0 && b < operand.block_stride(); ++b)  // padding, never used
        operand.factors[operand.factor_at(row, b * kTile)] = 1.0f;
      break;
  }
}

// Writes the tile as a part of `operand`. The operand's rows are the tile's rows, or its columns if `transposed`.
template <bool transposed>
__device__ __forceinline__ void write_tile(const Tile& tile, const QuantizedTensor& operand, int first_row,
                                           int first_column, QuantizeStatistics* statistics) {
  const float largest = largest_fp8(operand.format);
  int values = 0, saturated = 0, underflowed = 0;
  for (int task = threadIdx.x; task < kTile * kTile / kSegment; task += kTileThreads) {
    const int r = task / (kTile / kSegment), c = task % (kTile / kSegment) * kSegment;
    const int row = first_row + r, column = first_column + c;
    if (row >= operand.padded_rows() || column >= operand.stride()) continue;
    const float scale = transposed ? tile.column_scale[r] : tile.row_scale[r];
    float v[kSegment];
    if constexpr (transposed) {
      VECTOR_LOOP
      for (int j = 0; j < kSegment; ++j) v[j] = to_float(tile.x[c + j][place(c, r)]) * scale;
    } else {
      float low[8], high[8];
      load_vector(low, &tile.x[r][place(r, c)]);
      load_vector(high, &tile.x[r][place(r, c + 8)]);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = low[j] * scale, v[8 + j] = high[j] * scale;
    }
    uint8_t* to = operand.data + size_t(row) * operand.stride() + column;
    store_fp8(to, v, operand.format);
    if (!statistics) continue;
    for (int j = 0; j < kSegment && row < operand.rows && column + j < operand.columns; ++j) {
      ++values;
      saturated += is_beyond(v[j], largest);
      underflowed += v[j] != 0 && (to[j] & 0x7f) == 0;
    }
  }
  if (statistics) add_statistics(*statistics, values, saturated, underflowed);
}

template <class Source, int width>
__device__ __forceinline__ void quantize_tile(const TileArguments& a, const Source& source, int rows, int columns,
                                              TilePlace at) {
  auto& tile = shared_memory<Tile>();
  const uint32_t of_warp = warp_max(load_tile<Source, width>(tile, source, rows, columns, at));
  if (threadIdx.x % 32 == 0) tile.warp_amax[threadIdx.x / 32] = of_warp;
  __syncthreads();
  const bool small_blocks = a.by_rows.scaling == Scaling::block_1x128 || a.by_columns.scaling == Scaling::block_1x128;
  const uint32_t of_mine = small_blocks ? row_or_column_amax(tile) : 0;
  uint32_t largest = 0;
  for (int w = 0; w < kTileWarps; ++w) largest = tile.warp_amax[w] > largest ? tile.warp_amax[w] : largest;
  const int i = threadIdx.x % kTile, row = at.row() + i, column = at.column() + i;
  float scale = 1;
  if (threadIdx.x < kTile) {
    if (a.by_rows.data && row < rows) scale = scale_of_row(a, a.by_rows, row, a.row_amax, of_mine, largest);
    tile.row_scale[i] = scale;
    if (a.by_rows.data) write_factor(a.by_rows, row, at.across, scale);
  } else {
    if (a.by_columns.data && column < columns)
      scale = scale_of_row(a, a.by_columns, column, a.column_amax, of_mine, largest);
    tile.column_scale[i] = scale;
    if (a.by_columns.data) write_factor(a.by_columns, column, at.down, scale);
  }
  if (threadIdx.x == 0) {
    if (a.seen) atomic_max(bits_of(a.seen), largest);
    if (largest >= kInfinity && a.not_finite) atomic_min(a.not_finite, a.number);
    if (a.statistics) atomic_max(&a.statistics->amax, largest);
  }
  if (a.statistics && (threadIdx.x < kTile ? row < rows && a.by_rows.data : column < columns && a.by_columns.data)) {
    atomic_max(&a.statistics->largest_scale, float_to_bits(scale));
    atomic_min(&a.statistics->smallest_scale, float_to_bits(scale));
  }
  __syncthreads();
  if (a.by_rows.data) write_tile<false>(tile, a.by_rows, at.row(), at.column(), a.statistics);
  if (a.by_columns.data) write_tile<true>(tile, a.by_columns, at.column(), at.row(), a.statistics);
}
