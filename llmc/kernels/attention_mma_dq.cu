// Causal attention on tensor cores, backward: the gradient of queries, and delta.  With p[t,j] = exp(s[t,j] - lse[t]):
//
//   delta[t] = dout[t].out[t]    ds[t,j] = p[t,j] (dout[t].v[j] - delta[t])    dq[t] = scale * sum_j ds[t,j] k[j]
//
// dq = or +=, delta =.  Deterministic: a warp has its queries' sums to itself. Gradients of keys are a kernel of their
// own, which computes the scores again: 7 products where 5 would do, but no sum passes through device memory, and none
// waits for another block.
//
// What should limit it: a warp has 16 rows, so right operands come from shared memory twice as often as in forward:
// 3 * n * HD * 2 bytes a tile of n keys, and left ones 2 * 16 * HD * 2: at head size 128 and n = 64, 56 KiB for 192
// products of 16 x 8 x 16, 300 bytes each: at 128 bytes a cycle, shared memory lets the tensor cores do 7 of 10
// products that mma.sync can (at most about 430 TFLOP/s of an H100).
#include "llmc/kernels/attention_mma.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kM = 1, kKeys = 64;

template <int kHD, int kWarps>
struct Tiles {
  static constexpr int kRows = 16 * kM * kWarps;
  struct Stage {
    bf16 k[kKeys * kHD], v[kKeys * kHD];
  };
  bf16 q[kRows * kHD], dout[kRows * kHD];
  Stage stage[2];
  float lse[kRows], delta[kRows];
  KeysOfWarp seen[kWarps];
};

// delta of the warp's rows, to device memory and to shared memory; lse beside it, in units of log 2.
template <int kHD, int kWarps>
__device__ static __forceinline__ void compute_delta(Tiles<kHD, kWarps>& shared, float* delta, const bf16* dout,
                                                     const bf16* out, const float* lse, const AttentionShape& shape,
                                                     int b, int head, int t0, int row_of_warp) {
  constexpr int kChunks = kHD / 8, kRowsAtOnce = 32 / kChunks;  // a lane has 8 columns of a row
  const HeadRows<const bf16> outs(out, shape.out, b, head, 1, kHD), douts(dout, shape.out, b, head, 1, kHD);
  const size_t first = (size_t(b) * shape.NH + head) * shape.Tq;
  const int lane = lane_of_warp(), chunk = lane % kChunks;
#pragma unroll
  for (int r = 0; r < 16 * kM; r += kRowsAtOnce) {
    const int row = row_of_warp + r + lane / kChunks, t = t0 + row;
    float sum = 0;
    if (t < shape.Tq) {
      float x[8], y[8];
      load_vector(x, outs.base + t * outs.stride + chunk * 8);
      load_vector(y, douts.base + t * douts.stride + chunk * 8);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += x[i] * y[i];
    }
#pragma unroll
    for (int width = kChunks / 2; width; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
    if (chunk == 0) {
      shared.delta[row] = sum;
      shared.lse[row] = t < shape.Tq ? lse[first + t] * kLog2e : 0;
      if (t < shape.Tq) delta[first + t] = sum;
    }
  }
}

template <int kHD, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, kHD == 64 ? 2 : 1)
    attention_mma_dq_kernel(bf16* __restrict__ dq, float* __restrict__ delta, const bf16* __restrict__ dout,
                            const bf16* __restrict__ out, const float* __restrict__ lse, const bf16* __restrict__ q,
                            const bf16* __restrict__ k, const bf16* __restrict__ v, AttentionShape shape, float scale,
                            int ranges, bool accumulate) {
  using Shared = Tiles<kHD, kWarps>;
  constexpr int kRows = Shared::kRows, kThreads = 32 * kWarps, kN = kKeys / 8;
  const auto [head, b, t0] = query_place(shape, blockIdx.x, ranges, kRows);
  const int kv_head = head / (shape.NH / shape.NKV), row_of_warp = warp_number() * 16 * kM;
  const KeyRange all = keys_of_queries(shape, b, t0, least(t0 + kRows, shape.Tq) - 1);

  Shared& shared = shared_memory<Shared>();
  using Source = RowSource<kHD, kThreads>;
  const int thread = threadIdx.x;
  Source keys(k, shape.k, b, kv_head, all.first, thread), values(v, shape.v, b, kv_head, all.first, thread);
  const auto fetch = [&](int key0, int stage) {
    keys.template fetch<kKeys>(shared.stage[stage].k, shape.k, all.last + 1 - key0, thread);
    values.template fetch<kKeys>(shared.stage[stage].v, shape.v, all.last + 1 - key0, thread);
    cp_async_commit();
  };
  if (all.first <= all.last) {
    Source(q, shape.q, b, head, t0, thread).template fetch<kRows>(shared.q, shape.q, shape.Tq - t0, thread);
    Source(dout, shape.out, b, head, t0, thread).template fetch<kRows>(shared.dout, shape.out, shape.Tq - t0, thread);
    fetch(all.first, 0);
  }
  KeysOfWarp& seen = shared.seen[warp_number()];
  {
    const KeysOfWarp keys_seen = keys_of_warp<kM>(shape, b, t0 + row_of_warp);
    if (lane_of_warp() == 0) seen = keys_seen;
  }
  compute_delta(shared, delta, dout, out, lse, shape, b, head, t0, row_of_warp);

  Fragments<kM, kHD / 8> sum = {};
#pragma unroll 1
  for (int key0 = all.first, stage = 0; key0 <= all.last; key0 += kKeys, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // what all threads fetched is here, and all are done with the other stage
    if (key0 + kKeys <= all.last) fetch(key0 + kKeys, stage ^ 1);
    if (!seen.see_some(key0, key0 + kKeys - 1)) continue;
    const bool masked = !seen.see_every(key0, key0 + kKeys - 1);
    Fragments<kM, kN> s = {}, ds = {};
    multiply_tiles<kHD, kM, kN>(s, shared.q, row_of_warp, shared.stage[stage].k);
    multiply_tiles<kHD, kM, kN>(ds, shared.dout, row_of_warp, shared.stage[stage].v);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_warp + row_in_warp(0, half);
      const float lse2 = shared.lse[row], delta_of_row = shared.delta[row];
      KeyRange seen_here = {0, kKeys};  // keys of the tile
      if (masked) {
        const QueryPlace place = query_place(shape, block_index_again(), ranges, kRows);
        seen_here = keys_of_query_or_last(shape, place.b, place.t0 + row);
        seen_here.first -= key0, seen_here.last -= key0;
      }
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int i = half * 2 + odd, j = column_in_tile(n, odd);
          const float p = exp2_f32(s[0][n][i] * (scale * kLog2e) - lse2);
          ds[0][n][i] = j < seen_here.first || j > seen_here.last ? 0.0f : p * (ds[0][n][i] - delta_of_row);
        }
    }
    Pairs<kM, kN / 2> weights;
    round_to_pairs<kM, kN>(weights, ds);
    add_weighted_rows<kHD, kM, kN / 2>(sum, weights, shared.stage[stage].k);
  }
  const QueryPlace place = query_place(shape, block_index_again(), ranges, kRows);
  const float factor[kM][2] = {{scale, scale}};
  store_rows<kHD, kM>(HeadRows<bf16>(dq, shape.q, place.b, place.head, 1, kHD), place.t0, shape.Tq, sum, factor,
                      shared.q, row_of_warp, accumulate);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void mma_attention_dq(Stream& stream, bf16* dq, float* delta, const bf16* dout, const bf16* out, const float* lse,
                      const bf16* q, const bf16* k, const bf16* v, const AttentionShape& shape, bool accumulate) {
  const int B = shape.B, Tq = shape.Tq, Tk = shape.Tk, NH = shape.NH, NKV = shape.NKV, HD = shape.HD;
  with_mma_tiles(stream.device().info(), HD, [&](auto head_size, auto warps) {
    constexpr int kHD = decltype(head_size)::value, kWarps = decltype(warps)::value;
    using Shared = Tiles<kHD, kWarps>;
    const unsigned ranges = blocks_for(size_t(Tq), Shared::kRows);
    launch<attention_mma_dq_kernel<kHD, kWarps>>(
        {stream,
         "attention_mma, dq",
         {updates(dq, span_of(shape.q, B, Tq, NH, HD)), writes(delta, size_t(B) * NH * Tq),
          reads(dout, span_of(shape.out, B, Tq, NH, HD)), reads(out, span_of(shape.out, B, Tq, NH, HD)),
          reads(lse, size_t(B) * NH * Tq), reads(q, span_of(shape.q, B, Tq, NH, HD)),
          reads(k, span_of(shape.k, B, Tk, NKV, HD)), reads(v, span_of(shape.v, B, Tk, NKV, HD)),
          reads(shape.document_start, size_t(B) * Tq)},
         6.0 * HD * B * NH * attention_pairs(shape)},
        ranges * unsigned(NH * B), 32 * kWarps, sizeof(Shared), dq, delta, dout, out, lse, q, k, v, shape,
        1 / std::sqrt(float(HD)), int(ranges), accumulate);
  });
}
