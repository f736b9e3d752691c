// Quantization to FP8 (contract: quantize.h).
//
// A block has a tile of 128 x 128: it computes the tile's numbers once, rounds them to bf16 into shared memory, finds
// their scales and writes both orientations from there, 16 bytes a thread at a time. In shared memory groups of 8
// columns change places from one 16 rows to the next, so that 8 threads that read 16 rows each of one column use
// different banks.
//
// What should limit it on a GPU: device memory. Of plain bf16 2 bytes an element are read and 1 written an orientation.
#include "llmc/kernels/quantize.h"

#include <algorithm>

#include "llmc/kernels/quantize_scale.cuh"
#include "llmc/kernels/quantize_sources.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256, kTile = 128, kWarps = kThreads / 32;
constexpr int kPitch = kTile + 8;  // of a row in shared memory
constexpr int kSegment = 16;       // elements that a thread writes at once

struct Tile {
  bf16 x[kTile][kPitch];
  float row_scale[kTile], column_scale[kTile];
  bf16 column_amax[kTile / kSegment][kTile];  // of so many rows each
  uint32_t warp_amax[kWarps];
};

__device__ __forceinline__ int place(int row, int column) { return column ^ (row / kSegment % 8 * 8); }

// The tile's numbers into shared memory, zeros beyond the matrix; returns the largest magnitude among the thread's.
template <class Source, int width>
__device__ __forceinline__ uint32_t load_tile(Tile& tile, const Source& source, int rows, int columns) {
  const int first_row = blockIdx.y * kTile, first_column = blockIdx.x * kTile;
  Vector<bf16, width> largest = {};
#pragma unroll 4  // several loads in flight
  for (int k = 0; k < kTile * kTile / width / kThreads; ++k) {
    const int task = k * kThreads + threadIdx.x, r = task / (kTile / width), c = task % (kTile / width) * width;
    const int row = first_row + r, column = first_column + c;
    // Beyond the matrix its last numbers are read: a branch would wait for each load.
    float v[width];
    load_source(v, source, row < rows ? row : rows - 1, column < columns ? column : columns - width, columns);
    Vector<bf16, width> x = rounded<bf16>(v);
    const uint16_t mask = row < rows && column < columns ? 0xffff : 0;
    VECTOR_LOOP
    for (int j = 0; j < width; ++j) x.v[j].bits &= mask;
    raise_to_magnitudes(largest, x);
    *reinterpret_cast<Vector<bf16, width>*>(&tile.x[r][place(r, c)]) = x;
  }
  return largest_of(largest);
}

// The largest magnitude of a row of the tile, for the first half of the threads, and of a column, for the others; after
// a barrier behind load_tile.
__device__ __forceinline__ uint32_t row_or_column_amax(Tile& tile) {
  const int i = threadIdx.x % kTile;
  const bool of_row = threadIdx.x < kTile;
  // 16 vectors each: a row's, in any order, or 16 rows' of the same 8 columns.
  const int first_row = of_row ? i : i / (kTile / 8) * kSegment, column = i % (kTile / 8) * 8;
  Vector<bf16, 8> largest = {};
  for (int k = 0; k < kTile / 8; ++k) {
    const bf16* from = of_row ? &tile.x[i][k * 8] : &tile.x[first_row + k][place(first_row, column)];
    raise_to_magnitudes(largest, *reinterpret_cast<const Vector<bf16, 8>*>(from));
  }
  if (!of_row) *reinterpret_cast<Vector<bf16, 8>*>(&tile.column_amax[first_row / kSegment][column]) = largest;
  __syncthreads();
  if (of_row) return largest_of(largest);
  Vector<bf16, kTile / kSegment> of_column;
#pragma unroll
  for (int k = 0; k < kTile / kSegment; ++k) of_column.v[k] = tile.column_amax[k][i];
  return largest_of(of_column);
}

__device__ __forceinline__ uint32_t* bits_of(float* amax) { return reinterpret_cast<uint32_t*>(amax); }
__device__ __forceinline__ uint32_t bits_at(const float* amax) { return float_to_bits(*amax); }

template <class Source, int width>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(float* amax, float* row_amax, float* column_amax, Source source, int rows, int columns) {
  auto& tile = shared_memory<Tile>();
  const uint32_t of_warp = warp_max(load_tile<Source, width>(tile, source, rows, columns));
  if (threadIdx.x % 32 == 0) tile.warp_amax[threadIdx.x / 32] = of_warp;
  __syncthreads();
  if (row_amax || column_amax) {
    const uint32_t of_mine = row_or_column_amax(tile);
    const int i = threadIdx.x % kTile, row = blockIdx.y * kTile + i, column = blockIdx.x * kTile + i;
    if (threadIdx.x < kTile) {
      if (row_amax && row < rows) atomic_max(bits_of(row_amax + row), of_mine);
    } else if (column_amax && column < columns) {
      atomic_max(bits_of(column_amax + column), of_mine);
    }
  }
  if (!amax || threadIdx.x != 0) return;
  uint32_t largest = 0;
  for (int w = 0; w < kWarps; ++w) largest = tile.warp_amax[w] > largest ? tile.warp_amax[w] : largest;
  atomic_max(bits_of(amax), largest);
}

struct Arguments {
  QuantizedTensor by_rows, by_columns;
  bool power_of_two;
  const float *amax, *row_amax, *column_amax, *scale;
  float* seen;
  uint32_t* not_finite;
  uint32_t number;
  QuantizeStatistics* statistics;
};

// The scale of row `row` of an operand within this tile. `rows_amax`: of the whole rows, where each has a scale of its
// own; `part_amax`, `tile_amax`: of the row's part in the tile, and of the tile.
__device__ __forceinline__ float scale_of_row(const Arguments& a, const QuantizedTensor& operand, int row,
                                              const float* rows_amax, uint32_t part_amax, uint32_t tile_amax) {
  const bool single = operand.scaling == Scaling::tensor || operand.one_scale;
  if (single && a.scale) return *a.scale;
  const uint32_t amax = single                                      ? bits_at(a.amax)
                        : operand.scaling == Scaling::row           ? bits_at(rows_amax + row)
                        : operand.scaling == Scaling::block_128x128 ? tile_amax
                                                                    : part_amax;
  return scale_of(amax, largest_fp8(operand.format), a.power_of_two);
}

// Each factor is written by one thread of one block: `row` and `block` say which row of the operand it has, and which
// block of 128 columns.
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
      for (int b = operand.column_blocks(); block == 0 && b < operand.block_stride(); ++b)  // never used
        operand.factors[operand.factor_at(row, b * kTile)] = 1.0f;
      break;
  }
}

// The tile as a part of `operand`, whose rows are the tile's rows, or its columns.
template <bool transposed>
__device__ __forceinline__ void write_tile(const Tile& tile, const QuantizedTensor& operand, int first_row,
                                           int first_column, QuantizeStatistics* statistics) {
  const float largest = largest_fp8(operand.format);
  int values = 0, saturated = 0, underflowed = 0;
  for (int task = threadIdx.x; task < kTile * kTile / kSegment; task += kThreads) {
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
__global__ void __launch_bounds__(kThreads) quantize_kernel(Arguments a, Source source, int rows, int columns) {
  auto& tile = shared_memory<Tile>();
  const uint32_t of_warp = warp_max(load_tile<Source, width>(tile, source, rows, columns));
  if (threadIdx.x % 32 == 0) tile.warp_amax[threadIdx.x / 32] = of_warp;
  __syncthreads();
  const bool small_blocks = a.by_rows.scaling == Scaling::block_1x128 || a.by_columns.scaling == Scaling::block_1x128;
  const uint32_t of_mine = small_blocks ? row_or_column_amax(tile) : 0;
  uint32_t largest = 0;
  for (int w = 0; w < kWarps; ++w) largest = tile.warp_amax[w] > largest ? tile.warp_amax[w] : largest;
  const int i = threadIdx.x % kTile, row = blockIdx.y * kTile + i, column = blockIdx.x * kTile + i;
  float scale = 1;
  if (threadIdx.x < kTile) {
    if (a.by_rows.data && row < rows) scale = scale_of_row(a, a.by_rows, row, a.row_amax, of_mine, largest);
    tile.row_scale[i] = scale;
    if (a.by_rows.data) write_factor(a.by_rows, row, blockIdx.x, scale);
  } else {
    if (a.by_columns.data && column < columns)
      scale = scale_of_row(a, a.by_columns, column, a.column_amax, of_mine, largest);
    tile.column_scale[i] = scale;
    if (a.by_columns.data) write_factor(a.by_columns, column, blockIdx.y, scale);
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
  if (a.by_rows.data) write_tile<false>(tile, a.by_rows, blockIdx.y * kTile, blockIdx.x * kTile, a.statistics);
  if (a.by_columns.data) write_tile<true>(tile, a.by_columns, blockIdx.x * kTile, blockIdx.y * kTile, a.statistics);
}

constexpr int kTensors = 32, kParts = 8;  // of a block: each tensor's history in as many parts

struct HistoryMaxima {
  uint32_t part[kParts][kTensors];
};

__global__ void __launch_bounds__(kTensors* kParts) delayed_kernel(DelayedScaling d, unsigned long long* overflows) {
  auto& maxima = shared_memory<HistoryMaxima>();
  const int tensor = blockIdx.x * kTensors + threadIdx.x;
  const bool here = tensor < d.tensors;
  const uint32_t entries = here ? d.entries[tensor] : 0;
  const uint32_t amax = here ? bits_at(d.amax + tensor) : 0;
  const int newest = int(entries % uint32_t(d.length)), older = int(entries) < d.length ? int(entries) : d.length;
  uint32_t largest = amax;
  const auto take = [&](uint32_t other) { largest = other > largest ? other : largest; };
  if (here && !d.latest)
    for (int e = threadIdx.y; e < older; e += kParts)
      if (e != newest) take(bits_at(d.history + size_t(e) * d.tensors + tensor));
  maxima.part[threadIdx.y][threadIdx.x] = largest;
  __syncthreads();
  if (!here || threadIdx.y != 0) return;
  for (int p = 1; p < kParts; ++p) take(maxima.part[p][threadIdx.x]);
  d.history[size_t(newest) * d.tensors + tensor] = bits_to_float(amax);
  d.entries[tensor] = entries + 1;
  d.amax[tensor] = 0;
  if (entries > 0 && is_beyond(bits_to_float(amax) * d.scale[tensor], d.largest[tensor])) atomic_add(overflows, 1ull);
  if (largest == 0 || largest >= kInfinity) return;
  d.scale[tensor] = delayed_scale_of(bits_to_float(largest), d.largest[tensor], d.margin, d.power_of_two);
}

// ---------------------------------------------------------------------------------------------- launchers

bool has_rows_scales(const QuantizedTensor& operand) {
  return operand && operand.scaling == Scaling::row && !operand.one_scale;
}
bool has_one_scale(const QuantizedTensor& operand) {
  return operand && (operand.scaling == Scaling::tensor || operand.one_scale);
}

// What may be read 16 bytes at a time: neighbours in units of this many columns.
int columns_together(const PlainSource&, int columns) { return columns; }
int columns_together(const RmsnormSource&, int columns) { return columns; }
int columns_together(const SwigluSource&, int columns) { return columns; }
int columns_together(const SwigluBackwardSource&, int columns) { return columns / 2; }
int columns_together(const RopeBackwardSource& s, int) { return s.HD / 2; }

// What a source reads: from the first two buffers neighbours, from the third single numbers; empty where it has less.
struct SourceReads {
  Access access[3] = {{nullptr, 0, false}, {nullptr, 0, false}, {nullptr, 0, false}};
};
SourceReads reads_of(const PlainSource& s, size_t rows, size_t columns) { return {{reads(s.x, rows * columns)}}; }
SourceReads reads_of(const RmsnormSource& s, size_t rows, size_t columns) {
  return {{reads(s.x, rows * columns), reads(s.weight, columns), reads(s.rstd, rows)}};
}
SourceReads reads_of(const SwigluSource& s, size_t rows, size_t columns) {
  return {{reads(s.gate_up, rows * 2 * columns)}};
}
SourceReads reads_of(const SwigluBackwardSource& s, size_t rows, size_t columns) {
  return {{reads(s.dout, rows * columns / 2), reads(s.gate_up, rows * columns)}};
}
SourceReads reads_of(const RopeBackwardSource& s, size_t rows, size_t columns) {
  return {{reads(s.dqkv, rows * columns), reads(s.table, size_t(s.table_positions) * size_t(s.HD)),
           reads(s.positions, rows)}};
}

// Widths that a source can have.
template <class Source>
void require_width(const char*, const Source&, int) {}
void require_width(const char* who, const SwigluBackwardSource&, int columns) {
  REQUIRE(columns % 2 == 0, "%s: a gradient of gates and ups in rows of %d: expected as many of each", who, columns);
}
void require_width(const char* who, const RopeBackwardSource& s, int columns) {
  REQUIRE(s.HD >= 2 && s.HD % 2 == 0 && columns % s.HD == 0 && s.heads >= 0 && s.heads <= columns / s.HD &&
              s.table_positions >= 1,
          "%s: %d heads of %d to turn in rows of %d, by a table of %d positions: expected whole heads of an even size, "
          "no more of them than the rows have, and a position",
          who, s.heads, s.HD, columns, s.table_positions);
}

void require_operand(const char* who, const QuantizedTensor& operand, int rows, int columns) {
  if (!operand) return;
  REQUIRE(operand.rows == rows && operand.columns == columns,
          "%s: an operand of %d x %d of a matrix that gives %d x %d", who, operand.rows, operand.columns, rows,
          columns);
  REQUIRE(operand.scaling == Scaling::row || !operand.one_scale,
          "%s: one scale for the whole tensor, once for each row, of an operand with %s", who,
          scaling_name(operand.scaling));
  REQUIRE(operand.factors && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0,
          "%s: an operand at %p with factors at %p: expected 16-byte alignment, and factors", who,
          static_cast<const void*>(operand.data), static_cast<const void*>(operand.factors));
}

void require_quantization(const char* who, int rows, int columns, const Quantization& q) {
  REQUIRE(rows >= 1 && columns >= 1, "%s: %d x %d: expected at least one row and one column", who, rows, columns);
  REQUIRE(q.by_rows || q.by_columns, "%s: neither orientation is wanted", who);
  require_operand(who, q.by_rows, rows, columns);
  require_operand(who, q.by_columns, columns, rows);
  REQUIRE(!has_rows_scales(q.by_rows) || q.row_amax, "%s: no room for the rows' largest numbers", who);
  REQUIRE(!has_rows_scales(q.by_columns) || q.column_amax, "%s: no room for the columns' largest numbers", who);
  REQUIRE(!(has_one_scale(q.by_rows) || has_one_scale(q.by_columns)) || q.amax || q.scale,
          "%s: a tensor with one scale needs it, or its largest number", who);
}

// Calls `body` with the source and its vector width as a constant.
template <class Body>
void with_source(const char* who, const QuantizeSource& source, int columns, const Body& body) {
  std::visit(
      [&](const auto& s) {
        require_width(who, s, columns);
        const SourceReads from = reads_of(s, 1, size_t(columns));
        with_vector_width(who, columns_together(s, columns), {from.access[0].data, from.access[1].data},
                          [&](auto width) { body(s, width); });
      },
      source);
}

}  // namespace

float fp8_scale(float amax, Fp8Format format, bool power_of_two) {
  return scale_of(float_to_bits(amax), largest_fp8(format), power_of_two);
}

bool Quantization::needs_amax() const {
  return has_rows_scales(by_rows) || has_rows_scales(by_columns) ||
         (!scale && (has_one_scale(by_rows) || has_one_scale(by_columns)));
}

void quantize_amax(Stream& stream, const QuantizeSource& source, int rows, int columns, const Quantization& q) {
  require_quantization("quantize_amax", rows, columns, q);
  float* row_amax = has_rows_scales(q.by_rows) ? q.row_amax : nullptr;
  float* column_amax = has_rows_scales(q.by_columns) ? q.column_amax : nullptr;
  float* amax = has_one_scale(q.by_rows) || has_one_scale(q.by_columns) ? q.amax : nullptr;
  if (row_amax) clear(stream, row_amax, size_t(rows));
  if (column_amax) clear(stream, column_amax, size_t(columns));
  with_source("quantize_amax", source, columns, [&](const auto& s, auto width) {
    using Source = std::decay_t<decltype(s)>;
    const SourceReads from = reads_of(s, size_t(rows), size_t(columns));
    launch<amax_kernel<Source, decltype(width)::value>>(
        {stream,
         "quantize_amax",
         {updates(amax, 1), updates(row_amax, size_t(rows)), updates(column_amax, size_t(columns)), from.access[0],
          from.access[1], from.access[2]}},
        dim3(blocks_for(size_t(columns), kTile), blocks_for(size_t(rows), kTile)), kThreads, sizeof(Tile), amax,
        row_amax, column_amax, s, rows, columns);
  });
}

void quantize(Stream& stream, const QuantizeSource& source, int rows, int columns, const Quantization& q) {
  require_quantization("quantize", rows, columns, q);
  const auto bytes = [](const QuantizedTensor& t) { return t ? writes(t.data, t.bytes()) : writes(t.data, 0); };
  const auto factors = [](const QuantizedTensor& t) {
    return t ? writes(t.factors, t.factor_count()) : writes(t.factors, 0);
  };
  const float* amax = q.scale ? nullptr : q.amax;
  const Arguments a{q.by_rows, q.by_columns, q.power_of_two, amax,     q.row_amax,  q.column_amax,
                    q.scale,   q.seen,       q.not_finite,   q.number, q.statistics};
  const int padded_rows = std::max(q.by_rows ? q.by_rows.padded_rows() : 0, q.by_columns ? q.by_columns.stride() : 0);
  const int padded_columns =
      std::max(q.by_rows ? q.by_rows.stride() : 0, q.by_columns ? q.by_columns.padded_rows() : 0);
  with_source("quantize", source, columns, [&](const auto& s, auto width) {
    using Source = std::decay_t<decltype(s)>;
    const SourceReads from = reads_of(s, size_t(rows), size_t(columns));
    launch<quantize_kernel<Source, decltype(width)::value>>(
        {stream,
         "quantize",
         {bytes(q.by_rows), bytes(q.by_columns), factors(q.by_rows), factors(q.by_columns), reads(amax, 1),
          reads(q.scale, 1), reads(has_rows_scales(q.by_rows) ? q.row_amax : nullptr, size_t(rows)),
          reads(has_rows_scales(q.by_columns) ? q.column_amax : nullptr, size_t(columns)), updates(q.seen, 1),
          updates(q.not_finite, 1), updates(q.statistics, 1), from.access[0], from.access[1], from.access[2]}},
        dim3(blocks_for(size_t(padded_columns), kTile), blocks_for(size_t(padded_rows), kTile)), kThreads, sizeof(Tile),
        a, s, rows, columns);
  });
}

float delayed_scale(float amax, Fp8Format format, int margin, bool power_of_two) {
  return delayed_scale_of(amax, largest_fp8(format), margin, power_of_two);
}

void update_delayed_scales(Stream& stream, const DelayedScaling& d, int64_t* overflows) {
  REQUIRE(d.tensors >= 1 && d.length >= 1,
          "update_delayed_scales: %d tensors with a history of %d: expected at least 1", d.tensors, d.length);
  const size_t tensors = size_t(d.tensors);
  launch<delayed_kernel>(
      {stream,
       "update_delayed_scales",
       {updates(d.amax, tensors), updates(d.scale, tensors), updates(d.entries, tensors),
        updates(d.history, tensors * size_t(d.length)), reads(d.largest, tensors), updates(overflows, 1)}},
      blocks_for(tensors, kTensors), dim3(kTensors, kParts), sizeof(HistoryMaxima), d,
      reinterpret_cast<unsigned long long*>(overflows));
}
