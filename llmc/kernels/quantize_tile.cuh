// Quantizes a tile of 128 x 128 of a matrix with one block of threads. Shared by quantize.cu, which has one matrix, and
// quantize_weights.cu, which has several (contract: quantize.h).
//
// A block computes its tile's elements once, rounds them to bf16 into shared memory, finds their scales and writes both
// orientations from there: a thread writes 8 bytes of a row at once, and 16 bytes of a column. Shared memory is
// swizzled: the order of groups of 8 columns differs from one 16 rows to the next, so that in write_columns 8 threads
// along the rows and 4 along pairs of columns use different banks.
// bf16 is read, masked and packed by words of two, since these kernels are bound by the issue of instructions before
// they are bound by memory.
#pragma once

#include "llmc/kernels/quantize_scale.cuh"
#include "llmc/kernels/quantize_sources.cuh"

constexpr int kTileThreads = 256, kTile = 128, kTileWarps = kTileThreads / 32;
// Blocks of a multiprocessor, which leaves a thread 64 registers. Without this number ptxas saves registers and waits
// for each load before the next. The sources with the most inputs spill one to four registers for it, outside of their
// loops over elements; they gained all the same. A tile takes 38 KiB of shared memory, so that two fit a small
// multiprocessor. Kernels that only read need no tile there.
constexpr int kReadingBlocks = 4, kTileBlocks = kSmallMultiprocessor ? 2 : 4;
constexpr int kTilePitch = kTile + 8;  // elements per row in shared memory
constexpr int kSegment = 16;           // elements of a column that a thread writes at once

// The tile's position in the matrix, counted in tiles.
struct TileCoord {
  int tile_row, tile_column;
  __device__ int row() const { return tile_row * kTile; }
  __device__ int column() const { return tile_column * kTile; }
};

struct Tile {
  bf16 x[kTile][kTilePitch];
  float row_scale[kTile], column_scale[kTile];
  bf16 column_amax[kTile / kSegment][kTile];  // each entry covers kSegment rows
  uint32_t warp_amax[kTileWarps];
};

struct WarpMaxima {
  uint32_t warp[kTileWarps];
};

// Returns the maximum over the block in thread 0.
__device__ __forceinline__ uint32_t block_max(uint32_t value) {
  auto& maxima = shared_memory<WarpMaxima>();
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) maxima.warp[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < kTileWarps; ++w) value = maxima.warp[w] > value ? maxima.warp[w] : value;
  return value;
}

// Returns the column of shared memory in which element (row, column) of the tile lies.
__device__ __forceinline__ int swizzled(int row, int column) { return column ^ int(unsigned(row) / kSegment % 8 * 8); }

// Returns x, or zeros unless `keep`. Whole words take half of the instructions of single bf16.
template <int width>
__device__ __forceinline__ Vector<bf16, width> zero_unless(bool keep, Vector<bf16, width> x) {
  using Word = std::conditional_t<width % 2 == 0, uint32_t, uint16_t>;
  Word words[sizeof x / sizeof(Word)];
  memcpy(words, &x, sizeof x);
  VECTOR_LOOP
  for (Word& word : words) word = keep ? word : Word(0);
  memcpy(static_cast<void*>(&x), words, sizeof x);
  return x;
}

// Calls use(r, c, load(row, column)) with each of this thread's vectors of a tile of a matrix (rows, columns): its
// place in the tile, and its elements, which are zeros beyond the matrix.
template <int width, class Load, class Use>
__device__ __forceinline__ void for_vectors_of_tile(int rows, int columns, TileCoord at, const Load& load,
                                                    const Use& use) {
  constexpr int kAcross = kTile / width;  // vectors in a row of the tile
  const int c = int(threadIdx.x % kAcross) * width, column = at.column() + c;
  const int column_read = column < columns ? column : columns - width;
  constexpr int kStep = kTileThreads / kAcross, kTogether = 4;  // rows from one load to the next, and loads in flight
#pragma unroll 1
  for (int r = int(threadIdx.x / kAcross), k = 0; k < kTile / kStep; k += kTogether) {
    Vector<bf16, width> x[kTogether];
    // Beyond the matrix the thread reads the last elements and masks them: a branch would wait for each load.
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = at.row() + r + i * kStep;
      x[i] = load(row < rows ? row : rows - 1, column_read);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i, r += kStep)
      use(r, c, zero_unless(at.row() + r < rows && column < columns, x[i]));
  }
}

// Loads the tile into shared memory, with zeros beyond the matrix. Returns the largest magnitude among this thread's
// elements, as the bits of an fp32 value.
template <class Source, int width>
__device__ __forceinline__ uint32_t load_tile(Tile& tile, const Source& source, int rows, int columns, TileCoord at) {
  Vector<bf16, width> largest = {};
  for_vectors_of_tile<width>(
      rows, columns, at, [&](int row, int column) { return load_source<width>(source, row, column, columns); },
      [&](int r, int c, const Vector<bf16, width>& x) {
        max_abs_into(largest, x);
        *reinterpret_cast<Vector<bf16, width>*>(&tile.x[r][swizzled(r, c)]) = x;
      });
  return max_value(largest);
}

// Loads the tile and the largest magnitude of each warp's elements, and ends with a barrier.
template <class Source, int width>
__device__ __forceinline__ void load_tile_with_amax(Tile& tile, const Source& source, int rows, int columns,
                                                    TileCoord at) {
  const uint32_t of_warp = warp_max(load_tile<Source, width>(tile, source, rows, columns, at));
  if (threadIdx.x % 32 == 0) tile.warp_amax[threadIdx.x / 32] = of_warp;
  __syncthreads();
}
// Returns the largest magnitude of the tile. Call it after load_tile_with_amax.
__device__ __forceinline__ uint32_t tile_amax(const Tile& tile) {
  uint32_t largest = 0;
  for (int w = 0; w < kTileWarps; ++w) largest = tile.warp_amax[w] > largest ? tile.warp_amax[w] : largest;
  return largest;
}

// Returns the largest magnitude of a row of the tile in the first half of the threads, and of a column in the others.
// Call it after load_tile_with_amax.
__device__ __forceinline__ uint32_t row_or_column_amax(Tile& tile) {
  const int i = threadIdx.x % kTile;
  const bool of_row = threadIdx.x < kTile;
  // Each thread reads 16 vectors: those of a row, in any order, or those of 16 rows at the same 8 columns.
  const int first_row = of_row ? i : i / (kTile / 8) * kSegment, column = i % (kTile / 8) * 8;
  Vector<bf16, 8> largest = {};
  for (int k = 0; k < kTile / 8; ++k) {
    const bf16* from = of_row ? &tile.x[i][k * 8] : &tile.x[first_row + k][swizzled(first_row, column)];
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

__device__ __forceinline__ uint32_t bits_at(const float* amax) { return float_to_bits(*amax); }

// Raises amax by the largest magnitude of the tile, which it only reads. `columns` are magnitude_columns(source, …).
template <class Source, int width>
__device__ __forceinline__ void raise_amax_of_tile(float* amax, const Source& source, int rows, int columns,
                                                   TileCoord at) {
  Vector<bf16, width> largest = {};
  for_vectors_of_tile<width>(
      rows, columns, at, [&](int row, int column) { return load_magnitudes<width>(source, row, column, columns); },
      [&](int, int, const Vector<bf16, width>& x) { max_abs_into(largest, x); });
  const uint32_t of_block = block_max(max_value(largest));
  if (threadIdx.x == 0 && amax) raise_amax(amax, of_block);
}

// Raises amax, row_amax and column_amax by the magnitudes of the tile; null pointers are skipped.
template <class Source, int width>
__device__ __forceinline__ void raise_amaxes_of_tile(float* amax, float* row_amax, float* column_amax,
                                                     const Source& source, int rows, int columns, TileCoord at) {
  auto& tile = shared_memory<Tile>();
  load_tile_with_amax<Source, width>(tile, source, rows, columns, at);
  if (row_amax || column_amax) {
    const uint32_t of_mine = row_or_column_amax(tile);
    const int i = threadIdx.x % kTile, row = at.row() + i, column = at.column() + i;
    if (threadIdx.x < kTile) {
      if (row_amax && row < rows) raise_amax(row_amax + row, of_mine);
    } else if (column_amax && column < columns) {
      raise_amax(column_amax + column, of_mine);
    }
  }
  if (!amax || threadIdx.x != 0) return;
  raise_amax(amax, tile_amax(tile));
}

struct TileArguments {
  QuantizedTensor rowwise, columnwise;
  bool power_of_two;
  const float *amax, *row_amax, *column_amax, *scale;
  float* amax_step;
  uint32_t* not_finite;
  uint32_t nonfinite_code;
  QuantizeStatistics* statistics;
};

// The amaxes of which one gives the scale of an operand's row in a tile, by the kind of scaling. Amaxes are the bits of
// fp32 values.
struct RowAmaxes {
  const float* of_rows;       // of each whole row, for an operand with one scale per row
  uint32_t of_part, of_tile;  // of the row's part in the tile, and of the tile
};

// Returns the scale of row `row` of an operand in a tile. `given`: the scale that the tensor has, or 0.
__device__ __forceinline__ float scale_of_row(const TileArguments& a, const QuantizedTensor& operand, float given,
                                              int row, const RowAmaxes& amaxes) {
  uint32_t amax = 0;
  if (operand.scaling == Scaling::tensor || operand.one_scale) {
    if (given != 0) return given;
    amax = bits_at(a.amax);
  } else if (operand.scaling == Scaling::row) {
    amax = bits_at(amaxes.of_rows + row);
  } else if (operand.scaling == Scaling::block_128x128) {
    amax = amaxes.of_tile;
  } else {
    amax = amaxes.of_part;
  }
  return scale_of(amax, largest_fp8(operand.format), a.power_of_two);
}

// Writes the scale_inv of the thread's row of the operand if the thread is the one that writes it: several rows and
// blocks may share a scale. `block` is the tile's block of 128 columns of the operand.
__device__ __forceinline__ void write_scale_inv(const QuantizedTensor& operand, int row, int block, float scale) {
  const bool of_first_block = operand.scaling == Scaling::tensor || operand.scaling == Scaling::row;
  if (row >= operand.padded_rows() || (of_first_block && block != 0)) return;
  if (operand.scaling == Scaling::tensor && row != 0) return;
  const float scale_inv = row < operand.rows ? 1.0f / scale : 1.0f;
  switch (operand.scaling) {
    case Scaling::tensor:
    case Scaling::row:
      operand.scale_inv[row] = scale_inv;
      break;
    case Scaling::block_1x128:
      if (block < operand.column_blocks()) operand.scale_inv[operand.scale_inv_at(row, block * kTile)] = scale_inv;
      break;
    case Scaling::block_128x128:
      if (row % kTile != 0 || block >= operand.column_blocks()) break;
      operand.scale_inv[operand.scale_inv_at(row, block * kTile)] = scale_inv;
      for (int b = operand.column_blocks(); block == 0 && b < operand.block_stride(); ++b)  // padding, never used
        operand.scale_inv[operand.scale_inv_at(row, b * kTile)] = 1.0f;
      break;
  }
}

// Writes the tile's rows as a part of `operand`, whose rows they are.
template <Fp8Format format>
__device__ __forceinline__ void write_rows(const Tile& tile, const QuantizedTensor& operand, TileCoord at) {
  constexpr int kVectorSize = 8, kAcross = kTile / kVectorSize, kStep = kTileThreads / kAcross;
  const int c = int(threadIdx.x % kAcross) * kVectorSize, column = at.column() + c;
  const int stride = operand.stride(), rows = operand.padded_rows();
  if (column >= stride) return;
  int r = int(threadIdx.x / kAcross);
  uint8_t* to = operand.data + size_t(at.row() + r) * stride + column;
#pragma unroll 2
  for (; r < kTile && at.row() + r < rows; r += kStep, to += size_t(kStep) * stride) {
    const float scale = tile.row_scale[r];
    float v[kVectorSize];
    load_vector(v, &tile.x[r][swizzled(r, c)]);
    VECTOR_LOOP
    for (int j = 0; j < kVectorSize; ++j) v[j] *= scale;
    store_fp8<format>(to, v);
  }
}

// Writes the tile's columns as a part of `operand`, whose rows they are. A thread has kSegment elements of two
// neighbouring columns: it reads the elements of both in one word.
template <Fp8Format format>
__device__ __forceinline__ void write_columns(const Tile& tile, const QuantizedTensor& operand, TileCoord at) {
  constexpr int kAcross = kTile / kSegment;  // segments in a column of the tile
  const int r = int(threadIdx.x % kAcross) * kSegment, column = at.row() + r;
  const int stride = operand.stride(), rows = operand.padded_rows();
  if (column >= stride) return;
  for (int k = 0; k < kTile / 2 * kAcross / kTileThreads; ++k) {
    const int c = (int(threadIdx.x / kAcross) + k * (kTileThreads / kAcross)) * 2, row = at.column() + c;
    if (row >= rows) break;
    const float scale = tile.column_scale[c], next_scale = tile.column_scale[c + 1];
    float v[kSegment], next[kSegment];
#pragma unroll
    for (int j = 0; j < kSegment; ++j) {
      float pair[2];
      load_vector(pair, &tile.x[r + j][swizzled(r, c)]);
      v[j] = pair[0] * scale, next[j] = pair[1] * next_scale;
    }
    uint8_t* to = operand.data + size_t(row) * stride + column;
    store_fp8<format>(to, v);
    store_fp8<format>(to + stride, next);  // padded_rows() is even
  }
}

// Counts what became of the tile's elements in each operand.
__device__ __forceinline__ void count_elements(const TileArguments& a, const Tile& tile, int rows, int columns,
                                               TileCoord at) {
  int values = 0, saturated = 0, underflowed = 0;
  const auto count = [&](const QuantizedTensor& operand, float x) {
    if (!operand.data) return;
    const float largest = largest_fp8(operand.format);
    ++values;
    saturated += is_beyond(x, largest);
    underflowed += x != 0 && becomes_zero(fabsf(x), largest);
  };
#pragma unroll 1
  for (int i = int(threadIdx.x); i < kTile * kTile; i += kTileThreads) {
    const int r = i / kTile, c = i % kTile;
    if (at.row() + r >= rows || at.column() + c >= columns) continue;
    const float x = to_float(tile.x[r][swizzled(r, c)]);
    count(a.rowwise, x * tile.row_scale[r]);
    count(a.columnwise, x * tile.column_scale[c]);
  }
  add_statistics(*a.statistics, values, saturated, underflowed);
}

template <class Source, int width>
__device__ __forceinline__ void quantize_tile(const TileArguments& a, const Source& source, int rows, int columns,
                                              TileCoord at) {
  auto& tile = shared_memory<Tile>();
  const float given = a.scale ? *a.scale : 0.0f;  // read here, so that no thread waits for it after the barrier
  load_tile_with_amax<Source, width>(tile, source, rows, columns, at);
  const bool small_blocks = a.rowwise.scaling == Scaling::block_1x128 || a.columnwise.scaling == Scaling::block_1x128;
  const uint32_t of_mine = small_blocks ? row_or_column_amax(tile) : 0;
  const uint32_t largest = tile_amax(tile);
  const int i = threadIdx.x % kTile, row = at.row() + i, column = at.column() + i;
  float scale = 1;
  if (threadIdx.x < kTile) {
    if (a.rowwise.data && row < rows) scale = scale_of_row(a, a.rowwise, given, row, {a.row_amax, of_mine, largest});
    tile.row_scale[i] = scale;
    if (a.rowwise.data) write_scale_inv(a.rowwise, row, at.tile_column, scale);
  } else {
    if (a.columnwise.data && column < columns)
      scale = scale_of_row(a, a.columnwise, given, column, {a.column_amax, of_mine, largest});
    tile.column_scale[i] = scale;
    if (a.columnwise.data) write_scale_inv(a.columnwise, column, at.tile_row, scale);
  }
  if (threadIdx.x == 0) {
    if (a.amax_step) raise_amax(a.amax_step, largest);
    if (largest >= kInfinityBits && a.not_finite) atomic_min(a.not_finite, a.nonfinite_code);
    if (a.statistics) atomic_max(&a.statistics->amax, largest);
  }
  if (a.statistics && (threadIdx.x < kTile ? row < rows && a.rowwise.data : column < columns && a.columnwise.data)) {
    atomic_max(&a.statistics->largest_scale, float_to_bits(scale));
    atomic_min(&a.statistics->smallest_scale, float_to_bits(scale));
  }
  __syncthreads();
  const bool rows_e4m3 = a.rowwise.format == Fp8Format::e4m3, columns_e4m3 = a.columnwise.format == Fp8Format::e4m3;
  if (a.rowwise.data && rows_e4m3) write_rows<Fp8Format::e4m3>(tile, a.rowwise, at);
  if (a.rowwise.data && !rows_e4m3) write_rows<Fp8Format::e5m2>(tile, a.rowwise, at);
  if (a.columnwise.data && columns_e4m3) write_columns<Fp8Format::e4m3>(tile, a.columnwise, at);
  if (a.columnwise.data && !columns_e4m3) write_columns<Fp8Format::e5m2>(tile, a.columnwise, at);
  if (a.statistics) count_elements(a, tile, rows, columns, at);
}
