// Plain causal attention, forward. With s[t,j] = softmax_scale * q[t].k[j]:
//
//   out[t] = sum_j softmax_j(s[t,j]) v[j]    lse[t] = log sum_j exp(s[t,j]), fp32
//
// q and out are (B, Tq, NH, HD), k and v (B, Tk, NKV, HD), lse (B, NH, Tq). Writes out and lse (=) and raises amax.
// Deterministic: see attention.h.
//
// A thread has some rows, each a query of one head, with row_max, row_sum and acc_o. When a tile of keys raises
// row_max, the thread rescales the other two (online softmax, Milakov & Gimelshein 2018).
#include "llmc/kernels/attention_plain.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

// The online softmax of a thread's rows over the keys that it has processed.
template <int kHD>
struct Softmax {
  float row_max[kRows], row_sum[kRows];  // largest score; sum of exp(score - row_max)
  float acc_o[kRows][kLargestHD<kHD>];   // sum of exp(score - row_max) * value

  __device__ __forceinline__ explicit Softmax(int HD) {
    for (int r = 0; r < kRows; ++r) {
      row_max[r] = -INFINITY, row_sum[r] = 0;
      for (int d = 0; d < padded_width<kHD>(HD); ++d) acc_o[r][d] = 0;
    }
  }
  // Raises the maximum of row r to new_max and rescales the sums, if it is larger.
  __device__ __forceinline__ void raise_max(int r, float new_max, int HD) {
    if (!(new_max > row_max[r])) return;
    const float scores_scale = exp_f32(row_max[r] - new_max);
    row_max[r] = new_max;
    row_sum[r] *= scores_scale;
    for (int d = 0; d < padded_width<kHD>(HD); ++d) acc_o[r][d] *= scores_scale;
  }
};

// Adds the keys of a tile to the online softmax.
template <int kHD>
__device__ inline void add_keys(Softmax<kHD>& softmax, const float (&query)[kRows][kLargestHD<kHD>],
                                const float* keys_transposed, const float* values, const RowsSeen& keys, int tile,
                                int HD) {
  float p[kRows][kMostRows], lanes[kRows][kChunk];
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < kChunk; ++j) lanes[r][j] = softmax.row_max[r];
  for (int c = keys.first_chunk(); c < keys.end; c += kChunk) {
    float s[kRows][kChunk];
    gemm(s, query, keys_transposed + c, tile, HD);
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
    softmax.raise_max(r, fold_max(lanes[r]), HD);
    // A row that has seen no key yet keeps weights of 0.
    const float row_max = softmax.row_max[r] == -INFINITY ? 0 : softmax.row_max[r];
    for (int j = 0; j < kChunk; ++j) lanes[r][j] = 0;
    for (int c = keys.first_chunk(); c < keys.end; c += kChunk)
      for (int j = 0; j < kChunk; ++j) {
        const float e = exp_f32(p[r][c + j] - row_max);
        p[r][c + j] = e;
        lanes[r][j] += e;
      }
    softmax.row_sum[r] += fold_sum(lanes[r]);
  }
  add_rows<kHD>(softmax.acc_o, p, values, keys.begin, keys.end, HD);
}

template <class T, int kHD>
__global__ void __launch_bounds__(kMostThreads)
    attention_forward_kernel(T* __restrict__ out, float* __restrict__ lse, const T* __restrict__ q,
                             const T* __restrict__ k, const T* __restrict__ v, AttentionShape shape,
                             float softmax_scale, int m_blocks, int chunks, float* amax) {
  const int HD = kHD ? kHD : shape.HD, group = shape.NH / shape.NKV, rows = shape.Tq * group, tile = chunks * kChunk;
  const BlockCoord coord = block_coord(shape);
  const int row0 = (m_blocks - 1 - coord.block) * blockDim.x * kRows;  // the last rows see most keys
  const int row1 = min_int(row0 + blockDim.x * kRows, rows), own = row0 + threadIdx.x * kRows;
  const HeadRows<const T> queries(q, shape.q, coord.b, coord.kv_head * group, group, HD);
  const HeadRows<const T> keys(k, shape.k, coord.b, coord.kv_head, 1, HD);
  const HeadRows<const T> values(v, shape.v, coord.b, coord.kv_head, 1, HD);

  float query[kRows][kLargestHD<kHD>];
  Softmax<kHD> softmax(HD);
  KeyRange mine[kRows];
  for (int r = 0; r < kRows; ++r) {
    mine[r] = {0, -1};
    if (own + r >= rows) continue;
    mine[r] = keys_of_query(shape, coord.b, (own + r) / group);
    load_row(query[r], queries.row(own + r), HD, softmax_scale);
  }

  float* keys_transposed = &shared_memory<float>();
  float* value_rows = keys_transposed + HD * tile;
  const KeyRange all = keys_of_queries(shape, coord.b, row0 / group, (row1 - 1) / group);
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

  const HeadRows<T> outputs(out, shape.out, coord.b, coord.kv_head * group, group, HD);
  Vector<T, 8> magnitudes = {};
  for (int r = 0; r < kRows && own + r < rows; ++r) {
    const int row = own + r, t = row / group, head = coord.kv_head * group + row % group;
    const bool sees = mine[r].first <= mine[r].last;
    store_row(outputs.row(row), softmax.acc_o[r], HD, sees ? 1 / softmax.row_sum[r] : 0.0f, false, &magnitudes);
    lse[(size_t(coord.b) * shape.NH + head) * shape.Tq + t] =
        sees ? softmax.row_max[r] + logf(softmax.row_sum[r]) : -INFINITY;
  }
  if (amax && own < rows) atomic_max(reinterpret_cast<uint32_t*>(amax), max_value(magnitudes));
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void plain_attention_forward(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const int rows = s.Tq * (s.NH / s.NKV), threads = threads_of_block(rows);
  const unsigned m_blocks = blocks_for(size_t(rows), size_t(threads) * kRows);
  const Work work = forward_work(stream, "attention_forward", RateClass::attention_plain_forward, call);
  with_type(work.name, call.q.type, [&](auto number) {
    using T = decltype(number);
    with_head_size(s.HD, [&](auto constant) {
      constexpr int kHD = decltype(constant)::value;
      const size_t row_bytes = size_t(s.HD + row_stride<kHD>(s.HD)) * sizeof(float);
      const int chunks = chunks_of_tile(row_bytes);
      launch<attention_forward_kernel<T, kHD>>(work, m_blocks * unsigned(s.NKV * s.B), threads,
                                               chunks * kChunk * row_bytes, call.out.as<T>(), call.lse.as<float>(),
                                               call.q.as<T>(), call.k.as<T>(), call.v.as<T>(), s, call.softmax_scale(),
                                               int(m_blocks), chunks, call.amax);
    });
  });
}
