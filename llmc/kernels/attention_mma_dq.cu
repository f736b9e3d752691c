// Causal attention on tensor cores, backward: the gradient of queries, and rowsum_dO_O. With p[t,j] = exp(s[t,j] -
// lse[t]):
//
//   rowsum_dO_O[t] = dout[t].out[t]    dp[t,j] = dout[t].v[j]    ds[t,j] = p[t,j] (dp[t,j] - rowsum_dO_O[t])
//   dq[t] = softmax_scale * sum_j ds[t,j] k[j]
//
// dq, dout, out and q are (B, Tq, NH, HD), k and v (B, Tk, NKV, HD), rowsum_dO_O and lse (B, NH, Tq) fp32. Writes dq
// (= or +=) and rowsum_dO_O (=). Deterministic: one warp alone accumulates the dq of its queries. A second kernel
// computes dk and dv and recomputes the scores. That makes 7 gemms instead of 5, but no sum passes through device
// memory, and no block waits for another.
//
// A block has kBlockM = 128 queries of one head. At head size 128 each of 4 warps has 32 of them, at 64 each of 8 warps
// has 16. It walks over the keys that they see, kBlockN = 32 at a time (64 at head size 64).
//
// Limits: the bandwidth of shared memory, from which the operands of all three gemms come, except ds. A multiprocessor
// of an H100 or B200 holds two blocks of 97 KiB, of an A100, RTX 3090 or RTX 4090 one; at head size 64 an A100 holds
// two of 65 KiB.
#include "llmc/kernels/attention_mma.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

template <int kHD>
struct Tiles {
  static constexpr int kWarps = kHD == 64 ? 8 : 4, kM = kHD / 64, kBlockM = 16 * kM * kWarps, kBlockN = 4096 / kHD;
  struct Stage {
    bf16 k[kBlockN * kHD], v[kBlockN * kHD];
  };
  bf16 q[kBlockM * kHD], dout[kBlockM * kHD];
  Stage stage[2];
  float lse_log2[kBlockM], rowsum_dO_O[kBlockM];  // lse_log2: lse * log2(e)
  KeysOfWarp keys_of_warp[kWarps];
};
static_assert(sizeof(Tiles<128>) <= 99 << 10 && sizeof(Tiles<64>) <= 99 << 10);

// Computes rowsum_dO_O of the warp's rows and writes it to device memory and to shared memory. Copies lse to shared
// memory.
template <int kHD>
__device__ static __forceinline__ void prepare_rows(Tiles<kHD>& shared, float* rowsum_dO_O, const bf16* dout,
                                                    const bf16* out, const float* lse, const AttentionShape& shape,
                                                    const MBlockCoord& coord, int row_of_warp) {
  const size_t first = (size_t(coord.b) * shape.NH + coord.head) * shape.Tq;
  const auto store = [&](int row, int t, float sum) {
    shared.rowsum_dO_O[row] = sum;
    shared.lse_log2[row] = t < shape.Tq ? lse[first + t] * kLog2e : 0;
    if (t < shape.Tq) rowsum_dO_O[first + t] = sum;
  };
  compute_rowsum_dO_O<kHD, 16 * Tiles<kHD>::kM, 32>(dout, out, shape, coord, row_of_warp, lane_of_warp(), store);
}

// Replaces dp by ds. Rows are the warp's queries; column 0 is key key0. kMasked: not every query sees every key.
template <bool kMasked, int kHD, int kM, int kN>
__device__ static __forceinline__ void compute_ds(Accumulators<kM, kN>& dp, const Accumulators<kM, kN>& s,
                                                  const Tiles<kHD>& shared, const AttentionShape& shape,
                                                  int row_of_warp, int m_blocks, int key0, float softmax_scale) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_warp + row_in_warp(m, half);
      const float lse_log2 = shared.lse_log2[row], rowsum_of_row = shared.rowsum_dO_O[row];
      KeyRange of_row = {0, 0};
      if constexpr (kMasked) {
        const MBlockCoord again = m_block_coord(shape, block_index_again(), m_blocks, Tiles<kHD>::kBlockM);
        of_row = keys_of_query_or_last(shape, again.b, again.t0 + row);
      }
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int i = half * 2 + odd, j = key0 + column_in_tile(n, odd);
          const float p = exp2_f32(s[m][n][i] * (softmax_scale * kLog2e) - lse_log2);
          const float d = p * (dp[m][n][i] - rowsum_of_row);
          dp[m][n][i] = kMasked && (j < of_row.first || j > of_row.last) ? 0.0f : d;
        }
    }
}

template <int kHD>
__global__ void __launch_bounds__(32 * Tiles<kHD>::kWarps, 2)
    attention_mma_dq_kernel(bf16* __restrict__ dq, float* __restrict__ rowsum_dO_O, const bf16* __restrict__ dout,
                            const bf16* __restrict__ out, const float* __restrict__ lse, const bf16* __restrict__ q,
                            const bf16* __restrict__ k, const bf16* __restrict__ v, AttentionShape shape,
                            float softmax_scale, int m_blocks, bool accumulate) {
  using Shared = Tiles<kHD>;
  constexpr int kM = Shared::kM, kBlockM = Shared::kBlockM, kBlockN = Shared::kBlockN, kN = kBlockN / 8,
                kUnroll = kHD == 64 ? 1 : 8;
  const MBlockCoord coord = m_block_coord(shape, blockIdx.x, m_blocks, kBlockM);
  const int kv_head = coord.head / (shape.NH / shape.NKV), row_of_warp = warp_number() * 16 * kM;
  const KeyRange all = keys_of_queries(shape, coord.b, coord.t0, min_int(coord.t0 + kBlockM, shape.Tq) - 1);

  Shared& shared = shared_memory<Shared>();
  using Source = RowSource<kHD, 32 * Shared::kWarps>;
  const int thread = threadIdx.x;
  KeySource<kHD, kBlockN, 32 * Shared::kWarps> keys(k, v, shape, coord.b, kv_head, all.first, thread);
  if (all.first <= all.last) {
    const int count = shape.Tq - coord.t0;
    Source(q, shape.q, coord.b, coord.head, coord.t0, thread).template fetch<kBlockM>(shared.q, shape.q, count, thread);
    Source(dout, shape.out, coord.b, coord.head, coord.t0, thread)
        .template fetch<kBlockM>(shared.dout, shape.out, count, thread);
    keys.fetch(shared.stage[0], shape, all.last + 1 - all.first, thread);
  }
  KeysOfWarp& seen = shared.keys_of_warp[warp_number()];
  const KeysOfWarp keys_seen = keys_of_warp<kM>(shape, coord.b, coord.t0 + row_of_warp);
  if (lane_of_warp() == 0) seen = keys_seen;
  prepare_rows(shared, rowsum_dO_O, dout, out, lse, shape, coord, row_of_warp);

  float acc_dq[kM][kHD / 8][4] = {};
  // Adds the keys of a stage to acc_dq; dp is replaced by ds. `masked`: not every query of the warp sees every key.
  const auto add_tile = [&](auto masked, int key0, auto& now) {
    float s[kM][kN][4] = {}, dp[kM][kN][4] = {};
    gemm<kHD, kM, kN, kUnroll>(s, shared.q, row_of_warp, now.k);
    gemm<kHD, kM, kN, kUnroll>(dp, shared.dout, row_of_warp, now.v);
    compute_ds<masked.value>(dp, s, shared, shape, row_of_warp, m_blocks, key0, softmax_scale);
    uint32_t ds[kM][kN / 2][4];
    round_to_operand_a(ds, dp);
    gemm_rs<kHD>(acc_dq, ds, now.k);
  };
#pragma unroll 1
  for (int key0 = all.first, stage = 0; key0 <= all.last; key0 += kBlockN, stage ^= 1) {
    cp_async_wait_group<0>();
    __syncthreads();  // all threads' copies have arrived, and all threads are done with the other stage
    const int next = key0 + kBlockN;
    if (next <= all.last) keys.fetch(shared.stage[stage ^ 1], shape, all.last + 1 - next, thread);
    if (!seen.see_some(key0, next - 1)) continue;
    if (seen.see_every(key0, next - 1)) add_tile(std::false_type{}, key0, shared.stage[stage]);
    else add_tile(std::true_type{}, key0, shared.stage[stage]);
  }
  const MBlockCoord again = m_block_coord(shape, block_index_again(), m_blocks, kBlockM);
  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factor[m][0] = factor[m][1] = softmax_scale;
  store_rows<kHD>(HeadRows<bf16>(dq, shape.q, again.b, again.head, 1, kHD), again.t0, shape.Tq, acc_dq, factor,
                  shared.q, row_of_warp, accumulate);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void mma_attention_dq(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  with_tensor_core_head_size(s.HD, [&](auto head_size) {
    constexpr int kHD = decltype(head_size)::value;
    using Shared = Tiles<kHD>;
    const unsigned m_blocks = blocks_for(size_t(s.Tq), Shared::kBlockM);
    launch<attention_mma_dq_kernel<kHD>>(
        dq_work(stream, "attention_mma, dq", RateClass::attention_mma_backward, call), m_blocks * unsigned(s.NH * s.B),
        32 * Shared::kWarps, sizeof(Shared), call.dq.as<bf16>(), call.rowsum_dO_O.as<float>(), call.dout.as<bf16>(),
        call.out.as<bf16>(), call.lse.as<float>(), call.q.as<bf16>(), call.k.as<bf16>(), call.v.as<bf16>(), s,
        call.softmax_scale(), int(m_blocks), call.accumulate.dq);
  });
}
