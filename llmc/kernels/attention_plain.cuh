// Shared by the plain attention kernels. A thread has kRows of the block's rows (queries or keys). All threads walk
// over tiles of the other side, which are stored in shared memory as fp32, in one or both of two layouts:
//
//   transposed (HD, tile)      for the scores of a thread's own rows with each row of the tile
//   rows (tile, row_stride)    for weighted sums of the tile's rows
//
// The query heads of a group share their keys, so a block takes them together: its row r is query r / group of the
// sequence and head r % group of the group.
#pragma once

#include "llmc/kernels/attention_common.cuh"

// Rows of a thread. What a CPU's thread reads of a tile serves all of them. A GPU's thread would need more registers.
constexpr int kRows = LLMC_CUDA ? 1 : 4;
constexpr int kMostThreads = 64;         // threads of a block
constexpr int kChunk = 32;               // rows of a tile that a gemm takes at once
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

// ---------------------------------------------------------------------------------------------- gemms

// s[r][j] = sum over d of a[r][d] * transposed[d][j], for a chunk of rows j of the tile. All kernels compute their
// scores here, in the order of d, so backward gets exactly forward's bits.
template <int kWidth>
__device__ inline void gemm(float (&s)[kRows][kChunk], const float (&a)[kRows][kWidth],
                            const float* __restrict__ transposed, int tile, int HD) {
  float sum[kRows][kChunk] = {};
  for (int d = 0; d < HD; ++d)
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int j = 0; j < kChunk; ++j) sum[r][j] += a[r][d] * transposed[d * tile + j];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int j = 0; j < kChunk; ++j) s[r][j] = sum[r][j];
}

// sum[r][d] += weights[r][i] * rows[i][d] over i = first .. last-1.
template <int kHD>
__device__ inline void add_rows(float (&sum)[kRows][kLargestHD<kHD>], const float (&weights)[kRows][kMostRows],
                                const float* __restrict__ rows, int first, int last, int HD) {
  constexpr int kWide = kColumns<kHD>;
  const int stride = row_stride<kHD>(HD);
#pragma unroll 1
  for (int c = 0; c < HD; c += kWide) {
    float part[kRows][kWide];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int d = 0; d < kWide; ++d) part[r][d] = sum[r][c + d];
    for (int i = first; i < last; ++i)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int d = 0; d < kWide; ++d) part[r][d] += weights[r][i] * rows[i * stride + c + d];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int d = 0; d < kWide; ++d) sum[r][c + d] = part[r][d];
  }
}

// The rows of a tile that each of the thread's rows sees, first .. last-1, and the range that holds all of them. Within
// the range weights are 0 where a row does not see; outside nobody looks. So a value that is not finite reaches the
// other rows of its thread, too: keys and values must be finite even where a row does not see them (attention.h).
struct RowsSeen {
  int first[kRows], last[kRows], begin = kMostRows, end = 0;

  __device__ __forceinline__ void set(int r, int from, int to) {
    first[r] = from, last[r] = to;
    if (from < to) begin = min_int(begin, from), end = max_int(end, to);
  }
  __device__ __forceinline__ int first_chunk() const { return begin / kChunk * kChunk; }
};

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

// Returns the threads per block for `rows` rows in all: whole warps, at most kMostThreads, and no more than there are
// rows for.
inline int threads_of_block(int rows) { return min_int(kMostThreads, (rows + 32 * kRows - 1) / (32 * kRows) * 32); }

// Called by attention_forward and attention_backward.
void plain_attention_forward(Stream& stream, const AttentionCall& call);
void plain_attention_dq(Stream& stream, const AttentionCall& call);
void plain_attention_dkv(Stream& stream, const AttentionCall& call);
