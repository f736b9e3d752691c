// Causal attention on Hopper, forward.  out[t] = sum_j softmax_j(scale * q[t].k[j]) v[j];  lse[t] = log-sum-exp of the
// scores, fp32.  out =, lse =.  Deterministic: see attention.h.
//
//   tile        head 128: 128 queries x 128 keys; head 64: 192 x 128. Last keys first: those that need masks.
//   roles       warpgroup 0 brings (24 or 32 registers); 2 or 3 others have 64 queries each (240 or 160)
//   registers   of a thread, head 128: 64 scores, 64 sums, 32 pairs of weights
//   stages      two of keys, two of values; the queries once
//   waits       multiply: the queries, a stage's bytes, its turn; bring: until a stage is free
//
// A warpgroup starts its scores of the next keys, then the sum of the last keys' values, and takes the exponentials of
// the former while the latter runs. Beside that, warpgroups take turns at starting products (named barriers): while one
// has the tensor cores, the others take their exponentials.
//
// What should limit it (dev/bench/attention_rates.cpp, a model; nothing measured yet), clocks of a multiprocessor for a
// tile at head size 128: two products 2048, exponentials 1024, fp32 768, shared memory 1792 (q, k and v for two
// warpgroups 1280, what the copies bring 512), L2 2048 at 32 bytes a clock: with 40% of exponentials and fp32 exposed
// and two waits of 100, some 2965. At 1.6 GHz 566 TFLOP/s at T = 8192; 423 were nothing hidden. Head size 64: products
// 1536, exponentials 1536, fp32 1056: taking turns decides, 393 TFLOP/s at T = 4096 with it, 263 without.
#include "llmc/kernels/attention_hopper.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

template <int kHD>
struct Tiles {
  static constexpr int kGroups = kHD == 64 ? 3 : 2, kQueries = kGroups * kGroupRows, kKeys = 128, kStages = 2;
  static constexpr int kThreads = (1 + kGroups) * kGroupThreads;
  static constexpr int kRegistersToBring = kHD == 64 ? 32 : 24, kRegisters = kHD == 64 ? 160 : 240;
  using Keys = WgmmaTile<kKeys, kHD>;
  WgmmaTile<kQueries, kHD> q;
  Stage<Keys> k[kStages], v[kStages];
  TransactionBarrier q_full;
};
static_assert(sizeof(Tiles<128>) <= 227 << 10 && sizeof(Tiles<64>) <= 227 << 10);

constexpr int kTurn = 1, kResult = 4;  // named barriers: a warpgroup's turn, its result; 1 … 3 and 4 … 6

// One thread brings the queries, then the tiles of keys and values, in the order in which they are multiplied.
template <int kHD>
__device__ __forceinline__ void bring(Tiles<kHD>& shared, const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                      const QueryPlace& place, int kv_head, const KeyTiles& tiles) {
  using Shared = Tiles<kHD>;
  barrier_expect(shared.q_full, sizeof(shared.q));
  load_rows(shared.q, q, shared.q_full, place.head, place.t0, place.b);
  const auto key_of = [&](int tile) { return tiles.first + tile * Shared::kKeys; };
  RingPlace<Shared::kStages> keys, values;
  load_stage(shared.k[keys.slot], k, keys.parity, kv_head, key_of(tiles.count - 1), place.b);
  for (int tile = tiles.count - 1; tile >= 0; --tile) {
    keys.advance();
    if (tile > 0) load_stage(shared.k[keys.slot], k, keys.parity, kv_head, key_of(tile - 1), place.b);
    load_stage(shared.v[values.slot], v, values.parity, kv_head, key_of(tile), place.b);
    values.advance();
  }
}

// What a lane keeps of the keys that its two rows have seen. Scores are in units of log 2 / `scale`.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {};  // greatest score of the row; this lane's sum of exponentials

  // Takes a tile's scores (-infinity: unseen), leaves their exponentials in their place; `shrink` is what sums so far
  // are to be multiplied with.
  template <int kCount>
  __device__ __forceinline__ void take(float (&s)[kCount], float (&shrink)[2], float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = top[half];
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        highest = max_f32(highest, max_f32(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
      highest = max_f32(highest, __shfl_xor_sync(~0u, highest, 1));
      highest = max_f32(highest, __shfl_xor_sync(~0u, highest, 2));
      const float finite = highest == -INFINITY ? 0 : highest, base = finite * scale;
      // 1 where the greatest stays; top * scale - base is not: fma leaves what base was rounded by, in each tile.
      shrink[half] = exp2_f32((top[half] - finite) * scale);
      top[half] = highest;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          float& score = s[4 * j + 2 * half + odd];
          score = exp2_f32(score * scale - base);
          sum += score;
        }
      total[half] = total[half] * shrink[half] + sum;
    }
  }
};

// Raises amax to the largest magnitude of the lanes' rows, as rounded to bf16; `there`: rows that exist.
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

// A warpgroup's 64 queries, from t0 on.
template <int kHD>
__device__ __forceinline__ void multiply_and_store(Tiles<kHD>& shared, const TensorMap& out, float* lse,
                                                   const AttentionShape& shape, float scale, const QueryPlace& place,
                                                   int group, const KeyTiles& tiles, float* amax) {
  using Shared = Tiles<kHD>;
  constexpr int kKeys = Shared::kKeys, kTakingTurns = 2 * kGroupThreads;
  const int row0 = group * kGroupRows, t0 = place.t0 + row0;
  KeyRange rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) rows[half] = keys_of_query_or_last(shape, place.b, t0 + row_of_group(half));
  const KeyRange every = keys_of_warp<1>(shape, place.b, t0 + warp_number() % 4 * 16).all;

  float sums[kHD / 2] = {}, s[kKeys / 2] = {}, shrink[2];
  uint32_t weights[kKeys / 16][4];
  Softmax softmax;
  RingPlace<Shared::kStages> keys, values;
  const auto start_scores = [&] {
    barrier_wait(shared.k[keys.slot].full, keys.parity);
    named_barrier_sync(kTurn + group, kTakingTurns);
    keep_in_place(s);
    products_begin();
    multiply_rows(s, shared.q, row0, shared.k[keys.slot].tile);
    products_commit();
  };
  const auto start_sums = [&] {
    barrier_wait(shared.v[values.slot].full, values.parity);
    keep_in_place(sums);
    products_begin();
    add_weighted<kHD>(sums, weights, shared.v[values.slot].tile);
    products_commit();
  };
  const auto pass_turn = [&](bool last) {
    if (!last || group + 1 < Shared::kGroups)
      named_barrier_arrive(kTurn + (group + 1 < Shared::kGroups ? group + 1 : 0), kTakingTurns);
  };
  const auto take_scores = [&](int tile) {
    keep_in_place(s);
    if (first_lane()) barrier_arrive(shared.k[keys.slot].free);
    keys.advance();
    const int key0 = tiles.first + tile * kKeys;
    if (every.first > key0 || every.last < key0 + kKeys - 1) mask(s, key0, rows, -INFINITY);
    softmax.take(s, shrink, scale * kLog2e);
  };
  if (tiles.count > 0) {
    barrier_wait(shared.q_full, 0);
    if (group == 0) named_barrier_arrive(kTurn, kTakingTurns);  // the first turn
    start_scores();
    pass_turn(tiles.count == 1);
    products_wait<0>();
    take_scores(tiles.count - 1);
    round_to_operand<kKeys>(weights, s);
  }
#pragma unroll 1
  for (int tile = tiles.count - 2; tile >= 0; --tile) {
    start_scores();
    start_sums();
    pass_turn(tile == 0);
    products_wait<1>();
    take_scores(tile);
    products_wait<0>();
    keep_in_place(sums);
    if (first_lane()) barrier_arrive(shared.v[values.slot].free);
    values.advance();
#pragma unroll
    for (int i = 0; i < kHD / 2; ++i) sums[i] *= shrink[i / 2 % 2];
    round_to_operand<kKeys>(weights, s);
  }
  if (tiles.count > 0) {
    start_sums();
    products_wait<0>();
    keep_in_place(sums);
  }

  float inverse[2];
  bool there[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = softmax.total[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    inverse[half] = total == 0 ? 0 : 1 / total;
    const int t = t0 + row_of_group(half);
    there[half] = t < shape.Tq;
    if (there[half] && lane_of_warp() % 4 == 0)
      lse[(size_t(place.b) * shape.NH + place.head) * shape.Tq + t] =
          total == 0 ? -INFINITY : softmax.top[half] * scale + logf(total);
  }
#pragma unroll
  for (int i = 0; i < kHD / 2; ++i) sums[i] *= inverse[i / 2 % 2];
  if (amax) raise_amax(amax, sums, there);
  store_rows<kHD>(out, place.head, t0, place.b, sums, shared.q, row0, kResult + group);
  stores_wait_read();
}

template <int kHD>
__global__ void __launch_bounds__(Tiles<kHD>::kThreads, 1)
    attention_hopper_forward_kernel(const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap q,
                                    const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                                    float* __restrict__ lse, AttentionShape shape, float scale, int ranges,
                                    float* amax) {
  using Shared = Tiles<kHD>;
  Shared& shared = shared_memory<Shared>();
  const QueryPlace place = query_place(shape, blockIdx.x, ranges, Shared::kQueries);
  const KeyTiles tiles = KeyTiles::of<Shared::kKeys>(shape, place, Shared::kQueries);
  const int group = warpgroup_number();
  if (threadIdx.x == 0) {
    barrier_initialize(shared.q_full, 1);
    initialize_ring(shared.k, 4 * Shared::kGroups);
    initialize_ring(shared.v, 4 * Shared::kGroups);
    barriers_publish();
  }
  __syncthreads();
  if (group == 0) {
    give_up_registers<Shared::kRegistersToBring>();
    if (threadIdx.x == 0 && tiles.count > 0) bring(shared, q, k, v, place, place.head / (shape.NH / shape.NKV), tiles);
  } else {
    take_registers<Shared::kRegisters>();
    multiply_and_store(shared, out, lse, shape, scale, place, group - 1, tiles, amax);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

bool hopper_attention_is_built() { return kBuildHasHopper; }

void hopper_attention_forward(Stream& stream, bf16* out, float* lse, const bf16* q, const bf16* k, const bf16* v,
                              const AttentionShape& shape, float* amax) {
  const int B = shape.B, Tq = shape.Tq, Tk = shape.Tk, NH = shape.NH, NKV = shape.NKV, HD = shape.HD;
  const char* who = "attention_hopper, forward";
  with_tensor_core_head_size(HD, [&](auto head_size) {
    constexpr int kHD = decltype(head_size)::value;
    using Shared = Tiles<kHD>;
    Device& device = stream.device();
    const unsigned ranges = blocks_for(size_t(Tq), Shared::kQueries);
    launch<attention_hopper_forward_kernel<kHD>>(
        forward_work(stream, who, RateClass::attention_hopper_forward, out, lse, q, k, v, shape, amax),
        ranges * unsigned(NH * B), Shared::kThreads, sizeof(Shared),
        map_of_rows(device, out, shape.out, B, Tq, NH, HD, kGroupRows, who),
        map_of_rows(device, q, shape.q, B, Tq, NH, HD, Shared::kQueries, who),
        map_of_rows(device, k, shape.k, B, Tk, NKV, HD, Shared::kKeys, who),
        map_of_rows(device, v, shape.v, B, Tk, NKV, HD, Shared::kKeys, who), lse, shape, 1 / std::sqrt(float(HD)),
        int(ranges), amax);
  });
}
