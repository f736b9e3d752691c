// Causal attention on Hopper, backward: the gradients of keys and values. With p[t,j] = exp(s[t,j] - lse[t]):
//
//   dp[t,j] = dout[t].v[j]    ds[t,j] = p[t,j] (dp[t,j] - rowsum_dO_O[t])
//   dk[j] = softmax_scale * sum_t ds[t,j] q[t]    dv[j] = sum_t p[t,j] dout[t]
//
// dk, dv, k and v are (B, Tk, NKV, HD), dout and q (B, Tq, NH, HD), lse and rowsum_dO_O (B, NH, Tq) fp32. Writes dk
// and dv (= or +=). Deterministic, without atomics: one warpgroup alone accumulates dk and dv of its keys, over the
// queries that see them in all heads of the group. Scores are computed transposed, keys x queries, so that p and ds in
// registers already are operand A of the gemms that sum over queries.
//
//   tile        kBlockN = 128 keys, kBlockM = 64 queries. The blocks of the first keys start first, because most
//               queries see them.
//   roles       warpgroup 0 is the producer (24 registers a thread): one thread loads tiles, 64 others load lse,
//               rowsum_dO_O and the range of keys that each query sees; two consumers have 64 keys each (240)
//   registers   per thread, head size 128: 64 of acc_dk, 64 of acc_dv, 32 scores, 32 of dp, 16 of p or ds (pairs of
//               bf16); head size 64: 32, 32, 32, 32, 16, and 16 each of k and v
//   stages      three of q and three of dout; k and v are loaded once
//   waits       a consumer waits for k and v, for a stage's bytes, and for lse, rowsum_dO_O and key ranges; the
//               producer waits for an empty stage
//   limits      the tensor cores; at head size 128 the bandwidth of shared memory, too, because the gemms of S and dP
//               have 64 columns and both operands there. At head size 64 there is room for k and v in registers
//
// In each step a consumer starts Sᵀ = K Qᵀ of the next m_block and dK += dSᵀ Q of the previous one, and computes the
// exponentials while dK runs. Then it starts dPᵀ = V dOᵀ and dV += Pᵀ dO, and computes ds while dV runs. p and ds share
// one array: dV is done before ds replaces p. With two arrays, or with dP started together with S, registers are short
// at head size 128, and the compiler makes the gemms wait for one another.
#include "llmc/kernels/attention_hopper.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

// The numbers that the kernel needs for each query of an m_block, in addition to its rows of q and dout.
template <int kBlockM>
struct QueryRows {
  // lse_log2: lse * log2(e); infinity where the query sees no key, or does not exist, so that its p is 0.
  float lse_log2[kBlockM], rowsum_dO_O[kBlockM];
  int first[kBlockM], last[kBlockM];  // the keys that it sees
  Mbarrier full;
};

template <int kHD>
struct SharedStorage {
  static constexpr int kConsumers = 2, kBlockN = kConsumers * kWarpgroupRows, kBlockM = 64, kStages = 3;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;
  static constexpr int kProducerRegisters = 24, kRegisters = 240;
  static constexpr bool kKeysInRegisters = kHD == 64;
  using Queries = WgmmaTile<kBlockM, kHD>;
  using Keys = WgmmaTile<kBlockN, kHD>;
  Keys k, v;
  Stage<Queries> q[kStages], dout[kStages];
  QueryRows<kBlockM> rows[kStages];  // released together with the stage of q
  Mbarrier keys_full;
};
static_assert(sizeof(SharedStorage<128>) <= 227 << 10 && sizeof(SharedStorage<64>) <= 227 << 10);

constexpr int kConsumerBarrier = 1;  // named barriers 1 and 2, one for each consumer

// The m_blocks of an n_block: `count` in all heads of the group, in each head over the queries first .. end - 1.
struct QueryBlocks {
  int first, end, count;
};

// The current m_block: its head, and its first query.
template <int kBlockM>
struct QueryBlockIterator {
  int head, t0;
  __device__ __forceinline__ QueryBlockIterator(int head, const QueryBlocks& query_blocks)
      : head(head), t0(query_blocks.first) {}
  __device__ __forceinline__ void advance(const QueryBlocks& query_blocks) {
    t0 += kBlockM;
    if (t0 < query_blocks.end) return;
    t0 = query_blocks.first;
    ++head;
  }
};

// The producer thread loads k and v, then q and dout of the m_blocks.
template <int kHD>
__device__ __forceinline__ void produce(SharedStorage<kHD>& shared, const TensorMap& q, const TensorMap& dout,
                                        const TensorMap& k, const TensorMap& v, int b, int kv_head, int head, int key0,
                                        const QueryBlocks& query_blocks) {
  using Shared = SharedStorage<kHD>;
  mbarrier_arrive_expect_tx(shared.keys_full, sizeof(shared.k) + sizeof(shared.v));
  load_rows(shared.k, k, shared.keys_full, kv_head, key0, b);
  load_rows(shared.v, v, shared.keys_full, kv_head, key0, b);
  PipelineState<Shared::kStages> stage;
  QueryBlockIterator<Shared::kBlockM> at(head, query_blocks);
  for (int i = 0; i < query_blocks.count; ++i) {
    load_stage(shared.q[stage.slot], q, stage.parity, at.head, at.t0, b);
    load_stage(shared.dout[stage.slot], dout, stage.parity, at.head, at.t0, b);
    stage.advance();
    at.advance(query_blocks);
  }
}

// Loads lse, rowsum_dO_O and the range of keys of each m_block's queries. kBlockM threads call, one for each `row`.
template <int kHD>
__device__ __forceinline__ void produce_query_rows(SharedStorage<kHD>& shared, const float* lse,
                                                   const float* rowsum_dO_O, const AttentionShape& shape, int b,
                                                   int head, int row, const QueryBlocks& query_blocks) {
  using Shared = SharedStorage<kHD>;
  PipelineState<Shared::kStages> stage;
  QueryBlockIterator<Shared::kBlockM> at(head, query_blocks);
  for (int i = 0; i < query_blocks.count; ++i) {
    const int t = at.t0 + row;
    float lse_of_row = -INFINITY, rowsum_of_row = 0;
    KeyRange seen = {0, shape.Tk};
    if (t < query_blocks.end) {
      const size_t of_query = (size_t(b) * shape.NH + at.head) * shape.Tq + t;
      lse_of_row = lse[of_query];
      rowsum_of_row = rowsum_dO_O[of_query];
      seen = keys_of_query(shape, b, t);
    }
    if (lse_of_row == -INFINITY) lse_of_row = INFINITY, seen = {0, shape.Tk};
    mbarrier_wait(shared.q[stage.slot].empty, stage.parity ^ 1);
    auto& rows = shared.rows[stage.slot];
    rows.lse_log2[row] = lse_of_row * kLog2e;
    rows.rowsum_dO_O[row] = rowsum_of_row;
    rows.first[row] = seen.first;
    rows.last[row] = seen.last;
    mbarrier_arrive(rows.full);
    stage.advance();
    at.advance(query_blocks);
  }
}

// Replaces the scores in s by p. The lane's rows are keys, first_key is the consumer's first; its columns are queries.
template <int kBlockM>
__device__ __forceinline__ void compute_p(float (&s)[kBlockM / 2], const QueryRows<kBlockM>& rows, int first_key,
                                          float softmax_scale) {
  const int first_of_warp = first_key + warp_number() % 4 * 16, lane = lane_of_warp();
  bool every = true;  // this lane's two queries see every key of the warp
#pragma unroll
  for (int i = lane; i < kBlockM; i += 32)
    every &= rows.first[i] <= first_of_warp && rows.last[i] >= first_of_warp + 15;
  const bool masked = __ballot_sync(~0u, every) != ~0u;
#pragma unroll
  for (int j = 0; j < kBlockM / 8; ++j)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float lse_log2 = rows.lse_log2[column_in_warpgroup(j, odd)];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& score = s[4 * j + 2 * half + odd];
        score = exp2_f32(score * (softmax_scale * kLog2e) - lse_log2);
      }
    }
  if (!masked) return;
#pragma unroll
  for (int j = 0; j < kBlockM / 8; ++j)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int first = rows.first[column_in_warpgroup(j, odd)], last = rows.last[column_in_warpgroup(j, odd)];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = first_key + row_in_warpgroup(half);
        if (key < first || key > last) s[4 * j + 2 * half + odd] = 0;
      }
    }
}

// Replaces dp by ds.
template <int kCount, int kBlockM>
__device__ __forceinline__ void compute_ds(float (&dp)[kCount], const float (&p)[kCount],
                                           const QueryRows<kBlockM>& rows) {
#pragma unroll
  for (int j = 0; j < kBlockM / 8; ++j)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float rowsum_dO_O = rows.rowsum_dO_O[column_in_warpgroup(j, odd)];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 4 * j + 2 * half + odd;
        dp[i] = p[i] * (dp[i] - rowsum_dO_O);
      }
    }
}

// A consumer's 64 keys: gemms and epilogue.
template <int kHD>
__device__ __forceinline__ void consume(SharedStorage<kHD>& shared, const TensorMap& dk_map, const TensorMap& dv_map,
                                        bf16* dk, bf16* dv, const AttentionShape& shape, float softmax_scale, int b,
                                        int kv_head, int key0, int consumer, const QueryBlocks& query_blocks,
                                        bool accumulate) {
  using Shared = SharedStorage<kHD>;
  constexpr int kBlockM = Shared::kBlockM;
  const int row0 = consumer * kWarpgroupRows;
  float acc_dk[kHD / 2] = {}, acc_dv[kHD / 2] = {}, s[kBlockM / 2] = {}, dp[kBlockM / 2] = {};
  uint32_t p_or_ds[kBlockM / 16][4];
  uint32_t k[Shared::kKeysInRegisters ? kHD / 16 : 1][4], v[Shared::kKeysInRegisters ? kHD / 16 : 1][4];
  PipelineState<Shared::kStages> stage, last_stage;  // of the current m_block and of the one before
  const auto start_s = [&] {
    mbarrier_wait(shared.q[stage.slot].full, stage.parity);
    warpgroup_fence_operand(s);
    wgmma_fence();
    if constexpr (Shared::kKeysInRegisters) gemm(s, k, shared.q[stage.slot].tile);
    else gemm(s, shared.k, row0, shared.q[stage.slot].tile);
    wgmma_commit_group();
  };
  const auto start_dp = [&] {
    mbarrier_wait(shared.dout[stage.slot].full, stage.parity);
    warpgroup_fence_operand(dp);
    wgmma_fence();
    if constexpr (Shared::kKeysInRegisters) gemm(dp, v, shared.dout[stage.slot].tile);
    else gemm(dp, shared.v, row0, shared.dout[stage.slot].tile);
    wgmma_commit_group();
  };
  const auto start_dk = [&] {
    warpgroup_fence_operand(acc_dk);
    wgmma_fence();
    gemm_rs<kHD>(acc_dk, p_or_ds, shared.q[last_stage.slot].tile);
    wgmma_commit_group();
  };
  const auto start_dv = [&] {
    round_to_operand_a<kBlockM>(p_or_ds, s);
    warpgroup_fence_operand(acc_dv);
    wgmma_fence();
    gemm_rs<kHD>(acc_dv, p_or_ds, shared.dout[stage.slot].tile);
    wgmma_commit_group();
  };
  const auto wait_and_compute_p = [&] {
    warpgroup_fence_operand(s);
    mbarrier_wait(shared.rows[stage.slot].full, stage.parity);
    compute_p(s, shared.rows[stage.slot], key0 + row0, softmax_scale);
  };
  // The rest of an m_block once s has p: adds to dv, and leaves ds in `p_or_ds`.
  const auto finish_m_block = [&] {
    start_dp();
    start_dv();
    wgmma_wait_group<1>();
    warpgroup_fence_operand(dp);
    compute_ds(dp, s, shared.rows[stage.slot]);
    wgmma_wait_group<0>();
    warpgroup_fence_operand(acc_dv);
    if (elect_one()) mbarrier_arrive(shared.dout[stage.slot].empty);
    stage.advance();
    round_to_operand_a<kBlockM>(p_or_ds, dp);
  };
  if (query_blocks.count > 0) {
    mbarrier_wait(shared.keys_full, 0);
    if constexpr (Shared::kKeysInRegisters) load_operand_a(k, shared.k, row0), load_operand_a(v, shared.v, row0);
    start_s();
    wgmma_wait_group<0>();
    wait_and_compute_p();
    finish_m_block();
  }
#pragma unroll 1
  for (int i = 1; i < query_blocks.count; ++i) {
    start_s();
    start_dk();
    wgmma_wait_group<1>();
    wait_and_compute_p();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(acc_dk);
    __syncwarp();  // every lane has read the m_block's rows, which the producers may now replace
    if (elect_one()) mbarrier_arrive(shared.q[last_stage.slot].empty);
    last_stage.advance();
    finish_m_block();
  }
  if (query_blocks.count > 0) {
    start_dk();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(acc_dk);
  }
  const float one[2] = {1, 1}, factor[2] = {softmax_scale, softmax_scale};
  const int key = key0 + row0;
  scale_and_accumulate<kHD>(acc_dv, one, HeadRows<bf16>(dv, shape.v, b, kv_head, 1, kHD), key, shape.Tk, accumulate);
  store_rows<kHD>(dv_map, kv_head, key, b, acc_dv, shared.v, row0, kConsumerBarrier + consumer);
  scale_and_accumulate<kHD>(acc_dk, factor, HeadRows<bf16>(dk, shape.k, b, kv_head, 1, kHD), key, shape.Tk, accumulate);
  store_rows<kHD>(dk_map, kv_head, key, b, acc_dk, shared.k, row0, kConsumerBarrier + consumer);
  tma_store_wait_group_read();
}

template <int kHD>
__global__ void __launch_bounds__(SharedStorage<kHD>::kThreads, 1)
    attention_hopper_dkv_kernel(const __grid_constant__ TensorMap dk_map, const __grid_constant__ TensorMap dv_map,
                                const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap dout,
                                const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                                bf16* __restrict__ dk, bf16* __restrict__ dv, const float* __restrict__ lse,
                                const float* __restrict__ rowsum_dO_O, AttentionShape shape, float softmax_scale,
                                bool accumulate) {
  using Shared = SharedStorage<kHD>;
  constexpr int kBlockN = Shared::kBlockN, kBlockM = Shared::kBlockM;
  Shared& shared = shared_memory<Shared>();
  const BlockCoord coord = block_coord(shape);
  const int warpgroup = warpgroup_number(), heads = shape.NH / shape.NKV, key0 = coord.block * kBlockN;
  const int first = first_query_of_key(shape, key0);
  const int end = end_query_of_key(shape, coord.b, min_int(key0 + kBlockN, shape.Tk) - 1);
  const int per_head = first < end ? (end - first + kBlockM - 1) / kBlockM : 0;
  const QueryBlocks query_blocks = {first, end, heads * per_head};
  if (threadIdx.x == 0) {
    prefetch_tensor_maps(k, v, q, dout, dk_map, dv_map);
    mbarrier_init(shared.keys_full, 1);
    initialize_ring(shared.q, 4 * Shared::kConsumers);
    initialize_ring(shared.dout, 4 * Shared::kConsumers);
    for (int i = 0; i < Shared::kStages; ++i) mbarrier_init(shared.rows[i].full, kBlockM);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warpgroup == 0) {
    setmaxnreg_dec<Shared::kProducerRegisters>();
    const int row = int(threadIdx.x) - 32, head = coord.kv_head * heads;
    if (threadIdx.x == 0 && query_blocks.count > 0)
      produce(shared, q, dout, k, v, coord.b, coord.kv_head, head, key0, query_blocks);
    if (row >= 0 && row < kBlockM)
      produce_query_rows(shared, lse, rowsum_dO_O, shape, coord.b, head, row, query_blocks);
  } else {
    setmaxnreg_inc<Shared::kRegisters>();
    consume(shared, dk_map, dv_map, dk, dv, shape, softmax_scale, coord.b, coord.kv_head, key0, warpgroup - 1,
            query_blocks, accumulate);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void hopper_attention_dkv(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const char* who = "attention_hopper, dk and dv";
  with_tensor_core_head_size(s.HD, [&](auto head_size) {
    constexpr int kHD = decltype(head_size)::value;
    using Shared = SharedStorage<kHD>;
    Device& device = stream.device();
    launch<attention_hopper_dkv_kernel<kHD>>(
        dkv_work(stream, who, RateClass::attention_hopper_backward, call),
        blocks_for(size_t(s.Tk), Shared::kBlockN) * unsigned(s.NKV * s.B), Shared::kThreads, sizeof(Shared),
        map_of_rows(device, call.dk, kWarpgroupRows, who), map_of_rows(device, call.dv, kWarpgroupRows, who),
        map_of_rows(device, call.q, Shared::kBlockM, who), map_of_rows(device, call.dout, Shared::kBlockM, who),
        map_of_rows(device, call.k, Shared::kBlockN, who), map_of_rows(device, call.v, Shared::kBlockN, who),
        call.dk.as<bf16>(), call.dv.as<bf16>(), call.lse.as<float>(), call.rowsum_dO_O.as<float>(), s,
        call.softmax_scale(), call.accumulate.dkv);
  });
}
