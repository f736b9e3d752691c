// Causal attention on tensor cores, backward: the gradients of keys and values. With p[t,j] = exp(s[t,j] - lse[t]):
//
//   dp[t,j] = dout[t].v[j]    ds[t,j] = p[t,j] (dp[t,j] - rowsum_dO_O[t])
//   dk[j] = softmax_scale * sum_t ds[t,j] q[t]    dv[j] = sum_t p[t,j] dout[t]
//
// dk, dv, k and v are (B, Tk, NKV, HD), dout and q (B, Tq, NH, HD), lse and rowsum_dO_O (B, NH, Tq) fp32. Writes dk
// and dv (= or +=). Deterministic, without atomics: a pair of warps alone accumulates dk and dv of 32 keys, over the
// queries that see them in all heads of the group. Scores are computed transposed, keys x queries, so that p and ds in
// registers already are operand A of the gemms that sum over queries.
//
// A block has kBlockN = 128 keys (64 where shared memory is small) and walks over the queries, kBlockM = 64 (32) at a
// time. Each warp of a pair computes p and ds for half of these queries, passes them to the other warp through shared
// memory, and accumulates half of the head's columns of dk and dv over all of them.
//
// Limits: the bandwidth of shared memory. A warp on its own could keep dk and dv of only 16 keys in registers, and
// would read more operands for each gemm. A multiprocessor holds one block.
#include "llmc/kernels/attention_mma.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kM = 2, kKeysOfPair = 16 * kM;

// A lane's part of a 16x16 tile of operand A.
struct alignas(16) FragmentA {
  uint32_t r[4];
};

template <int kHD, int kWarps, int kBlockM>
struct Tiles {
  static constexpr int kBlockN = kKeysOfPair * kWarps / 2, kMine = kBlockM / 2;  // queries per warp of a pair
  struct alignas(1024) Stage {
    bf16 q[kBlockM * kHD], dout[kBlockM * kHD];
    float lse[kBlockM], rowsum_dO_O[kBlockM];
    int document_start[kBlockM];
  };
  using PairFragments = FragmentA[kM][kMine / 16][32];
  bf16 k[kBlockN * kHD], v[kBlockN * kHD];
  Stage stage[2];
  PairFragments p[kWarps], ds[kWarps];
};
static_assert(sizeof(Tiles<128, 4, 32>) <= 99 << 10 && sizeof(Tiles<64, 8, 64>) <= 99 << 10);

// Copies p or ds of a warp to shared memory and from there, for the other warp of the pair.
template <int kK>
__device__ static __forceinline__ void store_operands(FragmentA (&to)[kM][kK][32], const OperandA<kM, kK>& a) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int k = 0; k < kK; ++k) to[m][k][lane_of_warp()] = {a[m][k][0], a[m][k][1], a[m][k][2], a[m][k][3]};
}
template <int kK>
__device__ static __forceinline__ void load_operands(OperandA<kM, kK>& a, const FragmentA (&from)[kM][kK][32]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int k = 0; k < kK; ++k) {
      const FragmentA operand = from[m][k][lane_of_warp()];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][k][i] = operand.r[i];
    }
}

// The m_blocks of a group's heads, tile by tile: in each head, the queries from `first_query` to `end` - 1.
template <int kHD, int kBlockM, int kThreads>
struct QuerySource {
  using Rows = RowSource<kHD, kThreads>;
  const int first_query, end;
  int head, t0;
  Rows q_rows, dout_rows;

  __device__ __forceinline__ QuerySource(const bf16* q, const bf16* dout, const AttentionShape& shape, int b, int head,
                                         int first_query, int end, int thread)
      : first_query(first_query),
        end(end),
        head(head),
        t0(first_query),
        q_rows(q, shape.q, b, head, first_query, thread),
        dout_rows(dout, shape.out, b, head, first_query, thread) {}

  // Starts to copy the next tile with lse, rowsum_dO_O and document_start of its queries, as one cp.async group. The
  // rows after the last query become zeros.
  template <class Stage>
  __device__ __forceinline__ void fetch(Stage& to, const bf16* q, const bf16* dout, const float* lse,
                                        const float* rowsum_dO_O, const AttentionShape& shape, int b, int thread) {
    q_rows.template fetch<kBlockM>(to.q, shape.q, end - t0, thread);
    dout_rows.template fetch<kBlockM>(to.dout, shape.out, end - t0, thread);
    if (thread < kBlockM) {
      const bool exists = t0 + thread < end;
      const size_t t = exists ? t0 + thread : 0, row = (size_t(b) * shape.NH + head) * shape.Tq + t;
      cp_async4(&to.lse[thread], lse + row, exists);
      cp_async4(&to.rowsum_dO_O[thread], rowsum_dO_O + row, exists);
      if (shape.document_start)
        cp_async4(&to.document_start[thread], shape.document_start + size_t(b) * shape.Tq + t, exists);
    }
    cp_async_commit_group();
    t0 += kBlockM;
    if (t0 < end) return;
    t0 = first_query;
    ++head;
    q_rows = Rows(q, shape.q, b, head, first_query, thread);
    dout_rows = Rows(dout, shape.out, b, head, first_query, thread);
  }
};

// Returns the keys of the call that the query in row i of a tile sees; none if that query is at `end` or beyond. The
// last key may be beyond Tk - 1.
template <class Stage>
__device__ __forceinline__ KeyRange keys_of_row(const Stage& stage, const AttentionShape& shape, int t0, int end,
                                                int i) {
  if (t0 + i >= end) return {0, -1};
  const int start = shape.document_start ? stage.document_start[i] : 0;
  return {max_int(start, shape.key_offset) - shape.key_offset, shape.query_offset + t0 + i - shape.key_offset};
}

// Replaces the scores in s by p. Rows are keys, from first_key on; columns are queries of the stage, from query0 on, of
// which query 0 is t0. kMasked: not every one of them sees every key.
template <bool kMasked, int kN, class Stage>
__device__ __forceinline__ void compute_p(Accumulators<kM, kN>& s, const Stage& stage, const AttentionShape& shape,
                                          int t0, int end, int query0, int first_key, float softmax_scale) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int column = query0 + column_in_tile(n, odd);
      const float lse_log2 = stage.lse[column] * kLog2e;
      KeyRange seen = {0, 0};
      if constexpr (kMasked) seen = keys_of_row(stage, shape, t0, end, column);
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int j = first_key + row_in_warp(m, half);
          const float p = exp2_f32(s[m][n][half * 2 + odd] * (softmax_scale * kLog2e) - lse_log2);
          s[m][n][half * 2 + odd] = kMasked && (j < seen.first || j > seen.last) ? 0.0f : p;
        }
    }
}

// Replaces dp by ds.
template <int kN>
__device__ __forceinline__ void compute_ds(Accumulators<kM, kN>& dp, const Accumulators<kM, kN>& p,
                                           const float* rowsum_dO_O) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float rowsum_of_query = rowsum_dO_O[column_in_tile(n, odd)];
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          dp[m][n][half * 2 + odd] = p[m][n][half * 2 + odd] * (dp[m][n][half * 2 + odd] - rowsum_of_query);
    }
}

template <int kHD, int kWarps, int kBlockM>
__global__ void __launch_bounds__(32 * kWarps, 1)
    attention_mma_dkv_kernel(bf16* __restrict__ dk, bf16* __restrict__ dv, const bf16* __restrict__ dout,
                             const float* __restrict__ lse, const float* __restrict__ rowsum_dO_O,
                             const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
                             AttentionShape shape, float softmax_scale, bool accumulate) {
  using Shared = Tiles<kHD, kWarps, kBlockM>;
  constexpr int kBlockN = Shared::kBlockN, kThreads = 32 * kWarps, kMine = Shared::kMine, kN = kMine / 8, kUnroll = 4;
  const BlockCoord coord = block_coord(shape);  // most queries see the first keys
  const int group = shape.NH / shape.NKV, key0 = coord.block * kBlockN;
  const int warp = warp_number(), pair = warp / 2, half_of_pair = warp % 2;
  const int row_of_pair = pair * kKeysOfPair, first_key = key0 + row_of_pair, last_key = first_key + kKeysOfPair - 1;
  const int chunk0 = half_of_pair * kHD / 16, mine = half_of_pair * kMine, others = kMine - mine;
  const int first_query = first_query_of_key(shape, key0);
  const int end = end_query_of_key(shape, coord.b, min_int(key0 + kBlockN, shape.Tk) - 1);

  Shared& shared = shared_memory<Shared>();
  const int thread = threadIdx.x;
  QuerySource<kHD, kBlockM, kThreads> queries(q, dout, shape, coord.b, coord.kv_head * group, first_query, end, thread);
  const auto fetch = [&](int stage) {
    queries.fetch(shared.stage[stage], q, dout, lse, rowsum_dO_O, shape, coord.b, thread);
  };
  if (first_query < end) {
    using Rows = RowSource<kHD, kThreads>;
    Rows(k, shape.k, coord.b, coord.kv_head, key0, thread)
        .template fetch<kBlockN>(shared.k, shape.k, shape.Tk - key0, thread);
    Rows(v, shape.v, coord.b, coord.kv_head, key0, thread)
        .template fetch<kBlockN>(shared.v, shape.v, shape.Tk - key0, thread);
    fetch(0);
  }

  Accumulators<kM, kHD / 16> acc_dk = {}, acc_dv = {};
  // Adds the queries of a stage to acc_dk and acc_dv. `masked`: not every one of them sees every key of the pair.
  const auto add_tile = [&](auto masked, int t0, auto& now) {
    float s[kM][kN][4] = {}, dp[kM][kN][4] = {};
    uint32_t p_or_ds[kM][kN / 2][4];
    gemm<kHD, kM, kN, kUnroll>(s, shared.k, row_of_pair, now.q + mine * kHD);
    compute_p<masked.value>(s, now, shape, t0, end, mine, first_key, softmax_scale);
    round_to_operand_a(p_or_ds, s);
    store_operands(shared.p[warp], p_or_ds);
    gemm_rs<kHD>(acc_dv, p_or_ds, now.dout + mine * kHD, chunk0);
    gemm<kHD, kM, kN, kUnroll>(dp, shared.v, row_of_pair, now.dout + mine * kHD);
    compute_ds(dp, s, now.rowsum_dO_O + mine);
    round_to_operand_a(p_or_ds, dp);
    store_operands(shared.ds[warp], p_or_ds);
    gemm_rs<kHD>(acc_dk, p_or_ds, now.q + mine * kHD, chunk0);
    named_barrier_sync(1 + pair, 64);
    load_operands(p_or_ds, shared.p[warp ^ 1]);
    gemm_rs<kHD>(acc_dv, p_or_ds, now.dout + others * kHD, chunk0);
    load_operands(p_or_ds, shared.ds[warp ^ 1]);
    gemm_rs<kHD>(acc_dk, p_or_ds, now.q + others * kHD, chunk0);
  };
  const int tiles = first_query < end ? group * ((end - first_query + kBlockM - 1) / kBlockM) : 0;
  int t0 = first_query;
#pragma unroll 1
  for (int i = 0; i < tiles; ++i, t0 = t0 + kBlockM < end ? t0 + kBlockM : first_query) {
    cp_async_wait_group<0>();
    __syncthreads();  // all copies have arrived; all threads are done with the other stage, p and ds
    if (i + 1 < tiles) fetch((i + 1) % 2);
    auto& now = shared.stage[i % 2];
    bool any = false, every = true;  // the same in both warps of a pair
#pragma unroll
    for (int h = 0; h < kBlockM / 32; ++h) {
      const KeyRange seen = keys_of_row(now, shape, t0, end, h * 32 + lane_of_warp());
      any |= seen.first <= last_key && seen.last >= max_int(first_key, seen.first);
      every &= seen.first <= first_key && seen.last >= last_key;
    }
    if (!__ballot_sync(~0u, any)) continue;
    if (__ballot_sync(~0u, every) == ~0u) add_tile(std::false_type{}, t0, now);
    else add_tile(std::true_type{}, t0, now);
  }
  const float one[kM][2] = {{1, 1}, {1, 1}},
              factor[kM][2] = {{softmax_scale, softmax_scale}, {softmax_scale, softmax_scale}};
  store_rows<kHD>(HeadRows<bf16>(dv, shape.v, coord.b, coord.kv_head, 1, kHD), key0, shape.Tk, acc_dv, one, shared.v,
                  row_of_pair, accumulate, chunk0);
  store_rows<kHD>(HeadRows<bf16>(dk, shape.k, coord.b, coord.kv_head, 1, kHD), key0, shape.Tk, acc_dk, factor, shared.k,
                  row_of_pair, accumulate, chunk0);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void mma_attention_dkv(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const auto launch_with = [&]<int kHD, int kWarps, int kBlockM>(std::integer_sequence<int, kHD, kWarps, kBlockM>) {
    using Shared = Tiles<kHD, kWarps, kBlockM>;
    launch<attention_mma_dkv_kernel<kHD, kWarps, kBlockM>>(
        dkv_work(stream, "attention_mma, dk and dv", RateClass::attention_mma_backward, call),
        blocks_for(size_t(s.Tk), Shared::kBlockN) * unsigned(s.NKV * s.B), 32 * kWarps, sizeof(Shared),
        call.dk.as<bf16>(), call.dv.as<bf16>(), call.dout.as<bf16>(), call.lse.as<float>(),
        call.rowsum_dO_O.as<float>(), call.q.as<bf16>(), call.k.as<bf16>(), call.v.as<bf16>(), s, call.softmax_scale(),
        call.accumulate.dkv);
  };
  if (s.HD == 64) launch_with(std::integer_sequence<int, 64, 8, 64>{});
  else if (sizeof(Tiles<128, 8, 64>) <= stream.device().info().shared_bytes_per_block)
    launch_with(std::integer_sequence<int, 128, 8, 64>{});
  else launch_with(std::integer_sequence<int, 128, 4, 32>{});  // 99 KiB: sm_86 and sm_89
}
