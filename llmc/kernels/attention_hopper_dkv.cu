// Causal attention on Hopper, backward: the gradients of keys and values. With p[t,j] = exp(s[t,j] - lse[t]):
//
//   ds[t,j] = p[t,j] (dout[t].v[j] - delta[t])     dk[j] = scale * sum_t ds[t,j] q[t]     dv[j] = sum_t p[t,j] dout[t]
//
// Writes dk and dv (= or +=).  Deterministic, without atomics: one warpgroup alone accumulates the sums of its keys and
// walks over the queries that see them, in all heads of the group. Scores are computed transposed, keys x queries, so
// that p and ds in registers already are the left operands of the sums.
//
//   tile        128 keys x 64 queries. The blocks of the first keys start first: most queries see them.
//   roles       warpgroup 0 is the producer (24 registers): one thread loads tiles, 64 others load lse, delta and the
//               range of keys that each query sees; two consumers have 64 keys each (240)
//   registers   per thread, head 128: 64 of dk, 64 of dv, 32 scores, 32 of v.dout, 16 pairs of weights
//   stages      three of queries, three of dout; keys and values are loaded once
//   waits       a consumer waits for keys and values, a stage's bytes, and its lse, delta and key ranges; the producer
//               waits for a free stage
//
// A consumer starts the scores of the next queries and the product of the previous tile's ds and queries. It computes
// the exponentials while the second product runs. Then it starts v.dout and the product of p and dout, and computes ds
// while that last product runs. p and ds share one array of weights: the product with p is done before ds replaces it.
// With two arrays, or with v.dout started beside the scores, registers are short at head size 128, and the compiler
// makes products wait for one another.
//
// Expected limit (dev/bench/attention_rates.cpp, a model; measured: dev/docs/benchmarks.md), in clocks of a
// multiprocessor for a tile at head size 128: four products 2048, exponentials 512, fp32 320, shared memory 1920
// (operands 1536, TMA writes 256, lse and delta 128), L2 1024, four waits 400. A tile takes about 2781 clocks, which is
// 620 TFLOP/s of the kernel's four products at T = 8192. Scores and v.dout have 64 columns with both operands in shared
// memory: each wgmma reads 4 KiB in 32 clocks, the full bandwidth of shared memory. At head size 64: 1024, 512, 320,
// 1024; a tile takes 1757, which is 479 TFLOP/s at T = 4096.
#include "llmc/kernels/attention_hopper.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

// Data of the queries of a tile, besides their rows of q and dout.
template <int kQueries>
struct QueryRows {
  float lse[kQueries], delta[kQueries];  // lse in units of log 2; infinity where the query sees no key, or does not
                                         // exist: its weights are 0
  int first[kQueries], last[kQueries];   // the keys that it sees
  Mbarrier full;
};

template <int kHD>
struct Tiles {
  static constexpr int kGroups = 2, kKeys = kGroups * kGroupRows, kQueries = 64, kStages = 3;
  static constexpr int kThreads = (1 + kGroups) * kGroupThreads;
  static constexpr int kProducerRegisters = 24, kRegisters = 240;
  using Queries = WgmmaTile<kQueries, kHD>;
  using Keys = WgmmaTile<kKeys, kHD>;
  Keys k, v;
  Stage<Queries> q[kStages], dout[kStages];
  QueryRows<kQueries> rows[kStages];  // freed together with the stage of q
  Mbarrier keys_full;
};
static_assert(sizeof(Tiles<128>) <= 227 << 10 && sizeof(Tiles<64>) <= 227 << 10);

constexpr int kOfGroup = 1;  // named barriers 1 and 2, one for each consumer

// The tiles that a block walks over: queries first .. end-1 of each head of the group. A head has `of_head` tiles, the
// group has `count`.
struct QueryTiles {
  int first, end, of_head, count;
};

// The current position of a walk over QueryTiles.
template <int kQueries>
struct QueryTile {
  int head, t0;
  __device__ __forceinline__ QueryTile(int head, const QueryTiles& tiles) : head(head), t0(tiles.first) {}
  __device__ __forceinline__ void advance(const QueryTiles& tiles) {
    t0 += kQueries;
    if (t0 < tiles.end) return;
    t0 = tiles.first;
    ++head;
  }
};

// The producer thread loads keys and values, then the tiles of queries and dout.
template <int kHD>
__device__ __forceinline__ void produce(Tiles<kHD>& shared, const TensorMap& q, const TensorMap& dout,
                                        const TensorMap& k, const TensorMap& v, int b, int kv_head, int head, int key0,
                                        const QueryTiles& tiles) {
  using Shared = Tiles<kHD>;
  mbarrier_arrive_expect_tx(shared.keys_full, sizeof(shared.k) + sizeof(shared.v));
  load_rows(shared.k, k, shared.keys_full, kv_head, key0, b);
  load_rows(shared.v, v, shared.keys_full, kv_head, key0, b);
  PipelineState<Shared::kStages> place;
  QueryTile<Shared::kQueries> at(head, tiles);
  for (int i = 0; i < tiles.count; ++i) {
    load_stage(shared.q[place.slot], q, place.parity, at.head, at.t0, b);
    load_stage(shared.dout[place.slot], dout, place.parity, at.head, at.t0, b);
    place.advance();
    at.advance(tiles);
  }
}

// One thread per row loads lse, delta and the range of keys of the queries of each tile.
template <int kHD>
__device__ __forceinline__ void produce_rows(Tiles<kHD>& shared, const float* lse, const float* delta,
                                             const AttentionShape& shape, int b, int head, int row,
                                             const QueryTiles& tiles) {
  using Shared = Tiles<kHD>;
  PipelineState<Shared::kStages> place;
  QueryTile<Shared::kQueries> at(head, tiles);
  for (int i = 0; i < tiles.count; ++i) {
    const int t = at.t0 + row;
    float lse_of_row = -INFINITY, delta_of_row = 0;
    KeyRange seen = {0, shape.Tk};
    if (t < tiles.end) {
      const size_t of_query = (size_t(b) * shape.NH + at.head) * shape.Tq + t;
      lse_of_row = lse[of_query];
      delta_of_row = delta[of_query];
      seen = keys_of_query(shape, b, t);
    }
    if (lse_of_row == -INFINITY) lse_of_row = INFINITY, seen = {0, shape.Tk};
    mbarrier_wait(shared.q[place.slot].free, place.parity ^ 1);
    auto& rows = shared.rows[place.slot];
    rows.lse[row] = lse_of_row * kLog2e;
    rows.delta[row] = delta_of_row;
    rows.first[row] = seen.first;
    rows.last[row] = seen.last;
    mbarrier_arrive(rows.full);
    place.advance();
    at.advance(tiles);
  }
}

// A consumer's 64 keys: products and epilogue.
template <int kHD>
__device__ __forceinline__ void multiply_and_store(Tiles<kHD>& shared, const TensorMap& dk_map, const TensorMap& dv_map,
                                                   bf16* dk, bf16* dv, const AttentionShape& shape, float scale, int b,
                                                   int kv_head, int key0, int group, const QueryTiles& tiles,
                                                   bool accumulate) {
  using Shared = Tiles<kHD>;
  constexpr int kQueries = Shared::kQueries;
  const int row0 = group * kGroupRows;
  float dkeys[kHD / 2] = {}, dvalues[kHD / 2] = {}, s[kQueries / 2] = {}, ds[kQueries / 2] = {};
  uint32_t weights[kQueries / 16][4];
  PipelineState<Shared::kStages> place, last;  // of the current tile and of the one before
  const auto start_scores = [&] {
    mbarrier_wait(shared.q[place.slot].full, place.parity);
    warpgroup_fence_operand(s);
    wgmma_fence();
    multiply_rows(s, shared.k, row0, shared.q[place.slot].tile);
    wgmma_commit_group();
  };
  const auto start_products = [&] {
    mbarrier_wait(shared.dout[place.slot].full, place.parity);
    warpgroup_fence_operand(ds);
    wgmma_fence();
    multiply_rows(ds, shared.v, row0, shared.dout[place.slot].tile);
    wgmma_commit_group();
  };
  const auto start_keys = [&] {
    warpgroup_fence_operand(dkeys);
    wgmma_fence();
    add_weighted<kHD>(dkeys, weights, shared.q[last.slot].tile);
    wgmma_commit_group();
  };
  const auto start_values = [&] {
    round_to_operand<kQueries>(weights, s);
    warpgroup_fence_operand(dvalues);
    wgmma_fence();
    add_weighted<kHD>(dvalues, weights, shared.dout[place.slot].tile);
    wgmma_commit_group();
  };
  // Turns the scores in s into p.
  const auto take_scores = [&] {
    warpgroup_fence_operand(s);
    auto& rows = shared.rows[place.slot];
    mbarrier_wait(rows.full, place.parity);
    const int first_key = key0 + row0 + warp_number() % 4 * 16, lane = lane_of_warp();
    bool every = true;  // this lane's two queries see every key of the warp
#pragma unroll
    for (int i = lane; i < kQueries; i += 32) every &= rows.first[i] <= first_key && rows.last[i] >= first_key + 15;
    const bool masked = __ballot_sync(~0u, every) != ~0u;
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float lse2 = rows.lse[column_of(j, odd)];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& score = s[4 * j + 2 * half + odd];
          score = exp2_f32(score * (scale * kLog2e) - lse2);
        }
      }
    if (!masked) return;
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int first = rows.first[column_of(j, odd)], last = rows.last[column_of(j, odd)];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = key0 + row0 + row_of_group(half);
          if (key < first || key > last) s[4 * j + 2 * half + odd] = 0;
        }
      }
  };
  // Turns v.dout in ds into ds, with p from s.
  const auto take_products = [&] {
    warpgroup_fence_operand(ds);
    auto& rows = shared.rows[place.slot];
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float delta = rows.delta[column_of(j, odd)];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = 4 * j + 2 * half + odd;
          ds[i] = s[i] * (ds[i] - delta);
        }
      }
  };
  // The rest of a tile once s has p: adds the product of p and dout to dv, and leaves ds in `weights`.
  const auto finish_tile = [&] {
    start_products();
    start_values();
    wgmma_wait_group<1>();
    take_products();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(dvalues);
    if (first_lane()) mbarrier_arrive(shared.dout[place.slot].free);
    place.advance();
    round_to_operand<kQueries>(weights, ds);
  };
  if (tiles.count > 0) {
    mbarrier_wait(shared.keys_full, 0);
    start_scores();
    wgmma_wait_group<0>();
    take_scores();
    finish_tile();
  }
#pragma unroll 1
  for (int i = 1; i < tiles.count; ++i) {
    start_scores();
    start_keys();
    wgmma_wait_group<1>();
    take_scores();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(dkeys);
    __syncwarp();  // every lane has read the tile's rows, which the producers may now replace
    if (first_lane()) mbarrier_arrive(shared.q[last.slot].free);
    last.advance();
    finish_tile();
  }
  if (tiles.count > 0) {
    start_keys();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(dkeys);
  }
  const float one[2] = {1, 1}, factor[2] = {scale, scale};
  const int key = key0 + row0;
  scale_rows<kHD>(dvalues, one, HeadRows<bf16>(dv, shape.v, b, kv_head, 1, kHD), key, shape.Tk, accumulate);
  store_rows<kHD>(dv_map, kv_head, key, b, dvalues, shared.v, row0, kOfGroup + group);
  scale_rows<kHD>(dkeys, factor, HeadRows<bf16>(dk, shape.k, b, kv_head, 1, kHD), key, shape.Tk, accumulate);
  store_rows<kHD>(dk_map, kv_head, key, b, dkeys, shared.k, row0, kOfGroup + group);
  tma_store_wait_group_read();
}

template <int kHD>
__global__ void __launch_bounds__(Tiles<kHD>::kThreads, 1)
    attention_hopper_dkv_kernel(const __grid_constant__ TensorMap dk_map, const __grid_constant__ TensorMap dv_map,
                                const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap dout,
                                const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                                bf16* __restrict__ dk, bf16* __restrict__ dv, const float* __restrict__ lse,
                                const float* __restrict__ delta, AttentionShape shape, float scale, bool accumulate) {
  using Shared = Tiles<kHD>;
  constexpr int kKeys = Shared::kKeys, kQueries = Shared::kQueries;
  Shared& shared = shared_memory<Shared>();
  const BlockPlace place = block_place(shape);
  const int group = warpgroup_number(), heads = shape.NH / shape.NKV, key0 = place.range * kKeys;
  const int first = first_row_behind(shape, 1, key0);
  const int end = first_query_past(shape, place.b, min_int(key0 + kKeys, shape.Tk) - 1);
  const int of_head = first < end ? (end - first + kQueries - 1) / kQueries : 0;
  const QueryTiles tiles = {first, end, of_head, heads * of_head};
  if (threadIdx.x == 0) {
    prefetch_tensor_maps(k, v, q, dout, dk_map, dv_map);
    mbarrier_init(shared.keys_full, 1);
    initialize_ring(shared.q, 4 * Shared::kGroups);
    initialize_ring(shared.dout, 4 * Shared::kGroups);
    for (int i = 0; i < Shared::kStages; ++i) mbarrier_init(shared.rows[i].full, kQueries);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (group == 0) {
    setmaxnreg_dec<Shared::kProducerRegisters>();
    const int row = int(threadIdx.x) - 32, head = place.kv_head * heads;
    if (threadIdx.x == 0 && tiles.count > 0) produce(shared, q, dout, k, v, place.b, place.kv_head, head, key0, tiles);
    if (row >= 0 && row < kQueries) produce_rows(shared, lse, delta, shape, place.b, head, row, tiles);
  } else {
    setmaxnreg_inc<Shared::kRegisters>();
    multiply_and_store(shared, dk_map, dv_map, dk, dv, shape, scale, place.b, place.kv_head, key0, group - 1, tiles,
                       accumulate);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void hopper_attention_dkv(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const char* who = "attention_hopper, dk and dv";
  with_tensor_core_head_size(s.HD, [&](auto head_size) {
    constexpr int kHD = decltype(head_size)::value;
    using Shared = Tiles<kHD>;
    Device& device = stream.device();
    launch<attention_hopper_dkv_kernel<kHD>>(
        dkv_work(stream, who, RateClass::attention_hopper_backward, call),
        blocks_for(size_t(s.Tk), Shared::kKeys) * unsigned(s.NKV * s.B), Shared::kThreads, sizeof(Shared),
        map_of_rows(device, call.dk, kGroupRows, who), map_of_rows(device, call.dv, kGroupRows, who),
        map_of_rows(device, call.q, Shared::kQueries, who), map_of_rows(device, call.dout, Shared::kQueries, who),
        map_of_rows(device, call.k, Shared::kKeys, who), map_of_rows(device, call.v, Shared::kKeys, who),
        call.dk.as<bf16>(), call.dv.as<bf16>(), call.lse.as<float>(), call.delta.as<float>(), s, call.scale(),
        call.accumulate.dkv);
  });
}
