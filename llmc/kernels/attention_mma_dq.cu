// Causal attention on tensor cores, backward: the gradient of queries, and delta.  With p[t,j] = exp(s[t,j] - lse[t]):
//
//   delta[t] = dout[t].out[t]    ds[t,j] = p[t,j] (dout[t].v[j] - delta[t])    dq[t] = scale * sum_j ds[t,j] k[j]
//
// Writes dq (= or +=) and delta (=).  Deterministic: one warp alone accumulates the sums of its queries. A second
// kernel computes the gradients of keys and values and recomputes the scores. That makes 7 products instead of 5, but
// no sum passes through device memory, and no block waits for another.
//
// Expected limit: shared memory. At head size 128 a warp has 32 rows, as in forward. For 3 * 2 * n/8 * HD/16 m16n8k16
// products, a tile of n keys needs right operands of 3 * n * HD * 2 bytes and left operands of 2 * 32 * HD * 2 bytes.
// At n = 32 that is 213 bytes per product, and cp.async writes about 20 more: 1.8 cycles at 128 bytes per cycle. The
// tensor cores need 1.6 cycles (mma.sync on Hopper). A multiprocessor of an H100 or B200 holds two blocks of 97 KiB, of
// an A100, RTX 3090 or RTX 4090 one. At head size 64 a warp has 16 rows, and a product takes 2.5 cycles; an A100 holds
// two of these blocks of 65 KiB.
#include "llmc/kernels/attention_mma.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

template <int kHD>
struct Tiles {
  static constexpr int kWarps = kHD == 64 ? 8 : 4, kM = kHD / 64, kRows = 16 * kM * kWarps, kKeys = 4096 / kHD;
  struct Stage {
    bf16 k[kKeys * kHD], v[kKeys * kHD];
  };
  bf16 q[kRows * kHD], dout[kRows * kHD];
  Stage stage[2];
  float lse[kRows], delta[kRows];  // lse in units of log 2
  KeysOfWarp seen[kWarps];
};
static_assert(sizeof(Tiles<128>) <= 99 << 10 && sizeof(Tiles<64>) <= 99 << 10);

// Computes rowsum_dO_O of the warp's rows and writes it to device memory and to shared memory. Copies lse to shared
// memory.
template <int kHD>
__device__ static __forceinline__ void prepare_rows(Tiles<kHD>& shared, float* delta, const bf16* dout, const bf16* out,
                                                    const float* lse, const AttentionShape& shape,
                                                    const QueryPlace& place, int row_of_warp) {
  const size_t first = (size_t(place.b) * shape.NH + place.head) * shape.Tq;
  const auto store = [&](int row, int t, float sum) {
    shared.delta[row] = sum;
    shared.lse[row] = t < shape.Tq ? lse[first + t] * kLog2e : 0;
    if (t < shape.Tq) delta[first + t] = sum;
  };
  compute_rowsum_dO_O<kHD, 16 * Tiles<kHD>::kM, 32>(dout, out, shape, place, row_of_warp, lane_of_warp(), store);
}

template <int kHD>
__global__ void __launch_bounds__(32 * Tiles<kHD>::kWarps, 2)
    attention_mma_dq_kernel(bf16* __restrict__ dq, float* __restrict__ delta, const bf16* __restrict__ dout,
                            const bf16* __restrict__ out, const float* __restrict__ lse, const bf16* __restrict__ q,
                            const bf16* __restrict__ k, const bf16* __restrict__ v, AttentionShape shape, float scale,
                            int ranges, bool accumulate) {
  using Shared = Tiles<kHD>;
  constexpr int kM = Shared::kM, kRows = Shared::kRows, kKeys = Shared::kKeys, kN = kKeys / 8,
                kUnroll = kHD == 64 ? 1 : 8;
  const QueryPlace place = query_place(shape, blockIdx.x, ranges, kRows);
  const int kv_head = place.head / (shape.NH / shape.NKV), row_of_warp = warp_number() * 16 * kM;
  const KeyRange all = keys_of_queries(shape, place.b, place.t0, min_int(place.t0 + kRows, shape.Tq) - 1);

  Shared& shared = shared_memory<Shared>();
  using Source = RowSource<kHD, 32 * Shared::kWarps>;
  const int thread = threadIdx.x;
  KeySource<kHD, kKeys, 32 * Shared::kWarps> keys(k, v, shape, place.b, kv_head, all.first, thread);
  if (all.first <= all.last) {
    const int count = shape.Tq - place.t0;
    Source(q, shape.q, place.b, place.head, place.t0, thread).template fetch<kRows>(shared.q, shape.q, count, thread);
    Source(dout, shape.out, place.b, place.head, place.t0, thread)
        .template fetch<kRows>(shared.dout, shape.out, count, thread);
    keys.fetch(shared.stage[0], shape, all.last + 1 - all.first, thread);
  }
  KeysOfWarp& seen = shared.seen[warp_number()];
  const KeysOfWarp keys_seen = keys_of_warp<kM>(shape, place.b, place.t0 + row_of_warp);
  if (lane_of_warp() == 0) seen = keys_seen;
  prepare_rows(shared, delta, dout, out, lse, shape, place, row_of_warp);

  float sum[kM][kHD / 8][4] = {};
  const auto add_tile = [&](auto masked, int key0, auto& now) {
    float s[kM][kN][4] = {}, ds[kM][kN][4] = {};
    multiply_tiles<kHD, kM, kN, kUnroll>(s, shared.q, row_of_warp, now.k);
    multiply_tiles<kHD, kM, kN, kUnroll>(ds, shared.dout, row_of_warp, now.v);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of_warp + row_in_warp(m, half);
        const float lse2 = shared.lse[row], delta_of_row = shared.delta[row];
        KeyRange of_row = {0, 0};
        if constexpr (masked.value) {
          const QueryPlace again = query_place(shape, block_index_again(), ranges, kRows);
          of_row = keys_of_query_or_last(shape, again.b, again.t0 + row);
        }
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const int i = half * 2 + odd, j = key0 + column_in_tile(n, odd);
            const float p = exp2_f32(s[m][n][i] * (scale * kLog2e) - lse2);
            const float d = p * (ds[m][n][i] - delta_of_row);
            ds[m][n][i] = masked.value && (j < of_row.first || j > of_row.last) ? 0.0f : d;
          }
      }
    uint32_t weights[kM][kN / 2][4];
    round_to_pairs(weights, ds);
    add_weighted_rows<kHD>(sum, weights, now.k);
  };
#pragma unroll 1
  for (int key0 = all.first, stage = 0; key0 <= all.last; key0 += kKeys, stage ^= 1) {
    cp_async_wait_group<0>();
    __syncthreads();  // all threads' copies have arrived, and all threads are done with the other stage
    const int next = key0 + kKeys;
    if (next <= all.last) keys.fetch(shared.stage[stage ^ 1], shape, all.last + 1 - next, thread);
    if (!seen.see_some(key0, next - 1)) continue;
    if (seen.see_every(key0, next - 1)) add_tile(std::false_type{}, key0, shared.stage[stage]);
    else add_tile(std::true_type{}, key0, shared.stage[stage]);
  }
  const QueryPlace again = query_place(shape, block_index_again(), ranges, kRows);
  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factor[m][0] = factor[m][1] = scale;
  store_rows<kHD>(HeadRows<bf16>(dq, shape.q, again.b, again.head, 1, kHD), again.t0, shape.Tq, sum, factor, shared.q,
                  row_of_warp, accumulate);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void mma_attention_dq(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  with_tensor_core_head_size(s.HD, [&](auto head_size) {
    constexpr int kHD = decltype(head_size)::value;
    using Shared = Tiles<kHD>;
    const unsigned ranges = blocks_for(size_t(s.Tq), Shared::kRows);
    launch<attention_mma_dq_kernel<kHD>>(
        dq_work(stream, "attention_mma, dq", RateClass::attention_mma_backward, call), ranges * unsigned(s.NH * s.B),
        32 * Shared::kWarps, sizeof(Shared), call.dq.as<bf16>(), call.delta.as<float>(), call.dout.as<bf16>(),
        call.out.as<bf16>(), call.lse.as<float>(), call.q.as<bf16>(), call.k.as<bf16>(), call.v.as<bf16>(), s,
        call.scale(), int(ranges), call.accumulate.dq);
  });
}
