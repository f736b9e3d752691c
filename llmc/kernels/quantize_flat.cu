// Stretches of FP8 weights (contract: quantize_flat.h). What should limit all three on a GPU: device memory; 2 bytes an
// element for the largest magnitude, 3 for quantizing, 2 for the transpose.
#include "llmc/kernels/quantize_flat.h"

#include <algorithm>

#include "llmc/device/launch.cuh"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/quantize_scale.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kUnit = 8, kRounds = 8;
constexpr size_t kPiece = size_t(kThreads) * kUnit * kRounds;  // elements of a block

struct WarpMaxima {
  uint32_t warp[kWarps];
};

// In thread 0.
__device__ __forceinline__ uint32_t block_max(uint32_t value) {
  auto& maxima = shared_memory<WarpMaxima>();
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) maxima.warp[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < kWarps; ++w) value = maxima.warp[w] > value ? maxima.warp[w] : value;
  return value;
}

// Up to kUnit numbers from x[first]; zeros beyond n.
__device__ __forceinline__ void load_unit(float (&v)[kUnit], const bf16* x, size_t first, size_t n) {
  if (first + kUnit <= n) return load_vector(v, x + first);
#pragma unroll
  for (int j = 0; j < kUnit; ++j) v[j] = first + j < n ? to_float(x[first + j]) : 0.0f;
}

__global__ void __launch_bounds__(kThreads)
    largest_magnitude_kernel(float* amax, const bf16* __restrict__ x, size_t n) {
  Vector<bf16, kUnit> magnitudes = {};
  for (int round = 0; round < kRounds; ++round) {
    const size_t first = blockIdx.x * kPiece + (size_t(round) * kThreads + threadIdx.x) * kUnit;
    if (first >= n) break;
    float v[kUnit];
    load_unit(v, x, first, n);
    raise_to_magnitudes(magnitudes, rounded<bf16>(v));
  }
  const uint32_t largest = block_max(largest_of(magnitudes));
  if (threadIdx.x == 0) atomic_max(reinterpret_cast<uint32_t*>(amax), largest);
}

__device__ __forceinline__ float scale_from(const SharedScale& s) {
  return s.scale ? *s.scale : scale_of(float_to_bits(*s.amax), largest_fp8(Fp8Format::e4m3), s.power_of_two);
}

__global__ void __launch_bounds__(kThreads)
    quantize_flat_kernel(uint8_t* __restrict__ q, const bf16* __restrict__ x, size_t n, SharedScale shared) {
  const float scale = scale_from(shared);
  Vector<bf16, kUnit> magnitudes = {};
  int values = 0, saturated = 0, underflowed = 0;
  for (int round = 0; round < kRounds; ++round) {
    const size_t first = blockIdx.x * kPiece + (size_t(round) * kThreads + threadIdx.x) * kUnit;
    if (first >= n) break;
    float v[kUnit];
    load_unit(v, x, first, n);
    raise_to_magnitudes(magnitudes, rounded<bf16>(v));
    VECTOR_LOOP
    for (int j = 0; j < kUnit; ++j) v[j] *= scale;
    alignas(8) uint8_t bytes[kUnit];
    store_fp8(bytes, v, Fp8Format::e4m3);
    // Loops of fixed length, so that the bytes stay in registers.
    const bool whole = first + kUnit <= n;
    if (whole) *reinterpret_cast<uint64_t*>(q + first) = *reinterpret_cast<const uint64_t*>(bytes);
#pragma unroll
    for (int j = 0; j < kUnit; ++j)
      if (!whole && first + j < n) q[first + j] = bytes[j];
    if (!shared.statistics) continue;
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const bool here = first + j < n;
      values += here;
      saturated += here && is_beyond(v[j], largest_fp8(Fp8Format::e4m3));
      underflowed += here && v[j] != 0 && (bytes[j] & 0x7f) == 0;
    }
  }
  if (shared.statistics) add_statistics(*shared.statistics, values, saturated, underflowed);
  const uint32_t largest = block_max(largest_of(magnitudes));
  if (threadIdx.x != 0) return;
  if (shared.seen) atomic_max(reinterpret_cast<uint32_t*>(shared.seen), largest);
  if (largest >= kInfinity && shared.not_finite) atomic_min(shared.not_finite, shared.number);
  if (!shared.statistics) return;
  atomic_max(&shared.statistics->amax, largest);
  atomic_max(&shared.statistics->largest_scale, float_to_bits(scale));
  atomic_min(&shared.statistics->smallest_scale, float_to_bits(scale));
}

constexpr int kTile = 64, kTilePitch = kTile + 4;

struct ByteTile {
  uint8_t q[kTile][kTilePitch];
};

// A block has a tile of 64 x 64 of q.
__global__ void __launch_bounds__(kThreads)
    arrange_kernel(QuantizedTensor by_rows, QuantizedTensor by_columns, const uint8_t* q, SharedScale shared) {
  auto& tile = shared_memory<ByteTile>();
  const int rows = by_rows.rows, columns = by_rows.columns;
  const int first_row = blockIdx.y * kTile, first_column = blockIdx.x * kTile;
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int r = i / kTile, c = i % kTile, row = first_row + r, column = first_column + c;
    const uint8_t byte = row < rows && column < columns ? q[size_t(row) * columns + column] : 0;
    tile.q[r][c] = byte;
    if (by_rows.data != q && row < by_rows.padded_rows() && column < by_rows.stride())
      by_rows.data[size_t(row) * by_rows.stride() + column] = byte;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int c = i / kTile, r = i % kTile, row = first_row + r, column = first_column + c;
    if (column < by_columns.padded_rows() && row < by_columns.stride())
      by_columns.data[size_t(column) * by_columns.stride() + row] = tile.q[r][c];
  }
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    by_rows.factors[0] = by_columns.factors[0] = 1.0f / scale_from(shared);
}

// ---------------------------------------------------------------------------------------------- launchers

void require_stretch(const char* who, const void* x, size_t n) {
  REQUIRE(n > 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0, "%s: %zu numbers at %p: expected some, 16-byte aligned",
          who, n, x);
}

void require_scale(const char* who, const SharedScale& shared) {
  REQUIRE(shared.amax || shared.scale, "%s: neither a scale nor a largest number", who);
}

}  // namespace

void largest_magnitude(Stream& stream, float* amax, const bf16* x, size_t n) {
  require_stretch("largest_magnitude", x, n);
  launch<largest_magnitude_kernel>({stream, "largest_magnitude", {updates(amax, 1), reads(x, n)}},
                                   blocks_for(n, kPiece), kThreads, sizeof(WarpMaxima), amax, x, n);
}

void quantize_flat(Stream& stream, uint8_t* q, const bf16* x, size_t n, const SharedScale& s) {
  require_stretch("quantize_flat", x, n);
  require_scale("quantize_flat", s);
  launch<quantize_flat_kernel>({stream,
                                "quantize_flat",
                                {writes(q, n), reads(x, n), reads(s.scale ? nullptr : s.amax, 1), reads(s.scale, 1),
                                 updates(s.seen, 1), updates(s.not_finite, 1), updates(s.statistics, 1)}},
                               blocks_for(n, kPiece), kThreads, sizeof(WarpMaxima), q, x, n, s);
}

void arrange_quantized(Stream& stream, const QuantizedTensor& by_rows, const QuantizedTensor& by_columns,
                       const uint8_t* q, const SharedScale& s) {
  require_scale("arrange_quantized", s);
  REQUIRE(by_rows.rows == by_columns.columns && by_rows.columns == by_columns.rows && by_rows.rows > 0 &&
              by_rows.columns > 0 && by_rows.scaling == Scaling::tensor && by_columns.scaling == Scaling::tensor,
          "arrange_quantized: %d x %d and %d x %d are not a matrix with one scale and its transpose", by_rows.rows,
          by_rows.columns, by_columns.rows, by_columns.columns);
  const bool in_place = by_rows.data == q;
  const size_t size = size_t(by_rows.rows) * size_t(by_rows.columns);
  REQUIRE(!in_place || by_rows.bytes() == size, "arrange_quantized: %d x %d need a copy with padding", by_rows.rows,
          by_rows.columns);
  const int rows = std::max(by_rows.padded_rows(), by_columns.stride());
  const int columns = std::max(by_rows.stride(), by_columns.padded_rows());
  launch<arrange_kernel>({stream,
                          "arrange_quantized",
                          {reads(q, size), writes(in_place ? nullptr : by_rows.data, by_rows.bytes()),
                           writes(by_columns.data, by_columns.bytes()), writes(by_rows.factors, 1),
                           writes(by_columns.factors, 1), reads(s.scale ? nullptr : s.amax, 1), reads(s.scale, 1)}},
                         dim3(blocks_for(size_t(columns), kTile), blocks_for(size_t(rows), kTile)), kThreads,
                         sizeof(ByteTile), by_rows, by_columns, q, s);
}
