// Plain causal attention, forward.  out[t] = sum_j softmax_j(scale * q[t].k[j]) v[j];  lse[t] = log-sum-exp of the
// scores, fp32.  Writes out and lse (=).  Deterministic: see attention.h.
//
// A thread has one query of one head, with its running maximum, sum of exponentials and weighted sum of values. When a
// tile of keys raises the maximum, the thread rescales the sums (online softmax, Milakov & Gimelshein 2018).
#include "llmc/kernels/attention_plain.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

// A thread's online softmax over the keys that it has processed.
template <int kHD>
struct Softmax {
  float top = -INFINITY, total = 0;  // largest score; sum of exp(score - top)
  float sum[kLargestHD<kHD>];        // sum of exp(score - top) * value

  __device__ __forceinline__ explicit Softmax(int HD) {
    for (int d = 0; d < padded_width<kHD>(HD); ++d) sum[d] = 0;
  }
  __device__ __forceinline__ void raise(float highest, int HD) {
    if (!(highest > top)) return;
    const float shrink = exp_f32(top - highest);
    top = highest;
    total *= shrink;
    for (int d = 0; d < padded_width<kHD>(HD); ++d) sum[d] *= shrink;
  }
};

// Adds keys first .. last-1 of a tile to the online softmax.
template <int kHD>
__device__ inline void add_keys(Softmax<kHD>& softmax, const float* query, const float* keys_transposed,
                                const float* values, int first, int last, int tile, int HD) {
  const int begin = first / kChunk * kChunk;
  float p[kMostRows], lanes[kChunk];
  for (int j = 0; j < kChunk; ++j) lanes[j] = softmax.top;
  for (int c = begin; c < last; c += kChunk) {
    float s[kChunk];
    multiply_rows(s, query, keys_transposed + c, tile, HD);
    for (int j = 0; j < kChunk; ++j) {
      const float score = c + j < first || c + j >= last ? -INFINITY : s[j];
      p[c + j] = score;
      lanes[j] = score > lanes[j] ? score : lanes[j];
    }
  }
  softmax.raise(fold_max(lanes), HD);
  for (int j = 0; j < kChunk; ++j) lanes[j] = 0;
  for (int c = begin; c < last; c += kChunk)
    for (int j = 0; j < kChunk; ++j) {
      const float e = exp_f32(p[c + j] - softmax.top);
      p[c + j] = e;
      lanes[j] += e;
    }
  softmax.total += fold_sum(lanes);
  add_rows<kHD>(softmax.sum, p, values, first, last, HD);
}

template <class T, int kHD>
__global__ void __launch_bounds__(kRowsOfBlock)
    attention_forward_kernel(T* __restrict__ out, float* __restrict__ lse, const T* __restrict__ q,
                             const T* __restrict__ k, const T* __restrict__ v, AttentionShape shape, float scale,
                             int ranges, int chunks, float* amax) {
  const int HD = kHD ? kHD : shape.HD, group = shape.NH / shape.NKV, rows = shape.Tq * group, tile = chunks * kChunk;
  const BlockPlace place = block_place(shape);
  const int row0 = (ranges - 1 - place.range) * blockDim.x, row = row0 + threadIdx.x;  // the last rows see most keys
  const int t = row / group, head = place.kv_head * group + row % group;
  const HeadRows<const T> queries(q, shape.q, place.b, place.kv_head * group, group, HD);
  const HeadRows<const T> keys(k, shape.k, place.b, place.kv_head, 1, HD);
  const HeadRows<const T> values(v, shape.v, place.b, place.kv_head, 1, HD);

  float query[kLargestHD<kHD>];
  Softmax<kHD> softmax(HD);
  KeyRange mine = {0, -1};
  if (row < rows) {
    mine = keys_of_query(shape, place.b, t);
    load_row(query, queries.row(row), HD, scale);
  }

  float* keys_transposed = &shared_memory<float>();
  float* value_rows = keys_transposed + HD * tile;
  const KeyRange all = keys_of_queries(shape, place.b, row0 / group, (min_int(row0 + blockDim.x, rows) - 1) / group);
  for (int key0 = all.first; key0 <= all.last; key0 += tile) {
    if (key0 != all.first) __syncthreads();
    load_tile<kHD, T>(keys_transposed, nullptr, keys, key0, all.last + 1 - key0, tile, HD);
    load_tile<kHD, T>(nullptr, value_rows, values, key0, all.last + 1 - key0, tile, HD);
    __syncthreads();
    const int first = max_int(mine.first - key0, 0), last = min_int(mine.last + 1 - key0, tile);
    if (first < last) add_keys(softmax, query, keys_transposed, value_rows, first, last, tile, HD);
  }

  if (row >= rows) return;
  const bool sees = mine.first <= mine.last;
  const HeadRows<T> outputs(out, shape.out, place.b, place.kv_head * group, group, HD);
  Vector<T, 8> magnitudes = {};
  store_row(outputs.row(row), softmax.sum, HD, sees ? 1 / softmax.total : 0.0f, false, &magnitudes);
  if (amax) atomic_max(reinterpret_cast<uint32_t*>(amax), max_value(magnitudes));
  lse[(size_t(place.b) * shape.NH + head) * shape.Tq + t] = sees ? softmax.top + logf(softmax.total) : -INFINITY;
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void plain_attention_forward(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const int rows = s.Tq * (s.NH / s.NKV), threads = threads_of_block(rows);
  const unsigned ranges = blocks_for(size_t(rows), size_t(threads));
  const Work work = forward_work(stream, "attention_forward", RateClass::attention_plain_forward, call);
  with_type(work.name, call.q.type, [&](auto number) {
    using T = decltype(number);
    with_head_size(s.HD, [&](auto constant) {
      constexpr int kHD = decltype(constant)::value;
      const size_t row_bytes = size_t(s.HD + row_stride<kHD>(s.HD)) * sizeof(float);
      const int chunks = chunks_of_tile(row_bytes);
      launch<attention_forward_kernel<T, kHD>>(work, ranges * unsigned(s.NKV * s.B), threads,
                                               chunks * kChunk * row_bytes, call.out.as<T>(), call.lse.as<float>(),
                                               call.q.as<T>(), call.k.as<T>(), call.v.as<T>(), s, call.scale(),
                                               int(ranges), chunks, call.amax);
    });
  });
}
