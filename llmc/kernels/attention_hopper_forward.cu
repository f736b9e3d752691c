// Causal attention on Hopper, forward.  out[t] = sum_j softmax_j(scale * q[t].k[j]) v[j];  lse[t] = log-sum-exp of the
// scores, fp32.  Writes out and lse (=).  Deterministic: see attention.h.
//
//   tile        head 128: 128 queries x 128 keys; head 64: 192 x 128. The last keys come first: they need masks.
//   roles       warpgroup 0 is the producer (24 or 32 registers); 2 or 3 consumers have 64 queries each (240 or 160)
//   registers   per thread, head 128: 64 scores, 64 accumulators of out, 32 pairs of weights
//   stages      two each of queries, keys and values
//   waits       a consumer waits for a stage's bytes and its turn; the producer waits for a free stage
//   blocks      at most four for each multiprocessor, which has one at a time. A block computes one range of queries
//               after another, and the producer loads the next range's queries and keys while consumers compute the
//               last tiles of this one. With a single block each, a launch would wait for the multiprocessors that
//               NCCL holds when it begins, and NCCL for the end of the launch.
//
// A consumer starts the scores of the next keys, then the product of the previous tile's weights and values. At head
// size 128 it computes the exponentials of the new scores while the second product runs. Consumers take turns at
// starting products (named barriers; FlashAttention-3's ping-pong): while one uses the tensor cores, the others compute
// exponentials. At head size 64 the exponentials and the tensor cores need the same time, and three consumers have
// enough to do for both. There the compiler waits for the second product first and scales its sums between the
// exponentials, which the simulation of dev/bench/kernel_budget finds faster: 1852 clocks a tile, 2069 the other way.
// For the same reason all exponentials stay MUFU's. A polynomial for one of 16, 8 or 6 of them takes 9 instructions
// each, which issue has no room for: a tile took 25, 50 and 77 clocks more.
//
// Expected limit (dev/bench/attention_rates.cpp, a model; measured: dev/docs/benchmarks.md), in clocks of a
// multiprocessor for a tile at head size 128: two products 2048, exponentials 1024, fp32 768, shared memory 1792 (q, k
// and v for two warpgroups 1280, TMA writes 512), L2 2048 at 32 bytes per clock. With 40% of the exponentials and fp32
// not overlapped and two waits of 100, a tile takes about 2965 clocks. At 1.6 GHz that is 580 TFLOP/s at T = 8192; it
// would be 428 if none of them overlapped. At head size 64: products 1536, exponentials 1536, fp32 1056. Turns matter
// most there: 414 TFLOP/s at T = 4096 with them, 267 without. With a block for each range of queries, whose loads and
// stores nothing hides, it would be 566 and 393; at T = 2048 491 and 351, where it is 528 and 381.
#include <algorithm>

#include "llmc/kernels/attention_hopper.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

template <int kHD>
struct Tiles {
  static constexpr int kGroups = kHD == 64 ? 3 : 2, kQueries = kGroups * kGroupRows, kKeys = 128, kStages = 2;
  static constexpr int kThreads = (1 + kGroups) * kGroupThreads;
  static constexpr int kProducerRegisters = kHD == 64 ? 32 : 24, kRegisters = kHD == 64 ? 160 : 240;
  using Keys = WgmmaTile<kKeys, kHD>;
  using Queries = WgmmaTile<kQueries, kHD>;
  Stage<Queries> q[kStages];
  Stage<Keys> k[kStages], v[kStages];
};
static_assert(sizeof(Tiles<128>) <= 227 << 10 && sizeof(Tiles<64>) <= 227 << 10);

constexpr unsigned kBlocksOfMultiprocessor = 4;
constexpr int kTurn = 1, kResult = 4;  // named barriers: a consumer's turn (1 … 3), its result (4 … 6)

// Calls body(place, tiles) with each range of queries that this block computes. The ranges are in the order of
// query_place, those with most keys first, and blocks deal them out forwards and backwards in turn, so that without
// documents all blocks get nearly the same number of tiles.
template <int kQueries, int kKeys, class Body>
__device__ __forceinline__ void for_ranges(const AttentionShape& shape, int ranges, const Body& body) {
  const int all = ranges * shape.NH * shape.B, blocks = gridDim.x, block = blockIdx.x;
#pragma unroll 1
  for (int first = 0, turn = 0; first < all; first += blocks, turn ^= 1) {
    const int range = first + (turn ? blocks - 1 - block : block);
    if (range >= all) continue;
    const QueryPlace place = query_place(shape, range, ranges, kQueries);
    body(place, KeyTiles::of<kKeys>(shape, place, kQueries));
  }
}

template <int kHD>
struct Rings {
  PipelineState<Tiles<kHD>::kStages> queries, keys, values;
};

// The producer thread loads a range's queries, then its tiles of keys and values in the order in which they are
// multiplied.
template <int kHD>
__device__ __forceinline__ void produce(Tiles<kHD>& shared, Rings<kHD>& ring, const TensorMap& q, const TensorMap& k,
                                        const TensorMap& v, const QueryPlace& place, int kv_head,
                                        const KeyTiles& tiles) {
  load_stage(shared.q[ring.queries.slot], q, ring.queries.parity, place.head, place.t0, place.b);
  ring.queries.advance();
  const auto key_of = [&](int tile) { return tiles.first + tile * Tiles<kHD>::kKeys; };
  if (tiles.count > 0)
    load_stage(shared.k[ring.keys.slot], k, ring.keys.parity, kv_head, key_of(tiles.count - 1), place.b);
  for (int tile = tiles.count - 1; tile >= 0; --tile) {
    ring.keys.advance();
    if (tile > 0) load_stage(shared.k[ring.keys.slot], k, ring.keys.parity, kv_head, key_of(tile - 1), place.b);
    load_stage(shared.v[ring.values.slot], v, ring.values.parity, kv_head, key_of(tile), place.b);
    ring.values.advance();
  }
}

// A lane's part of its two rows' online softmax. Scores are raw products q.k; `scale` of `take` is log2e / sqrt(HD).
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {};  // row maximum; this lane's sum of exponentials

  // Takes a tile's scores (-infinity: unseen) and replaces them by their exponentials. Sets `shrink` to the factor by
  // which the caller multiplies its sums so far.
  template <int kCount>
  __device__ __forceinline__ void take(float (&s)[kCount], float (&shrink)[2], float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = softmax_step<kCount / 4>(top[half], shrink[half], scale,
                                                 [&](int j, int odd) -> float& { return s[4 * j + 2 * half + odd]; });
      total[half] = total[half] * shrink[half] + sum;
    }
  }
};

// Raises amax to the largest magnitude in the lanes' rows, as rounded to bf16. `there` tells which of a lane's two rows
// exist.
template <int kCount>
__device__ static __forceinline__ void raise_amax(float* amax, const float (&d)[kCount], const bool (&there)[2]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const uint32_t pair = pair_of_bf16(d[i], d[i + 1]) & 0x7fff7fffu;
    const uint32_t high = pair & 0xffff0000u, low = pair << 16, larger = high > low ? high : low;
    if (there[i / 2 % 2] && larger > largest) largest = larger;
  }
  largest = warp_max(largest);
  if (first_lane()) atomic_max(reinterpret_cast<uint32_t*>(amax), largest);
}

// A consumer's 64 queries of a range: products, online softmax and epilogue. The results are still being stored from
// the stage of the queries at the end; the stage before it, `stored`, is given back to the producer here.
template <int kHD>
__device__ __forceinline__ void multiply_and_store(Tiles<kHD>& shared, Rings<kHD>& ring, Mbarrier* stored,
                                                   const TensorMap& out, float* lse, const AttentionShape& shape,
                                                   float scale, const QueryPlace& place, int group,
                                                   const KeyTiles& tiles, float* amax) {
  using Shared = Tiles<kHD>;
  auto& queries = shared.q[ring.queries.slot];
  constexpr int kKeys = Shared::kKeys, kTakingTurns = 2 * kGroupThreads;
  const int row0 = group * kGroupRows, t0 = place.t0 + row0;
  KeyRange rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) rows[half] = keys_of_query_or_last(shape, place.b, t0 + row_of_group(half));
  const KeyRange every = keys_of_warp<1>(shape, place.b, t0 + warp_number() % 4 * 16).all;

  float sums[kHD / 2] = {}, s[kKeys / 2] = {}, shrink[2];
  uint32_t weights[kKeys / 16][4];
  Softmax softmax;
  auto &keys = ring.keys, &values = ring.values;
  const auto start_scores = [&] {
    mbarrier_wait(shared.k[keys.slot].full, keys.parity);
    named_barrier_sync(kTurn + group, kTakingTurns);
    warpgroup_fence_operand(s);
    wgmma_fence();
    multiply_rows(s, queries.tile, row0, shared.k[keys.slot].tile);
    wgmma_commit_group();
  };
  const auto start_sums = [&] {
    mbarrier_wait(shared.v[values.slot].full, values.parity);
    warpgroup_fence_operand(sums);
    wgmma_fence();
    add_weighted<kHD>(sums, weights, shared.v[values.slot].tile);
    wgmma_commit_group();
  };
  const auto finish_sums = [&] {
    wgmma_wait_group<0>();
    warpgroup_fence_operand(sums);
    if (first_lane()) mbarrier_arrive(shared.v[values.slot].free);
    values.advance();
  };
  const auto signal_next_warpgroup = [&] {
    named_barrier_arrive(kTurn + (group + 1 < Shared::kGroups ? group + 1 : 0), kTakingTurns);
  };
  const auto take_scores = [&](int tile) {
    warpgroup_fence_operand(s);
    if (first_lane()) mbarrier_arrive(shared.k[keys.slot].free);
    keys.advance();
    const int key0 = tiles.first + tile * kKeys;
    if (every.first > key0 || every.last < key0 + kKeys - 1) mask(s, key0, rows, -INFINITY);
    softmax.take(s, shrink, scale * kLog2e);
  };
  mbarrier_wait(queries.full, ring.queries.parity);
  ring.queries.advance();
  if (tiles.count > 0) {
    start_scores();
    signal_next_warpgroup();
    wgmma_wait_group<0>();
    take_scores(tiles.count - 1);
    round_to_operand<kKeys>(weights, s);
  }
  if (stored && threadIdx.x % kGroupThreads == 0) {
    tma_store_wait_group_read();
    mbarrier_arrive(*stored);
  }
#pragma unroll 1
  for (int tile = tiles.count - 2; tile >= 0; --tile) {
    start_scores();
    start_sums();
    signal_next_warpgroup();
    wgmma_wait_group<1>();
    take_scores(tile);
    if constexpr (kHD == 128) compute_before_wait(softmax.total[0] + softmax.total[1]);
    finish_sums();
#pragma unroll
    for (int i = 0; i < kHD / 2; ++i) sums[i] *= shrink[i / 2 % 2];
    round_to_operand<kKeys>(weights, s);
  }
  if (tiles.count > 0) {
    start_sums();
    finish_sums();
  }

  float inverse[2];
  bool there[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(softmax.total[half]);
    inverse[half] = inverse_of_sum(total);
    const int t = t0 + row_of_group(half);
    there[half] = t < shape.Tq;
    if (there[half] && lane_of_warp() % 4 == 0)
      lse[(size_t(place.b) * shape.NH + place.head) * shape.Tq + t] = log_sum_exp(softmax.top[half], total, scale);
  }
#pragma unroll
  for (int i = 0; i < kHD / 2; ++i) sums[i] *= inverse[i / 2 % 2];
  if (amax) raise_amax(amax, sums, there);
  store_rows<kHD>(out, place.head, t0, place.b, sums, queries.tile, row0, kResult + group);
}

template <int kHD>
__global__ void __launch_bounds__(Tiles<kHD>::kThreads, 1)
    attention_hopper_forward_kernel(const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap q,
                                    const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                                    float* __restrict__ lse, AttentionShape shape, float scale, int ranges,
                                    float* amax) {
  using Shared = Tiles<kHD>;
  Shared& shared = shared_memory<Shared>();
  const int group = warpgroup_number();
  if (threadIdx.x == 0) {
    prefetch_tensor_maps(q, k, v, out);
    initialize_ring(shared.q, Shared::kGroups);
    initialize_ring(shared.k, 4 * Shared::kGroups);
    initialize_ring(shared.v, 4 * Shared::kGroups);
    fence_mbarrier_init();
  }
  __syncthreads();
  Rings<kHD> ring;
  if (group == 0) {
    setmaxnreg_dec<Shared::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    for_ranges<Shared::kQueries, Shared::kKeys>(shape, ranges, [&](const QueryPlace& place, const KeyTiles& tiles) {
      produce(shared, ring, q, k, v, place, place.head / (shape.NH / shape.NKV), tiles);
    });
  } else {
    setmaxnreg_inc<Shared::kRegisters>();
    constexpr int kTakingTurns = 2 * kGroupThreads;
    if (group == 1) named_barrier_arrive(kTurn, kTakingTurns);  // the first consumer has the first turn
    Mbarrier* stored = nullptr;
    for_ranges<Shared::kQueries, Shared::kKeys>(shape, ranges, [&](const QueryPlace& place, const KeyTiles& tiles) {
      Mbarrier* const own = &shared.q[ring.queries.slot].free;
      multiply_and_store(shared, ring, stored, out, lse, shape, scale, place, group - 1, tiles, amax);
      stored = own;
    });
    if (group == 1) named_barrier_sync(kTurn, kTakingTurns);  // takes the turn that nobody needs
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
    using Shared = Tiles<kHD>;
    Device& device = stream.device();
    const unsigned ranges = blocks_for(size_t(s.Tq), Shared::kQueries);
    const unsigned most = kBlocksOfMultiprocessor * unsigned(device.info().multiprocessors);
    const unsigned blocks = std::min(ranges * unsigned(s.NH * s.B), most);
    launch<attention_hopper_forward_kernel<kHD>>(
        forward_work(stream, who, RateClass::attention_hopper_forward, call), blocks, Shared::kThreads, sizeof(Shared),
        map_of_rows(device, call.out, kGroupRows, who), map_of_rows(device, call.q, Shared::kQueries, who),
        map_of_rows(device, call.k, Shared::kKeys, who), map_of_rows(device, call.v, Shared::kKeys, who),
        call.lse.as<float>(), s, call.scale(), int(ranges), call.amax);
  });
}
