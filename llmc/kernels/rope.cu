// Rotary position embedding, half-rotation, in place on the q and k heads of packed qkv[N, (NH + 2*NKV) * HD]. Backward
// is the rotation by the negative angle. Deterministic. This file also computes the tables, on the host.
#include "llmc/kernels/rope.h"

#include <algorithm>
#include <climits>
#include <cmath>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- tables

void RopeScaling::check(const char* who) const {
  REQUIRE(theta > 0, "%s: theta = %g: expected a positive number, such as 10000", who, theta);
  REQUIRE(factor >= 1, "%s: factor %g: expected 1 or more", who, factor);
  REQUIRE(type != RopeType::llama3 ||
              (low_freq_factor > 0 && high_freq_factor > low_freq_factor && original_max_position >= 1),
          "%s: llama3 scaling with low_freq_factor %g, high_freq_factor %g, original context %d\n"
          "  expected 0 < low_freq_factor < high_freq_factor, a context of at least 1",
          who, low_freq_factor, high_freq_factor, original_max_position);
  REQUIRE(type != RopeType::yarn || (theta > 1 && beta_slow > 0 && beta_fast >= beta_slow &&
                                     original_max_position >= 1 && attention_factor > 0),
          "%s: yarn scaling with theta %g, beta_fast %g, beta_slow %g, original context %d, attention_factor %g\n"
          "  expected theta > 1, 0 < beta_slow <= beta_fast, a context of at least 1, a positive attention_factor",
          who, theta, beta_fast, beta_slow, original_max_position, attention_factor);
}

namespace {

// The part of each frequency that stays, 0 to 1; the rest of it is divided by the factor.
double kept_of_llama3(const RopeScaling& s, double frequency) {
  // The turns that fit into the original context: up to `low` turns the wave is long, from `high` turns on it is short.
  const double turns = s.original_max_position * frequency / (2 * M_PI);
  return std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
}
double kept_of_yarn(const RopeScaling& s, int i, int HD) {
  // The index, a real number, whose wave makes this many turns within the original context.
  const auto index = [&](double turns) {
    return HD * std::log(s.original_max_position / (2 * M_PI * turns)) / (2 * std::log(s.theta));
  };
  double first = index(s.beta_fast), last = index(s.beta_slow);
  if (s.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, HD - 1.0);
  if (first == last) last += 0.001;  // as Hugging Face does
  return 1 - std::clamp((i - first) / (last - first), 0.0, 1.0);
}

}  // namespace

std::vector<double> rope_frequencies(const RopeScaling& scaling, int HD) {
  REQUIRE(HD >= 2 && HD % 2 == 0, "RoPE: head size %d: expected an even number", HD);
  scaling.check("RoPE");
  std::vector<double> frequencies(size_t(HD / 2));
  for (int i = 0; i < HD / 2; ++i) {
    const double frequency = std::pow(scaling.theta, -2.0 * i / HD);
    const double kept = scaling.type == RopeType::plain    ? 1
                        : scaling.type == RopeType::linear ? 0
                        : scaling.type == RopeType::llama3 ? kept_of_llama3(scaling, frequency)
                                                           : kept_of_yarn(scaling, i, HD);
    frequencies[size_t(i)] = (1 - kept) * frequency / scaling.factor + kept * frequency;
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeScaling& scaling, int HD, int positions) {
  REQUIRE(positions >= 1, "RoPE: a table of %d positions: expected at least one", positions);
  const std::vector<double> frequencies = rope_frequencies(scaling, HD);
  const double times = scaling.type == RopeType::yarn ? scaling.attention_factor : 1;
  std::vector<float> table;
  table.reserve(size_t(positions) * HD);
  for (int p = 0; p < positions; ++p)
    for (const double frequency : frequencies) {
      table.push_back(float(times * std::cos(p * frequency)));
      table.push_back(float(times * std::sin(p * frequency)));
    }
  return table;
}

void require_rope_positions(const int* positions, size_t count, int table_positions) {
  for (size_t n = 0; n < count; ++n)
    REQUIRE(positions[n] >= 0 && positions[n] < table_positions,
            "position %d (number %zu of %zu) is outside of the RoPE table of %d positions\n"
            "  expected 0 to %d: shorten the sequences or make a longer table",
            positions[n], n, count, table_positions, table_positions - 1);
}

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
  const float nothing = known ? 0.0f : NAN;
  T* heads_of_row = qkv + size_t(row) * row_width;
  const int pieces = half / width, tasks = pieces * ((heads + kHeads - 1) / kHeads);
  for (int task = threadIdx.x; task < tasks; task += blockDim.x) {
    const int i = task % pieces * width, first = task / pieces * kHeads;
    const int last = heads < first + kHeads ? heads : first + kHeads;
    float pairs[2 * width], cosine[width], sine[width];
    load_vector(pairs, angles + 2 * i);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      cosine[j] = pairs[2 * j] + nothing;
      sine[j] = (inverse ? -pairs[2 * j + 1] : pairs[2 * j + 1]) + nothing;
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
