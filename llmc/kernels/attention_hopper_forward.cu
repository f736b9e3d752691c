// Causal attention on Hopper, forward. With s[t,j] = softmax_scale * q[t].k[j]:
//
//   out[t] = sum_j softmax_j(s[t,j]) v[j]    lse[t] = log sum_j exp(s[t,j]), fp32
//
// q and out are (B, Tq, NH, HD), k and v (B, Tk, NKV, HD), lse (B, NH, Tq). Writes out and lse (=) and raises amax.
// Deterministic: see attention.h.
//
//   tile        head size 128: kBlockM x kBlockN = 128 queries x 128 keys; head size 64: 192 x 128
//   roles       warpgroup 0 is the producer (24 or 32 registers a thread); 2 or 3 consumers have 64 queries each (240
//               or 160 registers)
//   registers   per thread, head size 128: 64 scores, 64 of acc_o, 32 of p (pairs of bf16)
//   stages      two each of q, k and v
//   waits       a consumer waits for a stage's bytes and for its turn; the producer waits for an empty stage
//   limits      the tensor cores; at head size 64 the exponentials as much
//
// The kernel is persistent (attention_hopper.cuh): the producer loads the next m_block's q, k and v while the consumers
// compute this one's last n_blocks.
//
// A consumer starts with the last n_block, which needs a mask. In each step it starts S = Q Kᵀ of the next n_block,
// then O += P V of the previous one. Consumers take turns at starting gemms, as in FlashAttention-3's ping-pong: while
// one uses the tensor cores, the others compute exponentials. A turn is a named barrier of two warpgroups. At head size
// 128 a consumer computes its exponentials while its own P V runs. At head size 64, with three consumers, the compiler
// waits for P V first and rescales acc_o between the exponentials, which is faster (dev/bench/kernel_budget). All
// exponentials are ex2 instructions; polynomials on the fp32 units would be slower here.
#include "llmc/kernels/attention_hopper.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

template <int kHD>
struct SharedStorage {
  static constexpr int kConsumers = kHD == 64 ? 3 : 2, kStages = 2;
  static constexpr int kBlockM = kConsumers * kWarpgroupRows, kBlockN = 128;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;
  static constexpr int kProducerRegisters = kHD == 64 ? 32 : 24, kRegisters = kHD == 64 ? 160 : 240;
  using Keys = WgmmaTile<kBlockN, kHD>;
  using Queries = WgmmaTile<kBlockM, kHD>;
  Stage<Queries> q[kStages];
  Stage<Keys> k[kStages], v[kStages];
};
static_assert(sizeof(SharedStorage<128>) <= 227 << 10 && sizeof(SharedStorage<64>) <= 227 << 10);

// Named barriers: the turn of each consumer (1 … 3), and the epilogue of each (4 … 6).
constexpr int kTurn = 1, kEpilogueBarrier = 4;
constexpr int kTurnThreads = 2 * kWarpgroupThreads;  // of the consumer before, which arrives, and of the one that waits

// A warpgroup's position in each ring of stages.
template <int kHD>
struct Rings {
  PipelineState<SharedStorage<kHD>::kStages> queries, keys, values;
};

// The producer thread loads the q of an m_block, then k and v of its n_blocks in the order in which consumers use them.
template <int kHD>
__device__ __forceinline__ void produce(SharedStorage<kHD>& shared, Rings<kHD>& ring, const TensorMap& q,
                                        const TensorMap& k, const TensorMap& v, const PackedMBlock& coord, int kv_head,
                                        const KeyBlocks& key_blocks) {
  load_stage(shared.q[ring.queries.slot], q, ring.queries.parity, coord.head, coord.t0, coord.b);
  ring.queries.advance();
  const auto key_of = [&](int n_block) { return key_blocks.first_key + n_block * SharedStorage<kHD>::kBlockN; };
  if (key_blocks.count > 0)
    load_stage(shared.k[ring.keys.slot], k, ring.keys.parity, kv_head, key_of(key_blocks.count - 1), coord.b);
  for (int n_block = key_blocks.count - 1; n_block >= 0; --n_block) {
    ring.keys.advance();
    if (n_block > 0) load_stage(shared.k[ring.keys.slot], k, ring.keys.parity, kv_head, key_of(n_block - 1), coord.b);
    load_stage(shared.v[ring.values.slot], v, ring.values.parity, kv_head, key_of(n_block), coord.b);
    ring.values.advance();
  }
}

// The online softmax of a lane's two rows. `s` are raw products q.k; -infinity: the row does not see the key.
struct Softmax {
  float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {};  // row_sum: this lane's part

  // Replaces the scores of an n_block by p, and sets scores_scale, by which the caller multiplies acc_o.
  // softmax_scale_log2 = log2(e) / sqrt(HD).
  template <int kCount>
  __device__ __forceinline__ void online_softmax(float (&s)[kCount], float (&scores_scale)[2],
                                                 float softmax_scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = softmax_step<kCount / 4>(row_max[half], scores_scale[half], softmax_scale_log2,
                                                 [&](int j, int odd) -> float& { return s[4 * j + 2 * half + odd]; });
      row_sum[half] = row_sum[half] * scores_scale[half] + sum;
    }
  }
  // Sets `inverse`, by which the caller multiplies acc_o, and whether each row is a query of the call. Writes its lse.
  // row0 is the consumer's first row.
  __device__ __forceinline__ void finalize(float (&inverse)[2], bool (&exists)[2], float* lse,
                                           const AttentionShape& shape, float softmax_scale, const PackedMBlock& coord,
                                           int row0) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(row_sum[half]);
      inverse[half] = inverse_of_sum(sum);
      const int row = row0 + row_in_warpgroup(half), t = coord.query(row);
      exists[half] = t < shape.Tq;
      if (exists[half] && lane_of_warp() % 4 == 0)
        lse[(size_t(coord.b) * shape.NH + coord.head_of(row)) * shape.Tq + t] =
            log_sum_exp(row_max[half], sum, softmax_scale);
    }
  }
};

// Raises amax to the largest magnitude in the lanes' rows, as rounded to bf16. `exists` tells which of a lane's two
// rows exist.
template <int kCount>
__device__ static __forceinline__ void raise_amax(float* amax, const float (&d)[kCount], const bool (&exists)[2]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const uint32_t pair = pair_of_bf16(d[i], d[i + 1]) & 0x7fff7fffu;
    const uint32_t high = pair & 0xffff0000u, low = pair << 16, larger = high > low ? high : low;
    if (exists[i / 2 % 2] && larger > largest) largest = larger;
  }
  largest = warp_max(largest);
  if (elect_one()) atomic_max(reinterpret_cast<uint32_t*>(amax), largest);
}

// A consumer's 64 queries of an m_block. At the end TMA still stores the results from the stage of q. `stored` is the
// `empty` barrier of the stage from which the m_block before was stored: this one releases it.
template <int kHD>
__device__ __forceinline__ void consume(SharedStorage<kHD>& shared, Rings<kHD>& ring, Mbarrier* stored,
                                        const TensorMap& out, float* lse, const AttentionShape& shape,
                                        float softmax_scale, const PackedMBlock& coord, int consumer,
                                        const KeyBlocks& key_blocks, float* amax) {
  using Shared = SharedStorage<kHD>;
  auto& queries = shared.q[ring.queries.slot];
  constexpr int kBlockN = Shared::kBlockN;
  const int row0 = consumer * kWarpgroupRows;
  KeyRange rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    rows[half] = keys_of_query_or_last(shape, coord.b, coord.query(row0 + row_in_warpgroup(half)));
  const KeyRange seen_by_all = keys_seen_by_all(shape, coord, row0 + warp_number() % 4 * 16);

  float acc_o[kHD / 2] = {}, s[kBlockN / 2] = {}, scores_scale[2];
  uint32_t p[kBlockN / 16][4];
  Softmax softmax;
  auto &keys = ring.keys, &values = ring.values;
  const auto start_qk = [&] {
    mbarrier_wait(shared.k[keys.slot].full, keys.parity);
    named_barrier_sync(kTurn + consumer, kTurnThreads);
    warpgroup_fence_operand(s);
    wgmma_fence();
    gemm(s, queries.tile, row0, shared.k[keys.slot].tile);
    wgmma_commit_group();
  };
  const auto start_pv = [&] {
    mbarrier_wait(shared.v[values.slot].full, values.parity);
    warpgroup_fence_operand(acc_o);
    wgmma_fence();
    gemm_rs<kHD>(acc_o, p, shared.v[values.slot].tile);
    wgmma_commit_group();
  };
  const auto finish_pv = [&] {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(acc_o);
    if (elect_one()) mbarrier_arrive(shared.v[values.slot].empty);
    values.advance();
  };
  const auto signal_next_warpgroup = [&] {
    named_barrier_arrive(kTurn + (consumer + 1 < Shared::kConsumers ? consumer + 1 : 0), kTurnThreads);
  };
  const auto update_softmax = [&](int n_block) {
    warpgroup_fence_operand(s);
    if (elect_one()) mbarrier_arrive(shared.k[keys.slot].empty);
    keys.advance();
    const int key0 = key_blocks.first_key + n_block * kBlockN;
    if (seen_by_all.first > key0 || seen_by_all.last < key0 + kBlockN - 1) mask(s, key0, rows, -INFINITY);
    softmax.online_softmax(s, scores_scale, softmax_scale * kLog2e);
  };
  mbarrier_wait(queries.full, ring.queries.parity);
  ring.queries.advance();
  if (key_blocks.count > 0) {
    start_qk();
    signal_next_warpgroup();
    wgmma_wait_group<0>();
    update_softmax(key_blocks.count - 1);
    round_to_operand_a<kBlockN>(p, s);
  }
  if (stored && threadIdx.x % kWarpgroupThreads == 0) {
    tma_store_wait_group_read();
    mbarrier_arrive(*stored);
  }
#pragma unroll 1
  for (int n_block = key_blocks.count - 2; n_block >= 0; --n_block) {
    start_qk();
    start_pv();
    signal_next_warpgroup();
    wgmma_wait_group<1>();
    update_softmax(n_block);
    if constexpr (kHD == 128) compute_before_wait(softmax.row_sum[0] + softmax.row_sum[1]);
    finish_pv();
#pragma unroll
    for (int i = 0; i < kHD / 2; ++i) acc_o[i] *= scores_scale[i / 2 % 2];
    round_to_operand_a<kBlockN>(p, s);
  }
  if (key_blocks.count > 0) {
    start_pv();
    finish_pv();
  }

  float inverse[2];
  bool exists[2];
  softmax.finalize(inverse, exists, lse, shape, softmax_scale, coord, row0);
#pragma unroll
  for (int i = 0; i < kHD / 2; ++i) acc_o[i] *= inverse[i / 2 % 2];
  if (amax) raise_amax(amax, acc_o, exists);
  store_rows<kHD>(out, coord.head, coord.query(row0), coord.b, acc_o, queries.tile, row0, kEpilogueBarrier + consumer);
}

template <int kHD>
__global__ void __launch_bounds__(SharedStorage<kHD>::kThreads, 1)
    attention_hopper_forward_kernel(const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap q,
                                    const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                                    float* __restrict__ lse, AttentionShape shape, float softmax_scale, int m_blocks,
                                    int log2_heads, float* amax) {
  using Shared = SharedStorage<kHD>;
  Shared& shared = shared_memory<Shared>();
  const int warpgroup = warpgroup_number();
  if (threadIdx.x == 0) {
    prefetch_tensor_maps(q, k, v, out);
    initialize_ring(shared.q, Shared::kConsumers);
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
          produce(shared, ring, q, k, v, coord, coord.head / (shape.NH / shape.NKV), key_blocks);
        });
  } else {
    setmaxnreg_inc<Shared::kRegisters>();
    if (warpgroup == 1) named_barrier_arrive(kTurn, kTurnThreads);  // the first consumer has the first turn
    Mbarrier* stored = nullptr;
    for_m_blocks<Shared::kBlockM, Shared::kBlockN>(
        shape, m_blocks, log2_heads, [&](const PackedMBlock& coord, const KeyBlocks& key_blocks) {
          Mbarrier* const own = &shared.q[ring.queries.slot].empty;
          consume(shared, ring, stored, out, lse, shape, softmax_scale, coord, warpgroup - 1, key_blocks, amax);
          stored = own;
        });
    if (warpgroup == 1) named_barrier_sync(kTurn, kTurnThreads);  // takes the last turn, which no consumer needs
    tma_store_wait_group_read();
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

bool hopper_attention_is_built() { return kBuildHasHopper; }

void hopper_attention_forward(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const char* who = "attention_hopper, forward";
  with_tensor_core_head_size(s.HD, [&](auto head_size) {
    constexpr int kHD = decltype(head_size)::value;
    using Shared = SharedStorage<kHD>;
    Device& device = stream.device();
    const int log2_heads = log2_packed_heads(s);
    const unsigned m_blocks = blocks_for(size_t(s.Tq), Shared::kBlockM >> log2_heads);
    launch<attention_hopper_forward_kernel<kHD>>(
        forward_work(stream, who, RateClass::attention_hopper_forward, call),
        persistent_blocks(device, m_blocks * unsigned((s.NH >> log2_heads) * s.B)), Shared::kThreads, sizeof(Shared),
        map_of_rows(device, call.out, kWarpgroupRows, who, log2_heads),
        map_of_rows(device, call.q, Shared::kBlockM, who, log2_heads),
        map_of_rows(device, call.k, Shared::kBlockN, who), map_of_rows(device, call.v, Shared::kBlockN, who),
        call.lse.as<float>(), s, call.softmax_scale(), int(m_blocks), log2_heads, call.amax);
  });
}
