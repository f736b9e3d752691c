// Quantization to FP8 (contract: quantize.h). Each block processes one tile (quantize_tile.cuh). Expected limit on a
// GPU: device memory.
#include "llmc/kernels/quantize.h"

#include <algorithm>
#include <climits>
#include <type_traits>

#include "llmc/kernels/byte_tile.cuh"
#include "llmc/kernels/quantize_tile.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

__device__ __forceinline__ TileCoord tile_of_block() { return {int(blockIdx.y), int(blockIdx.x)}; }

// RoPE's backward needs more registers than four blocks of a multiprocessor leave a thread.
template <class Source>
constexpr int kAmaxBlocks = std::is_same_v<Source, RopeBackwardSource> ? 3 : kReadingBlocks;

template <class Source, int width>
__global__ void __launch_bounds__(kTileThreads, kAmaxBlocks<Source>)
    amax_kernel(float* amax, Source source, int rows, int columns) {
  raise_amax_of_tile<Source, width>(amax, source, rows, columns, tile_of_block());
}

template <class Source, int width>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    amaxes_kernel(float* amax, float* row_amax, float* column_amax, Source source, int rows, int columns) {
  raise_amaxes_of_tile<Source, width>(amax, row_amax, column_amax, source, rows, columns, tile_of_block());
}

template <class Source, int width>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    quantize_kernel(TileArguments a, Source source, int rows, int columns) {
  quantize_tile<Source, width>(a, source, rows, columns, tile_of_block());
}

__global__ void __launch_bounds__(kTileThreads) transpose_kernel(QuantizedTensor out, QuantizedTensor in) {
  auto& tile = shared_memory<ByteTile>();
  const TileCoord at = tile_of_block();
  load_bytes<kBytes>(tile, in.data, in.rows, in.stride(), in.stride(), at, nullptr);
  __syncthreads();
  write_transposed(tile, out, at);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) out.scale_inv[0] = in.scale_inv[0];
}

constexpr int kTensors = 32, kParts = 8;  // tensors per block, and parts of each tensor's history

struct HistoryMaxima {
  uint32_t part[kParts][kTensors];
};

__global__ void __launch_bounds__(kTensors* kParts) delayed_kernel(DelayedScaling d, StepState* state) {
  auto& maxima = shared_memory<HistoryMaxima>();
  const int tensor = blockIdx.x * kTensors + threadIdx.x;
  const bool here = tensor < d.tensors;
  if (state->held) {
    if (here && threadIdx.y == 0) d.amax[tensor] = 0;
    return;
  }
  const uint32_t entries = here ? d.entries[tensor] : 0;
  const uint32_t amax = here ? bits_at(d.amax + tensor) : 0;
  const int write_at = int(entries % uint32_t(d.length)), filled = int(entries) < d.length ? int(entries) : d.length;
  uint32_t amax_of_history = amax;
  const auto take = [&](uint32_t other) { amax_of_history = other > amax_of_history ? other : amax_of_history; };
  if (here && !d.latest)
    for (int e = threadIdx.y; e < filled; e += kParts)
      if (e != write_at) take(bits_at(d.history + size_t(e) * d.tensors + tensor));
  maxima.part[threadIdx.y][threadIdx.x] = amax_of_history;
  __syncthreads();
  if (!here || threadIdx.y != 0) return;
  for (int p = 1; p < kParts; ++p) take(maxima.part[p][threadIdx.x]);
  d.history[size_t(write_at) * d.tensors + tensor] = bits_to_float(amax);
  d.entries[tensor] = entries + 1;
  d.amax[tensor] = 0;
  const float scale = d.scale[tensor], scaled = bits_to_float(amax) * scale, fp8_max = d.largest[tensor];
  const auto count = [](int64_t& tensors) { atomic_add(reinterpret_cast<unsigned long long*>(&tensors), 1ull); };
  if (scale != 0 && is_beyond(scaled, fp8_max)) count(state->fp8.overflows);
  if (scale != 0 && amax != 0 && becomes_zero(scaled, fp8_max)) count(state->fp8.underflows);
  if (amax_of_history != 0 && amax_of_history < kInfinityBits)
    d.scale[tensor] = delayed_scale_of(bits_to_float(amax_of_history), fp8_max, d.margin, d.power_of_two);
  else if (scale == 0 && fp8_max != 0) count(state->fp8.no_scale);
}

__global__ void logit_gradient_scale_kernel(float* scale, const StepState* state, float largest) {
  *scale = float(double(largest) / 2 * double(state->label_count > 1 ? state->label_count : 1));
}

__global__ void not_finite_kernel(StepState* state, const uint32_t* weights) {
  if (weights && *weights < state->fp8_not_finite) state->fp8_not_finite = *weights;
  state->not_finite_ranks = is_finite_word(state->fp8_not_finite) ? 0 : 1;
}

// ---------------------------------------------------------------------------------------------- launchers

bool wants_row_scales(const QuantizedTensor& operand) { return operand && operand.has_row_scales(); }
bool wants_one_scale(const QuantizedTensor& operand) { return operand && operand.per_tensor_scale(); }

// A source as a kernel takes it.
template <class Source>
struct KernelSource {
  Source pointers;
  // How many columns of a row are contiguous in its buffers: elements are read 16 bytes at a time if this is a multiple
  // of 8.
  int columns_together;
  // The buffers that it reads: neighbouring elements of the first two, single elements of the third. Some are empty.
  Access reads[3];
};

// Each function throws unless the tensors fit together.
KernelSource<PlainSource> kernel_source(const char* who, const Tensor& x, MatrixShape m) {
  require_tensor(who, "x", x, DType::bf16, {m.rows, m.columns});
  return {{x.as<bf16>()}, m.columns, {reads(x)}};
}
KernelSource<RmsnormSource> kernel_source(const char* who, const RmsnormOutput& s, MatrixShape m) {
  require_tensor(who, "x", s.x, DType::bf16, {m.rows, m.columns});
  require_tensor(who, "rstd", s.rstd, DType::fp32, {m.rows});
  require_tensor(who, "weight", s.weight, DType::bf16, {m.columns});
  return {{s.x.as<bf16>(), s.rstd.as<float>(), s.weight.as<bf16>()},
          m.columns,
          {reads(s.x), reads(s.weight), reads(s.rstd)}};
}
KernelSource<SwigluSource> kernel_source(const char* who, const SwigluOutput& s, MatrixShape m) {
  require_tensor(who, "gate_up", s.gate_up, DType::bf16, {m.rows, 2 * int64_t(m.columns)});
  return {{s.gate_up.as<bf16>()}, m.columns, {reads(s.gate_up)}};
}
KernelSource<SwigluBackwardSource> kernel_source(const char* who, const SwigluBackwardOutput& s, MatrixShape m) {
  const int FF = m.columns / 2;
  require_tensor(who, "dout", s.dout, DType::bf16, {m.rows, FF});
  require_tensor(who, "gate_up", s.gate_up, DType::bf16, {m.rows, 2 * FF});
  return {{s.dout.as<bf16>(), s.gate_up.as<bf16>()}, FF, {reads(s.dout), reads(s.gate_up)}};
}
KernelSource<RopeBackwardSource> kernel_source(const char* who, const RopeBackwardOutput& s, MatrixShape m) {
  const auto& [table, positions, heads] = s.angles;
  require_tensor(who, "dqkv", s.dqkv, DType::bf16, {m.rows, m.columns});
  require_tensor(who, "table", table, DType::fp32, {-1, -1, 2});
  require_tensor(who, "positions", positions, DType::int32, {m.rows});
  const int64_t known = table.shape[1], HD = 2 * table.shape[2];
  REQUIRE(HD >= 2 && m.columns % HD == 0 && heads >= 0 && heads <= m.columns / HD && known >= 1 && known <= INT_MAX,
          "%s: %d heads of %d to turn in rows of %d, by a table of %lld positions: expected whole heads of an even "
          "size, no more of them than the rows have, and a position",
          who, heads, int(HD), m.columns, (long long)known);
  return {{s.dqkv.as<bf16>(), table.as<float>(), positions.as<int>(), heads, int(HD), int(known)},
          int(HD) / 2,
          {reads(s.dqkv), reads(table), reads(positions)}};
}

// Returns the room for the largest |x| of the operand's rows; absent if its scales do not need them.
Tensor maxima_of(const QuantizedTensor& operand, const Tensor& room) {
  return wants_row_scales(operand) ? room.first({operand.rows}) : Tensor();
}

void require_operand(const char* who, const QuantizedTensor& operand, int rows, int columns) {
  if (!operand) return;
  const bool larger = operand.scaling == Scaling::tensor && operand.rows >= rows && operand.columns >= columns;
  REQUIRE(larger || (operand.rows == rows && operand.columns == columns),
          "%s: an operand of %d x %d of a matrix that gives %d x %d", who, operand.rows, operand.columns, rows,
          columns);
  REQUIRE(operand.scaling == Scaling::row || !operand.one_scale,
          "%s: one scale for the whole tensor, once for each row, of an operand with %s", who,
          scaling_name(operand.scaling));
  REQUIRE(operand.scale_inv && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0,
          "%s: an operand at %p with scale_inv at %p: expected 16-byte alignment, and scale_inv", who,
          static_cast<const void*>(operand.data), static_cast<const void*>(operand.scale_inv));
}

void require_quantization(const char* who, MatrixShape matrix, const Quantization& q) {
  const auto [rows, columns] = matrix;
  REQUIRE(rows >= 1 && columns >= 1, "%s: %d x %d: expected at least one row and one column", who, rows, columns);
  REQUIRE(q.rowwise || q.columnwise, "%s: neither orientation is wanted", who);
  require_operand(who, q.rowwise, rows, columns);
  require_operand(who, q.columnwise, columns, rows);
  const auto require_room = [&](const QuantizedTensor& operand, const Tensor& room, const char* lines) {
    if (!wants_row_scales(operand)) return;
    REQUIRE(room.size() >= operand.rows, "%s: no room for the %s' largest numbers: %s, for %d", who, lines,
            room.text().c_str(), operand.rows);
    REQUIRE(room.data, "%s: the room for the %s' largest numbers has no memory", who, lines);
  };
  require_room(q.rowwise, q.row_amax, "rows");
  require_room(q.columnwise, q.column_amax, "columns");
  REQUIRE(!(wants_one_scale(q.rowwise) || wants_one_scale(q.columnwise)) || q.amax || q.scale,
          "%s: a tensor with one scale needs it, or its largest number", who);
  REQUIRE(!q.may_lack_scale || q.amax, "%s: a tensor that may lack a scale has no largest number", who);
}

// Checks everything, then calls `body` with the shape, the source as the kernel takes it, and its vector width as a
// constant.
template <class Body>
void with_source(const char* who, const QuantizeSource& source, const Quantization& q, const Body& body) {
  const MatrixShape matrix = shape_of(source);
  require_quantization(who, matrix, q);
  std::visit(
      [&](const auto& s) {
        const auto from = kernel_source(who, s, matrix);
        with_vector_width(who, from.columns_together, {from.reads[0].data, from.reads[1].data},
                          [&](auto width) { body(matrix, from, width); });
      },
      source);
}

}  // namespace

float fp8_scale(float amax, Fp8Format format, bool power_of_two) {
  return scale_of(float_to_bits(amax), largest_fp8(format), power_of_two);
}

MatrixShape shape_of(const QuantizeSource& source) {
  const auto shape = [&](const Tensor& x, int64_t times) {
    REQUIRE(x && x.rows() <= INT_MAX && x.columns() <= INT_MAX,
            "quantize: the source is %s\n  expected 2^31-1 rows and columns at most", x.text().c_str());
    return MatrixShape{int(x.rows()), int(x.columns() / times)};
  };
  if (const auto* x = std::get_if<Tensor>(&source)) return shape(*x, 1);
  if (const auto* s = std::get_if<RmsnormOutput>(&source)) return shape(s->x, 1);
  if (const auto* s = std::get_if<SwigluOutput>(&source)) return shape(s->gate_up, 2);
  if (const auto* s = std::get_if<SwigluBackwardOutput>(&source)) return shape(s->gate_up, 1);
  return shape(std::get<RopeBackwardOutput>(source).dqkv, 1);
}

void quantize_amax(Stream& stream, const QuantizeSource& source, const Quantization& q) {
  const char* who = "quantize_amax";
  with_source(who, source, q, [&](MatrixShape matrix, const auto& from, auto width) {
    const Tensor row_amax = maxima_of(q.rowwise, q.row_amax), column_amax = maxima_of(q.columnwise, q.column_amax);
    float* amax = wants_one_scale(q.rowwise) || wants_one_scale(q.columnwise) ? q.amax : nullptr;
    for (const Tensor& maxima : {row_amax, column_amax})
      if (maxima) clear(stream, maxima.as<float>(), size_t(maxima.size()));
    using Source = std::decay_t<decltype(from.pointers)>;
    const Work work{
        stream,
        who,
        {updates(amax, 1), updates(row_amax), updates(column_amax), from.reads[0], from.reads[1], from.reads[2]}};
    const int columns = row_amax || column_amax ? matrix.columns : magnitude_columns(from.pointers, matrix.columns);
    const dim3 tiles(blocks_for(size_t(columns), kTile), blocks_for(size_t(matrix.rows), kTile));
    if (row_amax || column_amax)
      launch<amaxes_kernel<Source, decltype(width)::value>>(work, tiles, kTileThreads, sizeof(Tile), amax,
                                                            row_amax.as<float>(), column_amax.as<float>(),
                                                            from.pointers, matrix.rows, columns);
    else
      launch<amax_kernel<Source, decltype(width)::value>>(work, tiles, kTileThreads, sizeof(WarpMaxima), amax,
                                                          from.pointers, matrix.rows, columns);
  });
}

void quantize(Stream& stream, const QuantizeSource& source, const Quantization& q) {
  const char* who = "quantize";
  const auto bytes = [](const QuantizedTensor& t) { return t ? writes(t.data, t.bytes()) : writes(t.data, 0); };
  const auto scale_inv = [](const QuantizedTensor& t) {
    return t ? writes(t.scale_inv, t.scale_inv_count()) : writes(t.scale_inv, 0);
  };
  with_source(who, source, q, [&](MatrixShape matrix, const auto& from, auto width) {
    const Tensor row_amax = maxima_of(q.rowwise, q.row_amax), column_amax = maxima_of(q.columnwise, q.column_amax);
    const float* amax = q.scale && !q.may_lack_scale ? nullptr : q.amax;
    const TileArguments a{.rowwise = q.rowwise,
                          .columnwise = q.columnwise,
                          .power_of_two = q.power_of_two,
                          .amax = amax,
                          .row_amax = row_amax.as<float>(),
                          .column_amax = column_amax.as<float>(),
                          .scale = q.scale,
                          .amax_step = q.amax_step,
                          .not_finite = q.not_finite,
                          .nonfinite_code = q.nonfinite_code,
                          .statistics = q.statistics};
    const int padded_rows = std::max(q.rowwise ? q.rowwise.padded_rows() : 0, q.columnwise ? q.columnwise.stride() : 0);
    const int padded_columns =
        std::max(q.rowwise ? q.rowwise.stride() : 0, q.columnwise ? q.columnwise.padded_rows() : 0);
    launch<quantize_kernel<std::decay_t<decltype(from.pointers)>, decltype(width)::value>>(
        {stream,
         who,
         {bytes(q.rowwise), bytes(q.columnwise), scale_inv(q.rowwise), scale_inv(q.columnwise), reads(amax, 1),
          reads(q.scale, 1), reads(row_amax), reads(column_amax), updates(q.amax_step, 1), updates(q.not_finite, 1),
          updates(q.statistics, 1), from.reads[0], from.reads[1], from.reads[2]}},
        dim3(blocks_for(size_t(padded_columns), kTile), blocks_for(size_t(padded_rows), kTile)), kTileThreads,
        sizeof(Tile), a, from.pointers, matrix.rows, matrix.columns);
  });
}

void transpose_quantized(Stream& stream, const QuantizedTensor& out, const QuantizedTensor& in) {
  REQUIRE(in && out && in.rows > 0 && in.columns > 0 && out.rows == in.columns && out.columns == in.rows &&
              in.scaling == Scaling::tensor && out.scaling == Scaling::tensor && in.format == out.format,
          "transpose_quantized: %d x %d with %s into %d x %d with %s: expected its transpose, with one scale each",
          in.rows, in.columns, scaling_name(in.scaling), out.rows, out.columns, scaling_name(out.scaling));
  launch<transpose_kernel>({stream,
                            "transpose_quantized",
                            {writes(out.data, out.bytes()), writes(out.scale_inv, 1),
                             reads(in.data, size_t(in.rows) * size_t(in.stride())), reads(in.scale_inv, 1)}},
                           dim3(blocks_for(size_t(out.padded_rows()), kTile), blocks_for(size_t(out.stride()), kTile)),
                           kTileThreads, sizeof(ByteTile), out, in);
}

float delayed_scale(float amax, Fp8Format format, int margin, bool power_of_two) {
  return delayed_scale_of(amax, largest_fp8(format), margin, power_of_two);
}

void update_delayed_scales(Stream& stream, const DelayedScaling& d, StepState* state) {
  REQUIRE(d.tensors >= 1 && d.length >= 1,
          "update_delayed_scales: %d tensors with a history of %d: expected at least 1", d.tensors, d.length);
  const size_t tensors = size_t(d.tensors);
  launch<delayed_kernel>({stream,
                          "update_delayed_scales",
                          {updates(d.amax, tensors), updates(d.scale, tensors), updates(d.entries, tensors),
                           updates(d.history, tensors * size_t(d.length)), reads(d.largest, tensors),
                           reads(&state->held, 1), updates(&state->fp8, 1)}},
                         blocks_for(tensors, kTensors), dim3(kTensors, kParts), sizeof(HistoryMaxima), d, state);
}

void logit_gradient_scale(Stream& stream, float* scale, const StepState* state, Fp8Format format) {
  launch<logit_gradient_scale_kernel>(
      {stream, "logit_gradient_scale", {writes(scale, 1), reads(&state->label_count, 1)}}, 1, 1, 0, scale, state,
      largest_fp8(format));
}

void count_not_finite(Stream& stream, StepState* state, const uint32_t* weights) {
  launch<not_finite_kernel>(
      {stream,
       "count_not_finite",
       {reads(weights, 1), updates(&state->fp8_not_finite, 1), writes(&state->not_finite_ranks, 1)}},
      1, 1, 0, state, weights);
}
