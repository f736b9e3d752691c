// Causal attention on tensor cores, forward.  out[t] = sum_j softmax_j(scale * q[t].k[j]) v[j];  lse[t] = log-sum-exp
// of the scores, fp32.  Writes out and lse (=).  Deterministic: see attention.h.
//
// A block has 128 queries of one head, and each of its 4 warps has 32 of them. Each query has a running maximum, a sum
// of exponentials and a weighted sum of values (online softmax: Milakov & Gimelshein 2018; Dao 2023).
//
// Expected limit: shared memory and tensor cores, almost equally. A tile of n keys costs a warp 2 * 32 * n * HD
// multiply-adds. The warp reads the right operands from shared memory once for its 32 rows, 2 * n * HD * 2 bytes, and
// the left operand of the scores, 32 * HD * 2 bytes; cp.async writes the tile. At head size 128 and n = 64 this is 192
// bytes for each m16n8k16 product: 1.5 cycles at 128 bytes per cycle. The tensor cores need 1.6 cycles (mma.sync on
// Hopper, the four of a multiprocessor together). The exponentials, 32 * n per tile at 16 per cycle and multiprocessor,
// take a third of the products' time at head size 128 and two thirds at 64. They overlap with products if another warp
// has products to issue. So a multiprocessor of an H100 or B200 has 8 warps: two blocks of 98 KiB, with 255 registers
// per thread. An A100 (164 KiB of shared memory), RTX 3090 or RTX 4090 (100 KiB) holds one block, and hides less.
// Device memory is no limit: a block of 128 queries reads each key once, which is 128 FLOPs per byte, times the heads
// of the group that share the key.
#include "llmc/kernels/attention_mma.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kM = 2, kRows = 16 * kM * kWarps;

template <int kHD>
struct Tiles {
  static constexpr int kKeys = kHD == 64 ? 128 : 64;  // the most whose scores fit in registers
  struct Stage {
    bf16 k[kKeys * kHD], v[kKeys * kHD];
  };
  bf16 q[kRows * kHD];
  Stage stage[2];
  KeysOfWarp seen[kWarps];
  float total[2 * kM][kThreads];  // per lane: its part of its rows' sums of exponentials (registers are short)
};

static_assert(sizeof(Tiles<128>) <= 99 << 10 && sizeof(Tiles<64>) <= 99 << 10);

// A lane's part of its rows' online softmax. Scores are raw products q.k; `scale` of `take` is log2e / sqrt(HD).
template <int kHD>
struct Softmax {
  Fragments<kM, kHD / 8> out = {};  // sum of 2^(scale * (score - top)) * value
  float top[kM][2];                 // running maximum of the row

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) top[m][half] = -INFINITY;
  }
  // Takes a tile's scores (-infinity: unseen) and replaces them by their exponentials.
  template <int kN>
  __device__ __forceinline__ void take(Fragments<kM, kN>& s, float (&total)[2 * kM][kThreads], float scale) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float shrink;
        const float sum = softmax_step<kN>(top[m][half], shrink, scale,
                                           [&](int n, int odd) -> float& { return s[m][n][half * 2 + odd]; });
        float& so_far = total[m * 2 + half][threadIdx.x];
        so_far = so_far * shrink + sum;
#pragma unroll
        for (int n = 0; n < kHD / 8; ++n)
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) out[m][n][half * 2 + odd] *= shrink;
      }
  }
};

// finds_amax is a template parameter, because the kernel without it has no register to spare.
template <int kHD, bool finds_amax>
__global__ void __launch_bounds__(kThreads, 2)
    attention_mma_forward_kernel(bf16* __restrict__ out, float* __restrict__ lse, const bf16* __restrict__ q,
                                 const bf16* __restrict__ k, const bf16* __restrict__ v, AttentionShape shape,
                                 float scale, int ranges, float* amax) {
  using Shared = Tiles<kHD>;
  constexpr int kKeys = Shared::kKeys, kN = kKeys / 8, kUnroll = kHD == 64 ? 1 : 8;
  const auto [head, b, t0] = query_place(shape, blockIdx.x, ranges, kRows);
  const int kv_head = head / (shape.NH / shape.NKV), row_of_warp = warp_number() * 16 * kM;
  const KeyRange all = keys_of_queries(shape, b, t0, min_int(t0 + kRows, shape.Tq) - 1);

  Shared& shared = shared_memory<Shared>();
  using Source = RowSource<kHD, kThreads>;
  const int thread = threadIdx.x;
  KeySource<kHD, kKeys, kThreads> keys(k, v, shape, b, kv_head, all.first, thread);
  KeysOfWarp& seen = shared.seen[warp_number()];
  {
    const KeysOfWarp keys_seen = keys_of_warp<kM>(shape, b, t0 + row_of_warp);
    if (lane_of_warp() == 0) seen = keys_seen;
    for (int i = 0; i < 2 * kM; ++i) shared.total[i][thread] = 0;
  }
  Softmax<kHD> softmax;
  if (all.first <= all.last) {
    Source(q, shape.q, b, head, t0, thread).template fetch<kRows>(shared.q, shape.q, shape.Tq - t0, thread);
    keys.fetch(shared.stage[0], shape, all.last + 1 - all.first, thread);
  }
#pragma unroll 1
  for (int key0 = all.first, stage = 0; key0 <= all.last; key0 += kKeys, stage ^= 1) {
    cp_async_wait_group<0>();
    __syncthreads();  // all threads' copies have arrived, and all threads are done with the other stage
    const int next = key0 + kKeys;
    if (next <= all.last) keys.fetch(shared.stage[stage ^ 1], shape, all.last + 1 - next, thread);
    if (!seen.see_some(key0, next - 1)) continue;
    float s[kM][kN][4] = {};
    multiply_tiles<kHD, kM, kN, kUnroll>(s, shared.q, row_of_warp, shared.stage[stage].k);
    if (!seen.see_every(key0, next - 1)) {
      const QueryPlace place = query_place(shape, block_index_again(), ranges, kRows);
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const KeyRange range_of_row =
              keys_of_query_or_last(shape, place.b, place.t0 + row_of_warp + row_in_warp(m, half));
          const int first = range_of_row.first - key0, last = range_of_row.last - key0;
#pragma unroll
          for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
              const int j = column_in_tile(n, odd);
              if (j < first || j > last) s[m][n][half * 2 + odd] = -INFINITY;
            }
        }
    }
    softmax.take(s, shared.total, scale * kLog2e);
    uint32_t p[kM][kN / 2][4];
    round_to_pairs(p, s);
    add_weighted_rows<kHD>(softmax.out, p, shared.stage[stage].v);
  }

  const QueryPlace place = query_place(shape, block_index_again(), ranges, kRows);
  float inverse[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = quad_sum(shared.total[m * 2 + half][thread]);
      inverse[m][half] = inverse_of_sum(total);
      const int t = place.t0 + row_of_warp + row_in_warp(m, half);
      if (t < shape.Tq && lane_of_warp() % 4 == 0)
        lse[(size_t(place.b) * shape.NH + place.head) * shape.Tq + t] = log_sum_exp(softmax.top[m][half], total, scale);
    }
  store_rows<kHD>(HeadRows<bf16>(out, shape.out, place.b, place.head, 1, kHD), place.t0, shape.Tq, softmax.out, inverse,
                  shared.q, row_of_warp, false);
  if constexpr (finds_amax) raise_amax<kHD, kM, kHD / 8>(amax, place.t0, shape.Tq, shared.q, row_of_warp);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void mma_attention_forward(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const unsigned ranges = blocks_for(size_t(s.Tq), kRows);
  with_tensor_core_head_size(s.HD, [&](auto constant) {
    constexpr int kHD = decltype(constant)::value;
    const auto start = [&](auto finds_amax) {
      launch<attention_mma_forward_kernel<kHD, decltype(finds_amax)::value>>(
          forward_work(stream, "attention_mma, forward", RateClass::attention_mma_forward, call),
          ranges * unsigned(s.NH * s.B), kThreads, sizeof(Tiles<kHD>), call.out.as<bf16>(), call.lse.as<float>(),
          call.q.as<bf16>(), call.k.as<bf16>(), call.v.as<bf16>(), s, call.scale(), int(ranges), call.amax);
    };
    if (call.amax) start(std::true_type{});
    else start(std::false_type{});
  });
}
