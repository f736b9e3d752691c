// Quantization of bf16 matrices x[rows, columns] to FP8, for products: by rows (K along the columns), by columns (its
// transpose, K along the rows), or both, zero-padded.
//
//   amax = max |x| over what shares a scale, in fp32
//   scale = fp32(fp64(largest of the format) / fp64(max(amax, 1e-12))), on request rounded down to a power of two
//   q = saturate(x * scale), rounded to nearest even;  factor = 1 / scale, what the product multiplies with; in fp32
//
// A source says where x comes from: it is never written, but computed as it is read, with the bits that the kernel has
// which would write it. Passes over the source: one where the scale is given (delayed scaling) or shared by no more
// than a block of 128 x 128 (blockwise), else two, since the scale must be known before the first byte is written. Of a
// tensor with a single scale the first may be part of the kernel that computes it: RMSNorm, its backward and attention.
//
// Deterministic: maxima do not depend on their order. An infinity or NaN is reported, not an error here.
#pragma once

#include <variant>

#include "llmc/device/device.h"
#include "llmc/kernels/quantized_tensor.h"
#include "llmc/kernels/step_state.h"

// x itself.
struct PlainSource {
  const bf16* x;  // (rows, columns)
};
// RMSNorm's output (rmsnorm.h).
struct RmsnormSource {
  const bf16* x;      // (rows, columns)
  const float* rstd;  // (rows)
  const bf16* weight;
};
// swiglu_forward's output (swiglu.h).
struct SwigluSource {
  const bf16* gate_up;  // (rows, 2 columns)
};
// swiglu_backward's (rows, columns = 2 FF).
struct SwigluBackwardSource {
  const bf16* dout;     // (rows, columns / 2)
  const bf16* gate_up;  // (rows, columns)
};
// rope_backward's (rope.h), columns = (NH + 2 NKV) HD.
struct RopeBackwardSource {
  const bf16* dqkv;      // (rows, columns)
  const float* table;    // (table_positions, HD / 2, 2)
  const int* positions;  // (rows)
  int heads;             // NH + NKV: those that are turned
  int HD, table_positions;
};
using QuantizeSource = std::variant<PlainSource, RmsnormSource, SwigluSource, SwigluBackwardSource, RopeBackwardSource>;

// Of one tensor, for reports, both orientations together: added to what is there. It begins with zeros, but for
// smallest_scale: all ones.
struct QuantizeStatistics {
  uint32_t amax;  // bits of fp32 numbers that are not negative: ordered as they are
  uint32_t smallest_scale, largest_scale;
  uint32_t unused;
  // saturated: |x * scale| was beyond the largest of the format by more than a scale's rounding (2^-20 of it).
  // underflowed: became 0 and were not.
  unsigned long long values, saturated, underflowed;
};

struct Quantization {
  // What is wanted of x, where `data` is not null: by_rows is (rows, columns), by_columns its transpose. Of a tensor
  // with a single scale both have the same factor.
  QuantizedTensor by_rows, by_columns;
  bool power_of_two = false;
  // Largest |x|: quantize_amax raises it, quantize takes a single scale from it.
  float* amax = nullptr;
  // Scaling::row: room for the largest |x| of each row and of each column, rows and columns floats.
  float *row_amax = nullptr, *column_amax = nullptr;
  const float* scale = nullptr;  // of operands with a single scale, known beforehand: these need no amax then
  bool may_lack_scale = false;   // `scale` may be 0, which stands for none: it follows from amax then
  float* seen = nullptr;         // quantize raises it to the largest |x| of a tensor with a single scale
  // Becomes `number` if that is smaller than what is there and some x is infinite or NaN.
  uint32_t* not_finite = nullptr;
  uint32_t number = 0;
  QuantizeStatistics* statistics = nullptr;

  // Whether scales follow from a pass of their own.
  bool needs_amax() const;
};

// The first pass: amax, row_amax and column_amax, as far as the scales need them.
void quantize_amax(Stream& stream, const QuantizeSource& source, int rows, int columns, const Quantization& wanted);
// The second: data and factors.
void quantize(Stream& stream, const QuantizeSource& source, int rows, int columns, const Quantization& wanted);

// out (columns, rows) = the transpose of in (rows, columns), both with one scale, which goes with it; padded with
// zeros.
void transpose_quantized(Stream& stream, const QuantizedTensor& out, const QuantizedTensor& in);

// For delayed scaling (Micikevicius et al. 2022; TransformerEngine): what a step's largest |x| say of the next scale,
// for `tensors` of them. history[length, tensors] is a ring:
//
//   history[entries % length] = amax, ++entries, amax = 0
//   scale = fp32(largest of the format * 2^-margin / (latest, or largest of the newest `length` entries))
//
// within the normal numbers of fp32. Where that largest is 0, or no number, the scale stays. A scale of 0 stands for
// none, with which a tensor begins. To `counts` are added tensors that had a scale, and of which a value was beyond
// what that could hold (by more than 2^-20 of it), or all values became 0 and were not; and those that have none now.
// largest[tensors]: of each one's format; 0 where nothing is quantized.
struct DelayedScaling {
  float* amax;           // (tensors)
  float* scale;          // (tensors)
  float* history;        // (length, tensors)
  uint32_t* entries;     // (tensors)
  const float* largest;  // (tensors)
  int tensors, length;
  bool latest, power_of_two;
  int margin;
};
void update_delayed_scales(Stream& stream, const DelayedScaling& delayed, Fp8Counts* counts);
// Its formula, of a positive amax, on the host.
float delayed_scale(float amax, Fp8Format format, int margin, bool power_of_two);

// The formula, on host and device.
float fp8_scale(float amax, Fp8Format format, bool power_of_two);
