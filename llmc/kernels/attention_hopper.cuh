// What Hopper's own kernels of attention share (Shah et al. 2024, FlashAttention-3): bf16, head size 64 or 128, sm_90a.
//
// A block's warpgroups have roles. The first brings tiles: one of its threads starts copies (TMA) into rings of stages,
// each with a barrier that counts what came (`full`) and one that counts who is done with it (`free`). The others
// multiply (wgmma), each with 64 rows of its own, whose sums stay in its registers; registers that the first does not
// need are theirs. dev/kernels/attention_hopper.svg shows who waits for what.
//
// Rows that a block keeps lie in its tiles of q, k, v or dout. When their products are done, the result takes the place
// of the warpgroup's own rows there, and leaves as boxes. What of a box lies beyond the tensor comes as zeros and is
// not written, so rows beyond the last need no care.
#pragma once

#include "llmc/device/tensor_copy.cuh"
#include "llmc/device/tensor_core.cuh"
#include "llmc/device/wgmma.cuh"
#include "llmc/kernels/attention_rows.cuh"

constexpr int kGroupThreads = 128, kGroupRows = 64;  // of a warpgroup

// The same in all lanes, as the compiler sees too. 0 brings, the others multiply.
__device__ static __forceinline__ int warpgroup_number() {
  return __shfl_sync(~0u, int(threadIdx.x) / kGroupThreads, 0);
}
__device__ static __forceinline__ bool first_lane() { return threadIdx.x % 32 == 0; }

// Where a lane's numbers of a warpgroup's result lie (wgmma.cuh): d[4 * j + 2 * half + odd].
__device__ static __forceinline__ int row_of_group(int half) {
  return warp_number() % 4 * 16 + half * 8 + lane_of_warp() / 4;
}
__device__ static __forceinline__ int column_of(int j, int odd) { return j * 8 + lane_of_warp() % 4 * 2 + odd; }

// A stage of a ring: a tile, what counts its bytes, and what counts the warps that are done with it.
template <class Tile>
struct Stage {
  Tile tile;
  TransactionBarrier full, free;
};
template <class Tile, int kStages>
__device__ __forceinline__ void initialize_ring(Stage<Tile> (&ring)[kStages], int warps) {
  for (int i = 0; i < kStages; ++i) {
    barrier_initialize(ring[i].full, 1);
    barrier_initialize(ring[i].free, warps);
  }
}

// The keys that a block's queries see, in tiles.
struct KeyTiles {
  int first, count;  // the first key; tiles
  template <int kKeys>
  __device__ static __forceinline__ KeyTiles of(const AttentionShape& shape, const QueryPlace& place, int queries) {
    const KeyRange all = keys_of_queries(shape, place.b, place.t0, least(place.t0 + queries, shape.Tq) - 1);
    return {all.first, all.last < all.first ? 0 : (all.last - all.first) / kKeys + 1};
  }
};

// ---------------------------------------------------------------------------------------------- bringing tiles

// Starts to copy kRows rows of a head, from `row` on; `full` expects their bytes. By one thread.
template <int kRows, int kHD>
__device__ __forceinline__ void load_rows(WgmmaTile<kRows, kHD>& to, const TensorMap& map, TransactionBarrier& full,
                                          int head, int row, int b) {
#pragma unroll
  for (int panel = 0; panel < kHD / 64; ++panel) load_box(to.panel[panel], map, full, panel * 64, head, row, b);
}

// Waits until the stage is free and brings the next rows; `parity` of its place in the ring.
template <class Tile>
__device__ __forceinline__ void load_stage(Stage<Tile>& stage, const TensorMap& map, int parity, int head, int row,
                                           int b) {
  barrier_wait(stage.free, parity ^ 1);
  barrier_expect(stage.full, sizeof(stage.tile));
  load_rows(stage.tile, map, stage.full, head, row, b);
}

// ---------------------------------------------------------------------------------------------- products

// Starts d = A·Bᵀ: 64 rows of `a` from row0 on, all rows of `b`, summed over the head's columns.
template <int kHD, int kRows, int kN>
__device__ __forceinline__ void multiply_rows(float (&d)[kN / 2], const WgmmaTile<kRows, kHD>& a, int row0,
                                              const WgmmaTile<kN, kHD>& b) {
#pragma unroll
  for (int k = 0; k < kHD; k += 16) multiply<kN>(d, a.by_columns(row0, k), b.by_columns(0, k), k > 0);
}

// Starts d += weights·B: a weight for each row of `b`.
template <int kHD, int kRows>
__device__ __forceinline__ void add_weighted(float (&d)[kHD / 2], const uint32_t (&weights)[kRows / 16][4],
                                             const WgmmaTile<kRows, kHD>& b) {
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) multiply<kHD, Major::mn>(d, weights[k], b.by_rows(16 * k), true);
}

// A result's numbers as left operand of the next product; they are in their registers when it begins.
template <int kN>
__device__ __forceinline__ void round_to_operand(uint32_t (&weights)[kN / 16][4], const float (&d)[kN / 2]) {
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) weights[i / 4][i % 4] = pair_of_bf16(d[2 * i], d[2 * i + 1]);
#pragma unroll
  for (int k = 0; k < kN / 16; ++k) keep_in_place(weights[k]);
}

// The numbers of keys key0 … that a row does not see become `unseen`; `rows`: what the lane's two rows see.
template <int kCount>
__device__ static __forceinline__ void mask(float (&s)[kCount], int key0, const KeyRange (&rows)[2], float unseen) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = rows[half].first - key0, last = rows[half].last - key0;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd)
        if (column_of(j, odd) < first || column_of(j, odd) > last) s[4 * j + 2 * half + odd] = unseen;
  }
}

// ---------------------------------------------------------------------------------------------- results

// d *= factor of the row; with `accumulate` += what stands in `to`, for rows row0 + r < count.
template <int kHD>
__device__ static __forceinline__ void scale_rows(float (&d)[kHD / 2], const float (&factor)[2],
                                                  const HeadRows<bf16>& to, int row0, int count, bool accumulate) {
#pragma unroll
  for (int i = 0; i < kHD / 2; ++i) d[i] *= factor[i / 2 % 2];
  if (!accumulate) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + row_of_group(half);
    if (row >= count) continue;
#pragma unroll
    for (int j = 0; j < kHD / 8; ++j) {
      float before[2];
      load_vector(before, to.base + row * to.stride + column_of(j, 0));
      d[4 * j + 2 * half] += before[0];
      d[4 * j + 2 * half + 1] += before[1];
    }
  }
}

// Writes a warpgroup's result: through the rows row0 … of `staging`, whose products are done, to the box at `row`.
// `barrier`: a named one of this warpgroup alone.
template <int kHD, int kRows>
__device__ static __forceinline__ void store_rows(const TensorMap& map, int head, int row, int b,
                                                  const float (&d)[kHD / 2], WgmmaTile<kRows, kHD>& staging, int row0,
                                                  int barrier) {
  named_barrier_sync(barrier, kGroupThreads);  // all four warps' products are done with the rows
#pragma unroll
  for (int i = 0; i < kHD / 4; ++i) {
    const int at = row0 + row_of_group(i % 2), column = column_of(i / 2, 0), chunk = column % 64 / 8 ^ (at & 7);
    auto* pair = reinterpret_cast<uint32_t*>(&staging.panel[column / 64][at][chunk * 8 + column % 8]);
    stage_shared(pair, pair_of_bf16(d[2 * i], d[2 * i + 1]));
  }
  fence_async_proxy();
  named_barrier_sync(barrier, kGroupThreads);
  if (threadIdx.x % kGroupThreads != 0) return;
#pragma unroll
  for (int panel = 0; panel < kHD / 64; ++panel) store_box(map, staging.panel[panel][row0], panel * 64, head, row, b);
  stores_commit();
}

// ---------------------------------------------------------------------------------------------- for launchers

// Boxes of `rows` rows and 64 columns of a head. Dimensions: columns, heads, positions, sequences.
inline TensorMap map_of_rows(Device& device, const bf16* data, const AttentionStrides& strides, int B, int T, int heads,
                             int HD, int rows, const char* who) {
  TensorView view;
  view.data = data;
  const int64_t sizes[] = {HD, heads, T, B}, apart[] = {HD, strides.row, strides.batch};
  const int box[] = {64, 1, rows, 1};
  for (int i = 0; i < 4; ++i) view.sizes[i] = sizes[i], view.box[i] = box[i];
  for (int i = 0; i < 3; ++i) view.strides[i] = apart[i] * int64_t(sizeof(bf16));
  return tensor_map(device, view, who);
}

// False in a build for GPUs whose ARCH does not name 90a.
bool hopper_attention_is_built();
// Behind attention_forward and attention_backward, which have checked everything.
void hopper_attention_forward(Stream& stream, bf16* out, float* lse, const bf16* q, const bf16* k, const bf16* v,
                              const AttentionShape& shape, float* amax);
void hopper_attention_dq(Stream& stream, bf16* dq, float* delta, const bf16* dout, const bf16* out, const float* lse,
                         const bf16* q, const bf16* k, const bf16* v, const AttentionShape& shape, bool accumulate);
void hopper_attention_dkv(Stream& stream, bf16* dk, bf16* dv, const float* delta, const bf16* dout, const float* lse,
                          const bf16* q, const bf16* k, const bf16* v, const AttentionShape& shape, bool accumulate);
