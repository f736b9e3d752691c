// Shared by the attention kernels for Hopper (Shah et al. 2024, FlashAttention-3): bf16, head size 64 or 128, sm_90a.
//
// A block's warpgroups have roles (warp specialization). Warpgroup 0 is the producer: one of its threads starts TMA
// loads of tiles into rings of stages. Each stage has two mbarriers: `full` counts the bytes that have arrived, and
// `free` counts the warps that are done with the stage. The other warpgroups are consumers: each multiplies (wgmma) 64
// rows of its own and keeps their accumulators in registers. The consumers also get the registers that the producer
// does not need (setmaxnreg). dev/kernels/attention_hopper.svg shows who waits for what.
//
// The block's own rows stay in shared-memory tiles of q, k, v or dout. When the products of a consumer are done, its
// epilogue writes the result over its own rows there, and TMA stores them as boxes. TMA fills the part of a box beyond
// the tensor with zeros on loads and does not write it on stores, so rows beyond the last need no special case.
#pragma once

#include "llmc/device/tensor_core.cuh"
#include "llmc/device/tma.cuh"
#include "llmc/device/wgmma.cuh"
#include "llmc/kernels/attention_rows.cuh"

constexpr int kGroupThreads = 128, kGroupRows = 64;  // threads and rows of a warpgroup

// Returns 0 for the producer and 1, 2, … for the consumers. The shuffle tells the compiler that all lanes of a warp get
// the same number.
__device__ static __forceinline__ int warpgroup_number() {
  return __shfl_sync(~0u, int(threadIdx.x) / kGroupThreads, 0);
}
__device__ static __forceinline__ bool first_lane() { return threadIdx.x % 32 == 0; }

// Row and column, in a warpgroup's result, of a lane's element d[4 * j + 2 * half + odd] (layout: wgmma.cuh).
__device__ static __forceinline__ int row_of_group(int half) {
  return warp_number() % 4 * 16 + half * 8 + lane_of_warp() / 4;
}
__device__ static __forceinline__ int column_of(int j, int odd) { return j * 8 + lane_of_warp() % 4 * 2 + odd; }

template <class... Maps>
__device__ __forceinline__ void prefetch_tensor_maps(const Maps&... maps) {
  (prefetch_tensor_map(maps), ...);
}

// A stage of a ring: a tile, the barrier that counts its bytes (`full`), and the barrier that counts the warps, or the
// warpgroups, that are done with it (`free`).
template <class Tile>
struct Stage {
  Tile tile;
  Mbarrier full, free;
};
template <class Tile, int kStages>
__device__ __forceinline__ void initialize_ring(Stage<Tile> (&ring)[kStages], int users) {
  for (int i = 0; i < kStages; ++i) {
    mbarrier_init(ring[i].full, 1);
    mbarrier_init(ring[i].free, users);
  }
}

// The keys that a block's queries see, as tiles.
struct KeyTiles {
  int first, count;  // first key; number of tiles
  template <int kKeys>
  __device__ static __forceinline__ KeyTiles of(const AttentionShape& shape, const QueryPlace& place, int queries) {
    const KeyRange all = keys_of_queries(shape, place.b, place.t0, min_int(place.t0 + queries, shape.Tq) - 1);
    return {all.first, all.last < all.first ? 0 : (all.last - all.first) / kKeys + 1};
  }
};

// ---------------------------------------------------------------------------------------------- producing tiles

// Starts the TMA load of kRows rows of a head, from `row` on. `full` counts the bytes. One thread calls.
template <int kRows, int kHD>
__device__ __forceinline__ void load_rows(WgmmaTile<kRows, kHD>& to, const TensorMap& map, Mbarrier& full, int head,
                                          int row, int b) {
#pragma unroll
  for (int panel = 0; panel < kHD / 64; ++panel) tma_load(to.panel[panel], map, full, panel * 64, head, row, b);
}

// Waits until the stage is free, then starts to load the next rows into it. `parity` is PipelineState::parity there.
template <class Tile>
__device__ __forceinline__ void load_stage(Stage<Tile>& stage, const TensorMap& map, int parity, int head, int row,
                                           int b) {
  mbarrier_wait(stage.free, parity ^ 1);
  mbarrier_arrive_expect_tx(stage.full, sizeof(stage.tile));
  load_rows(stage.tile, map, stage.full, head, row, b);
}

// ---------------------------------------------------------------------------------------------- products

// Starts d = A·Bᵀ over the head's columns. A is 64 rows of `a` from row0 on, and B is all rows of `b`.
template <int kHD, int kRows, int kN>
__device__ __forceinline__ void multiply_rows(float (&d)[kN / 2], const WgmmaTile<kRows, kHD>& a, int row0,
                                              const WgmmaTile<kN, kHD>& b) {
#pragma unroll
  for (int k = 0; k < kHD; k += 16) multiply<kN>(d, a.by_columns(row0, k), b.by_columns(0, k), k > 0);
}

// Starts d += weights·B. `weights` has one column for each row of `b`.
template <int kHD, int kRows>
__device__ __forceinline__ void add_weighted(float (&d)[kHD / 2], const uint32_t (&weights)[kRows / 16][4],
                                             const WgmmaTile<kRows, kHD>& b) {
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) multiply<kHD, Major::mn>(d, weights[k], b.by_rows(16 * k), true);
}

// Rounds a result to bf16, as the left operand of the next product. The fence makes sure that the weights are in their
// registers when that product starts.
template <int kN>
__device__ __forceinline__ void round_to_operand(uint32_t (&weights)[kN / 16][4], const float (&d)[kN / 2]) {
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) weights[i / 4][i % 4] = pair_of_bf16(d[2 * i], d[2 * i + 1]);
#pragma unroll
  for (int k = 0; k < kN / 16; ++k) warpgroup_fence_operand(weights[k]);
}

// Sets the elements of keys key0 … that a row does not see to `unseen`. `rows` has the keys that the lane's two rows
// see.
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

// d *= the row's factor. With `accumulate`, then d += the elements of `to`, for rows row0 + r < count.
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

// Epilogue: writes a warpgroup's result to rows row0 … of `staging`, whose products are done, and from there by TMA to
// the box at `row`. `barrier` is a named barrier that only this warpgroup uses.
template <int kHD, int kRows>
__device__ static __forceinline__ void store_rows(const TensorMap& map, int head, int row, int b,
                                                  const float (&d)[kHD / 2], WgmmaTile<kRows, kHD>& staging, int row0,
                                                  int barrier) {
  named_barrier_sync(barrier, kGroupThreads);  // the products of all four warps are done with the rows
#pragma unroll
  for (int i = 0; i < kHD / 4; ++i) {
    const int at = row0 + row_of_group(i % 2), column = column_of(i / 2, 0), chunk = column % 64 / 8 ^ (at & 7);
    auto* pair = reinterpret_cast<uint32_t*>(&staging.panel[column / 64][at][chunk * 8 + column % 8]);
    store_for_async_proxy(pair, pair_of_bf16(d[2 * i], d[2 * i + 1]));
  }
  fence_async_proxy();
  named_barrier_sync(barrier, kGroupThreads);
  if (threadIdx.x % kGroupThreads != 0) return;
#pragma unroll
  for (int panel = 0; panel < kHD / 64; ++panel) tma_store(map, staging.panel[panel][row0], panel * 64, head, row, b);
  tma_store_commit_group();
}

// ---------------------------------------------------------------------------------------------- for launchers

// Returns the map of a tensor (B, T, heads, HD), with boxes of `rows` rows and 64 columns of a head. Dimensions:
// columns, heads, positions, sequences.
inline TensorMap map_of_rows(Device& device, const Tensor& tensor, int rows, const char* who) {
  TmaTensor view;
  view.data = tensor.data;
  const int box[] = {64, 1, rows, 1};
  for (int i = 0; i < 4; ++i) view.sizes[i] = tensor.shape[3 - i], view.box[i] = box[i];
  const int64_t apart[] = {tensor.shape[3], tensor.stride[1], tensor.stride[0]};
  for (int i = 0; i < 3; ++i) view.strides[i] = apart[i] * int64_t(sizeof(bf16));
  return tensor_map(device, view, who);
}

// Returns false in a GPU build whose ARCH does not include 90a, otherwise true.
bool hopper_attention_is_built();
// Called by attention_forward and attention_backward.
void hopper_attention_forward(Stream& stream, const AttentionCall& call);
void hopper_attention_dq(Stream& stream, const AttentionCall& call);
void hopper_attention_dkv(Stream& stream, const AttentionCall& call);
