// RoPE: see rope.h. A thread rotates a pack of pairs of one head: 16 bytes of the head's first half and the 16 bytes
// that belong to them in its second half, or one pair where half a head is not whole packs.
#include "llmc/kernels/rope.h"

#include <cmath>

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- tables

std::vector<double> rope_frequencies(const RopeScaling& s, int HD) {
  std::vector<double> frequencies;
  for (int i = 0; i < HD / 2; ++i) {
    double f = std::pow(s.theta, -2.0 * i / HD);
    if (s.llama3) {
      // Wavelengths beyond original / low are stretched by `factor`, those below original / high are kept, and those
      // between are interpolated.
      const double turns = s.original_max_position * f / (2 * M_PI);  // over the original length
      const double keep = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
      f = keep <= 0 ? f / s.factor : keep >= 1 ? f : (1 - keep) * f / s.factor + keep * f;
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeScaling& scaling, int HD, int positions) {
  const std::vector<double> frequencies = rope_frequencies(scaling, HD);
  std::vector<float> table;
  table.reserve(size_t(positions) * size_t(HD));
  for (int position = 0; position < positions; ++position)
    for (double f : frequencies) {
      table.push_back(float(std::cos(position * f)));
      table.push_back(float(std::sin(position * f)));
    }
  return table;
}

void check_positions(const int32_t* positions, size_t count, int table_positions) {
  for (size_t i = 0; i < count; ++i)
    REQUIRE(positions[i] >= 0 && positions[i] < table_positions,
            "position %d of token %zu: the RoPE table has %d positions", positions[i], i, table_positions);
}

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 128;

// kPairs pairs a thread. Threads of a row follow its query and key heads.
template <class T, int kPairs>
__global__ void __launch_bounds__(kThreads)
    rotate(T* qkv, const float* __restrict__ table, const int* __restrict__ positions, int N, int heads, int width,
           int HD, float direction) {
  const int half = HD / 2, pieces = half / kPairs;
  const int piece = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (piece >= heads * pieces) return;
  const int head = piece / pieces, i = piece % pieces * kPairs;
  for (int row = int(blockIdx.y); row < N; row += int(gridDim.y)) {
    const float* __restrict__ angle = table + (size_t(positions[row]) * half + i) * 2;
    T* first = qkv + size_t(row) * width + size_t(head) * HD + i;
    T* second = first + half;
    float x[kPairs], y[kPairs];
    for (int j = 0; j < kPairs; ++j) x[j] = to_float(first[j]);
    for (int j = 0; j < kPairs; ++j) y[j] = to_float(second[j]);
    for (int j = 0; j < kPairs; ++j) {
      const float c = angle[2 * j], s = angle[2 * j + 1] * direction;
      const float rotated = x[j] * c - y[j] * s;
      y[j] = y[j] * c + x[j] * s;
      x[j] = rotated;
    }
    for (int j = 0; j < kPairs; ++j) first[j] = from_float<T>(x[j]);
    for (int j = 0; j < kPairs; ++j) second[j] = from_float<T>(y[j]);
  }
}

// ---------------------------------------------------------------------------------------------- launchers

template <class T>
void rotate_rows(const char* name, Stream& stream, T* qkv, const float* table, const int* positions, int N, int NH,
                 int NKV, int HD, int table_positions, float direction) {
  REQUIRE(N > 0 && NH > 0 && NKV > 0 && HD > 0 && HD % 2 == 0 && table_positions > 0,
          "%s: N=%d, NH=%d, NKV=%d, HD=%d, %d table rows: all must be positive and HD even", name, N, NH, NKV, HD,
          table_positions);
  const int heads = NH + NKV, width = (NH + 2 * NKV) * HD;
  const Work work(stream, name,
                  {updates(qkv, size_t(N) * size_t(width)), reads(table, size_t(table_positions) * size_t(HD)),
                   reads(positions, size_t(N))});
  const unsigned rows = unsigned(N < 65535 ? N : 65535);
  constexpr int kPairs = 8;
  if (HD % (2 * kPairs) == 0)
    launch<rotate<T, kPairs>>(work, dim3(blocks_for(size_t(heads) * size_t(HD) / (2 * kPairs), kThreads), rows),
                              kThreads, 0, qkv, table, positions, N, heads, width, HD, direction);
  else
    launch<rotate<T, 1>>(work, dim3(blocks_for(size_t(heads) * size_t(HD) / 2, kThreads), rows), kThreads, 0, qkv,
                         table, positions, N, heads, width, HD, direction);
}

}  // namespace

template <class T>
void rope_forward(Stream& stream, T* qkv, const float* table, const int* positions, int N, int NH, int NKV, int HD,
                  int table_positions) {
  rotate_rows("rope_forward", stream, qkv, table, positions, N, NH, NKV, HD, table_positions, 1.0f);
}

template <class T>
void rope_backward(Stream& stream, T* dqkv, const float* table, const int* positions, int N, int NH, int NKV, int HD,
                   int table_positions) {
  rotate_rows("rope_backward", stream, dqkv, table, positions, N, NH, NKV, HD, table_positions, -1.0f);
}

#define INSTANTIATE(T)                                                                        \
  template void rope_forward(Stream&, T*, const float*, const int*, int, int, int, int, int); \
  template void rope_backward(Stream&, T*, const float*, const int*, int, int, int, int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
