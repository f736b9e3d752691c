// Shared by the attention kernels for Hopper (Shah et al. 2024, FlashAttention-3): bf16, head size 64 or 128, sm_90a.
//
// A block's warpgroups have roles (warp specialization). Warpgroup 0 is the producer: one of its threads starts TMA
// loads of tiles into rings of stages. Each stage has two mbarriers: `full` counts the bytes that have arrived, and
// `empty` counts the warps that have released the stage. The other warpgroups are consumers: each computes 64 rows of
// its own with wgmma and keeps their accumulators in registers. The consumers also get the registers that the producer
// does not need (setmaxnreg). dev/kernels/attention_hopper.svg shows who waits for what.
//
// The block's own rows stay in shared-memory tiles of q, k, v or dout. When the gemms of a consumer are done, its
// epilogue writes the result over its own rows there, and TMA stores them as boxes. TMA fills the part of a box beyond
// the tensor with zeros on loads and does not write it on stores, so rows beyond the last need no special case.
//
// Forward and dq are persistent: a block computes one m_block after another, so that the next one's loads and first
// gemms do not wait for a new block. There are at most four blocks for each multiprocessor, and more than one because
// NCCL may hold some multiprocessors when the kernel begins: a kernel with one block each would wait for those.
#pragma once

#include <algorithm>

#include "llmc/device/tensor_core.cuh"
#include "llmc/device/tma.cuh"
#include "llmc/device/wgmma.cuh"
#include "llmc/kernels/attention_common.cuh"

constexpr int kWarpgroupThreads = 128, kWarpgroupRows = 64;  // threads and rows of a warpgroup

// Returns 0 for the producer and 1, 2, … for the consumers. The shuffle tells the compiler that all lanes of a warp get
// the same number.
__device__ static __forceinline__ int warpgroup_number() {
  return __shfl_sync(~0u, int(threadIdx.x) / kWarpgroupThreads, 0);
}
// True in one lane of each warp.
__device__ static __forceinline__ bool elect_one() { return threadIdx.x % 32 == 0; }

// Row and column, in a warpgroup's accumulator, of a lane's element d[4 * j + 2 * half + odd] (layout: wgmma.cuh).
__device__ static __forceinline__ int row_in_warpgroup(int half) {
  return warp_number() % 4 * 16 + half * 8 + lane_of_warp() / 4;
}
__device__ static __forceinline__ int column_in_warpgroup(int j, int odd) {
  return j * 8 + lane_of_warp() % 4 * 2 + odd;
}

template <class... Maps>
__device__ __forceinline__ void prefetch_tensor_maps(const Maps&... maps) {
  (prefetch_tensor_map(maps), ...);
}

// A stage of a ring: a tile, the barrier that counts its bytes (`full`), and the barrier that counts the warps, or the
// warpgroups, that have released it (`empty`).
template <class Tile>
struct Stage {
  Tile tile;
  Mbarrier full, empty;
};
template <class Tile, int kStages>
__device__ __forceinline__ void initialize_ring(Stage<Tile> (&ring)[kStages], int arrivals_to_empty) {
  for (int i = 0; i < kStages; ++i) {
    mbarrier_init(ring[i].full, 1);
    mbarrier_init(ring[i].empty, arrivals_to_empty);
  }
}

// An m_block of forward and dq has the queries of 2^log2_heads heads that share keys and values: in its rows the heads
// of a position follow each other (PackGQA in FlashAttention-3). So the block has fewer positions, and fewer keys of
// its last n_block lie beyond them.
struct PackedMBlock {
  int head, b, t0, log2_heads;  // of row 0
  __device__ __forceinline__ int query(int row) const { return t0 + (row >> log2_heads); }
  __device__ __forceinline__ int head_of(int row) const { return head + (row & ((1 << log2_heads) - 1)); }
};

// The n_blocks that an m_block attends to: number i has the keys first_key + i * kBlockN …. The first begins at the
// first key that any of the queries sees.
struct KeyBlocks {
  int first_key, count;
  template <int kBlockN>
  __device__ static __forceinline__ KeyBlocks of(const AttentionShape& shape, const PackedMBlock& coord, int kBlockM) {
    const int last_query = min_int(coord.query(kBlockM - 1), shape.Tq - 1);
    const KeyRange all = keys_of_queries(shape, coord.b, coord.t0, last_query);
    return {all.first, all.last < all.first ? 0 : (all.last - all.first) / kBlockN + 1};
  }
};

// Calls body(coord, key_blocks) for each m_block that this block computes. The last queries of a sequence see the most
// keys, so the last m_blocks come first. The blocks take them in order, then in reverse order, and so on, so that all
// blocks get nearly the same number of n_blocks (without documents).
template <int kBlockM, int kBlockN, class Body>
__device__ __forceinline__ void for_m_blocks(const AttentionShape& shape, int m_blocks, int log2_heads,
                                             const Body& body) {
  const int packs = shape.NH >> log2_heads, all = m_blocks * packs * shape.B, blocks = gridDim.x, block = blockIdx.x;
#pragma unroll 1
  for (int first = 0, reverse = 0; first < all; first += blocks, reverse ^= 1) {
    const int index = first + (reverse ? blocks - 1 - block : block);
    if (index >= all) continue;
    const int from_last = index / (packs * shape.B), pack = index % (packs * shape.B);
    const PackedMBlock coord = {pack % packs << log2_heads, pack / packs,
                                (m_blocks - 1 - from_last) * (kBlockM >> log2_heads), log2_heads};
    body(coord, KeyBlocks::of<kBlockN>(shape, coord, kBlockM));
  }
}

// Returns the keys that every query of a warp sees, whose 16 rows of the m_block begin with `row`.
__device__ static __forceinline__ KeyRange keys_seen_by_all(const AttentionShape& shape, const PackedMBlock& coord,
                                                            int row) {
  KeyRange all = keys_of_query_or_last(shape, coord.b, coord.query(row + lane_of_warp() % 16));
#pragma unroll
  for (int width = 8; width; width /= 2) {
    all.first = max_int(all.first, __shfl_xor_sync(~0u, all.first, width));
    all.last = min_int(all.last, __shfl_xor_sync(~0u, all.last, width));
  }
  return all;
}

// ---------------------------------------------------------------------------------------------- loads

// Starts the TMA load of kRows rows of a head, from `row` on. `full` counts the bytes. One thread calls.
template <int kRows, int kHD>
__device__ __forceinline__ void load_rows(WgmmaTile<kRows, kHD>& to, const TensorMap& map, Mbarrier& full, int head,
                                          int row, int b) {
#pragma unroll
  for (int panel = 0; panel < kHD / 64; ++panel) tma_load(to.panel[panel], map, full, panel * 64, head, row, b);
}

// Waits until the stage is empty, then starts to load the next rows into it. `parity` is PipelineState::parity there.
template <class Tile>
__device__ __forceinline__ void load_stage(Stage<Tile>& stage, const TensorMap& map, int parity, int head, int row,
                                           int b) {
  mbarrier_wait(stage.empty, parity ^ 1);
  mbarrier_arrive_expect_tx(stage.full, sizeof(stage.tile));
  load_rows(stage.tile, map, stage.full, head, row, b);
}

// ---------------------------------------------------------------------------------------------- gemms

// Starts d = A·Bᵀ. A is 64 rows of `a` from row0 on, B is all rows of `b`; both are K-major, and K is the head size.
template <int kHD, int kRows, int kN>
__device__ __forceinline__ void gemm(float (&d)[kN / 2], const WgmmaTile<kRows, kHD>& a, int row0,
                                     const WgmmaTile<kN, kHD>& b) {
#pragma unroll
  for (int k = 0; k < kHD; k += 16) wgmma<kN>(d, a.k_major(row0, k), b.k_major(0, k), k > 0);
}

// The same with A in registers, as load_operand_a leaves it.
template <int kHD, int kN>
__device__ __forceinline__ void gemm(float (&d)[kN / 2], const uint32_t (&a)[kHD / 16][4],
                                     const WgmmaTile<kN, kHD>& b) {
#pragma unroll
  for (int k = 0; k < kHD / 16; ++k) wgmma<kN>(d, a[k], b.k_major(0, 16 * k), k > 0);
}

// Starts d += A·B, with A in registers. A has one column for each row of `b`, so K is the rows of `b`: MN-major.
template <int kHD, int kRows>
__device__ __forceinline__ void gemm_rs(float (&d)[kHD / 2], const uint32_t (&a)[kRows / 16][4],
                                        const WgmmaTile<kRows, kHD>& b) {
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) wgmma<kHD, Major::mn>(d, a[k], b.mn_major(16 * k), true);
}

// Loads 64 rows of `from`, from row0 on, as operand A of gemms whose K is the head size.
template <int kHD, int kRows>
__device__ __forceinline__ void load_operand_a(uint32_t (&a)[kHD / 16][4], const WgmmaTile<kRows, kHD>& from,
                                               int row0) {
#pragma unroll
  for (int i = 0; i < kHD / 4; ++i) {
    const int row = row0 + row_in_warpgroup(i % 2), column = column_in_warpgroup(i / 2, 0),
              chunk = column % 64 / 8 ^ (row & 7);
    memcpy(&a[i / 4][i % 4], &from.panel[column / 64][row][chunk * 8 + column % 8], sizeof(uint32_t));
  }
#pragma unroll
  for (int k = 0; k < kHD / 16; ++k) warpgroup_fence_operand(a[k]);
}

// Rounds an accumulator to bf16, as operand A of the next gemm. The fence makes sure that A is in its registers when
// that gemm starts.
template <int kN>
__device__ __forceinline__ void round_to_operand_a(uint32_t (&a)[kN / 16][4], const float (&d)[kN / 2]) {
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) a[i / 4][i % 4] = pair_of_bf16(d[2 * i], d[2 * i + 1]);
#pragma unroll
  for (int k = 0; k < kN / 16; ++k) warpgroup_fence_operand(a[k]);
}

// Sets the scores of keys that a row does not see to `unseen`. Column 0 of `s` is key key0; `rows` has the keys that
// the lane's two rows see.
template <int kCount>
__device__ static __forceinline__ void mask(float (&s)[kCount], int key0, const KeyRange (&rows)[2], float unseen) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = rows[half].first - key0, last = rows[half].last - key0;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd)
        if (column_in_warpgroup(j, odd) < first || column_in_warpgroup(j, odd) > last)
          s[4 * j + 2 * half + odd] = unseen;
  }
}

// ---------------------------------------------------------------------------------------------- results

// d *= the row's factor. With `accumulate`, then d += the elements of `to`, for those rows row0 + r that belong to the
// first `count` positions.
template <int kHD>
__device__ static __forceinline__ void scale_and_accumulate(float (&d)[kHD / 2], const float (&factor)[2],
                                                            const HeadRows<bf16>& to, int row0, int count,
                                                            bool accumulate) {
#pragma unroll
  for (int i = 0; i < kHD / 2; ++i) d[i] *= factor[i / 2 % 2];
  if (!accumulate) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + row_in_warpgroup(half);
    if (row >= count * to.group) continue;
#pragma unroll
    for (int j = 0; j < kHD / 8; ++j) {
      float before[2];
      load_vector(before, to.row(row) + column_in_warpgroup(j, 0));
      d[4 * j + 2 * half] += before[0];
      d[4 * j + 2 * half + 1] += before[1];
    }
  }
}

// Epilogue: writes a warpgroup's accumulator to rows row0 … of `staging`, which no gemm reads any more, and from there
// by TMA to the box at `row`. `barrier` is a named barrier that only this warpgroup uses.
template <int kHD, int kRows>
__device__ static __forceinline__ void store_rows(const TensorMap& map, int head, int row, int b,
                                                  const float (&d)[kHD / 2], WgmmaTile<kRows, kHD>& staging, int row0,
                                                  int barrier) {
  named_barrier_sync(barrier, kWarpgroupThreads);  // the gemms of all four warps have read the rows
#pragma unroll
  for (int i = 0; i < kHD / 4; ++i) {
    const int at = row0 + row_in_warpgroup(i % 2), column = column_in_warpgroup(i / 2, 0),
              chunk = column % 64 / 8 ^ (at & 7);
    auto* pair = reinterpret_cast<uint32_t*>(&staging.panel[column / 64][at][chunk * 8 + column % 8]);
    store_for_async_proxy(pair, pair_of_bf16(d[2 * i], d[2 * i + 1]));
  }
  fence_async_proxy();
  named_barrier_sync(barrier, kWarpgroupThreads);
  if (threadIdx.x % kWarpgroupThreads != 0) return;
#pragma unroll
  for (int panel = 0; panel < kHD / 64; ++panel) tma_store(map, staging.panel[panel][row0], panel * 64, head, row, b);
  tma_store_commit_group();
}

// ---------------------------------------------------------------------------------------------- for launchers

// Returns the map of a tensor (B, T, heads, HD), with boxes of `rows` rows, of as many positions of one head or of
// fewer positions of 2^log2_heads, and of 64 columns of a head. Dimensions: columns, heads, positions, sequences.
inline TensorMap map_of_rows(Device& device, const Tensor& tensor, int rows, const char* who, int log2_heads = 0) {
  TmaTensor view;
  view.data = tensor.data;
  const int box[] = {64, 1 << log2_heads, rows >> log2_heads, 1};
  for (int i = 0; i < 4; ++i) view.sizes[i] = tensor.shape[3 - i], view.box[i] = box[i];
  const int64_t apart[] = {tensor.shape[3], tensor.stride[1], tensor.stride[0]};
  for (int i = 0; i < 3; ++i) view.strides[i] = apart[i] * int64_t(sizeof(bf16));
  return tensor_map(device, view, who);
}

// Returns the binary logarithm of the number of heads that an m_block has. They are 16 at most, so that a warp's 16
// rows are whole positions.
inline int log2_packed_heads(const AttentionShape& shape) {
  const int group = shape.NH / shape.NKV;
  int log2_heads = 0;
  while (log2_heads < 4 && group % (2 << log2_heads) == 0) ++log2_heads;
  return log2_heads;
}

// Returns the number of blocks of a persistent kernel with that many m_blocks.
inline unsigned persistent_blocks(const Device& device, unsigned m_blocks) {
  constexpr unsigned kMaxBlocksPerMultiprocessor = 4;
  return std::min(m_blocks, kMaxBlocksPerMultiprocessor * unsigned(device.info().multiprocessors));
}

// Returns false in a GPU build whose ARCH does not include 90a, otherwise true.
bool hopper_attention_is_built();
// Called by attention_forward and attention_backward.
void hopper_attention_forward(Stream& stream, const AttentionCall& call);
void hopper_attention_dq(Stream& stream, const AttentionCall& call);
void hopper_attention_dkv(Stream& stream, const AttentionCall& call);
