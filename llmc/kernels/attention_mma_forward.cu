// Causal attention on tensor cores, forward. With s[t,j] = softmax_scale * q[t].k[j]:
//
//   out[t] = sum_j softmax_j(s[t,j]) v[j]    lse[t] = log sum_j exp(s[t,j]), fp32
//
// q and out are (B, Tq, NH, HD), k and v (B, Tk, NKV, HD), lse (B, NH, Tq). Writes out and lse (=) and raises amax.
// Deterministic: see attention.h.
//
// A block has kBlockM = 128 queries of one head, and each of its 4 warps has 32 of them. It walks over the keys that
// they see, kBlockN = 64 at a time (128 at head size 64), with an online softmax (Milakov & Gimelshein 2018; Dao 2023).
//
// Limits: shared memory and tensor cores, almost equally. Therefore a warp has 32 rows: it reads operand B from shared
// memory once for all of them. A multiprocessor needs 8 warps, so that one computes exponentials while others use the
// tensor cores. An H100 or B200 holds two blocks of 98 KiB with 255 registers a thread. An A100 (164 KiB of shared
// memory), RTX 3090 or RTX 4090 (100 KiB) holds one block, and overlaps less.
#include "llmc/kernels/attention_mma.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kM = 2, kBlockM = 16 * kM * kWarps;

template <int kHD>
struct Tiles {
  static constexpr int kBlockN = kHD == 64 ? 128 : 64;  // the most whose scores fit in registers
  struct Stage {
    bf16 k[kBlockN * kHD], v[kBlockN * kHD];
  };
  bf16 q[kBlockM * kHD];
  Stage stage[2];
  KeysOfWarp keys_of_warp[kWarps];
  float row_sum[2 * kM][kThreads];  // each lane's part of its rows' sums (registers are short)
};

static_assert(sizeof(Tiles<128>) <= 99 << 10 && sizeof(Tiles<64>) <= 99 << 10);

// The online softmax of a lane's rows. `s` are raw products q.k; -infinity: the row does not see the key.
template <int kHD>
struct Softmax {
  Accumulators<kM, kHD / 8> acc_o = {};  // sum of 2^(softmax_scale_log2 * (score - row_max)) * value
  float row_max[kM][2];                  // running maximum of the row

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) row_max[m][half] = -INFINITY;
  }
  // Replaces the scores of an n_block by p and rescales acc_o. softmax_scale_log2 = log2(e) / sqrt(HD).
  template <int kN>
  __device__ __forceinline__ void online_softmax(Accumulators<kM, kN>& s, float (&row_sum)[2 * kM][kThreads],
                                                 float softmax_scale_log2) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float scores_scale;
        const float sum = softmax_step<kN>(row_max[m][half], scores_scale, softmax_scale_log2,
                                           [&](int n, int odd) -> float& { return s[m][n][half * 2 + odd]; });
        float& so_far = row_sum[m * 2 + half][threadIdx.x];
        so_far = so_far * scores_scale + sum;
#pragma unroll
        for (int n = 0; n < kHD / 8; ++n)
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) acc_o[m][n][half * 2 + odd] *= scores_scale;
      }
  }
};

// Sets the scores of keys that a row does not see to -infinity. Column 0 of `s` is key key0.
template <int kN>
__device__ static __forceinline__ void mask(Accumulators<kM, kN>& s, const AttentionShape& shape,
                                            const MBlockCoord& coord, int row_of_warp, int key0) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange seen = keys_of_query_or_last(shape, coord.b, coord.t0 + row_of_warp + row_in_warp(m, half));
      const int first = seen.first - key0, last = seen.last - key0;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int j = column_in_tile(n, odd);
          if (j < first || j > last) s[m][n][half * 2 + odd] = -INFINITY;
        }
    }
}

// finds_amax is a template parameter, because the kernel without it has no register to spare.
template <int kHD, bool finds_amax>
__global__ void __launch_bounds__(kThreads, 2)
    attention_mma_forward_kernel(bf16* __restrict__ out, float* __restrict__ lse, const bf16* __restrict__ q,
                                 const bf16* __restrict__ k, const bf16* __restrict__ v, AttentionShape shape,
                                 float softmax_scale, int m_blocks, float* amax) {
  using Shared = Tiles<kHD>;
  constexpr int kBlockN = Shared::kBlockN, kN = kBlockN / 8, kUnroll = kHD == 64 ? 1 : 8;
  const auto [head, b, t0] = m_block_coord(shape, blockIdx.x, m_blocks, kBlockM);
  const int kv_head = head / (shape.NH / shape.NKV), row_of_warp = warp_number() * 16 * kM;
  const KeyRange all = keys_of_queries(shape, b, t0, min_int(t0 + kBlockM, shape.Tq) - 1);

  Shared& shared = shared_memory<Shared>();
  using Source = RowSource<kHD, kThreads>;
  const int thread = threadIdx.x;
  KeySource<kHD, kBlockN, kThreads> keys(k, v, shape, b, kv_head, all.first, thread);
  KeysOfWarp& seen = shared.keys_of_warp[warp_number()];
  {
    const KeysOfWarp seen_by_queries = keys_of_warp<kM>(shape, b, t0 + row_of_warp);
    if (lane_of_warp() == 0) seen = seen_by_queries;
    for (int i = 0; i < 2 * kM; ++i) shared.row_sum[i][thread] = 0;
  }
  Softmax<kHD> softmax;
  if (all.first <= all.last) {
    Source(q, shape.q, b, head, t0, thread).template fetch<kBlockM>(shared.q, shape.q, shape.Tq - t0, thread);
    keys.fetch(shared.stage[0], shape, all.last + 1 - all.first, thread);
  }
#pragma unroll 1
  for (int key0 = all.first, stage = 0; key0 <= all.last; key0 += kBlockN, stage ^= 1) {
    cp_async_wait_group<0>();
    __syncthreads();  // all threads' copies have arrived, and all threads are done with the other stage
    const int next = key0 + kBlockN;
    if (next <= all.last) keys.fetch(shared.stage[stage ^ 1], shape, all.last + 1 - next, thread);
    if (!seen.see_some(key0, next - 1)) continue;
    float s[kM][kN][4] = {};
    gemm<kHD, kM, kN, kUnroll>(s, shared.q, row_of_warp, shared.stage[stage].k);
    if (!seen.see_every(key0, next - 1))
      mask(s, shape, m_block_coord(shape, block_index_again(), m_blocks, kBlockM), row_of_warp, key0);
    softmax.online_softmax(s, shared.row_sum, softmax_scale * kLog2e);
    uint32_t p[kM][kN / 2][4];
    round_to_operand_a(p, s);
    gemm_rs<kHD>(softmax.acc_o, p, shared.stage[stage].v);
  }

  const MBlockCoord coord = m_block_coord(shape, block_index_again(), m_blocks, kBlockM);
  float inverse[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float row_sum = quad_sum(shared.row_sum[m * 2 + half][thread]);
      inverse[m][half] = inverse_of_sum(row_sum);
      const int t = coord.t0 + row_of_warp + row_in_warp(m, half);
      if (t < shape.Tq && lane_of_warp() % 4 == 0)
        lse[(size_t(coord.b) * shape.NH + coord.head) * shape.Tq + t] =
            log_sum_exp(softmax.row_max[m][half], row_sum, softmax_scale);
    }
  store_rows<kHD>(HeadRows<bf16>(out, shape.out, coord.b, coord.head, 1, kHD), coord.t0, shape.Tq, softmax.acc_o,
                  inverse, shared.q, row_of_warp, false);
  if constexpr (finds_amax) raise_amax<kHD, kM, kHD / 8>(amax, coord.t0, shape.Tq, shared.q, row_of_warp);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void mma_attention_forward(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const unsigned m_blocks = blocks_for(size_t(s.Tq), kBlockM);
  with_tensor_core_head_size(s.HD, [&](auto constant) {
    constexpr int kHD = decltype(constant)::value;
    const auto start = [&](auto finds_amax) {
      launch<attention_mma_forward_kernel<kHD, decltype(finds_amax)::value>>(
          forward_work(stream, "attention_mma, forward", RateClass::attention_mma_forward, call),
          m_blocks * unsigned(s.NH * s.B), kThreads, sizeof(Tiles<kHD>), call.out.as<bf16>(), call.lse.as<float>(),
          call.q.as<bf16>(), call.k.as<bf16>(), call.v.as<bf16>(), s, call.softmax_scale(), int(m_blocks), call.amax);
    };
    if (call.amax) start(std::true_type{});
    else start(std::false_type{});
  });
}
