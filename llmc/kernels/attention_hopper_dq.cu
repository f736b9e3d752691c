// Causal attention on Hopper, backward: the gradient of queries, and rowsum_dO_O. With p[t,j] = exp(s[t,j] - lse[t]):
//
//   rowsum_dO_O[t] = dout[t].out[t]    dp[t,j] = dout[t].v[j]    ds[t,j] = p[t,j] (dp[t,j] - rowsum_dO_O[t])
//   dq[t] = softmax_scale * sum_j ds[t,j] k[j]
//
// dq, dout, out and q are (B, Tq, NH, HD), k and v (B, Tk, NKV, HD), rowsum_dO_O and lse (B, NH, Tq) fp32. Writes dq
// (= or +=) and rowsum_dO_O (=). Deterministic: one warpgroup alone accumulates the dq of its queries. A second kernel
// computes dk and dv and recomputes the scores. That makes 7 gemms instead of 5, but no sum passes through device
// memory, and no block waits for another.
//
//   tile        kBlockM = 128 queries; kBlockN = 64 keys at head size 128, 128 at 64
//   roles       warpgroup 0 is the producer (24 registers a thread); two consumers have 64 queries each (240)
//   registers   per thread, head size 128: 64 of acc_dq, 32 scores, 32 of dp, 16 of ds (pairs of bf16); head size 64:
//               32, 64, 64, 32
//   stages      three of k, because two are in use at once; two of v, and of q with dout
//   waits       a consumer waits for a stage's bytes; the producer waits for an empty stage
//   limits      the tensor cores and the bandwidth of shared memory: each consumer reads its own q and dout for each
//               n_block
//
// The kernel is persistent. A consumer starts with the last n_block, which needs a mask, and computes rowsum_dO_O while
// its first two gemms run. In each step it starts S = Q Kᵀ and dP = dO Vᵀ of the
// next n_block, then dQ += dS K of the previous one. It computes the exponentials while the other gemms run.
#include "llmc/kernels/attention_hopper.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

template <int kHD>
struct SharedStorage {
  static constexpr int kConsumers = 2, kBlockM = kConsumers * kWarpgroupRows, kBlockN = kHD == 64 ? 128 : 64;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;
  static constexpr int kRowStages = 2, kKeyStages = 3, kValueStages = 2;
  static constexpr int kProducerRegisters = 24, kRegisters = 240;
  struct Rows {
    WgmmaTile<kBlockM, kHD> q, dout;
  };
  using Keys = WgmmaTile<kBlockN, kHD>;
  Stage<Rows> rows[kRowStages];
  Stage<Keys> k[kKeyStages], v[kValueStages];
  float lse_log2[kBlockM], rowsum_dO_O[kBlockM];  // of this m_block; lse_log2: lse * log2(e)
};
static_assert(sizeof(SharedStorage<128>) <= 227 << 10 && sizeof(SharedStorage<64>) <= 227 << 10);

constexpr int kConsumerBarrier = 1;  // named barriers 1 and 2, one for each consumer

// A warpgroup's position in each ring of stages.
template <int kHD>
struct Rings {
  PipelineState<SharedStorage<kHD>::kRowStages> rows;
  PipelineState<SharedStorage<kHD>::kKeyStages> keys;
  PipelineState<SharedStorage<kHD>::kValueStages> values;
};

// The producer thread loads the q and dout of an m_block, then k and v of its n_blocks in the order in which consumers
// use them.
template <int kHD>
__device__ __forceinline__ void produce(SharedStorage<kHD>& shared, Rings<kHD>& ring, const TensorMap& q,
                                        const TensorMap& dout, const TensorMap& k, const TensorMap& v,
                                        const PackedMBlock& coord, int kv_head, const KeyBlocks& key_blocks) {
  auto& rows = shared.rows[ring.rows.slot];
  mbarrier_wait(rows.empty, ring.rows.parity ^ 1);
  mbarrier_arrive_expect_tx(rows.full, sizeof(rows.tile));
  load_rows(rows.tile.q, q, rows.full, coord.head, coord.t0, coord.b);
  load_rows(rows.tile.dout, dout, rows.full, coord.head, coord.t0, coord.b);
  ring.rows.advance();
  for (int n_block = key_blocks.count - 1; n_block >= 0; --n_block) {
    const int key0 = key_blocks.first_key + n_block * SharedStorage<kHD>::kBlockN;
    load_stage(shared.k[ring.keys.slot], k, ring.keys.parity, kv_head, key0, coord.b);
    load_stage(shared.v[ring.values.slot], v, ring.values.parity, kv_head, key0, coord.b);
    ring.keys.advance();
    ring.values.advance();
  }
}

// Computes rowsum_dO_O of a consumer's rows and writes it to device memory and to shared memory. Copies lse to shared
// memory. A row that sees no key, or does not exist, gets lse = infinity there, so that its p is 0.
template <int kHD>
__device__ __forceinline__ void prepare_rows(SharedStorage<kHD>& shared, float* rowsum_dO_O, const bf16* dout,
                                             const bf16* out, const float* lse, const AttentionShape& shape,
                                             const PackedMBlock& coord, int row0) {
  const auto store = [&](int row, int t, float sum) {
    const size_t first = (size_t(coord.b) * shape.NH + coord.head_of(row)) * shape.Tq;
    const float lse_of_row = t < shape.Tq ? lse[first + t] : -INFINITY;
    shared.rowsum_dO_O[row] = sum;
    shared.lse_log2[row] = lse_of_row == -INFINITY ? INFINITY : lse_of_row * kLog2e;
    if (t < shape.Tq) rowsum_dO_O[first + t] = sum;
  };
  compute_rowsum_dO_O<kHD, kWarpgroupRows, kWarpgroupThreads>(dout, out, shape, coord, row0,
                                                              threadIdx.x % kWarpgroupThreads, store);
}

// A consumer's 64 queries of an m_block: rowsum_dO_O, gemms and epilogue. At the end TMA still stores the results from
// the stage of q. `stored` is the `empty` barrier of the stage from which the m_block before was stored: this one
// releases it.
template <int kHD>
__device__ __forceinline__ void consume(SharedStorage<kHD>& shared, Rings<kHD>& ring, Mbarrier* stored,
                                        const TensorMap& dq_map, bf16* dq, float* rowsum_dO_O, const bf16* dout,
                                        const bf16* out, const float* lse, const AttentionShape& shape,
                                        float softmax_scale, const PackedMBlock& coord, int consumer,
                                        const KeyBlocks& key_blocks, bool accumulate) {
  using Shared = SharedStorage<kHD>;
  auto& block_rows = shared.rows[ring.rows.slot];
  constexpr int kBlockN = Shared::kBlockN;
  const int row0 = consumer * kWarpgroupRows;
  float acc_dq[kHD / 2] = {}, s[kBlockN / 2] = {}, dp[kBlockN / 2] = {};
  uint32_t ds[kBlockN / 16][4];
  auto &keys = ring.keys, last_keys = ring.keys;
  auto& values = ring.values;
  const auto start_s_and_dp = [&] {
    mbarrier_wait(shared.k[keys.slot].full, keys.parity);
    warpgroup_fence_operand(s);
    warpgroup_fence_operand(dp);
    wgmma_fence();
    gemm(s, block_rows.tile.q, row0, shared.k[keys.slot].tile);
    wgmma_commit_group();
    mbarrier_wait(shared.v[values.slot].full, values.parity);
    wgmma_fence();
    gemm(dp, block_rows.tile.dout, row0, shared.v[values.slot].tile);
    wgmma_commit_group();
    keys.advance();
  };
  const auto start_dq = [&] {
    warpgroup_fence_operand(acc_dq);
    wgmma_fence();
    gemm_rs<kHD>(acc_dq, ds, shared.k[last_keys.slot].tile);
    wgmma_commit_group();
  };
  const auto release_k = [&] {
    warpgroup_fence_operand(acc_dq);
    if (elect_one()) mbarrier_arrive(shared.k[last_keys.slot].empty);
    last_keys.advance();
  };
  KeyRange rows[2], seen_by_all{};
  float lse_log2[2], rowsum_of_row[2];
  const auto prepare = [&] {
    if (stored && threadIdx.x % kWarpgroupThreads == 0) {
      tma_store_wait_group_read();
      mbarrier_arrive(*stored);
    }
    prepare_rows(shared, rowsum_dO_O, dout, out, lse, shape, coord, row0);
    named_barrier_sync(kConsumerBarrier + consumer, kWarpgroupThreads);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + row_in_warpgroup(half);
      rows[half] = keys_of_query_or_last(shape, coord.b, coord.query(row));
      lse_log2[half] = shared.lse_log2[row];
      rowsum_of_row[half] = shared.rowsum_dO_O[row];
    }
    seen_by_all = keys_seen_by_all(shape, coord, row0 + warp_number() % 4 * 16);
  };
  // compute_p replaces the scores in s by p. compute_ds replaces dp by ds.
  const auto compute_p = [&](int n_block) {
    warpgroup_fence_operand(s);
#pragma unroll
    for (int i = 0; i < kBlockN / 2; ++i) s[i] = exp2_f32(s[i] * (softmax_scale * kLog2e) - lse_log2[i / 2 % 2]);
    const int key0 = key_blocks.first_key + n_block * kBlockN;
    if (seen_by_all.first > key0 || seen_by_all.last < key0 + kBlockN - 1) mask(s, key0, rows, 0.0f);
  };
  const auto compute_ds = [&] {
    warpgroup_fence_operand(dp);
    if (elect_one()) mbarrier_arrive(shared.v[values.slot].empty);
    values.advance();
#pragma unroll
    for (int i = 0; i < kBlockN / 2; ++i) dp[i] = s[i] * (dp[i] - rowsum_of_row[i / 2 % 2]);
  };
  mbarrier_wait(block_rows.full, ring.rows.parity);
  ring.rows.advance();
  if (key_blocks.count == 0) prepare();
  if (key_blocks.count > 0) {
    start_s_and_dp();
    prepare();
    wgmma_wait_group<1>();
    compute_p(key_blocks.count - 1);
    wgmma_wait_group<0>();
    compute_ds();
    round_to_operand_a<kBlockN>(ds, dp);
  }
#pragma unroll 1
  for (int n_block = key_blocks.count - 2; n_block >= 0; --n_block) {
    start_s_and_dp();
    start_dq();
    wgmma_wait_group<2>();
    compute_p(n_block);
    wgmma_wait_group<1>();
    compute_ds();
    wgmma_wait_group<0>();
    release_k();
    round_to_operand_a<kBlockN>(ds, dp);
  }
  if (key_blocks.count > 0) {
    start_dq();
    wgmma_wait_group<0>();
    release_k();
  }
  const float factor[2] = {softmax_scale, softmax_scale};
  const HeadRows<bf16> to(dq, shape.q, coord.b, coord.head, 1 << coord.log2_heads, kHD);
  scale_and_accumulate<kHD>(acc_dq, factor, to, (coord.t0 << coord.log2_heads) + row0, shape.Tq, accumulate);
  store_rows<kHD>(dq_map, coord.head, coord.query(row0), coord.b, acc_dq, block_rows.tile.q, row0,
                  kConsumerBarrier + consumer);
}

template <int kHD>
__global__ void __launch_bounds__(SharedStorage<kHD>::kThreads, 1)
    attention_hopper_dq_kernel(const __grid_constant__ TensorMap dq_map, const __grid_constant__ TensorMap q,
                               const __grid_constant__ TensorMap dout_map, const __grid_constant__ TensorMap k,
                               const __grid_constant__ TensorMap v, bf16* __restrict__ dq,
                               float* __restrict__ rowsum_dO_O, const bf16* __restrict__ dout,
                               const bf16* __restrict__ out, const float* __restrict__ lse, AttentionShape shape,
                               float softmax_scale, int m_blocks, int log2_heads, bool accumulate) {
  using Shared = SharedStorage<kHD>;
  Shared& shared = shared_memory<Shared>();
  const int warpgroup = warpgroup_number();
  if (threadIdx.x == 0) {
    prefetch_tensor_maps(q, dout_map, k, v, dq_map);
    initialize_ring(shared.rows, Shared::kConsumers);
    initialize_ring(shared.k, 4 * Shared::kConsumers);
    initialize_ring(shared.v, 4 * Shared::kConsumers);
    fence_mbarrier_init();
  }
  __syncthreads();
  Rings<kHD> ring;
  if (warpgroup == 0) {
    setmaxnreg_dec<Shared::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    for_m_blocks<Shared::kBlockM, Shared::kBlockN>(
        shape, m_blocks, log2_heads, [&](const PackedMBlock& coord, const KeyBlocks& key_blocks) {
          produce(shared, ring, q, dout_map, k, v, coord, coord.head / (shape.NH / shape.NKV), key_blocks);
        });
  } else {
    setmaxnreg_inc<Shared::kRegisters>();
    Mbarrier* stored = nullptr;
    for_m_blocks<Shared::kBlockM, Shared::kBlockN>(
        shape, m_blocks, log2_heads, [&](const PackedMBlock& coord, const KeyBlocks& key_blocks) {
          Mbarrier* const own = &shared.rows[ring.rows.slot].empty;
          consume(shared, ring, stored, dq_map, dq, rowsum_dO_O, dout, out, lse, shape, softmax_scale, coord,
                  warpgroup - 1, key_blocks, accumulate);
          stored = own;
        });
    tma_store_wait_group_read();
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void hopper_attention_dq(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const char* who = "attention_hopper, dq";
  with_tensor_core_head_size(s.HD, [&](auto head_size) {
    constexpr int kHD = decltype(head_size)::value;
    using Shared = SharedStorage<kHD>;
    Device& device = stream.device();
    const int log2_heads = log2_packed_heads(s);
    const unsigned m_blocks = blocks_for(size_t(s.Tq), Shared::kBlockM >> log2_heads);
    launch<attention_hopper_dq_kernel<kHD>>(
        dq_work(stream, who, RateClass::attention_hopper_backward, call),
        persistent_blocks(device, m_blocks * unsigned((s.NH >> log2_heads) * s.B)), Shared::kThreads, sizeof(Shared),
        map_of_rows(device, call.dq, kWarpgroupRows, who, log2_heads),
        map_of_rows(device, call.q, Shared::kBlockM, who, log2_heads),
        map_of_rows(device, call.dout, Shared::kBlockM, who, log2_heads),
        map_of_rows(device, call.k, Shared::kBlockN, who), map_of_rows(device, call.v, Shared::kBlockN, who),
        call.dq.as<bf16>(), call.rowsum_dO_O.as<float>(), call.dout.as<bf16>(), call.out.as<bf16>(),
        call.lse.as<float>(), s, call.softmax_scale(), int(m_blocks), log2_heads, call.accumulate.dq);
  });
}
