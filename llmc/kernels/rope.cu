// Rotary position embedding, half-rotation, in place on the q and k heads of packed qkv[N, (NH + 2*NKV) * HD]. Backward
// is the rotation by the negative angle. Deterministic.
#include "llmc/kernels/rope.h"

#include <climits>
#include <cmath>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 8;  // heads per thread, which reads their angles once

// A task of a row: `width` pairs of each of kHeads heads. `heads` counts q and k heads; row_width includes the v heads.
template <class T, int width, bool inverse>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* __restrict__ qkv, const float* __restrict__ table, const int* __restrict__ positions, int N,
                int heads, int row_width, int half, int table_positions) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= N) return;
  const int position = positions[row];
  const bool known = position >= 0 && position < table_positions;
  const float* angles = table + size_t(known ? position : 0) * half * 2;
  const float nan_if_unknown = known ? 0.0f : NAN;
  T* heads_of_row = qkv + size_t(row) * row_width;
  const int vectors_per_half = half / width, tasks = vectors_per_half * ((heads + kHeads - 1) / kHeads);
  for (int task = threadIdx.x; task < tasks; task += blockDim.x) {
    const int i = task % vectors_per_half * width, first = task / vectors_per_half * kHeads;
    const int last = heads < first + kHeads ? heads : first + kHeads;
    float pairs[2 * width], cosine[width], sine[width];
    load_vector(pairs, angles + 2 * i);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      cosine[j] = pairs[2 * j] + nan_if_unknown;
      sine[j] = (inverse ? -pairs[2 * j + 1] : pairs[2 * j + 1]) + nan_if_unknown;
    }
    for (int h = first; h < last; ++h) {
      T *at = heads_of_row + size_t(h) * 2 * half + i, *partner = at + half;
      float a[width], b[width];
      load_vector(a, at);
      load_vector(b, partner);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const RotatedPair pair = rotate_pair(a[j], b[j], cosine[j], sine[j]);
        a[j] = pair.a, b[j] = pair.b;
      }
      store_vector(at, a);
      store_vector(partner, b);
    }
  }
}

// ---------------------------------------------------------------------------------------------- launchers

template <bool inverse>
void rotate(Stream& stream, const char* who, const Tensor& qkv, const RopeAngles& angles) {
  const Tensor &table = angles.table, &positions = angles.positions;
  require_tensor(who, "table", table, DType::fp32, {-1, -1, 2});
  const int64_t N = qkv.rows(), half = table.shape[2], width = qkv.columns(), HD = 2 * half, heads = angles.heads;
  REQUIRE(half >= 1 && HD <= 4096 && table.shape[1] >= 1 && table.shape[1] <= INT_MAX,
          "%s: table is %s\n  expected (positions, HD / 2, 2) with at least one position, HD <= 4096", who,
          table.text().c_str());
  REQUIRE(
      N >= 1 && N <= INT_MAX && width <= INT_MAX && width % HD == 0 && heads < width / HD && 2 * heads > width / HD,
      "%s: qkv is %s, of which %d heads of %d are rotated\n  expected (N, (NH + 2 NKV) HD) with at least one row, and "
      "NH + NKV heads to rotate",
      who, qkv.text().c_str(), angles.heads, int(HD));
  require_tensor(who, "qkv", qkv, qkv.type, {N, width});
  require_tensor(who, "positions", positions, DType::int32, {N});
  const Work work{stream, who, {updates(qkv), reads(table), reads(positions)}};
  const int tasks = int(half) / vector_width(int(half)) * int(blocks_for(size_t(heads), kHeads));
  const int threads = threads_for_row(tasks, 1, kThreads);
  const dim3 block(threads, kThreads / threads);
  const unsigned grid = blocks_for(size_t(N), block.y);
  with_type(who, qkv.type, [&](auto number) {
    using T = decltype(number);
    with_vector_width(who, int(half), {qkv.data, table.data}, [&](auto vector) {
      launch<rope_kernel<T, decltype(vector)::value, inverse>>(work, grid, block, 0, qkv.as<T>(), table.as<float>(),
                                                               positions.as<int>(), int(N), int(heads), int(width),
                                                               int(half), int(table.shape[1]));
    });
  });
}

}  // namespace

void rope_forward(Stream& stream, const Tensor& qkv, const RopeAngles& angles) {
  rotate<false>(stream, "rope_forward", qkv, angles);
}

void rope_backward(Stream& stream, const Tensor& dqkv, const RopeAngles& angles) {
  rotate<true>(stream, "rope_backward", dqkv, angles);
}
