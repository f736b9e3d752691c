// Quantization to FP8 (contract: quantize.h). Each block processes one tile (quantize_tile.cuh).
//
// Expected limit on a GPU: device memory. For plain bf16 the kernel reads 2 bytes per element and writes 1 per
// orientation.
#include "llmc/kernels/quantize.h"

#include <algorithm>

#include "llmc/kernels/byte_tile.cuh"
#include "llmc/kernels/quantize_tile.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

__device__ __forceinline__ TilePlace tile_of_block() { return {int(blockIdx.y), int(blockIdx.x)}; }

template <class Source, int width>
__global__ void __launch_bounds__(kTileThreads)
    amax_kernel(float* amax, float* row_amax, float* column_amax, Source source, int rows, int columns) {
  raise_amax_of_tile<Source, width>(amax, row_amax, column_amax, source, rows, columns, tile_of_block());
}

template <class Source, int width>
__global__ void __launch_bounds__(kTileThreads) quantize_kernel(TileArguments a, Source source, int rows, int columns) {
  quantize_tile<Source, width>(a, source, rows, columns, tile_of_block());
}

__global__ void __launch_bounds__(kTileThreads) transpose_kernel(QuantizedTensor out, QuantizedTensor in) {
  auto& tile = shared_memory<ByteTile>();
  const TilePlace at = tile_of_block();
  load_bytes<kBytes>(tile, in.data, in.rows, in.stride(), in.stride(), at, nullptr);
  __syncthreads();
  write_transposed(tile, out, at);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) out.factors[0] = in.factors[0];
}

constexpr int kTensors = 32, kParts = 8;  // tensors per block, and parts of each tensor's history

struct HistoryMaxima {
  uint32_t part[kParts][kTensors];
};

__global__ void __launch_bounds__(kTensors* kParts) delayed_kernel(DelayedScaling d, Fp8Counts* counts) {
  auto& maxima = shared_memory<HistoryMaxima>();
  const int tensor = blockIdx.x * kTensors + threadIdx.x;
  const bool here = tensor < d.tensors;
  const uint32_t entries = here ? d.entries[tensor] : 0;
  const uint32_t amax = here ? bits_at(d.amax + tensor) : 0;
  const int newest = int(entries % uint32_t(d.length)), older = int(entries) < d.length ? int(entries) : d.length;
  uint32_t largest = amax;
  const auto take = [&](uint32_t other) { largest = other > largest ? other : largest; };
  if (here && !d.latest)
    for (int e = threadIdx.y; e < older; e += kParts)
      if (e != newest) take(bits_at(d.history + size_t(e) * d.tensors + tensor));
  maxima.part[threadIdx.y][threadIdx.x] = largest;
  __syncthreads();
  if (!here || threadIdx.y != 0) return;
  for (int p = 1; p < kParts; ++p) take(maxima.part[p][threadIdx.x]);
  d.history[size_t(newest) * d.tensors + tensor] = bits_to_float(amax);
  d.entries[tensor] = entries + 1;
  d.amax[tensor] = 0;
  const float scale = d.scale[tensor], scaled = bits_to_float(amax) * scale, format = d.largest[tensor];
  const auto count = [](int64_t& tensors) { atomic_add(reinterpret_cast<unsigned long long*>(&tensors), 1ull); };
  if (scale != 0 && is_beyond(scaled, format)) count(counts->overflows);
  if (scale != 0 && amax != 0 && becomes_zero(scaled, format)) count(counts->underflows);
  if (largest != 0 && largest < kInfinity)
    d.scale[tensor] = delayed_scale_of(bits_to_float(largest), format, d.margin, d.power_of_two);
  else if (scale == 0 && format != 0) count(counts->no_scale);
}

// ---------------------------------------------------------------------------------------------- launchers

bool has_rows_scales(const QuantizedTensor& operand) { return operand && operand.has_row_scales(); }
bool per_tensor_scale(const QuantizedTensor& operand) { return operand && operand.per_tensor_scale(); }

// Returns how many columns of a row are contiguous in the source's buffers: elements are read 16 bytes at a time if
// this is a multiple of 8.
int columns_together(const PlainSource&, int columns) { return columns; }
int columns_together(const RmsnormSource&, int columns) { return columns; }
int columns_together(const SwigluSource&, int columns) { return columns; }
int columns_together(const SwigluBackwardSource&, int columns) { return columns / 2; }
int columns_together(const RopeBackwardSource& s, int) { return s.HD / 2; }

// The buffers that a source reads: neighbouring elements of the first two, single elements of the third. An entry that
// a source does not need stays empty.
struct SourceReads {
  Access access[3] = {{nullptr, 0, false}, {nullptr, 0, false}, {nullptr, 0, false}};
};
SourceReads reads_of(const PlainSource& s, size_t rows, size_t columns) { return {{reads(s.x, rows * columns)}}; }
SourceReads reads_of(const RmsnormSource& s, size_t rows, size_t columns) {
  return {{reads(s.x, rows * columns), reads(s.weight, columns), reads(s.rstd, rows)}};
}
SourceReads reads_of(const SwigluSource& s, size_t rows, size_t columns) {
  return {{reads(s.gate_up, rows * 2 * columns)}};
}
SourceReads reads_of(const SwigluBackwardSource& s, size_t rows, size_t columns) {
  return {{reads(s.dout, rows * columns / 2), reads(s.gate_up, rows * columns)}};
}
SourceReads reads_of(const RopeBackwardSource& s, size_t rows, size_t columns) {
  return {{reads(s.dqkv, rows * columns), reads(s.table, size_t(s.table_positions) * size_t(s.HD)),
           reads(s.positions, rows)}};
}

// Throws unless the source can have this many columns.
template <class Source>
void require_width(const char*, const Source&, int) {}
void require_width(const char* who, const SwigluBackwardSource&, int columns) {
  REQUIRE(columns % 2 == 0, "%s: a gradient of gates and ups in rows of %d: expected as many of each", who, columns);
}
void require_width(const char* who, const RopeBackwardSource& s, int columns) {
  REQUIRE(s.HD >= 2 && s.HD % 2 == 0 && columns % s.HD == 0 && s.heads >= 0 && s.heads <= columns / s.HD &&
              s.table_positions >= 1,
          "%s: %d heads of %d to turn in rows of %d, by a table of %d positions: expected whole heads of an even size, "
          "no more of them than the rows have, and a position",
          who, s.heads, s.HD, columns, s.table_positions);
}

void require_operand(const char* who, const QuantizedTensor& operand, int rows, int columns) {
  if (!operand) return;
  REQUIRE(operand.rows == rows && operand.columns == columns,
          "%s: an operand of %d x %d of a matrix that gives %d x %d", who, operand.rows, operand.columns, rows,
          columns);
  REQUIRE(operand.scaling == Scaling::row || !operand.one_scale,
          "%s: one scale for the whole tensor, once for each row, of an operand with %s", who,
          scaling_name(operand.scaling));
  REQUIRE(operand.factors && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0,
          "%s: an operand at %p with factors at %p: expected 16-byte alignment, and factors", who,
          static_cast<const void*>(operand.data), static_cast<const void*>(operand.factors));
}

void require_quantization(const char* who, int rows, int columns, const Quantization& q) {
  REQUIRE(rows >= 1 && columns >= 1, "%s: %d x %d: expected at least one row and one column", who, rows, columns);
  REQUIRE(q.by_rows || q.by_columns, "%s: neither orientation is wanted", who);
  require_operand(who, q.by_rows, rows, columns);
  require_operand(who, q.by_columns, columns, rows);
  REQUIRE(!has_rows_scales(q.by_rows) || q.row_amax, "%s: no room for the rows' largest numbers", who);
  REQUIRE(!has_rows_scales(q.by_columns) || q.column_amax, "%s: no room for the columns' largest numbers", who);
  REQUIRE(!(per_tensor_scale(q.by_rows) || per_tensor_scale(q.by_columns)) || q.amax || q.scale,
          "%s: a tensor with one scale needs it, or its largest number", who);
  REQUIRE(!q.may_lack_scale || q.amax, "%s: a tensor that may lack a scale has no largest number", who);
}

// Checks the width, then calls `body` with the source and its vector width as a constant.
template <class Body>
void with_source(const char* who, const QuantizeSource& source, int columns, const Body& body) {
  std::visit(
      [&](const auto& s) {
        require_width(who, s, columns);
        const SourceReads from = reads_of(s, 1, size_t(columns));
        with_vector_width(who, columns_together(s, columns), {from.access[0].data, from.access[1].data},
                          [&](auto width) { body(s, width); });
      },
      source);
}

}  // namespace

float fp8_scale(float amax, Fp8Format format, bool power_of_two) {
  return scale_of(float_to_bits(amax), largest_fp8(format), power_of_two);
}

bool Quantization::needs_amax() const {
  return has_rows_scales(by_rows) || has_rows_scales(by_columns) ||
         ((!scale || may_lack_scale) && (per_tensor_scale(by_rows) || per_tensor_scale(by_columns)));
}

void quantize_amax(Stream& stream, const QuantizeSource& source, int rows, int columns, const Quantization& q) {
  require_quantization("quantize_amax", rows, columns, q);
  float* row_amax = has_rows_scales(q.by_rows) ? q.row_amax : nullptr;
  float* column_amax = has_rows_scales(q.by_columns) ? q.column_amax : nullptr;
  float* amax = per_tensor_scale(q.by_rows) || per_tensor_scale(q.by_columns) ? q.amax : nullptr;
  if (row_amax) clear(stream, row_amax, size_t(rows));
  if (column_amax) clear(stream, column_amax, size_t(columns));
  with_source("quantize_amax", source, columns, [&](const auto& s, auto width) {
    using Source = std::decay_t<decltype(s)>;
    const SourceReads from = reads_of(s, size_t(rows), size_t(columns));
    launch<amax_kernel<Source, decltype(width)::value>>(
        {stream,
         "quantize_amax",
         {updates(amax, 1), updates(row_amax, size_t(rows)), updates(column_amax, size_t(columns)), from.access[0],
          from.access[1], from.access[2]}},
        dim3(blocks_for(size_t(columns), kTile), blocks_for(size_t(rows), kTile)), kTileThreads, sizeof(Tile), amax,
        row_amax, column_amax, s, rows, columns);
  });
}

void quantize(Stream& stream, const QuantizeSource& source, int rows, int columns, const Quantization& q) {
  require_quantization("quantize", rows, columns, q);
  const auto bytes = [](const QuantizedTensor& t) { return t ? writes(t.data, t.bytes()) : writes(t.data, 0); };
  const auto factors = [](const QuantizedTensor& t) {
    return t ? writes(t.factors, t.factor_count()) : writes(t.factors, 0);
  };
  const float* amax = q.scale && !q.may_lack_scale ? nullptr : q.amax;
  const TileArguments a{q.by_rows, q.by_columns, q.power_of_two, amax,     q.row_amax,  q.column_amax,
                        q.scale,   q.seen,       q.not_finite,   q.number, q.statistics};
  const int padded_rows = std::max(q.by_rows ? q.by_rows.padded_rows() : 0, q.by_columns ? q.by_columns.stride() : 0);
  const int padded_columns =
      std::max(q.by_rows ? q.by_rows.stride() : 0, q.by_columns ? q.by_columns.padded_rows() : 0);
  with_source("quantize", source, columns, [&](const auto& s, auto width) {
    using Source = std::decay_t<decltype(s)>;
    const SourceReads from = reads_of(s, size_t(rows), size_t(columns));
    launch<quantize_kernel<Source, decltype(width)::value>>(
        {stream,
         "quantize",
         {bytes(q.by_rows), bytes(q.by_columns), factors(q.by_rows), factors(q.by_columns), reads(amax, 1),
          reads(q.scale, 1), reads(has_rows_scales(q.by_rows) ? q.row_amax : nullptr, size_t(rows)),
          reads(has_rows_scales(q.by_columns) ? q.column_amax : nullptr, size_t(columns)), updates(q.seen, 1),
          updates(q.not_finite, 1), updates(q.statistics, 1), from.access[0], from.access[1], from.access[2]}},
        dim3(blocks_for(size_t(padded_columns), kTile), blocks_for(size_t(padded_rows), kTile)), kTileThreads,
        sizeof(Tile), a, s, rows, columns);
  });
}

void transpose_quantized(Stream& stream, const QuantizedTensor& out, const QuantizedTensor& in) {
  REQUIRE(in && out && in.rows > 0 && in.columns > 0 && out.rows == in.columns && out.columns == in.rows &&
              in.scaling == Scaling::tensor && out.scaling == Scaling::tensor && in.format == out.format,
          "transpose_quantized: %d x %d with %s into %d x %d with %s: expected its transpose, with one scale each",
          in.rows, in.columns, scaling_name(in.scaling), out.rows, out.columns, scaling_name(out.scaling));
  launch<transpose_kernel>({stream,
                            "transpose_quantized",
                            {writes(out.data, out.bytes()), writes(out.factors, 1),
                             reads(in.data, size_t(in.rows) * size_t(in.stride())), reads(in.factors, 1)}},
                           dim3(blocks_for(size_t(out.padded_rows()), kTile), blocks_for(size_t(out.stride()), kTile)),
                           kTileThreads, sizeof(ByteTile), out, in);
}

float delayed_scale(float amax, Fp8Format format, int margin, bool power_of_two) {
  return delayed_scale_of(amax, largest_fp8(format), margin, power_of_two);
}

void update_delayed_scales(Stream& stream, const DelayedScaling& d, Fp8Counts* counts) {
  REQUIRE(d.tensors >= 1 && d.length >= 1,
          "update_delayed_scales: %d tensors with a history of %d: expected at least 1", d.tensors, d.length);
  const size_t tensors = size_t(d.tensors);
  launch<delayed_kernel>(
      {stream,
       "update_delayed_scales",
       {updates(d.amax, tensors), updates(d.scale, tensors), updates(d.entries, tensors),
        updates(d.history, tensors * size_t(d.length)), reads(d.largest, tensors), updates(counts, 1)}},
      blocks_for(tensors, kTensors), dim3(kTensors, kParts), sizeof(HistoryMaxima), d, counts);
}
