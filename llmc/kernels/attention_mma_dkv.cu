// Causal attention on tensor cores, backward: the gradients of keys and values. With p[t,j] = exp(s[t,j] - lse[t]):
//
//   ds[t,j] = p[t,j] (dout[t].v[j] - delta[t])     dk[j] = scale * sum_t ds[t,j] q[t]     dv[j] = sum_t p[t,j] dout[t]
//
// dk, dv = or +=.  Deterministic, without atomics: a warp has its keys' sums to itself and walks over the queries that
// see them, those of all heads of the group. Scores are computed transposed, keys x queries: so p and ds are the left
// operands of the sums as they lie in the registers.
//
// What should limit it: shared memory. A warp has 16 keys, since their sums take 128 registers at head size 128. A tile
// of n queries brings it 4 * n * HD * 2 bytes of right operands and 2 * 16 * HD * 2 of left ones, at n = 64 72 KiB for
// 256 products of 16 x 8 x 16: with what cp.async writes, 305 bytes each, 2.4 cycles of 128 bytes, beside the 1.6 that
// tensor cores need (mma.sync on Hopper). Pairs of warps that share 32 keys and exchange p and ds would bring 256.
#include "llmc/kernels/attention_mma.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kM = 1, kQueries = 64;

template <int kHD, int kWarps>
struct Tiles {
  static constexpr int kRows = 16 * kM * kWarps;
  struct alignas(1024) Stage {
    bf16 q[kQueries * kHD], dout[kQueries * kHD];
    float lse[kQueries], delta[kQueries];
    int document_start[kQueries];
  };
  bf16 k[kRows * kHD], v[kRows * kHD];
  Stage stage[2];
};

// Tiles of the queries of a group's heads: of each head from the first query that sees a key of the block on.
template <int kHD, int kThreads>
struct QuerySource {
  using Rows = RowSource<kHD, kThreads>;
  const int first_query;
  int head, t0;
  Rows q_rows, dout_rows;

  __device__ __forceinline__ QuerySource(const bf16* q, const bf16* dout, const AttentionShape& shape, int b, int head,
                                         int first_query, int thread)
      : first_query(first_query),
        head(head),
        t0(first_query),
        q_rows(q, shape.q, b, head, first_query, thread),
        dout_rows(dout, shape.out, b, head, first_query, thread) {}

  // The next tile, with what belongs to each query; zeros behind the last. One group of copies.
  template <class Stage>
  __device__ __forceinline__ void fetch(Stage& to, const bf16* q, const bf16* dout, const float* lse,
                                        const float* delta, const AttentionShape& shape, int b, int thread) {
    q_rows.template fetch<kQueries>(to.q, shape.q, shape.Tq - t0, thread);
    dout_rows.template fetch<kQueries>(to.dout, shape.out, shape.Tq - t0, thread);
    if (thread < kQueries) {
      const bool there = t0 + thread < shape.Tq;
      const size_t t = there ? t0 + thread : 0, row = (size_t(b) * shape.NH + head) * shape.Tq + t;
      cp_async4(&to.lse[thread], lse + row, there);
      cp_async4(&to.delta[thread], delta + row, there);
      if (shape.document_start)
        cp_async4(&to.document_start[thread], shape.document_start + size_t(b) * shape.Tq + t, there);
    }
    cp_async_commit();
    t0 += kQueries;
    if (t0 < shape.Tq) return;
    t0 = first_query;
    ++head;
    q_rows = Rows(q, shape.q, b, head, first_query, thread);
    dout_rows = Rows(dout, shape.out, b, head, first_query, thread);
  }
};

static_assert(sizeof(Tiles<128, 4>) <= 99 << 10 && sizeof(Tiles<64, 8>) <= 99 << 10);

// Which keys of the call the query of a tile's row i sees; none if it is beyond the last.
template <class Stage>
__device__ __forceinline__ KeyRange keys_of_row(const Stage& stage, const AttentionShape& shape, int t0, int i) {
  if (t0 + i >= shape.Tq) return {0, -1};
  const int start = shape.document_start ? stage.document_start[i] : 0;
  return {greatest(start, shape.key_offset) - shape.key_offset, shape.query_offset + t0 + i - shape.key_offset};
}

template <int kHD, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1)
    attention_mma_dkv_kernel(bf16* __restrict__ dk, bf16* __restrict__ dv, const bf16* __restrict__ dout,
                             const float* __restrict__ lse, const float* __restrict__ delta, const bf16* __restrict__ q,
                             const bf16* __restrict__ k, const bf16* __restrict__ v, AttentionShape shape, float scale,
                             bool accumulate) {
  using Shared = Tiles<kHD, kWarps>;
  constexpr int kRows = Shared::kRows, kThreads = 32 * kWarps, kN = kQueries / 8, kUnroll = 4;
  const BlockPlace place = block_place(shape);  // the first keys are seen by most queries
  const int group = shape.NH / shape.NKV, key0 = place.range * kRows;
  const int row_of_warp = warp_number() * 16 * kM, first_key = key0 + row_of_warp, last_key = first_key + 16 * kM - 1;
  const int first_query = first_row_behind(shape, 1, key0);

  Shared& shared = shared_memory<Shared>();
  const int thread = threadIdx.x;
  QuerySource<kHD, kThreads> queries(q, dout, shape, place.b, place.kv_head * group, first_query, thread);
  const auto fetch = [&](int stage) {
    queries.fetch(shared.stage[stage], q, dout, lse, delta, shape, place.b, thread);
  };
  if (first_query < shape.Tq) {
    using Rows = RowSource<kHD, kThreads>;
    Rows(k, shape.k, place.b, place.kv_head, key0, thread)
        .template fetch<kRows>(shared.k, shape.k, shape.Tk - key0, thread);
    Rows(v, shape.v, place.b, place.kv_head, key0, thread)
        .template fetch<kRows>(shared.v, shape.v, shape.Tk - key0, thread);
    fetch(0);
  }

  Fragments<kM, kHD / 8> dkeys = {}, dvalues = {};
  const auto add_tile = [&](auto masked, int t0, auto& now) {
    Fragments<kM, kN> s = {}, ds = {};
    multiply_tiles<kHD, kM, kN, kUnroll>(s, shared.k, row_of_warp, now.q);
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int column = column_in_tile(n, odd);
        const float lse2 = now.lse[column] * kLog2e;
        KeyRange seen = {0, 0};
        if constexpr (masked.value) seen = keys_of_row(now, shape, t0, column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int j = first_key + row_in_warp(0, half);
          const float p = exp2_f32(s[0][n][half * 2 + odd] * (scale * kLog2e) - lse2);
          s[0][n][half * 2 + odd] = masked.value && (j < seen.first || j > seen.last) ? 0.0f : p;
        }
      }
    Pairs<kM, kN / 2> weights;
    round_to_pairs<kM, kN>(weights, s);
    add_weighted_rows<kHD, kM, kN / 2>(dvalues, weights, now.dout);
    multiply_tiles<kHD, kM, kN, kUnroll>(ds, shared.v, row_of_warp, now.dout);
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float delta_of_query = now.delta[column_in_tile(n, odd)];
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ds[0][n][half * 2 + odd] = s[0][n][half * 2 + odd] * (ds[0][n][half * 2 + odd] - delta_of_query);
      }
    round_to_pairs<kM, kN>(weights, ds);
    add_weighted_rows<kHD, kM, kN / 2>(dkeys, weights, now.q);
  };
  const int tiles = group * ((shape.Tq - first_query + kQueries - 1) / kQueries);
  int t0 = first_query;
#pragma unroll 1
  for (int i = 0; i < tiles; ++i, t0 = t0 + kQueries < shape.Tq ? t0 + kQueries : first_query) {
    cp_async_wait<0>();
    __syncthreads();  // what all threads fetched is here, and all are done with the other stage
    if (i + 1 < tiles) fetch((i + 1) % 2);
    auto& now = shared.stage[i % 2];
    bool any = false, every = true;
#pragma unroll
    for (int h = 0; h < kQueries / 32; ++h) {
      const KeyRange seen = keys_of_row(now, shape, t0, h * 32 + lane_of_warp());
      any |= seen.first <= last_key && seen.last >= greatest(first_key, seen.first);
      every &= seen.first <= first_key && seen.last >= last_key;
    }
    if (!__ballot_sync(~0u, any)) continue;
    if (__ballot_sync(~0u, every) == ~0u) add_tile(std::false_type{}, t0, now);
    else add_tile(std::true_type{}, t0, now);
  }
  const float one[kM][2] = {{1, 1}}, factor[kM][2] = {{scale, scale}};
  store_rows<kHD, kM>(HeadRows<bf16>(dv, shape.v, place.b, place.kv_head, 1, kHD), key0, shape.Tk, dvalues, one,
                      shared.v, row_of_warp, accumulate);
  store_rows<kHD, kM>(HeadRows<bf16>(dk, shape.k, place.b, place.kv_head, 1, kHD), key0, shape.Tk, dkeys, factor,
                      shared.k, row_of_warp, accumulate);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void mma_attention_dkv(Stream& stream, bf16* dk, bf16* dv, const float* delta, const bf16* dout, const float* lse,
                       const bf16* q, const bf16* k, const bf16* v, const AttentionShape& shape, bool accumulate) {
  const int B = shape.B, Tk = shape.Tk, NKV = shape.NKV, HD = shape.HD;
  const auto launch_with = [&](auto head_size, auto warps) {
    constexpr int kHD = decltype(head_size)::value, kWarps = decltype(warps)::value;
    using Shared = Tiles<kHD, kWarps>;
    launch<attention_mma_dkv_kernel<kHD, kWarps>>(
        dkv_work(stream, "attention_mma, dk and dv", dk, dv, delta, dout, lse, q, k, v, shape),
        blocks_for(size_t(Tk), Shared::kRows) * unsigned(NKV * B), 32 * kWarps, sizeof(Shared), dk, dv, dout, lse,
        delta, q, k, v, shape, 1 / std::sqrt(float(HD)), accumulate);
  };
  with_mma_head_size(HD, [&](auto head_size) {
    constexpr size_t kOf8Warps = sizeof(Tiles<head_size.value, 8>);
    if (kOf8Warps <= stream.device().info().shared_bytes_per_block)
      launch_with(head_size, std::integral_constant<int, 8>{});
    else if constexpr (kOf8Warps > 99 << 10)  // which sm_86 and sm_89 have for a block
      launch_with(head_size, std::integral_constant<int, 4>{});
  });
}
