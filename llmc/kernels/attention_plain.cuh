// Shared by the plain attention kernels. A block has one thread for each of its rows (queries or keys). All its threads
// walk over tiles of the other side, which are stored in shared memory as fp32, in one or both of two layouts:
//
//   transposed (HD, tile)      for the products of a thread's own row with each row of the tile
//   rows (tile, row_stride)    for weighted sums of the tile's rows
//
// The query heads of a group share their keys, so a block takes them together: its row r is query r / group of the
// sequence and head r % group of the group.
#pragma once

#include "llmc/kernels/attention_rows.cuh"

constexpr int kRowsOfBlock = 64;         // rows and threads of a block
constexpr int kChunk = 32;               // rows of a tile that a thread multiplies at once
constexpr int kMostRows = 4 * kChunk;    // the most rows of a tile
constexpr size_t kTileBytes = 48 << 10;  // shared memory for tiles, unless a single chunk needs more
constexpr int kNoHeadSize = 0;           // value of kHD: the head size is known at run time only

// kHD is a head size that has its own instantiation (64 or 128), or kNoHeadSize.
template <int kHD>
constexpr int kLargestHD = kHD ? kHD : 256;
// Columns that a thread sums at once, in registers. The rows of a tile are padded to a multiple of this. Nobody reads
// the columns beyond HD or their sums.
template <int kHD>
constexpr int kColumns = kHD ? 64 : 32;
template <int kHD>
HOST_DEVICE constexpr int padded_width(int HD) {
  return (HD + kColumns<kHD> - 1) / kColumns<kHD> * kColumns<kHD>;
}
// The padded width plus 8. Without the 8, all threads of a warp would write to the same shared-memory banks.
template <int kHD>
HOST_DEVICE constexpr int row_stride(int HD) {
  return padded_width<kHD>(HD) + 8;
}

// ---------------------------------------------------------------------------------------------- rows in memory

// to[HD] = from * scale.
template <class T>
__device__ inline void load_row(float* __restrict__ to, const T* __restrict__ from, int HD, float scale = 1) {
  for (int d = 0; d < HD; d += 8) {
    float v[8];
    load_vector(v, from + d);
#pragma unroll
    for (int i = 0; i < 8; ++i) to[d + i] = v[i] * scale;
  }
}

// to[HD] = or += from * scale. Raises `magnitudes` to the magnitudes of the results, unless it is null.
template <class T>
__device__ inline void store_row(T* __restrict__ to, const float* __restrict__ from, int HD, float scale,
                                 bool accumulate, Vector<T, 8>* magnitudes = nullptr) {
  for (int d = 0; d < HD; d += 8) {
    float v[8] = {};
    if (accumulate) load_vector(v, to + d);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] += from[d + i] * scale;
    const Vector<T, 8> numbers = rounded<T>(v);
    if (magnitudes) max_abs_into(*magnitudes, numbers);
    *reinterpret_cast<Vector<T, 8>*>(to + d) = numbers;
  }
}

// Loads rows first .. first+tile-1, times `scale`, in one or both layouts (null: skip that layout). The tile's rows
// from `count` on become zeros.
template <int kHD, class T>
__device__ static void load_tile(float* __restrict__ transposed, float* __restrict__ rows,
                                 const HeadRows<const T>& from, int first, int count, int tile, int HD,
                                 float scale = 1) {
  const int together = min_int(tile, blockDim.x), sharers = blockDim.x / together;  // threads that share a row
  for (int j = threadIdx.x % together; j < tile; j += together) {
    const T* row = from.row(first + j);
    for (int d = threadIdx.x / together * 8; d < HD; d += sharers * 8) {
      float v[8] = {};
      if (j < count) load_vector(v, row + d);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] *= scale;
      if (transposed)
#pragma unroll
        for (int i = 0; i < 8; ++i) transposed[(d + i) * tile + j] = v[i];
      if (rows) store_vector(rows + j * row_stride<kHD>(HD) + d, v);
    }
  }
}

// ---------------------------------------------------------------------------------------------- products and sums

// s[j] = sum over d of a[d] * transposed[d][j], for a chunk of rows j. Even and odd d are summed separately, so that
// fewer additions wait for one another. All kernels compute their scores here, so backward gets exactly forward's bits.
__device__ inline void multiply_rows(float* __restrict__ s, const float* __restrict__ a,
                                     const float* __restrict__ transposed, int tile, int HD) {
  float sum[2][kChunk] = {};
  for (int d = 0; d < HD; d += 2)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd)
#pragma unroll
      for (int j = 0; j < kChunk; ++j) sum[odd][j] += a[d + odd] * transposed[(d + odd) * tile + j];
#pragma unroll
  for (int j = 0; j < kChunk; ++j) s[j] = sum[0][j] + sum[1][j];
}

// sum[d] += weights[i] * rows[i][d] over i = first .. last-1. With kTogether = 2, rows are taken in pairs; a row
// outside the range that shares a pair with one inside must have weight 0.
template <int kHD>
__device__ inline void add_rows(float* __restrict__ sum, const float* __restrict__ weights,
                                const float* __restrict__ rows, int first, int last, int HD) {
  constexpr int kWide = kColumns<kHD>, kTogether = 64 / kWide;  // 64 sums at a time, of one row or two
  const int stride = row_stride<kHD>(HD);
#pragma unroll 1
  for (int c = 0; c < HD; c += kWide) {
    float part[kTogether][kWide];
#pragma unroll
    for (int h = 0; h < kTogether; ++h)
#pragma unroll
      for (int d = 0; d < kWide; ++d) part[h][d] = h ? 0 : sum[c + d];
    for (int i = first / kTogether * kTogether; i < last; i += kTogether)
#pragma unroll
      for (int h = 0; h < kTogether; ++h)
#pragma unroll
        for (int d = 0; d < kWide; ++d) part[h][d] += weights[i + h] * rows[(i + h) * stride + c + d];
#pragma unroll
    for (int d = 0; d < kWide; ++d) sum[c + d] = kTogether == 1 ? part[0][d] : part[0][d] + part[kTogether - 1][d];
  }
}

// Reduces kWidth numbers to one: combines the upper half with the lower half, then repeats with the result.
template <int kWidth, class Combine>
__device__ __forceinline__ float fold(const float (&x)[kWidth], const Combine& combine) {
  if constexpr (kWidth == 1) {
    return x[0];
  } else {
    float half[kWidth / 2];
    for (int j = 0; j < kWidth / 2; ++j) half[j] = combine(x[j], x[j + kWidth / 2]);
    return fold(half, combine);
  }
}
template <int kWidth>
__device__ __forceinline__ float fold_sum(const float (&x)[kWidth]) {
  return fold(x, [](float a, float b) { return a + b; });
}
template <int kWidth>
__device__ __forceinline__ float fold_max(const float (&x)[kWidth]) {
  return fold(x, [](float a, float b) { return a > b ? a : b; });
}

// ---------------------------------------------------------------------------------------------- for launchers

// Calls `body` with the head size as a compile-time constant if it has its own instantiation, else with kNoHeadSize.
template <class Body>
void with_head_size(int HD, const Body& body) {
  if (HD == 64) body(std::integral_constant<int, 64>{});
  else if (HD == 128) body(std::integral_constant<int, 128>{});
  else body(std::integral_constant<int, kNoHeadSize>{});
}

// Returns the chunks per tile for rows that take `row_bytes` in all their layouts: the most that fit kTileBytes,
// because larger tiles need fewer barriers.
inline int chunks_of_tile(size_t row_bytes) {
  int chunks = kMostRows / kChunk;
  while (chunks > 1 && chunks * kChunk * row_bytes > kTileBytes) chunks /= 2;
  return chunks;
}

// Returns the threads per block for `rows` rows in all: whole warps, at most kRowsOfBlock, and no more than there are
// rows for.
inline int threads_of_block(int rows) { return min_int(kRowsOfBlock, (rows + 31) / 32 * 32); }

// Called by attention_forward and attention_backward.
void plain_attention_forward(Stream& stream, const AttentionCall& call);
void plain_attention_dq(Stream& stream, const AttentionCall& call);
void plain_attention_dkv(Stream& stream, const AttentionCall& call);
