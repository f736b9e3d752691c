// Plain causal attention, backward: the gradient of queries, and rowsum_dO_O. With p[t,j] = exp(s[t,j] - lse[t]):
//
//   rowsum_dO_O[t] = dout[t].out[t]    dp[t,j] = dout[t].v[j]    ds[t,j] = p[t,j] (dp[t,j] - rowsum_dO_O[t])
//   dq[t] = softmax_scale * sum_j ds[t,j] k[j]
//
// dq, dout, out and q are (B, Tq, NH, HD), k and v (B, Tk, NKV, HD), rowsum_dO_O and lse (B, NH, Tq) fp32. Writes dq
// (= or +=) and rowsum_dO_O (=). Deterministic: a thread has some rows, each a query of one head, and walks over the
// keys that they see.
#include "llmc/kernels/attention_plain.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

// Returns the sum over d of a[d] * b[d].
template <class T>
__device__ inline float dot(const float* a, const T* b, int HD) {
  float lanes[8] = {};
  for (int d = 0; d < HD; d += 8) {
    float v[8];
    load_vector(v, b + d);
#pragma unroll
    for (int i = 0; i < 8; ++i) lanes[i] += a[d + i] * v[i];
  }
  return fold_sum(lanes);
}

// Computes dq and rowsum_dO_O.
template <class T, int kHD>
__global__ void __launch_bounds__(kMostThreads)
    attention_dq_kernel(T* __restrict__ dq, float* __restrict__ rowsum_dO_O, const T* __restrict__ dout,
                        const T* __restrict__ out, const float* __restrict__ lse, const T* __restrict__ q,
                        const T* __restrict__ k, const T* __restrict__ v, AttentionShape shape, float softmax_scale,
                        int m_blocks, int chunks, bool accumulate) {
  const int HD = kHD ? kHD : shape.HD, group = shape.NH / shape.NKV, rows = shape.Tq * group, tile = chunks * kChunk;
  const BlockCoord coord = block_coord(shape);
  const int row0 = (m_blocks - 1 - coord.block) * blockDim.x * kRows;  // the last rows see most keys
  const int row1 = min_int(row0 + blockDim.x * kRows, rows), own = row0 + threadIdx.x * kRows;
  const int head0 = coord.kv_head * group;
  const HeadRows<const T> keys(k, shape.k, coord.b, coord.kv_head, 1, HD);
  const HeadRows<const T> values(v, shape.v, coord.b, coord.kv_head, 1, HD);

  float query[kRows][kLargestHD<kHD>], doutput[kRows][kLargestHD<kHD>], acc_dq[kRows][kLargestHD<kHD>];
  float my_lse[kRows] = {}, my_rowsum[kRows] = {};
  KeyRange mine[kRows];
  for (int r = 0; r < kRows; ++r) {
    const int row = own + r, t = row / group;
    mine[r] = {0, -1};
    for (int d = 0; d < padded_width<kHD>(HD); ++d) acc_dq[r][d] = 0;
    if (row >= rows) continue;
    mine[r] = keys_of_query(shape, coord.b, t);
    load_row(query[r], HeadRows<const T>(q, shape.q, coord.b, head0, group, HD).row(row), HD, softmax_scale);
    load_row(doutput[r], HeadRows<const T>(dout, shape.out, coord.b, head0, group, HD).row(row), HD);
    const size_t index = (size_t(coord.b) * shape.NH + head0 + row % group) * shape.Tq + t;
    my_lse[r] = lse[index];
    my_rowsum[r] = dot(doutput[r], HeadRows<const T>(out, shape.out, coord.b, head0, group, HD).row(row), HD);
    rowsum_dO_O[index] = my_rowsum[r];
  }

  float* keys_transposed = &shared_memory<float>();
  float* values_transposed = keys_transposed + HD * tile;
  float* key_rows = values_transposed + HD * tile;
  const KeyRange all = keys_of_queries(shape, coord.b, row0 / group, (row1 - 1) / group);
  for (int key0 = all.first; key0 <= all.last; key0 += tile) {
    if (key0 != all.first) __syncthreads();
    load_tile<kHD>(keys_transposed, key_rows, keys, key0, all.last + 1 - key0, tile, HD);
    load_tile<kHD, T>(values_transposed, nullptr, values, key0, all.last + 1 - key0, tile, HD);
    __syncthreads();
    RowsSeen seen;
    for (int r = 0; r < kRows; ++r)
      seen.set(r, max_int(mine[r].first - key0, 0), min_int(mine[r].last + 1 - key0, tile));
    float ds[kRows][kMostRows];
    for (int c = seen.first_chunk(); c < seen.end; c += kChunk) {
      float s[kRows][kChunk], dp[kRows][kChunk];
      gemm(s, query, keys_transposed + c, tile, HD);
      gemm(dp, doutput, values_transposed + c, tile, HD);
      for (int r = 0; r < kRows; ++r) {
        const int first = seen.first[r] - c, last = seen.last[r] - c;
        const float lse_of_row = my_lse[r], rowsum_of_row = my_rowsum[r];
        for (int j = 0; j < kChunk; ++j) {
          const float if_seen = exp_f32(s[r][j] - lse_of_row) * (dp[r][j] - rowsum_of_row);
          ds[r][c + j] = j < first || j >= last ? 0.0f : if_seen;
        }
      }
    }
    add_rows<kHD>(acc_dq, ds, key_rows, seen.begin, seen.end, HD);
  }
  for (int r = 0; r < kRows && own + r < rows; ++r)
    store_row(HeadRows<T>(dq, shape.q, coord.b, head0, group, HD).row(own + r), acc_dq[r], HD, softmax_scale,
              accumulate);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void plain_attention_dq(Stream& stream, const AttentionCall& call) {
  const AttentionShape& s = call.shape;
  const int rows = s.Tq * (s.NH / s.NKV), threads = threads_of_block(rows);
  const unsigned m_blocks = blocks_for(size_t(rows), size_t(threads) * kRows);
  const Work work = dq_work(stream, "attention_backward, dq", RateClass::attention_plain_backward, call);
  with_type(work.name, call.q.type, [&](auto number) {
    using T = decltype(number);
    with_head_size(s.HD, [&](auto constant) {
      constexpr int kHD = decltype(constant)::value;
      const size_t row_bytes = size_t(2 * s.HD + row_stride<kHD>(s.HD)) * sizeof(float);
      const int chunks = chunks_of_tile(row_bytes);
      launch<attention_dq_kernel<T, kHD>>(
          work, m_blocks * unsigned(s.NKV * s.B), threads, chunks * kChunk * row_bytes, call.dq.as<T>(),
          call.rowsum_dO_O.as<float>(), call.dout.as<T>(), call.out.as<T>(), call.lse.as<float>(), call.q.as<T>(),
          call.k.as<T>(), call.v.as<T>(), s, call.softmax_scale(), int(m_blocks), chunks, call.accumulate.dq);
    });
  });
}
