// The embedding: see embedding.h.
#include "llmc/kernels/embedding.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 8;  // a thread

// A thread copies kColumns columns of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(T* __restrict__ out, const int* __restrict__ tokens, const T* __restrict__ weight, int N, int C) {
  const int column = int(blockIdx.x * blockDim.x + threadIdx.x) * kColumns;
  if (column >= C) return;
  const int count = C - column < kColumns ? C - column : kColumns;
  for (int row = int(blockIdx.y); row < N; row += int(gridDim.y)) {
    const T* from = weight + size_t(tokens[row]) * C + column;
    T* to = out + size_t(row) * C + column;
    if (count == kColumns)
      for (int i = 0; i < kColumns; ++i) to[i] = from[i];
    else
      for (int i = 0; i < count; ++i) to[i] = from[i];
  }
}

// The blocks of the sorted position n (blockIdx.y, and by gridDim.y further) have work only if a run of equal tokens
// starts there; a thread adds up kColumns columns of that run.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(float* __restrict__ dweight, const T* __restrict__ dout, const int* __restrict__ tokens,
                    const int* __restrict__ order, int N, int C) {
  const int column = int(blockIdx.x * blockDim.x + threadIdx.x) * kColumns;
  if (column >= C) return;
  const int count = C - column < kColumns ? C - column : kColumns;
  for (int first = int(blockIdx.y); first < N; first += int(gridDim.y)) {
    const int token = tokens[order[first]];
    if (first > 0 && tokens[order[first - 1]] == token) continue;
    float sum[kColumns] = {};
    for (int n = first; n < N && tokens[order[n]] == token; ++n) {
      const T* row = dout + size_t(order[n]) * C + column;
      if (count == kColumns)
        for (int i = 0; i < kColumns; ++i) sum[i] += to_float(row[i]);
      else
        for (int i = 0; i < count; ++i) sum[i] += to_float(row[i]);
    }
    float* to = dweight + size_t(token) * C + column;
    for (int i = 0; i < count; ++i) to[i] += sum[i];
  }
}

// ---------------------------------------------------------------------------------------------- launchers

dim3 grid_for(int N, int C) {
  return dim3(blocks_for(size_t(C), kThreads * kColumns), unsigned(N < 65535 ? N : 65535));
}

void require_sizes(const char* name, int N, int C, int V) {
  REQUIRE(N > 0 && C > 0 && V > 0, "%s: N=%d tokens, C=%d, V=%d: all must be positive", name, N, C, V);
}

}  // namespace

template <class T>
void embedding_forward(Stream& stream, T* out, const int* tokens, const T* weight, int N, int C, int V) {
  require_sizes("embedding_forward", N, C, V);
  const size_t n = size_t(N), c = size_t(C);
  launch<forward_kernel<T>>(
      {stream, "embedding_forward", {reads(tokens, n), reads(weight, size_t(V) * c), writes(out, n * c)}},
      grid_for(N, C), kThreads, 0, out, tokens, weight, N, C);
}

template <class T>
void embedding_backward(Stream& stream, float* dweight, const T* dout, const int* tokens, const int* order, int N,
                        int C, int V) {
  require_sizes("embedding_backward", N, C, V);
  const size_t n = size_t(N), c = size_t(C);
  launch<backward_kernel<T>>({stream,
                              "embedding_backward",
                              {reads(tokens, n), reads(order, n), reads(dout, n * c), updates(dweight, size_t(V) * c)}},
                             grid_for(N, C), kThreads, 0, dweight, dout, tokens, order, N, C);
}

#define INSTANTIATE(T)                                                               \
  template void embedding_forward(Stream&, T*, const int*, const T*, int, int, int); \
  template void embedding_backward(Stream&, float*, const T*, const int*, const int*, int, int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
