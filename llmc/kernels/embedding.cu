// Embedding.  forward: out[N,C] = weight[tokens[n]].  backward: dweight[V,C] +=, fp32, no atomics.  Deterministic.
//
// Backward walks the positions sorted by token, one run of equal tokens after another. Only the run of a token writes
// that token's row. Most runs are short, but about one byte in seven of English text is a space: several groups of
// threads share a long run.
#include "llmc/kernels/embedding.h"

#include <algorithm>

#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kPositionsPerBlock = 32;  // sorted positions per block of backward; a run of more positions is a long run
constexpr int kLanes = 32, kGroups = kThreads / kLanes;

struct HeldRows {
  int first, V, whole;
};

template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    embedding_forward_kernel(T* __restrict__ out, const int* __restrict__ tokens, const T* __restrict__ weight, int N,
                             int C, HeldRows rows) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= N) return;
  const int token = tokens[row] - rows.first;
  const bool held = token >= 0 && token < rows.V, in_table = tokens[row] >= 0 && tokens[row] < rows.whole;
  Vector<T, width> substitute;  // 0 for a row that another rank holds
#pragma unroll
  for (int j = 0; j < width; ++j) substitute.v[j] = from_float<T>(in_table ? 0.0f : NAN);
  const auto* from = reinterpret_cast<const Vector<T, width>*>(weight + size_t(held ? token : 0) * C);
  auto* to = reinterpret_cast<Vector<T, width>*>(out + size_t(row) * C);
  for (int i = threadIdx.x; i < C / width; i += blockDim.x) to[i] = held ? from[i] : substitute;
}

// Adds rows order[first], order[first + step], … before order[last] of dout to sum[width]. `dout` points to the first
// of the `width` columns.
template <class T, int width>
__device__ __forceinline__ void add_rows(float (&sum)[width], const T* dout, const int* order, int first, int last,
                                         int step, int C) {
  for (int i = first; i < last; i += step) {
    float d[width];
    load_vector(d, dout + size_t(order[i]) * C);
#pragma unroll
    for (int j = 0; j < width; ++j) sum[j] += d[j];
  }
}

template <int width>
__device__ __forceinline__ void add_to(float* to, const float (&sum)[width]) {
  float d[width];
  load_vector(d, to);
#pragma unroll
  for (int j = 0; j < width; ++j) d[j] += sum[j];
  store_vector(to, d);
}

struct GroupSums {
  float sum[kGroups][kLanes * 8];
};

// A block processes kPositionsPerBlock sorted positions and the columns of its lanes. It adds up the runs that start
// there. A run of up to kPositionsPerBlock rows is added by one group of threads, in the order of the rows. At most one
// longer run can start in a block's positions. All groups share it: group g adds rows g, g + groups, …, and their sums
// are then added in order.
template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    embedding_backward_kernel(float* __restrict__ dweight, const T* __restrict__ dout, const int* __restrict__ tokens,
                              const int* __restrict__ order, int N, int C, int first, int V, int pad) {
  const auto token_at = [&](int i) { return tokens[order[i]] - first; };
  const auto is_here = [&](int token) { return token >= 0 && token < V && token + first != pad; };
  const int lane = threadIdx.x, group = threadIdx.y, groups = blockDim.y;
  const int c = (blockIdx.y * blockDim.x + lane) * width;
  const int begin = blockIdx.x * kPositionsPerBlock,
            end = N - begin < kPositionsPerBlock ? N : begin + kPositionsPerBlock;
  for (int start = begin + group; c < C && start < end; start += groups) {
    const int token = token_at(start);
    if (!is_here(token) || (start > 0 && token_at(start - 1) == token)) continue;
    if (N - start > kPositionsPerBlock && token_at(start + kPositionsPerBlock) == token) continue;  // a long run: below
    int last = start + 1;
    while (last < N && token_at(last) == token) ++last;
    float sum[width] = {};
    add_rows(sum, dout + c, order, start, last, 1, C);
    add_to(dweight + size_t(token) * C + c, sum);
  }

  // The long run, if one starts in this block's positions and continues after them. All threads of the block take the
  // same branch.
  if (end == N) return;
  const int token = token_at(end);
  int start = end;
  while (start > begin && token_at(start - 1) == token) --start;
  if (!is_here(token) || start == end || (start > 0 && token_at(start - 1) == token)) return;
  if (N - start <= kPositionsPerBlock || token_at(start + kPositionsPerBlock) != token) return;
  int last = end, beyond = N;  // token_at(last) == token; no position from `beyond` on has this token
  while (beyond - last > 1) {
    const int mid = last + (beyond - last) / 2;
    if (token_at(mid) == token) last = mid;
    else beyond = mid;
  }
  auto& shared = shared_memory<GroupSums>();
  float sum[width] = {};
  if (c < C) add_rows(sum, dout + c, order, start + group, beyond, groups, C);
  store_vector(shared.sum[group] + lane * width, sum);
  __syncthreads();
  if (group != 0 || c >= C) return;
  for (int g = 1; g < groups; ++g) {
    float other[width];
    load_vector(other, shared.sum[g] + lane * width);
#pragma unroll
    for (int j = 0; j < width; ++j) sum[j] += other[j];
  }
  add_to(dweight + size_t(token) * C + c, sum);
}

// ---------------------------------------------------------------------------------------------- launchers

// Checks the tensors that both directions have: x is out or dout, (N, C), and `table` is weight or dweight, (V, C).
void require_sizes(const char* who, const char* x_name, const Tensor& x, const char* table_name, const Tensor& table,
                   DType table_type, const Tensor& tokens, EmbeddingRows rows) {
  require_rows(who, x_name, x);
  require_rows(who, table_name, table);
  require_tensor(who, table_name, table, table_type, {-1, x.columns()});
  require_tensor(who, "tokens", tokens, DType::int32, {x.rows()});
  REQUIRE(rows.first >= 0 && rows.first + table.rows() <= rows.whole, "%s: rows %d to %lld of a table of %d", who,
          rows.first, (long long)(rows.first + table.rows() - 1), rows.whole);
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& out, const Tensor& tokens, const Tensor& weight,
                       EmbeddingRows rows) {
  const char* who = "embedding_forward";
  require_sizes(who, "out", out, "weight", weight, out.type, tokens, rows);
  const int N = int(out.rows()), C = int(out.columns());
  const Work work{stream, who, {writes(out), reads(tokens), reads(weight)}};
  const int threads = threads_for_row(C / vector_width(C), 4, 128);
  const dim3 block(threads, kThreads / threads);
  with_type(who, out.type, [&](auto number) {
    using T = decltype(number);
    with_vector_width(who, C, {out.data, weight.data}, [&](auto width) {
      launch<embedding_forward_kernel<T, decltype(width)::value>>(work, blocks_for(size_t(N), block.y), block, 0,
                                                                  out.as<T>(), tokens.as<int>(), weight.as<T>(), N, C,
                                                                  HeldRows{rows.first, int(weight.rows()), rows.whole});
    });
  });
}

void embedding_backward(Stream& stream, const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                        const Tensor& order, EmbeddingRows rows) {
  const char* who = "embedding_backward";
  require_sizes(who, "dout", dout, "dweight", dweight, DType::fp32, tokens, rows);
  const int N = int(dout.rows()), C = int(dout.columns());
  require_tensor(who, "order", order, DType::int32, {N});
  const Work work{stream, who, {updates(dweight), reads(dout), reads(tokens), reads(order)}};
  const int vectors = C / vector_width(C), lanes = std::min(vectors, kLanes);
  const dim3 grid(blocks_for(size_t(N), kPositionsPerBlock), blocks_for(size_t(vectors), size_t(lanes)));
  with_type(who, dout.type, [&](auto number) {
    using T = decltype(number);
    with_vector_width(who, C, {dweight.data, dout.data}, [&](auto width) {
      launch<embedding_backward_kernel<T, decltype(width)::value>>(
          work, grid, dim3(lanes, kGroups), sizeof(GroupSums), dweight.as<float>(), dout.as<T>(), tokens.as<int>(),
          order.as<int>(), N, C, rows.first, int(dweight.rows()), rows.pad);
    });
  });
}
