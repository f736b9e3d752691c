// Shared by all attention kernels: the part of the work that a block has, the keys that a query sees, and the addresses
// of a head's rows.
#pragma once

#include "llmc/device/launch.cuh"
#include "llmc/kernels/attention.h"

HOST_DEVICE constexpr int least(int a, int b) { return a < b ? a : b; }
HOST_DEVICE constexpr int greatest(int a, int b) { return a > b ? a : b; }

// ---------------------------------------------------------------------------------------------- who sees what

// The part of the work that a block has: a range of rows (range 0 starts first), a head of k and v, and a sequence.
// Functions that read blockIdx or threadIdx are static here, because in the CPU backend each file has its own blockIdx
// and threadIdx.
struct BlockPlace {
  int range, kv_head, b;
};
__device__ static __forceinline__ BlockPlace block_place(const AttentionShape& shape) {
  const int heads = shape.B * shape.NKV, head = blockIdx.x % heads;
  return {int(blockIdx.x) / heads, head % shape.NKV, head / shape.NKV};
}

// Keys first .. last of the call; empty if last < first.
struct KeyRange {
  int first, last;
};
__device__ __forceinline__ KeyRange keys_of_query(const AttentionShape& shape, int b, int t) {
  const int start = shape.document_start ? shape.document_start[size_t(b) * shape.Tq + t] : 0;
  return {greatest(start, shape.key_offset) - shape.key_offset,
          least(shape.query_offset + t - shape.key_offset, shape.Tk - 1)};
}
// Returns the range that holds every key seen by any of the queries t0 .. t1.
__device__ __forceinline__ KeyRange keys_of_queries(const AttentionShape& shape, int b, int t0, int t1) {
  return {keys_of_query(shape, b, t0).first, keys_of_query(shape, b, t1).last};
}
// Returns the first row (a pair of a query and a head of the group) at or after the position of key j; Tq * group if
// there is none.
__device__ __forceinline__ int first_row_behind(const AttentionShape& shape, int group, int j) {
  return least(greatest(j + shape.key_offset - shape.query_offset, 0), shape.Tq) * group;
}
// Returns the first query whose document starts after key j; Tq if there is none.
__device__ __forceinline__ int first_query_past(const AttentionShape& shape, int b, int j) {
  if (!shape.document_start) return shape.Tq;
  const int* start = shape.document_start + size_t(b) * shape.Tq;
  int from = 0, to = shape.Tq;
  while (from < to) {
    const int middle = (from + to) / 2;
    if (start[middle] > j + shape.key_offset) to = middle;
    else from = middle + 1;
  }
  return from;
}

// ---------------------------------------------------------------------------------------------- on tensor cores

constexpr float kLog2e = 1.4426950408889634f;

__device__ static __forceinline__ int warp_number() { return threadIdx.x / 32; }
__device__ static __forceinline__ int lane_of_warp() { return threadIdx.x % 32; }

// The queries of a block: from t0 on, of one head of one sequence. The last queries of a sequence see the most keys, so
// their blocks start first.
struct QueryPlace {
  int head, b, t0;
};
__device__ __forceinline__ QueryPlace query_place(const AttentionShape& shape, unsigned block, int ranges, int rows) {
  const int heads = shape.NH * shape.B, head = int(block) % heads;
  return {head % shape.NH, head / shape.NH, (ranges - 1 - int(block) / heads) * rows};
}

// The keys that a warp's queries see: every query sees the keys in `all`, and no query sees a key outside `any`.
struct alignas(16) KeysOfWarp {
  KeyRange all, any;
  __device__ bool see_some(int key0, int key1) const { return any.first <= key1 && any.last >= key0; }
  __device__ bool see_every(int key0, int key1) const { return all.first <= key0 && all.last >= key1; }
};

// Returns the keys of the call that query t sees. A t beyond the last query is treated as the last query.
__device__ __forceinline__ KeyRange keys_of_query_or_last(const AttentionShape& shape, int b, int t) {
  return keys_of_query(shape, b, least(t, shape.Tq - 1));
}

// Returns the keys of a warp whose queries are the 16 kM from t on.
template <int kM>
__device__ static __forceinline__ KeysOfWarp keys_of_warp(const AttentionShape& shape, int b, int t) {
  const KeyRange mine = keys_of_query_or_last(shape, b, t + lane_of_warp() % (16 * kM));
  KeysOfWarp keys = {mine, mine};
#pragma unroll
  for (int width = 16; width; width /= 2) {
    keys.all.first = greatest(keys.all.first, __shfl_xor_sync(~0u, keys.all.first, width));
    keys.all.last = least(keys.all.last, __shfl_xor_sync(~0u, keys.all.last, width));
    keys.any.first = least(keys.any.first, __shfl_xor_sync(~0u, keys.any.first, width));
    keys.any.last = greatest(keys.any.last, __shfl_xor_sync(~0u, keys.any.last, width));
  }
  return keys;
}

// ---------------------------------------------------------------------------------------------- where rows lie

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

// Returns the number of elements that a strided buffer spans. Launchers declare their memory accesses with it.
inline size_t span_of(const AttentionStrides& strides, int B, int T, int heads, int HD) {
  return size_t((B - 1) * strides.batch + (T - 1) * strides.row) + size_t(heads) * HD;
}

// ---------------------------------------------------------------------------------------------- for launchers

// Calls `body` with the head size, 64 or 128, as a compile-time constant.
template <class Body>
void with_tensor_core_head_size(int HD, const Body& body) {
  if (HD == 64) body(std::integral_constant<int, 64>{});
  else body(std::integral_constant<int, 128>{});
}

// The Work that each pass declares before it is enqueued: its memory accesses and FLOPs. They are the same for every
// kernel; `rate` tells which kernel computes the pass.
inline Work attention_work(Work work, RateClass rate, const AttentionShape& s) {
  work.rate = rate, work.head_size = s.HD;
  return work;
}
template <class T>
Work forward_work(Stream& stream, const char* name, RateClass rate, T* out, float* lse, const T* q, const T* k,
                  const T* v, const AttentionShape& s, float* amax, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  return attention_work(
      {stream,
       name,
       {writes(out, span_of(s.out, s.B, s.Tq, s.NH, s.HD)), writes(lse, size_t(s.B) * s.NH * s.Tq),
        reads(q, span_of(s.q, s.B, s.Tq, s.NH, s.HD)), reads(k, span_of(s.k, s.B, s.Tk, s.NKV, s.HD)),
        reads(v, span_of(s.v, s.B, s.Tk, s.NKV, s.HD)), reads(s.document_start, size_t(s.B) * s.Tq), updates(amax, 1)},
       4.0 * s.HD * s.B * s.NH * attention_pairs(s),
       file,
       line},
      rate, s);
}
template <class T>
Work dq_work(Stream& stream, const char* name, RateClass rate, T* dq, float* delta, const T* dout, const T* out,
             const float* lse, const T* q, const T* k, const T* v, const AttentionShape& s,
             const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const size_t queries = span_of(s.q, s.B, s.Tq, s.NH, s.HD), outputs = span_of(s.out, s.B, s.Tq, s.NH, s.HD);
  const size_t rows = size_t(s.B) * s.NH * s.Tq;
  return attention_work({stream,
                         name,
                         {updates(dq, queries), writes(delta, rows), reads(dout, outputs), reads(out, outputs),
                          reads(lse, rows), reads(q, queries), reads(k, span_of(s.k, s.B, s.Tk, s.NKV, s.HD)),
                          reads(v, span_of(s.v, s.B, s.Tk, s.NKV, s.HD)), reads(s.document_start, size_t(s.B) * s.Tq)},
                         6.0 * s.HD * s.B * s.NH * attention_pairs(s),
                         file,
                         line},
                        rate, s);
}
template <class T>
Work dkv_work(Stream& stream, const char* name, RateClass rate, T* dk, T* dv, const float* delta, const T* dout,
              const float* lse, const T* q, const T* k, const T* v, const AttentionShape& s,
              const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const size_t keys = span_of(s.k, s.B, s.Tk, s.NKV, s.HD), values = span_of(s.v, s.B, s.Tk, s.NKV, s.HD);
  const size_t rows = size_t(s.B) * s.NH * s.Tq;
  return attention_work({stream,
                         name,
                         {updates(dk, keys), updates(dv, values), reads(dout, span_of(s.out, s.B, s.Tq, s.NH, s.HD)),
                          reads(lse, rows), reads(delta, rows), reads(q, span_of(s.q, s.B, s.Tq, s.NH, s.HD)),
                          reads(k, keys), reads(v, values), reads(s.document_start, size_t(s.B) * s.Tq)},
                         8.0 * s.HD * s.B * s.NH * attention_pairs(s),
                         file,
                         line},
                        rate, s);
}
