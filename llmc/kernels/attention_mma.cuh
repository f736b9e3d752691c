// Shared by the attention kernels on tensor cores: bf16, head size 64 or 128, sm_80 and newer (Dao 2023,
// FlashAttention-2). A block has rows (queries or keys). Each warp has 16 or 32 of them (for dk and dv: each pair of
// warps has 32) and keeps their accumulators in registers. The block walks over tiles of the other side, in a pipeline
// of two stages in shared memory: while it computes with one tile, cp.async loads the next. All tiles are bf16 and
// swizzled. Scores stay in registers: the accumulator of one gemm is operand A of the next. Only the pairs of warps for
// dk and dv also exchange p and ds through shared memory.
//
// Exponentials are powers of 2, because 2^x is one instruction: p = 2^(s * log2e * scale - lse * log2e).
#pragma once

#include "llmc/device/tensor_core.cuh"
#include "llmc/kernels/attention_common.cuh"

// Accumulators of a warp: kM tiles of 16 rows by kN tiles of 8 columns. With g = lane / 4 and t = lane % 4, a lane has
// four elements of each tile: [0], [1] = row g, columns 2t and 2t+1; [2], [3] = row g+8, the same columns. So a lane
// has parts of 2 kM rows: `row_in_warp`.
// NOTE: CUDA 12.4's compiler aborts if the arguments of such an alias are constants of the function itself. There the
// kernels write out the array type.
template <int kM, int kN>
using Accumulators = float[kM][kN][4];
// Operand A of a gemm, in registers, as pairs of bf16: kM tiles of 16 rows by kK tiles of 16 columns.
template <int kM, int kK>
using OperandA = uint32_t[kM][kK][4];

__device__ static __forceinline__ int row_in_warp(int m, int half) { return m * 16 + half * 8 + lane_of_warp() / 4; }
__device__ static __forceinline__ int column_in_tile(int n, int odd) { return n * 8 + lane_of_warp() % 4 * 2 + odd; }

// ---------------------------------------------------------------------------------------------- tiles

// The rows of a head, copied tile by tile. `next` is the source address of this thread's part of the next tile.
template <int kHD, int kThreads>
struct RowSource {
  static constexpr int kChunks = kHD / 8, kRowsAtOnce = kThreads / kChunks;
  const bf16* next;

  // Starts at row `first`.
  __device__ __forceinline__ RowSource(const bf16* data, const AttentionStrides& strides, int b, int head, int first,
                                       int thread)
      : next(data + b * strides.batch + int64_t(head) * kHD + (first + thread / kChunks) * strides.row +
             thread % kChunks * 8) {}
  // Starts to copy the next kRows rows into a tile. `count` rows are left; the tile's rows after them become zeros.
  template <int kRows>
  __device__ __forceinline__ void fetch(bf16* tile, const AttentionStrides& strides, int count, int thread) {
    const int i = opaque(thread), row = i / kChunks, chunk = i % kChunks;
    const int64_t step = kRowsAtOnce * strides.row;
#pragma unroll
    for (int r = 0; r < kRows; r += kRowsAtOnce) {
      cp_async16(swizzled<kHD>(tile, r + row, chunk), next, r + row < count);
      next += step;
    }
  }
};

// Tiles of a head's keys and values, from key `first` on. Stage has the members k and v.
template <int kHD, int kBlockN, int kThreads>
struct KeySource {
  RowSource<kHD, kThreads> keys, values;

  __device__ __forceinline__ KeySource(const bf16* k, const bf16* v, const AttentionShape& shape, int b, int kv_head,
                                       int first, int thread)
      : keys(k, shape.k, b, kv_head, first, thread), values(v, shape.v, b, kv_head, first, thread) {}
  // Starts to copy the next tile, as one cp.async group. `count` keys are left.
  template <class Stage>
  __device__ __forceinline__ void fetch(Stage& to, const AttentionShape& shape, int count, int thread) {
    keys.template fetch<kBlockN>(to.k, shape.k, count, thread);
    values.template fetch<kBlockN>(to.v, shape.v, count, thread);
    cp_async_commit_group();
  }
};

// ---------------------------------------------------------------------------------------------- gemms

// acc += A·Bᵀ. A is rows row0 … of tile `a`, B is all 8 kN rows of `b`; both are K-major, and K is the head size.
// kUnroll: steps of 16 columns whose operands the compiler may load ahead; the kernel's free registers limit it.
template <int kHD, int kM, int kN, int kUnroll>
__device__ static __forceinline__ void gemm(Accumulators<kM, kN>& acc, bf16* a, int row0, bf16* b) {
  const int lane = opaque(lane_of_warp());
  const SharedAddress a0 = swizzled_address<kHD>(a, row0 + lane % 16, lane / 16);
  const SharedAddress b0 = swizzled_address<kHD>(b, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll kUnroll
  for (int k = 0; k < kHD; k += 16) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) ldmatrix_x4<false>(left[m], further<kHD>(a0, m * 16, k / 8));
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      ldmatrix_x4<false>(right, further<kHD>(b0, n * 8, k / 8));
      const uint32_t pairs[2][2] = {{right[0], right[1]}, {right[2], right[3]}};
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16(acc[m][n], left[m], pairs[0]);
        mma_m16n8k16(acc[m][n + 1], left[m], pairs[1]);
      }
    }
  }
}

// acc += A·B, with A in registers. A has 16 kK columns. B is as many rows of tile `b` (MN-major), and the 8 kN columns
// from chunk `chunk0` on (a multiple of kN).
template <int kHD, int kM, int kN, int kK>
__device__ static __forceinline__ void gemm_rs(Accumulators<kM, kN>& acc, const OperandA<kM, kK>& a, bf16* b,
                                               int chunk0 = 0) {
  const int lane = opaque(lane_of_warp());
  const SharedAddress b0 = further<kHD>(swizzled_address<kHD>(b, lane % 16, lane / 16), 0, chunk0);
#pragma unroll
  for (int k = 0; k < kK; ++k)
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      ldmatrix_x4<true>(right, further<kHD>(b0, k * 16, n));
      const uint32_t pairs[2][2] = {{right[0], right[1]}, {right[2], right[3]}};
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16(acc[m][n], a[m][k], pairs[0]);
        mma_m16n8k16(acc[m][n + 1], a[m][k], pairs[1]);
      }
    }
}

// Rounds an accumulator to bf16, as operand A of the next gemm.
template <int kM, int kN>
__device__ __forceinline__ void round_to_operand_a(OperandA<kM, kN / 2>& a, const Accumulators<kM, kN>& acc) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        a[m][n / 2][n % 2 * 2 + half] = pair_of_bf16(acc[m][n][half * 2], acc[m][n][half * 2 + 1]);
}

// ---------------------------------------------------------------------------------------------- results

// Epilogue: to = or += values * scale, for the warp's rows that are below `count` in the head and the 8 kN columns from
// chunk `chunk0` on. Row 0 of the block is row row0 of the head; `row_of_warp` is the warp's first row in the block.
// Without `accumulate`, the values pass through the same rows and columns of `staging`, so that each store writes 16
// bytes; no other warp may still read them there. With `accumulate`, the sum is rounded once.
template <int kHD, int kM, int kN>
__device__ static __forceinline__ void store_rows(const HeadRows<bf16>& to, int row0, int count,
                                                  const Accumulators<kM, kN>& values, const float (&scale)[kM][2],
                                                  bf16* staging, int row_of_warp, bool accumulate, int chunk0 = 0) {
  const int lane = lane_of_warp();
  if (accumulate) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + row_of_warp + row_in_warp(m, half);
        if (row >= count) continue;
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          bf16* coord = to.base + row * to.stride + chunk0 * 8 + column_in_tile(n, 0);
          float sum[2];
          load_vector(sum, coord);
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) sum[odd] += values[m][n][half * 2 + odd] * scale[m][half];
          store_vector(coord, sum);
        }
      }
    return;
  }
  __syncwarp();  // every lane has read what these rows held
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float factor = scale[m][half];
        const uint32_t pair = pair_of_bf16(values[m][n][half * 2] * factor, values[m][n][half * 2 + 1] * factor);
        bf16* coord = swizzled<kHD>(staging, row_of_warp + row_in_warp(m, half), chunk0 + n) + lane % 4 * 2;
        *reinterpret_cast<uint32_t*>(coord) = pair;
      }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kM * 16 * kN / 32; ++i) {
    const int row = (i * 32 + lane) / kN, chunk = chunk0 + lane % kN;
    if (row0 + row_of_warp + row < count)
      *reinterpret_cast<Vector<bf16, 8>*>(to.base + (row0 + row_of_warp + row) * to.stride + chunk * 8) =
          *reinterpret_cast<const Vector<bf16, 8>*>(swizzled<kHD>(staging, row_of_warp + row, chunk));
  }
}

// amax = max(amax, the largest magnitude in the warp's rows of `staging`, as store_rows left them).
template <int kHD, int kM, int kN>
__device__ static __forceinline__ void raise_amax(float* amax, int row0, int count, bf16* staging, int row_of_warp) {
  Vector<bf16, 8> magnitudes = {};
#pragma unroll 1
  for (int i = 0; i < kM * 16 * kN / 32; ++i) {
    const int row = (i * 32 + lane_of_warp()) / kN, chunk = lane_of_warp() % kN;
    if (row0 + row_of_warp + row < count)
      max_abs_into(magnitudes,
                   *reinterpret_cast<const Vector<bf16, 8>*>(swizzled<kHD>(staging, row_of_warp + row, chunk)));
  }
  const uint32_t of_warp = warp_max(max_value(magnitudes));
  if (lane_of_warp() == 0) atomic_max(reinterpret_cast<uint32_t*>(amax), of_warp);
}

// ---------------------------------------------------------------------------------------------- for launchers

// Called by attention_forward and attention_backward.
void mma_attention_forward(Stream& stream, const AttentionCall& call);
void mma_attention_dq(Stream& stream, const AttentionCall& call);
void mma_attention_dkv(Stream& stream, const AttentionCall& call);
