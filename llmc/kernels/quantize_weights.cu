// Quantizes weights to FP8, many tensors in one launch (contract: quantize_weights.h). A block finds its tensor in the
// table by binary search. Expected limit on a GPU: device memory.
#include "llmc/kernels/quantize_weights.h"

#include <algorithm>

#include "llmc/kernels/byte_tile.cuh"
#include "llmc/kernels/quantize_tile.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

__device__ __forceinline__ unsigned first_block_of(const WeightSlice& slice) { return slice.first_block; }
__device__ __forceinline__ unsigned first_block_of(const WeightMatrix& matrix) { return matrix.first_tile; }

// Returns the last entry whose first block is `block` or before it.
template <class Entry>
__device__ __forceinline__ const Entry& entry_of(const Entry* __restrict__ table, int count, unsigned block) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int mid = (low + high + 1) / 2;
    if (first_block_of(table[mid]) <= block) low = mid;
    else high = mid - 1;
  }
  return table[low];
}

// ---- slices

constexpr int kThreads = kTileThreads, kVectorSize = 8, kRounds = 8;
constexpr int kTogether = 4;  // loads in flight per thread
constexpr size_t kElementsPerBlock = size_t(kThreads) * kVectorSize * kRounds;

// Calls f(first, values, count) with each of the thread's vectors in block `block` of the slice. `first` is the index
// of the vector's first element. `count` of its kVectorSize values belong to the slice; the others are 0.
template <class F>
__device__ __forceinline__ void for_vectors(const bf16* __restrict__ x, size_t count, unsigned block, const F& f) {
  constexpr size_t kBlockVectors = kElementsPerBlock / kVectorSize;
  const size_t vectors = count / kVectorSize, mine = block * kBlockVectors + threadIdx.x;
#pragma unroll 1
  for (int round = 0; round < kRounds; round += kTogether) {
    Vector<bf16, kVectorSize> v[kTogether] = {};
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const size_t i = mine + size_t(round + k) * kThreads;
      if (i < vectors) v[k] = *reinterpret_cast<const Vector<bf16, kVectorSize>*>(x + i * kVectorSize);
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const size_t i = mine + size_t(round + k) * kThreads;
      if (i < vectors) f(i * kVectorSize, v[k], kVectorSize);
    }
  }
  const int left = int(count % kVectorSize);
  if (left == 0 || threadIdx.x != 0 || vectors / kBlockVectors != block) return;
  Vector<bf16, kVectorSize> v = {};
  for (int j = 0; j < left; ++j) v.v[j] = x[vectors * kVectorSize + j];
  f(vectors * kVectorSize, v, left);
}

__global__ void __launch_bounds__(kThreads)
    largest_magnitudes_kernel(const WeightSlice* __restrict__ table, int count, unsigned first_block) {
  const unsigned block = blockIdx.x + first_block;
  const WeightSlice slice = entry_of(table, count, block);
  Vector<bf16, kVectorSize> magnitudes = {};
  for_vectors(assume_global(slice.x), slice.count, block - slice.first_block,
              [&](size_t, const Vector<bf16, kVectorSize>& x, int) { max_abs_into(magnitudes, x); });
  const uint32_t largest = block_max(max_value(magnitudes));
  if (threadIdx.x == 0) raise_amax(slice.amax, largest);
}

__device__ __forceinline__ float scale_from(const float* amax, int tensor, const WeightScaleRefs& refs) {
  if (refs.scale && refs.scale[tensor] != 0) return refs.scale[tensor];
  return scale_of(bits_at(amax), largest_fp8(Fp8Format::e4m3), refs.power_of_two);
}

__global__ void __launch_bounds__(kThreads) quantize_stretches_kernel(const WeightSlice* __restrict__ table, int count,
                                                                      unsigned first_block, WeightScaleRefs refs) {
  const unsigned block = blockIdx.x + first_block;
  const WeightSlice slice = entry_of(table, count, block);
  const float scale = scale_from(slice.amax, slice.tensor_id, refs);
  Vector<bf16, kVectorSize> magnitudes = {};
  int values = 0, saturated = 0, underflowed = 0;
  uint8_t* q = assume_global(slice.q);
  for_vectors(assume_global(slice.x), slice.count, block - slice.first_block,
              [&](size_t first, const Vector<bf16, kVectorSize>& x, int here) {
                float v[kVectorSize];
                load_vector(v, x.v);
                max_abs_into(magnitudes, x);
                VECTOR_LOOP
                for (int j = 0; j < kVectorSize; ++j) v[j] *= scale;
                alignas(8) uint8_t bytes[kVectorSize];
                store_fp8<Fp8Format::e4m3>(bytes, v);
                // Loops with a fixed trip count, so that the bytes stay in registers.
                if (here == kVectorSize)
                  *reinterpret_cast<uint64_t*>(q + first) = *reinterpret_cast<const uint64_t*>(bytes);
#pragma unroll
                for (int j = 0; j < kVectorSize; ++j)
                  if (here < kVectorSize && j < here) q[first + j] = bytes[j];
                if (!refs.statistics) return;
                values += here;
#pragma unroll
                for (int j = 0; j < kVectorSize; ++j) {
                  saturated += is_beyond(v[j], largest_fp8(Fp8Format::e4m3));
                  underflowed += v[j] != 0 && (bytes[j] & 0x7f) == 0;
                }
              });
  QuantizeStatistics* statistics = refs.statistics ? refs.statistics + slice.tensor_id : nullptr;
  if (statistics) add_statistics(*statistics, values, saturated, underflowed);
  const uint32_t largest = block_max(max_value(magnitudes));
  if (threadIdx.x != 0) return;
  if (refs.amax_step) raise_amax(refs.amax_step + slice.tensor_id, largest);
  if (largest >= kInfinityBits && refs.not_finite) atomic_min(refs.not_finite, slice.nonfinite_code);
  if (!statistics) return;
  atomic_max(&statistics->amax, largest);
  atomic_max(&statistics->largest_scale, float_to_bits(scale));
  atomic_min(&statistics->smallest_scale, float_to_bits(scale));
}

// ---- matrices

__device__ __forceinline__ TileCoord tile_in(const WeightMatrix& matrix, unsigned tile) {
  const unsigned i = tile - matrix.first_tile;
  return {int(i / matrix.across), int(i % matrix.across)};
}

__device__ __forceinline__ QuantizedTensor assume_global(QuantizedTensor tensor) {
  tensor.data = ::assume_global(tensor.data);
  tensor.scale_inv = ::assume_global(tensor.scale_inv);
  return tensor;
}

template <int width>
__global__ void __launch_bounds__(kTileThreads, kReadingBlocks)
    matrices_amax_kernel(const WeightMatrix* __restrict__ table, int count, unsigned first_tile) {
  const unsigned tile = blockIdx.x + first_tile;
  const WeightMatrix& m = entry_of(table, count, tile);
  raise_amax_of_tile<PlainSource, width>(m.amax, PlainSource{::assume_global(m.x)}, m.rowwise.rows, m.rowwise.columns,
                                         tile_in(m, tile));
}

template <int width>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    matrices_amaxes_kernel(const WeightMatrix* __restrict__ table, int count, unsigned first_tile) {
  const unsigned tile = blockIdx.x + first_tile;
  const WeightMatrix& m = entry_of(table, count, tile);
  raise_amaxes_of_tile<PlainSource, width>(m.amax, m.row_amax, m.column_amax, PlainSource{::assume_global(m.x)},
                                           m.rowwise.rows, m.rowwise.columns, tile_in(m, tile));
}

template <int width>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    quantize_matrices_kernel(const WeightMatrix* __restrict__ table, int count, unsigned first_tile,
                             WeightScaleRefs refs) {
  const unsigned tile = blockIdx.x + first_tile;
  const WeightMatrix& m = entry_of(table, count, tile);
  const int t = m.tensor_id;
  const TileArguments a{.rowwise = assume_global(m.rowwise),
                        .columnwise = assume_global(m.columnwise),
                        .power_of_two = refs.power_of_two,
                        .amax = m.amax,
                        .row_amax = m.row_amax,
                        .column_amax = m.column_amax,
                        .scale = refs.scale ? refs.scale + t : nullptr,
                        .amax_step = refs.amax_step ? refs.amax_step + t : nullptr,
                        .not_finite = refs.not_finite,
                        .nonfinite_code = m.nonfinite_code,
                        .statistics = refs.statistics ? refs.statistics + t : nullptr};
  quantize_tile<PlainSource, width>(a, PlainSource{::assume_global(m.x)}, m.rowwise.rows, m.rowwise.columns,
                                    tile_in(m, tile));
}

// `width`: bytes per load from q.
template <int width>
__global__ void __launch_bounds__(kTileThreads)
    arrange_kernel(const WeightMatrix* __restrict__ table, int count, unsigned first_tile, WeightScaleRefs refs) {
  auto& tile = shared_memory<ByteTile>();
  const WeightMatrix& m = entry_of(table, count, blockIdx.x + first_tile);
  const TileCoord at = tile_in(m, blockIdx.x + first_tile);
  const QuantizedTensor rowwise = m.rowwise, columnwise = m.columnwise;
  const uint8_t* __restrict__ q = m.q;
  load_bytes<width>(tile, q, rowwise.rows, rowwise.columns, rowwise.columns, at,
                    rowwise.data == q ? nullptr : &rowwise);
  __syncthreads();
  write_transposed(tile, columnwise, at);
  if (at.tile_row == 0 && at.tile_column == 0 && threadIdx.x == 0)
    rowwise.scale_inv[0] = columnwise.scale_inv[0] = 1.0f / scale_from(m.amax, m.tensor_id, refs);
}

// ---- rows

__global__ void __launch_bounds__(kThreads)
    spread_rows_kernel(float* __restrict__ out, size_t width, const RowRange* __restrict__ table) {
  const RowRange row = table[blockIdx.y];
  const size_t i = size_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= width) return;
  const bool here = i >= row.first && i - row.first < row.count;
  out[blockIdx.y * width + i] = here ? to_float(row.x[i - row.first]) : -0.0f;
}

// ---------------------------------------------------------------------------------------------- launchers

// The range from the first byte of several buffers to the last.
struct ByteRange {
  uintptr_t begin = UINTPTR_MAX, end = 0;
  template <class T>
  void add(const T* data, size_t count) {
    if (!data) return;
    begin = std::min(begin, reinterpret_cast<uintptr_t>(data));
    end = std::max(end, reinterpret_cast<uintptr_t>(data + count));
  }
  size_t bytes() const { return end > begin ? end - begin : 0; }
  Access read() const { return reads(reinterpret_cast<const std::byte*>(begin), bytes()); }
  Access written() const { return writes(reinterpret_cast<const std::byte*>(begin), bytes()); }
  Access updated() const { return updates(reinterpret_cast<const std::byte*>(begin), bytes()); }
};

template <class Entry, class Add>
ByteRange range_of(const DeviceTable<Entry>& part, const Add& add) {
  ByteRange range;
  for (int i = 0; i < part.count; ++i) add(range, part.on_host[i]);
  return range;
}

// Returns the range of the entries' elements in an array that has one for each tensor.
template <class Entry, class T>
ByteRange elements_of(const DeviceTable<Entry>& part, T* array) {
  return range_of(part, [&](ByteRange& range, const Entry& e) { range.add(array ? array + e.tensor_id : nullptr, 1); });
}

size_t blocks_of(const WeightSlice& slice) { return blocks_for(slice.count, kElementsPerBlock); }
unsigned blocks_of(const WeightSlices& part) {
  const WeightSlice& last = part.on_host[part.count - 1];
  return last.first_block + unsigned(blocks_of(last)) - part.on_host[0].first_block;
}

int padded_rows(const WeightMatrix& m) { return std::max(m.rowwise.padded_rows(), m.columnwise.stride()); }
int padded_columns(const WeightMatrix& m) { return std::max(m.rowwise.stride(), m.columnwise.padded_rows()); }
unsigned tiles_of(const WeightMatrix& m) { return m.across * blocks_for(size_t(padded_rows(m)), kTile); }
unsigned tiles_of(const WeightMatrices& part) {
  const WeightMatrix& last = part.on_host[part.count - 1];
  return last.first_tile + tiles_of(last) - part.on_host[0].first_tile;
}
size_t size_of(const WeightMatrix& m) { return size_t(m.rowwise.rows) * size_t(m.rowwise.columns); }

template <class Entry>
void require_entries(const char* who, const DeviceTable<Entry>& part) {
  REQUIRE(part.count >= 1, "%s: %d entries of a table: expected at least one", who, part.count);
}

template <class Entry>
void require_scales(const char* who, const DeviceTable<Entry>& part, const WeightScaleRefs& refs) {
  for (int i = 0; i < part.count; ++i)
    REQUIRE(!refs.needs_amax() || part.on_host[i].amax, "%s: tensor %d has neither a scale nor a largest number", who,
            part.on_host[i].tensor_id);
}

bool is_aligned(const void* data, size_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

// Calls `body` with the width in which all matrices can be read, as a constant: `wanted` if `takes` is true for each of
// them, else 1.
template <int wanted, class Width, class Body>
void with_width(const WeightMatrices& part, const Width& takes, const Body& body) {
  const bool all = std::all_of(part.on_host, part.on_host + part.count, takes);
  if (all) body(std::integral_constant<int, wanted>{});
  else body(std::integral_constant<int, 1>{});
}
template <class Body>
void with_vectors(const WeightMatrices& part, const Body& body) {
  with_width<8>(
      part, [](const WeightMatrix& m) { return m.rowwise.columns % 8 == 0 && is_aligned(m.x, 16); }, body);
}

ByteRange numbers_of(const WeightMatrices& part) {
  return range_of(part, [](ByteRange& range, const WeightMatrix& m) { range.add(m.x, size_of(m)); });
}
// Returns the range of the FP8 operands, except a rowwise whose bytes are q itself.
ByteRange operands_of(const WeightMatrices& part) {
  return range_of(part, [](ByteRange& range, const WeightMatrix& m) {
    for (const QuantizedTensor* t : {&m.rowwise, &m.columnwise}) {
      if (t->data != m.q) range.add(t->data, t->bytes());
      range.add(t->scale_inv, t->scale_inv_count());
    }
  });
}
ByteRange maxima_of(const WeightMatrices& part) {
  return range_of(part, [](ByteRange& range, const WeightMatrix& m) {
    range.add(m.amax, 1);
    range.add(m.row_amax, size_t(m.rowwise.rows));
    range.add(m.column_amax, size_t(m.rowwise.columns));
  });
}

}  // namespace

void assign_blocks(std::vector<WeightSlice>& table) {
  size_t blocks = 0;
  for (WeightSlice& s : table) {
    REQUIRE(s.count > 0 && is_aligned(s.x, 16) && is_aligned(s.q, 8),
            "a slice of %zu weights at %p, bytes at %p: expected some, aligned to 16 and 8 bytes", s.count,
            static_cast<const void*>(s.x), static_cast<const void*>(s.q));
    s.first_block = unsigned(blocks);
    blocks += blocks_of(s);
  }
  REQUIRE(blocks <= INT32_MAX, "slices of weights in %zu blocks: a launch takes 2^31-1", blocks);
}

void assign_tiles(std::vector<WeightMatrix>& table) {
  size_t tiles = 0;
  for (WeightMatrix& m : table) {
    const QuantizedTensor &r = m.rowwise, &c = m.columnwise;
    REQUIRE(
        r.rows > 0 && r.columns > 0 && r.rows == c.columns && r.columns == c.rows && r && c && r.scale_inv &&
            c.scale_inv && is_aligned(r.data, 16) && is_aligned(c.data, 16),
        "FP8 operands of %d x %d at %p and %d x %d at %p are not a matrix and its transpose, with scale_inv, 16-byte "
        "aligned",
        r.rows, r.columns, static_cast<const void*>(r.data), c.rows, c.columns, static_cast<const void*>(c.data));
    REQUIRE((!r.has_row_scales() || m.row_amax) && (!c.has_row_scales() || m.column_amax),
            "FP8 operands of %d x %d with scales of rows: no room for the largest numbers", r.rows, r.columns);
    m.first_tile = unsigned(tiles);
    m.across = blocks_for(size_t(padded_columns(m)), kTile);
    tiles += tiles_of(m);
  }
  REQUIRE(tiles <= INT32_MAX, "matrices of %zu tiles: a launch takes 2^31-1", tiles);
}

void find_weight_amax(Stream& stream, const WeightSlices& part) {
  require_entries("weight_amax", part);
  const ByteRange x = range_of(part, [](ByteRange& range, const WeightSlice& s) { range.add(s.x, s.count); });
  const ByteRange amax = range_of(part, [](ByteRange& range, const WeightSlice& s) { range.add(s.amax, 1); });
  launch<largest_magnitudes_kernel>(
      {stream, "weight_amax", {amax.updated(), x.read(), reads(part.on_device, size_t(part.count))}}, blocks_of(part),
      kThreads, sizeof(WarpMaxima), part.on_device, part.count, part.on_host[0].first_block);
}

void quantize(Stream& stream, const WeightSlices& part, const WeightScaleRefs& refs) {
  require_entries("quantize", part);
  require_scales("quantize", part, refs);
  const ByteRange x = range_of(part, [](ByteRange& range, const WeightSlice& s) { range.add(s.x, s.count); });
  const ByteRange q = range_of(part, [](ByteRange& range, const WeightSlice& s) { range.add(s.q, s.count); });
  const ByteRange amax = range_of(
      part, [&](ByteRange& range, const WeightSlice& s) { range.add(refs.needs_amax() ? s.amax : nullptr, 1); });
  launch<quantize_stretches_kernel>(
      {stream,
       "quantize_stretches",
       {q.written(), x.read(), amax.read(), elements_of(part, refs.scale).read(),
        elements_of(part, refs.amax_step).updated(), elements_of(part, refs.statistics).updated(),
        updates(refs.not_finite, 1), reads(part.on_device, size_t(part.count))}},
      blocks_of(part), kThreads, sizeof(WarpMaxima), part.on_device, part.count, part.on_host[0].first_block, refs);
}

bool needs_amax(const WeightMatrices& part, const WeightScaleRefs& refs) {
  return std::any_of(part.on_host, part.on_host + part.count,
                     [&](const WeightMatrix& m) { return needs_amax(m.rowwise, m.columnwise, !refs.needs_amax()); });
}

void quantize_amax(Stream& stream, const WeightMatrices& part) {
  require_entries("quantize_amax", part);
  const Work work{stream,
                  "quantize_amax",
                  {maxima_of(part).updated(), numbers_of(part).read(), reads(part.on_device, size_t(part.count))}};
  const bool of_lines = std::any_of(part.on_host, part.on_host + part.count,
                                    [](const WeightMatrix& m) { return m.row_amax || m.column_amax; });
  with_vectors(part, [&](auto width) {
    if (of_lines)
      launch<matrices_amaxes_kernel<decltype(width)::value>>(work, tiles_of(part), kTileThreads, sizeof(Tile),
                                                             part.on_device, part.count, part.on_host[0].first_tile);
    else
      launch<matrices_amax_kernel<decltype(width)::value>>(work, tiles_of(part), kTileThreads, sizeof(WarpMaxima),
                                                           part.on_device, part.count, part.on_host[0].first_tile);
  });
}

void quantize(Stream& stream, const WeightMatrices& part, const WeightScaleRefs& refs) {
  require_entries("quantize", part);
  with_vectors(part, [&](auto width) {
    launch<quantize_matrices_kernel<decltype(width)::value>>(
        {stream,
         "quantize",
         {operands_of(part).written(), maxima_of(part).read(), elements_of(part, refs.scale).read(),
          elements_of(part, refs.amax_step).updated(), elements_of(part, refs.statistics).updated(),
          updates(refs.not_finite, 1), numbers_of(part).read(), reads(part.on_device, size_t(part.count))}},
        tiles_of(part), kTileThreads, sizeof(Tile), part.on_device, part.count, part.on_host[0].first_tile, refs);
  });
}

void transpose_gathered_weights(Stream& stream, const WeightMatrices& part, const WeightScaleRefs& refs) {
  require_entries("transpose_gathered_weights", part);
  require_scales("transpose_gathered_weights", part, refs);
  for (int i = 0; i < part.count; ++i) {
    const WeightMatrix& m = part.on_host[i];
    REQUIRE(m.rowwise.scaling == Scaling::tensor && m.columnwise.scaling == Scaling::tensor,
            "transpose_gathered_weights: %d x %d with %s: expected one scale", m.rowwise.rows, m.rowwise.columns,
            scaling_name(m.rowwise.scaling));
    REQUIRE(m.rowwise.data != m.q || m.rowwise.bytes() == size_of(m),
            "transpose_gathered_weights: %d x %d need a copy with padding", m.rowwise.rows, m.rowwise.columns);
  }
  const ByteRange q = range_of(part, [](ByteRange& range, const WeightMatrix& m) { range.add(m.q, size_of(m)); });
  const auto takes = [](const WeightMatrix& m) { return m.rowwise.columns % kBytes == 0 && is_aligned(m.q, kBytes); };
  with_width<kBytes>(part, takes, [&](auto width) {
    launch<arrange_kernel<decltype(width)::value>>(
        {stream,
         "transpose_gathered_weights",
         {q.read(), operands_of(part).written(), (refs.needs_amax() ? maxima_of(part) : ByteRange{}).read(),
          elements_of(part, refs.scale).read(), reads(part.on_device, size_t(part.count))}},
        tiles_of(part), kTileThreads, sizeof(ByteTile), part.on_device, part.count, part.on_host[0].first_tile, refs);
  });
}

void scatter_rows(Stream& stream, const Tensor& out, const DeviceTable<RowRange>& part) {
  const char* who = "scatter_rows";
  require_entries(who, part);
  require_tensor(who, "out", out, DType::fp32, {part.count, -1});
  const size_t width = size_t(out.columns());
  const ByteRange x =
      range_of(part, [](ByteRange& range, const RowRange& row) { range.add(row.count ? row.x : nullptr, row.count); });
  for (int i = 0; i < part.count; ++i)
    REQUIRE(part.on_host[i].first <= width && part.on_host[i].count <= width - part.on_host[i].first,
            "scatter_rows: %zu numbers from %zu in a row of %zu", part.on_host[i].count, part.on_host[i].first, width);
  launch<spread_rows_kernel>({stream, who, {writes(out), x.read(), reads(part.on_device, size_t(part.count))}},
                             dim3(blocks_for(width, kThreads), unsigned(part.count)), kThreads, 0, out.as<float>(),
                             width, part.on_device);
}
