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
constexpr int kWindow = 32;  // sorted positions per block of backward; a run of more positions is a long run
constexpr int kLanes = 32, kGroups = kThreads / kLanes;

template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    embedding_forward_kernel(T* __restrict__ out, const int* __restrict__ tokens, const T* __restrict__ weight, int N,
                             int C, EmbeddingRows rows) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= N) return;
  const int token = tokens[row] - rows.first;
  const bool known = token >= 0 && token < rows.V, elsewhere = tokens[row] >= 0 && tokens[row] < rows.whole;
  Vector<T, width> nothing;
#pragma unroll
  for (int j = 0; j < width; ++j) nothing.v[j] = from_float<T>(elsewhere ? 0.0f : NAN);
  const auto* from = reinterpret_cast<const Vector<T, width>*>(weight + size_t(known ? token : 0) * C);
  auto* to = reinterpret_cast<Vector<T, width>*>(out + size_t(row) * C);
  for (int i = threadIdx.x; i < C / width; i += blockDim.x) to[i] = known ? from[i] : nothing;
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

// A block processes kWindow sorted positions and the columns of its lanes. It adds up the runs that start in its
// window. A run of up to kWindow rows is added by one group of threads, in the order of the rows. At most one longer
// run can start in a window. All groups share it: group g adds rows g, g + groups, …, and their sums are then added in
// order.
template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    embedding_backward_kernel(float* __restrict__ dweight, const T* __restrict__ dout, const int* __restrict__ tokens,
                              const int* __restrict__ order, int N, int C, int first, int V) {
  const auto token_at = [&](int i) { return tokens[order[i]] - first; };
  const int lane = threadIdx.x, group = threadIdx.y, groups = blockDim.y;
  const int c = (blockIdx.y * blockDim.x + lane) * width;
  const int begin = blockIdx.x * kWindow, end = N - begin < kWindow ? N : begin + kWindow;
  for (int start = begin + group; c < C && start < end; start += groups) {
    const int token = token_at(start);
    if (token < 0 || token >= V || (start > 0 && token_at(start - 1) == token)) continue;
    if (N - start > kWindow && token_at(start + kWindow) == token) continue;  // a long run: below
    int last = start + 1;
    while (last < N && token_at(last) == token) ++last;
    float sum[width] = {};
    add_rows(sum, dout + c, order, start, last, 1, C);
    add_to(dweight + size_t(token) * C + c, sum);
  }

  // The long run, if one starts in this window and continues behind it. All threads of the block take the same branch.
  if (end == N) return;
  const int token = token_at(end);
  int start = end;
  while (start > begin && token_at(start - 1) == token) --start;
  if (token < 0 || token >= V || start == end || (start > 0 && token_at(start - 1) == token)) return;
  if (N - start <= kWindow || token_at(start + kWindow) != token) return;
  int last = end, beyond = N;  // token_at(last) == token; no position from `beyond` on has this token
  while (beyond - last > 1) {
    const int middle = last + (beyond - last) / 2;
    if (token_at(middle) == token) last = middle;
    else beyond = middle;
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

void require_sizes(const char* who, int N, int C, const EmbeddingRows& rows) {
  REQUIRE(N >= 1 && C >= 1 && rows.V >= 1, "%s: N = %d tokens, C = %d, V = %d: expected at least one of each", who, N,
          C, rows.V);
  REQUIRE(rows.first >= 0 && rows.first + rows.V <= rows.whole, "%s: rows %d to %d of a table of %d", who, rows.first,
          rows.first + rows.V - 1, rows.whole);
}

}  // namespace

template <class T>
void embedding_forward(Stream& stream, T* out, const int* tokens, const T* weight, int N, int C, EmbeddingRows rows) {
  require_sizes("embedding_forward", N, C, rows);
  const size_t size = size_t(N) * C;
  const int threads = threads_for_row(C / vector_width(C), 4, 128);
  const dim3 block(threads, kThreads / threads);
  with_vector_width("embedding_forward", C, {out, weight}, [&](auto width) {
    launch<embedding_forward_kernel<T, decltype(width)::value>>(
        {stream, "embedding_forward", {writes(out, size), reads(tokens, size_t(N)), reads(weight, size_t(rows.V) * C)}},
        blocks_for(size_t(N), block.y), block, 0, out, tokens, weight, N, C, rows);
  });
}

template <class T>
void embedding_backward(Stream& stream, float* dweight, const T* dout, const int* tokens, const int* order, int N,
                        int C, EmbeddingRows rows) {
  require_sizes("embedding_backward", N, C, rows);
  const int vectors = C / vector_width(C), lanes = std::min(vectors, kLanes);
  const dim3 grid(blocks_for(size_t(N), kWindow), blocks_for(size_t(vectors), size_t(lanes)));
  with_vector_width("embedding_backward", C, {dweight, dout}, [&](auto width) {
    launch<embedding_backward_kernel<T, decltype(width)::value>>(
        {stream,
         "embedding_backward",
         {updates(dweight, size_t(rows.V) * C), reads(dout, size_t(N) * C), reads(tokens, size_t(N)),
          reads(order, size_t(N))}},
        grid, dim3(lanes, kGroups), sizeof(GroupSums), dweight, dout, tokens, order, N, C, rows.first, rows.V);
  });
}

#define INSTANTIATE(T)                                                                         \
  template void embedding_forward(Stream&, T*, const int*, const T*, int, int, EmbeddingRows); \
  template void embedding_backward(Stream&, float*, const T*, const int*, const int*, int, int, EmbeddingRows);
INSTANTIATE(float)
INSTANTIATE(bf16)
