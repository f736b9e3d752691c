// Plain causal attention, forward.  out[t] = sum_j softmax_j(scale * q[t].k[j]) v[j];  lse[t] = log-sum-exp of the
// scores, fp32.  Writes out and lse (=).  Deterministic: see attention.h.
//
// A thread has some rows, each a query of one head, with its running maximum, sum of exponentials and weighted sum of
// values. When a tile of keys raises the maximum, the thread rescales the sums (online softmax, Milakov & Gimelshein
// 2018).
#include "llmc/kernels/attention_plain.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

// The online softmax of a thread's rows over the keys that it has processed.
template <int kHD>
struct Softmax {
  float top[kRows], total[kRows];     // largest score; sum of exp(score - top)
  float sum[kRows][kLargestHD<kHD>];  // sum of exp(score - top) * value

  __device__ __forceinline__ explicit Softmax(int HD) {
    for (int r = 0; r < kRows; ++r) {
      top[r] = -INFINITY, total[r] = 0;
      for (int d = 0; d < padded_width<kHD>(HD); ++d) sum[r][d] = 0;
    }
  }
  __device__ __forceinline__ void raise(int r, float highest, int HD) {
    if (!(highest > top[r])) return;
    const float shrink = exp_f32(top[r] - highest);
    top[r] = highest;
    total[r] *= shrink;
    for (int d = 0; d < padded_width<kHD>(HD); ++d) sum[r][d] *= shrink;
  }
};

// Adds the keys of a tile to the online softmax.
template <int kHD>
__device__ inline void add_keys(Softmax<kHD>& softmax, const float (&query)[kRows][kLargestHD<kHD>],
                                const float* keys_transposed, const float* values, const RowsSeen& keys, int tile,
                                int HD) {
  float p[kRows][kMostRows], lanes[kRows][kChunk];
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < kChunk; ++j) lanes[r][j] = softmax.top[r];
  for (int c = keys.first_chunk(); c < keys.end; c += kChunk) {
    float s[kRows][kChunk];
    multiply_rows(s, query, keys_transposed + c, tile, HD);
    for (int r = 0; r < kRows; ++r) {
      const int first = keys.first[r] - c, last = keys.last[r] - c;
      for (int j = 0; j < kChunk; ++j) {
        const float score = j < first || j >= last ? -INFINITY : s[r][j];
        p[r][c + j] = score;
        lanes[r][j] = score > lanes[r][j] ? score : lanes[r][j];
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    softmax.raise(r, fold_max(lanes[r]), HD);
    // A row that has seen no key yet keeps weights of 0.
    const float top = softmax.top[r] == -INFINITY ? 0 : softmax.top[r];
    for (int j = 0; j < kChunk; ++j) lanes[r][j] = 0;
    for (int c = keys.first_chunk(); c < keys.end; c += kChunk)
      for (int j = 0; j < kChunk; ++j) {
        const float e = exp_f32(p[r][c + j] - top);
        p[r][c + j] = e;
        lanes[r][j] += e;
      }
    softmax.total[r] += fold_sum(lanes[r]);
  }
  add_rows<kHD>(softmax.sum, p, values, keys.begin, keys.end, HD);
}

template <class T, int kHD>
__global__ void __launch_bounds__(kMostThreads)
    attention_forward_kernel(T* __restrict__ out, float* __restrict__ lse, const T* __restrict__ q,
                             const T* __restrict__ k, const T* __restrict__ v, AttentionShape shape, float scale,
                             int ranges, int chunks, float* amax) {
  const int HD = kHD ? kHD : shape.HD, group = shape.NH / shape.NKV, rows = shape.Tq * group, tile = chunks * kChunk;
  const BlockPlace place = block_place(shape);
  const int row0 = (ranges - 1 - place.range) * blockDim.x * kRows;  // the last rows see most keys
  const int row1 = min_int(row0 + blockDim.x * kRows, rows), own = row0 + threadIdx.x * kRows;
  const HeadRows<const T> queries(q, shape.q, place.b, place.kv_head * group, group, HD);
  const HeadRows<const T> keys(k, shape.k, place.b, place.kv_head, 1, HD);
  const HeadRows<const T> values(v, shape.v, place.b, place.kv_head, 1, HD);

  float query[kRows][kLargestHD<kHD>];
  Softmax<kHD> softmax(HD);
  KeyRange mine[kRows];
  for (int r = 0; r < kRows; ++r) {
    mine[r] = {0, -1};
    if (own + r >= rows) continue;
    mine[r] = keys_of_query(shape, place.b, (own + r) / group);
    load_row(query[r], queries.row(own + r), HD, scale);
  }

  float* keys_transposed = &shared_memory<float>();
  float* value_rows = keys_transposed + HD * tile;
  const KeyRange all = keys_of_queries(shape, place.b, row0 / group, (row1 - 1) / group);
  // Tiles begin at multiples of their size, so that a query has the same bits whichever queries it is computed with.
  const int start = all.first / tile * tile;
  for (int key0 = start; key0 <= all.last; key0 += tile) {
    if (key0 != start) __syncthreads();
    load_tile<kHD, T>(keys_transposed, nullptr, keys, key0, all.last + 1 - key0, tile, HD);
    load_tile<kHD, T>(nullptr, value_rows, values, key0, all.last + 1 - key0, tile, HD);
    __syncthreads();
    RowsSeen seen;
    for (int r = 0; r < kRows; ++r)
      seen.set(r, max_int(mine[r].first - key0, 0), min_int(mine[r].last + 1 - key0, tile));
    if (seen.begin < seen.end) add_keys(softmax, query, keys_transposed, value_rows, seen, tile, HD);
  }

  const HeadRows<T> outputs(out, shape.out, place.b, place.kv_head * group, group, HD);
  Vector<T, 8> magnitudes = {};
  for (int r = 0; r < kRows && own + r < rows; ++r) {
    const int row = own + r, t = row / group, head = place.kv_head * group + row % group;
    const bool sees = mine[r].first <= mine[r].last;
    store_row(outputs.row(row), softmax.sum[r], HD, sees ? 1 / softmax.total[r] : 0.0f, false, &magnitudes);
    lse[(size_t(place.b) * shape.NH + head) * shape.Tq + t] =
        sees ? softmax.top[r] + logf(softmax.total[r]) : -INFINITY;
  }
  if (amax && own < rows) atomic_max(reinterpret_cast<uint32_t*>(amax), max_value(magnitudes));
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void plain_attention_forward(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const int rows = s.Tq * (s.NH / s.NKV), threads = threads_of_block(rows);
  const unsigned ranges = blocks_for(size_t(rows), size_t(threads) * kRows);
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
