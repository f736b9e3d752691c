// Shared by all attention kernels: which rows a thread block computes, which keys a query sees, the online softmax, and
// the addresses of a head's rows. The names are FlashAttention's: an m_block is a block of kBlockM queries, an n_block
// is a block of kBlockN keys.
#pragma once

#include "llmc/device/launch.cuh"
#include "llmc/kernels/attention.h"

HOST_DEVICE constexpr int min_int(int a, int b) { return a < b ? a : b; }
HOST_DEVICE constexpr int max_int(int a, int b) { return a > b ? a : b; }

// The heads of a tensor, in elements: `row` is the distance from one position of a sequence to the next, `batch` the
// distance from one sequence to the next. The heads of one position are contiguous.
struct AttentionStrides {
  int64_t row = 0, batch = 0;
};

// The shape of a call, as the kernels receive it.
struct AttentionShape {
  int B = 0, Tq = 0, Tk = 0, NH = 0, NKV = 0, HD = 0;
  AttentionStrides q, k, v, out;  // a gradient has the strides of its tensor
  int query_offset = 0, key_offset = 0;
  const int* document_start = nullptr;  // (B,Tq), or null: all 0
};

// ---------------------------------------------------------------------------------------------- who sees what

// The work of a thread block that computes one block of rows (an m_block or an n_block): the number of the block (0
// starts first), a head of k and v, and a sequence. Functions that read blockIdx or threadIdx are static here, because
// in the CPU backend each file has its own blockIdx and threadIdx.
struct BlockCoord {
  int block, kv_head, b;
};
__device__ static __forceinline__ BlockCoord block_coord(const AttentionShape& shape) {
  const int heads = shape.B * shape.NKV, head = blockIdx.x % heads;
  return {int(blockIdx.x) / heads, head % shape.NKV, head / shape.NKV};
}

// Keys first .. last of the call; empty if last < first.
struct KeyRange {
  int first, last;
};
__device__ __forceinline__ KeyRange keys_of_query(const AttentionShape& shape, int b, int t) {
  const int start = shape.document_start ? shape.document_start[size_t(b) * shape.Tq + t] : 0;
  return {max_int(start, shape.key_offset) - shape.key_offset,
          min_int(shape.query_offset + t - shape.key_offset, shape.Tk - 1)};
}
// Returns the smallest range with all keys that the queries t0 .. t1 see.
__device__ __forceinline__ KeyRange keys_of_queries(const AttentionShape& shape, int b, int t0, int t1) {
  return {keys_of_query(shape, b, t0).first, keys_of_query(shape, b, t1).last};
}
// Key j is seen by the queries first_query_of_key .. end_query_of_key - 1. first_query_of_key is the first query at or
// after the key's position; Tq if there is none.
__device__ __forceinline__ int first_query_of_key(const AttentionShape& shape, int j) {
  return min_int(max_int(j + shape.key_offset - shape.query_offset, 0), shape.Tq);
}
// The first query whose document starts after key j; Tq if there is none. A binary search.
__device__ __forceinline__ int end_query_of_key(const AttentionShape& shape, int b, int j) {
  if (!shape.document_start) return shape.Tq;
  const int* start = shape.document_start + size_t(b) * shape.Tq;
  int from = 0, to = shape.Tq;
  while (from < to) {
    const int mid = (from + to) / 2;
    if (start[mid] > j + shape.key_offset) to = mid;
    else from = mid + 1;
  }
  return from;
}

// ---------------------------------------------------------------------------------------------- on tensor cores

__device__ static __forceinline__ int warp_number() { return threadIdx.x / 32; }
__device__ static __forceinline__ int lane_of_warp() { return threadIdx.x % 32; }

// An m_block of one head of one sequence; t0 is its first query.
struct MBlockCoord {
  int head, b, t0;
  __device__ __forceinline__ int query(int row) const { return t0 + row; }
  __device__ __forceinline__ int head_of(int) const { return head; }
};
// Returns the m_block number `index` of all m_blocks of all heads and sequences. The last queries of a sequence see the
// most keys, so the last m_blocks come first. A head has `m_blocks`, of kBlockM queries each.
__device__ __forceinline__ MBlockCoord m_block_coord(const AttentionShape& shape, unsigned index, int m_blocks,
                                                     int kBlockM) {
  const int heads = shape.NH * shape.B, head = int(index) % heads;
  return {head % shape.NH, head / shape.NH, (m_blocks - 1 - int(index) / heads) * kBlockM};
}

// The keys that a warp's queries see: every query sees the keys in `all`, and no query sees a key outside `any`.
struct alignas(16) KeysOfWarp {
  KeyRange all, any;
  __device__ bool see_some(int key0, int key1) const { return any.first <= key1 && any.last >= key0; }
  __device__ bool see_every(int key0, int key1) const { return all.first <= key0 && all.last >= key1; }
};

// Returns the keys of the call that query t sees. A t beyond the last query is treated as the last query.
__device__ __forceinline__ KeyRange keys_of_query_or_last(const AttentionShape& shape, int b, int t) {
  return keys_of_query(shape, b, min_int(t, shape.Tq - 1));
}

// Returns the keys of a warp whose queries are the 16 kM from t on.
template <int kM>
__device__ static __forceinline__ KeysOfWarp keys_of_warp(const AttentionShape& shape, int b, int t) {
  const KeyRange mine = keys_of_query_or_last(shape, b, t + lane_of_warp() % (16 * kM));
  KeysOfWarp keys = {mine, mine};
#pragma unroll
  for (int width = 16; width; width /= 2) {
    keys.all.first = max_int(keys.all.first, __shfl_xor_sync(~0u, keys.all.first, width));
    keys.all.last = min_int(keys.all.last, __shfl_xor_sync(~0u, keys.all.last, width));
    keys.any.first = min_int(keys.any.first, __shfl_xor_sync(~0u, keys.any.first, width));
    keys.any.last = max_int(keys.any.last, __shfl_xor_sync(~0u, keys.any.last, width));
  }
  return keys;
}

// ---------------------------------------------------------------------------------------------- online softmax

// The maximum and the sum over the four lanes that hold a row of an accumulator.
__device__ __forceinline__ float quad_max(float x) {
  x = max_f32(x, __shfl_xor_sync(~0u, x, 1));
  return max_f32(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The results of a row's online softmax. row_max is its largest score, before `softmax_scale`; row_sum is the sum of
// the exponentials. The sum is 0 for a row that sees no key: its output is 0 and its log-sum-exp -infinity. A NaN shows
// in both.
__device__ __forceinline__ float inverse_of_sum(float row_sum) { return row_sum == 0 ? 0 : 1 / row_sum; }
__device__ __forceinline__ float log_sum_exp(float row_max, float row_sum, float softmax_scale) {
  return row_sum == 0 ? -INFINITY : row_max * softmax_scale + logf(row_sum);
}

// One step of the online softmax (Milakov & Gimelshein 2018) for one row, of which a lane holds kPairs pairs of
// neighbouring scores. score(j, odd) returns a reference to one of them; a key that is not seen has -infinity. Replaces
// each by p = 2^(softmax_scale_log2 * (score - row_max)) and updates row_max, the largest score so far. Sets
// scores_scale, by which the caller multiplies row_sum and acc_o so far. Returns this lane's sum of p.
// softmax_scale_log2 = log2(e) / sqrt(HD).
template <int kPairs, class Score>
__device__ __forceinline__ float softmax_step(float& row_max, float& scores_scale, float softmax_scale_log2,
                                              const Score& score) {
  float new_max = row_max;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) new_max = max_f32(new_max, max_f32(score(j, 0), score(j, 1)));
  new_max = quad_max(new_max);
  const float finite = new_max == -INFINITY ? 0 : new_max, base = finite * softmax_scale_log2;
  // Exactly 1 if the maximum stays the same. 2^(row_max * softmax_scale_log2 - base) would not be: the compiler makes
  // the exponent an fma, which returns base's rounding error instead of 0, in every tile.
  scores_scale = exp2_f32((row_max - finite) * softmax_scale_log2);
  row_max = new_max;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      float& s = score(j, odd);
      s = exp2_f32(s * softmax_scale_log2 - base);
      sum += s;
    }
  return sum;
}

// The heads of one sequence from `head` on. Row r is position r / group and head `head` + r % group.
template <class T>
struct HeadRows {
  T* base;
  int64_t stride;
  int group, HD;

  __device__ HeadRows(T* data, const AttentionStrides& strides, int b, int head, int group, int HD)
      : base(data + b * strides.batch + int64_t(head) * HD), stride(strides.row), group(group), HD(HD) {}
  __device__ T* row(int r) const { return base + r / group * stride + r % group * HD; }
};

// ---------------------------------------------------------------------------------------------- dq

// Computes rowsum_dO_O (the sum over a head of dout * out) of kRows queries, from row `row0` of the block's queries on,
// and calls store(row, t, sum) once for each row; t is its query. A row beyond the last query has t >= Tq and the last
// query's sum. kThreads threads call, whole warps; `thread` numbers them. A thread reads 8 columns of four rows at
// once.
template <int kHD, int kRows, int kThreads, class Coord, class Store>
__device__ static __forceinline__ void compute_rowsum_dO_O(const bf16* dout, const bf16* out,
                                                           const AttentionShape& shape, const Coord& coord, int row0,
                                                           int thread, const Store& store) {
  constexpr int kChunks = kHD / 8, kRowsAtOnce = kThreads / kChunks, kTogether = 4;
  using Eight = Vector<bf16, 8>;
  const HeadRows<const bf16> outs(out, shape.out, coord.b, 0, 1, kHD), douts(dout, shape.out, coord.b, 0, 1, kHD);
  const int chunk = thread % kChunks;
#pragma unroll 1
  for (int r = 0; r < kRows; r += kTogether * kRowsAtOnce) {
    Eight x[kTogether], y[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = row0 + r + i * kRowsAtOnce + thread / kChunks;
      const int64_t t = min_int(coord.query(row), shape.Tq - 1);
      const int column = coord.head_of(row) * kHD + chunk * 8;
      x[i] = *reinterpret_cast<const Eight*>(outs.base + t * outs.stride + column);
      y[i] = *reinterpret_cast<const Eight*>(douts.base + t * douts.stride + column);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += to_float(x[i].v[j]) * to_float(y[i].v[j]);
#pragma unroll
      for (int width = kChunks / 2; width; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
      if (chunk != 0) continue;
      const int row = row0 + r + i * kRowsAtOnce + thread / kChunks;
      store(row, coord.query(row), sum);
    }
  }
}

// ---------------------------------------------------------------------------------------------- for launchers

// Calls `body` with the head size, 64 or 128, as a compile-time constant.
template <class Body>
void with_tensor_core_head_size(int HD, const Body& body) {
  if (HD == 64) body(std::integral_constant<int, 64>{});
  else body(std::integral_constant<int, 128>{});
}

// A call of attention_forward or attention_backward, which have checked it.
struct AttentionCall {
  AttentionKernel kernel;
  AttentionShape shape;
  Tensor out, lse, q, k, v, document_start;
  int window_for_flops = 0;                                       // the most keys that a query sees; 0: any number
  float* amax = nullptr;                                          // of forward
  Tensor dq = {}, dk = {}, dv = {}, rowsum_dO_O = {}, dout = {};  // of backward
  AttentionAccumulate accumulate = {};

  float softmax_scale() const { return 1 / std::sqrt(float(shape.HD)); }
};

// Most kernels have blocks of so many queries or keys; plain's are smaller.
constexpr int64_t kRowsOfUsualBlock = 128;

// The Work that each pass declares before it is enqueued: its memory accesses and FLOPs. They are the same for every
// kernel; `rate` tells which kernel computes the pass, `imbalance` is attention_imbalance_queries or _keys.
inline Work attention_work(Work work, RateClass rate, double flops_per_pair,
                           decltype(attention_imbalance_keys)& imbalance, const AttentionCall& c) {
  const AttentionShape& s = c.shape;
  const int64_t ahead = int64_t(s.query_offset) - s.key_offset;
  work.flops = flops_per_pair * s.HD * s.B * s.NH * attention_pairs(s.Tq, s.Tk, ahead, c.window_for_flops);
  work.rate = rate, work.head_size = s.HD;
  work.imbalance = imbalance(s.Tq, s.Tk, ahead, c.window_for_flops, kRowsOfUsualBlock);
  return work;
}
inline Work forward_work(Stream& stream, const char* name, RateClass rate, const AttentionCall& c,
                         CallSite site = CallSite::here()) {
  return attention_work(
      {stream,
       name,
       {writes(c.out), writes(c.lse), reads(c.q), reads(c.k), reads(c.v), reads(c.document_start), updates(c.amax, 1)},
       0,
       site},
      rate, 4, attention_imbalance_queries, c);
}
inline Work dq_work(Stream& stream, const char* name, RateClass rate, const AttentionCall& c,
                    CallSite site = CallSite::here()) {
  return attention_work({stream,
                         name,
                         {updates(c.dq), writes(c.rowsum_dO_O), reads(c.dout), reads(c.out), reads(c.lse), reads(c.q),
                          reads(c.k), reads(c.v), reads(c.document_start)},
                         0,
                         site},
                        rate, 6, attention_imbalance_queries, c);
}
inline Work dkv_work(Stream& stream, const char* name, RateClass rate, const AttentionCall& c,
                     CallSite site = CallSite::here()) {
  return attention_work({stream,
                         name,
                         {updates(c.dk), updates(c.dv), reads(c.dout), reads(c.lse), reads(c.rowsum_dO_O), reads(c.q),
                          reads(c.k), reads(c.v), reads(c.document_start)},
                         0,
                         site},
                        rate, 8, attention_imbalance_keys, c);
}
