// Plain causal attention, backward: the gradients of keys and values. With p[t,j] = exp(s[t,j] - lse[t]):
//
//   dp[t,j] = dout[t].v[j]    ds[t,j] = p[t,j] (dp[t,j] - rowsum_dO_O[t])
//   dk[j] = softmax_scale * sum_t ds[t,j] q[t]    dv[j] = sum_t p[t,j] dout[t]
//
// dk, dv, k and v are (B, Tk, NKV, HD), dout and q (B, Tq, NH, HD), lse and rowsum_dO_O (B, NH, Tq) fp32. Writes dk
// and dv (= or +=). Deterministic, without atomics: a thread has some keys and walks over the queries that see them,
// in all heads of the group.
#include "llmc/kernels/attention_plain.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

// Data of each row (a query of one head) of a tile.
struct QueryRows {
  float lse[kMostRows], rowsum_dO_O[kMostRows];
  int first_key[kMostRows];
};

__device__ inline void load_query_rows(QueryRows& to, const float* lse, const float* rowsum_dO_O,
                                       const AttentionShape& shape, BlockCoord coord, int group, int row0, int count,
                                       int tile) {
  for (int i = threadIdx.x; i < tile && i < count; i += blockDim.x) {
    const int t = (row0 + i) / group, head = coord.kv_head * group + (row0 + i) % group;
    const size_t index = (size_t(coord.b) * shape.NH + head) * shape.Tq + t;
    to.lse[i] = lse[index];
    to.rowsum_dO_O[i] = rowsum_dO_O[index];
    to.first_key[i] = keys_of_query(shape, coord.b, t).first;
  }
}

// Computes p and ds of one key with a chunk of rows. They are 0 for rows that do not see the key: those before `first`,
// from `last` on, and those whose first key comes after it.
__device__ __forceinline__ void weigh_chunk(float* __restrict__ p, float* __restrict__ ds, const float (&s)[kChunk],
                                            const float (&dp)[kChunk], const float* __restrict__ lse,
                                            const float* __restrict__ rowsum_dO_O, const int* __restrict__ first_key,
                                            int key, int first, int last) {
  for (int i = 0; i < kChunk; ++i) {
    const float e = exp_f32(s[i] - lse[i]), de = e * (dp[i] - rowsum_dO_O[i]);
    const bool hidden = i < first || i >= last || first_key[i] > key;
    p[i] = hidden ? 0.0f : e;
    ds[i] = hidden ? 0.0f : de;
  }
}

// Computes p and ds of the thread's keys, from key `own` on, with the rows of a tile.
template <int kWidth>
__device__ inline void weigh_rows(float (&p)[kRows][kMostRows], float (&ds)[kRows][kMostRows],
                                  const float (&key)[kRows][kWidth], const float (&value)[kRows][kWidth],
                                  const float* queries_transposed, const float* douts_transposed, const QueryRows& info,
                                  int own, const RowsSeen& rows_seen, int tile, int HD) {
  for (int c = rows_seen.first_chunk(); c < rows_seen.end; c += kChunk) {
    float s[kRows][kChunk], dp[kRows][kChunk];
    gemm(s, key, queries_transposed + c, tile, HD);
    gemm(dp, value, douts_transposed + c, tile, HD);
    for (int r = 0; r < kRows; ++r)
      weigh_chunk(p[r] + c, ds[r] + c, s[r], dp[r], info.lse + c, info.rowsum_dO_O + c, info.first_key + c, own + r,
                  rows_seen.first[r] - c, rows_seen.last[r] - c);
  }
}

// Computes dk and dv. If shared memory is short (`in_turn`), a tile's row layout overwrites its transposed layout once
// the scores are computed.
template <class T, int kHD>
__global__ void __launch_bounds__(kMostThreads)
    attention_dkv_kernel(T* __restrict__ dk, T* __restrict__ dv, const T* __restrict__ dout,
                         const float* __restrict__ lse, const float* __restrict__ rowsum_dO_O, const T* __restrict__ q,
                         const T* __restrict__ k, const T* __restrict__ v, AttentionShape shape, float softmax_scale,
                         int chunks, bool in_turn, bool accumulate) {
  const int HD = kHD ? kHD : shape.HD, group = shape.NH / shape.NKV, tile = chunks * kChunk;
  const BlockCoord coord = block_coord(shape);
  const int key0 = coord.block * blockDim.x * kRows;  // most queries see the first keys
  const int own = key0 + threadIdx.x * kRows;
  const int rows = group * end_query_of_key(shape, coord.b, min_int(key0 + blockDim.x * kRows, shape.Tk) - 1);
  const HeadRows<const T> queries(q, shape.q, coord.b, coord.kv_head * group, group, HD);
  const HeadRows<const T> douts(dout, shape.out, coord.b, coord.kv_head * group, group, HD);

  float key[kRows][kLargestHD<kHD>], value[kRows][kLargestHD<kHD>];
  float acc_dk[kRows][kLargestHD<kHD>], acc_dv[kRows][kLargestHD<kHD>];
  int my_first[kRows];
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < padded_width<kHD>(HD); ++d) acc_dk[r][d] = acc_dv[r][d] = 0;
    my_first[r] = rows;
    if (own + r >= shape.Tk) continue;
    my_first[r] = first_query_of_key(shape, own + r) * group;
    load_row(key[r], HeadRows<const T>(k, shape.k, coord.b, coord.kv_head, 1, HD).row(own + r), HD);
    load_row(value[r], HeadRows<const T>(v, shape.v, coord.b, coord.kv_head, 1, HD).row(own + r), HD);
  }

  QueryRows& info = shared_memory<QueryRows>();
  float* queries_transposed = reinterpret_cast<float*>(&info + 1);
  float* douts_transposed = queries_transposed + HD * tile;
  float* query_rows = in_turn ? queries_transposed : douts_transposed + HD * tile;
  float* dout_rows = query_rows + row_stride<kHD>(HD) * tile;
  const int begin = first_query_of_key(shape, key0) * group;
  for (int row0 = begin; row0 < rows; row0 += tile) {
    const int count = rows - row0;
    RowsSeen rows_seen;
    for (int r = 0; r < kRows; ++r) rows_seen.set(r, max_int(my_first[r] - row0, 0), min_int(tile, count));
    if (row0 > begin) __syncthreads();
    load_query_rows(info, lse, rowsum_dO_O, shape, coord, group, row0, count, tile);
    load_tile<kHD>(queries_transposed, in_turn ? nullptr : query_rows, queries, row0, count, tile, HD, softmax_scale);
    load_tile<kHD>(douts_transposed, in_turn ? nullptr : dout_rows, douts, row0, count, tile, HD);
    __syncthreads();
    float p[kRows][kMostRows], ds[kRows][kMostRows];
    weigh_rows(p, ds, key, value, queries_transposed, douts_transposed, info, own, rows_seen, tile, HD);
    if (in_turn) {
      __syncthreads();
      load_tile<kHD, T>(nullptr, query_rows, queries, row0, count, tile, HD, softmax_scale);
      load_tile<kHD, T>(nullptr, dout_rows, douts, row0, count, tile, HD);
      __syncthreads();
    }
    add_rows<kHD>(acc_dv, p, dout_rows, rows_seen.begin, rows_seen.end, HD);
    add_rows<kHD>(acc_dk, ds, query_rows, rows_seen.begin, rows_seen.end, HD);  // the queries were scaled when loaded
  }
  for (int r = 0; r < kRows && own + r < shape.Tk; ++r) {
    store_row(HeadRows<T>(dk, shape.k, coord.b, coord.kv_head, 1, HD).row(own + r), acc_dk[r], HD, 1, accumulate);
    store_row(HeadRows<T>(dv, shape.v, coord.b, coord.kv_head, 1, HD).row(own + r), acc_dv[r], HD, 1, accumulate);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void plain_attention_dkv(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const int threads = threads_of_block(s.Tk);
  const unsigned n_blocks = blocks_for(size_t(s.Tk), size_t(threads) * kRows);
  const Work work = dkv_work(stream, "attention_backward, dk and dv", RateClass::attention_plain_backward, call);
  with_type(work.name, call.q.type, [&](auto number) {
    using T = decltype(number);
    with_head_size(s.HD, [&](auto constant) {
      constexpr int kHD = decltype(constant)::value;
      const size_t transposed_bytes = 2 * size_t(s.HD) * sizeof(float);
      const size_t rows_bytes = 2 * size_t(row_stride<kHD>(s.HD)) * sizeof(float);
      const bool in_turn = (transposed_bytes + rows_bytes) * kChunk > kTileBytes;
      const size_t row_bytes = in_turn ? rows_bytes : transposed_bytes + rows_bytes;
      const int chunks = chunks_of_tile(row_bytes);
      launch<attention_dkv_kernel<T, kHD>>(work, n_blocks * unsigned(s.NKV * s.B), threads,
                                           sizeof(QueryRows) + chunks * kChunk * row_bytes, call.dk.as<T>(),
                                           call.dv.as<T>(), call.dout.as<T>(), call.lse.as<float>(),
                                           call.rowsum_dO_O.as<float>(), call.q.as<T>(), call.k.as<T>(), call.v.as<T>(),
                                           s, call.softmax_scale(), chunks, in_turn, call.accumulate.dkv);
    });
  });
}
