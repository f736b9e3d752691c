// Causal attention on Hopper, backward: the gradient of queries, and delta.  With p[t,j] = exp(s[t,j] - lse[t]):
//
//   delta[t] = dout[t].out[t]    ds[t,j] = p[t,j] (dout[t].v[j] - delta[t])    dq[t] = scale * sum_j ds[t,j] k[j]
//
// Writes dq (= or +=) and delta (=).  Deterministic: one warpgroup alone accumulates the sums of its queries. A second
// kernel computes the gradients of keys and values and recomputes the scores. That makes 7 products instead of 5, but
// no sum passes through device memory, and no block waits for another.
//
//   tile        128 queries; head 128: 64 keys, head 64: 128. The last keys come first: they need masks.
//   roles       warpgroup 0 is the producer (24 registers); two consumers have 64 queries each (240)
//   registers   per thread, head 128: 64 of dq, 32 scores, 32 of dout.v, 16 pairs of weights; head 64: 32, 64, 64, 32
//   stages      three of keys, of which two are multiplied at once; two of values; queries and dout are loaded once
//   waits       a consumer waits for the queries and a stage's bytes; the producer waits for a free stage
//
// A consumer starts the scores and dout.v of the next keys, then the product of the previous tile's ds and keys. It
// computes the exponentials while the other products run.
//
// Expected limit (dev/bench/attention_rates.cpp, a model; measured: dev/docs/benchmarks.md), in clocks of a
// multiprocessor for a tile at head size 128: three products 1536, exponentials 512, fp32 256, shared memory 1536
// (operands 1280, since each consumer reads its own q and dout; TMA writes 256), L2 1024, three waits 300. A tile takes
// about 2143 clocks, which is 593 TFLOP/s of the kernel's three products at T = 8192. At head size 64: 1536, 1024, 512,
// 1280; a tile takes 2450, which is 487 TFLOP/s at T = 4096. Together with the kernel of dk and dv, counted as five
// products: 435 and 345 TFLOP/s.
#include "llmc/kernels/attention_hopper.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

template <int kHD>
struct Tiles {
  static constexpr int kGroups = 2, kQueries = kGroups * kGroupRows, kKeys = kHD == 64 ? 128 : 64;
  static constexpr int kThreads = (1 + kGroups) * kGroupThreads, kKeyStages = 3, kValueStages = 2;
  static constexpr int kProducerRegisters = 24, kRegisters = 240;
  using Rows = WgmmaTile<kQueries, kHD>;
  using Keys = WgmmaTile<kKeys, kHD>;
  Rows q, dout;
  Stage<Keys> k[kKeyStages], v[kValueStages];
  Mbarrier rows_full;
  float lse[kQueries], delta[kQueries];  // lse in units of log 2
};
static_assert(sizeof(Tiles<128>) <= 227 << 10 && sizeof(Tiles<64>) <= 227 << 10);

constexpr int kOfGroup = 1;  // named barriers 1 and 2, one for each consumer

// The producer thread loads queries and dout, then the tiles of keys and values in the order in which they are
// multiplied.
template <int kHD>
__device__ __forceinline__ void produce(Tiles<kHD>& shared, const TensorMap& q, const TensorMap& dout,
                                        const TensorMap& k, const TensorMap& v, const QueryPlace& place, int kv_head,
                                        const KeyTiles& tiles) {
  using Shared = Tiles<kHD>;
  mbarrier_arrive_expect_tx(shared.rows_full, sizeof(shared.q) + sizeof(shared.dout));
  load_rows(shared.q, q, shared.rows_full, place.head, place.t0, place.b);
  load_rows(shared.dout, dout, shared.rows_full, place.head, place.t0, place.b);
  PipelineState<Shared::kKeyStages> keys;
  PipelineState<Shared::kValueStages> values;
  for (int tile = tiles.count - 1; tile >= 0; --tile) {
    const int key0 = tiles.first + tile * Shared::kKeys;
    load_stage(shared.k[keys.slot], k, keys.parity, kv_head, key0, place.b);
    load_stage(shared.v[values.slot], v, values.parity, kv_head, key0, place.b);
    keys.advance();
    values.advance();
  }
}

// Computes rowsum_dO_O of a consumer's rows and writes it to device memory and to shared memory. Copies lse to shared
// memory. A row that sees no key, or does not exist, gets lse = infinity there, so that its p is 0.
template <int kHD>
__device__ __forceinline__ void prepare_rows(Tiles<kHD>& shared, float* delta, const bf16* dout, const bf16* out,
                                             const float* lse, const AttentionShape& shape, const QueryPlace& place,
                                             int row0) {
  const size_t first = (size_t(place.b) * shape.NH + place.head) * shape.Tq;
  const auto store = [&](int row, int t, float sum) {
    const float lse_of_row = t < shape.Tq ? lse[first + t] : -INFINITY;
    shared.delta[row] = sum;
    shared.lse[row] = lse_of_row == -INFINITY ? INFINITY : lse_of_row * kLog2e;
    if (t < shape.Tq) delta[first + t] = sum;
  };
  compute_rowsum_dO_O<kHD, kGroupRows, kGroupThreads>(dout, out, shape, place, row0, threadIdx.x % kGroupThreads,
                                                      store);
}

// A consumer's 64 queries: delta, products and epilogue.
template <int kHD>
__device__ __forceinline__ void multiply_and_store(Tiles<kHD>& shared, const TensorMap& dq_map, bf16* dq, float* delta,
                                                   const bf16* dout, const bf16* out, const float* lse,
                                                   const AttentionShape& shape, float scale, const QueryPlace& place,
                                                   int group, const KeyTiles& tiles, bool accumulate) {
  using Shared = Tiles<kHD>;
  constexpr int kKeys = Shared::kKeys;
  const int row0 = group * kGroupRows, t0 = place.t0 + row0;
  prepare_rows(shared, delta, dout, out, lse, shape, place, row0);
  named_barrier_sync(kOfGroup + group, kGroupThreads);
  KeyRange rows[2];
  float lse2[2], delta_of_row[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of_group(half);
    rows[half] = keys_of_query_or_last(shape, place.b, t0 + row);
    lse2[half] = shared.lse[row0 + row];
    delta_of_row[half] = shared.delta[row0 + row];
  }
  const KeyRange every = keys_of_warp<1>(shape, place.b, t0 + warp_number() % 4 * 16).all;

  float sums[kHD / 2] = {}, s[kKeys / 2] = {}, ds[kKeys / 2] = {};
  uint32_t weights[kKeys / 16][4];
  PipelineState<Shared::kKeyStages> keys, last_keys;
  PipelineState<Shared::kValueStages> values;
  const auto start_scores = [&] {
    mbarrier_wait(shared.k[keys.slot].full, keys.parity);
    warpgroup_fence_operand(s);
    warpgroup_fence_operand(ds);
    wgmma_fence();
    multiply_rows(s, shared.q, row0, shared.k[keys.slot].tile);
    wgmma_commit_group();
    mbarrier_wait(shared.v[values.slot].full, values.parity);
    wgmma_fence();
    multiply_rows(ds, shared.dout, row0, shared.v[values.slot].tile);
    wgmma_commit_group();
    keys.advance();
  };
  const auto start_sums = [&] {
    warpgroup_fence_operand(sums);
    wgmma_fence();
    add_weighted<kHD>(sums, weights, shared.k[last_keys.slot].tile);
    wgmma_commit_group();
  };
  const auto free_keys = [&] {
    warpgroup_fence_operand(sums);
    if (first_lane()) mbarrier_arrive(shared.k[last_keys.slot].free);
    last_keys.advance();
  };
  // take_scores turns the scores in s into p. take_products turns dout.v in ds into ds.
  const auto take_scores = [&](int tile) {
    warpgroup_fence_operand(s);
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) s[i] = exp2_f32(s[i] * (scale * kLog2e) - lse2[i / 2 % 2]);
    const int key0 = tiles.first + tile * kKeys;
    if (every.first > key0 || every.last < key0 + kKeys - 1) mask(s, key0, rows, 0.0f);
  };
  const auto take_products = [&] {
    warpgroup_fence_operand(ds);
    if (first_lane()) mbarrier_arrive(shared.v[values.slot].free);
    values.advance();
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) ds[i] = s[i] * (ds[i] - delta_of_row[i / 2 % 2]);
  };
  if (tiles.count > 0) {
    mbarrier_wait(shared.rows_full, 0);
    start_scores();
    wgmma_wait_group<1>();
    take_scores(tiles.count - 1);
    wgmma_wait_group<0>();
    take_products();
    round_to_operand<kKeys>(weights, ds);
  }
#pragma unroll 1
  for (int tile = tiles.count - 2; tile >= 0; --tile) {
    start_scores();
    start_sums();
    wgmma_wait_group<2>();
    take_scores(tile);
    wgmma_wait_group<1>();
    take_products();
    wgmma_wait_group<0>();
    free_keys();
    round_to_operand<kKeys>(weights, ds);
  }
  if (tiles.count > 0) {
    start_sums();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(sums);
  }
  const float factor[2] = {scale, scale};
  scale_rows<kHD>(sums, factor, HeadRows<bf16>(dq, shape.q, place.b, place.head, 1, kHD), t0, shape.Tq, accumulate);
  store_rows<kHD>(dq_map, place.head, t0, place.b, sums, shared.q, row0, kOfGroup + group);
  tma_store_wait_group_read();
}

template <int kHD>
__global__ void __launch_bounds__(Tiles<kHD>::kThreads, 1)
    attention_hopper_dq_kernel(const __grid_constant__ TensorMap dq_map, const __grid_constant__ TensorMap q,
                               const __grid_constant__ TensorMap dout_map, const __grid_constant__ TensorMap k,
                               const __grid_constant__ TensorMap v, bf16* __restrict__ dq, float* __restrict__ delta,
                               const bf16* __restrict__ dout, const bf16* __restrict__ out,
                               const float* __restrict__ lse, AttentionShape shape, float scale, int ranges,
                               bool accumulate) {
  using Shared = Tiles<kHD>;
  Shared& shared = shared_memory<Shared>();
  const QueryPlace place = query_place(shape, blockIdx.x, ranges, Shared::kQueries);
  const KeyTiles tiles = KeyTiles::of<Shared::kKeys>(shape, place, Shared::kQueries);
  const int group = warpgroup_number();
  if (threadIdx.x == 0) {
    prefetch_tensor_maps(q, dout_map, k, v, dq_map);
    mbarrier_init(shared.rows_full, 1);
    initialize_ring(shared.k, 4 * Shared::kGroups);
    initialize_ring(shared.v, 4 * Shared::kGroups);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (group == 0) {
    setmaxnreg_dec<Shared::kProducerRegisters>();
    if (threadIdx.x == 0 && tiles.count > 0)
      produce(shared, q, dout_map, k, v, place, place.head / (shape.NH / shape.NKV), tiles);
  } else {
    setmaxnreg_inc<Shared::kRegisters>();
    multiply_and_store(shared, dq_map, dq, delta, dout, out, lse, shape, scale, place, group - 1, tiles, accumulate);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void hopper_attention_dq(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const char* who = "attention_hopper, dq";
  with_tensor_core_head_size(s.HD, [&](auto head_size) {
    constexpr int kHD = decltype(head_size)::value;
    using Shared = Tiles<kHD>;
    Device& device = stream.device();
    const unsigned ranges = blocks_for(size_t(s.Tq), Shared::kQueries);
    launch<attention_hopper_dq_kernel<kHD>>(
        dq_work(stream, who, RateClass::attention_hopper_backward, call), ranges * unsigned(s.NH * s.B),
        Shared::kThreads, sizeof(Shared), map_of_rows(device, call.dq, kGroupRows, who),
        map_of_rows(device, call.q, Shared::kQueries, who), map_of_rows(device, call.dout, Shared::kQueries, who),
        map_of_rows(device, call.k, Shared::kKeys, who), map_of_rows(device, call.v, Shared::kKeys, who),
        call.dq.as<bf16>(), call.delta.as<float>(), call.dout.as<bf16>(), call.out.as<bf16>(), call.lse.as<float>(), s,
        call.scale(), int(ranges), call.accumulate.dq);
  });
}
