// Quantization of bf16 matrices x[rows, columns] to FP8, for products: by rows (K along the columns), by columns (the
// transpose, K along the rows), or both, zero-padded.
//
//   amax = max |x| over the elements that share a scale, in fp32
//   scale = fp32(fp64(largest of the format) / fp64(max(amax, 1e-12))), on request rounded down to a power of two
//   q = saturate(x * scale), rounded to nearest even;  scale_inv = 1 / scale, by which the product multiplies; in fp32
//
// A source is x itself, or the inputs of the operation that produces x. In the second case nobody writes x: the kernel
// computes it as it reads, with the bits that the operation's own kernel would write. One pass over the source is
// enough if the scale is given (delayed scaling) or shared by at most a block of 128 x 128 (blockwise). Otherwise there
// are two passes, since the scale must be known before the first byte is written. With one scale for the tensor, the
// kernel that computes x may do the first pass: RMSNorm, its backward and attention can.
//
// Deterministic: a maximum does not depend on the order. An infinity or NaN is reported; it is not an error here.
#pragma once

#include <variant>

#include "llmc/kernels/quantized_tensor.h"
#include "llmc/kernels/rope.h"
#include "llmc/kernels/step_state.h"

// x (rows, columns) is the output of RMSNorm (rmsnorm.h).
struct RmsnormOutput {
  Tensor x;       // (rows, columns), bf16
  Tensor rstd;    // (rows), fp32
  Tensor weight;  // (columns), bf16
};
// x is the output of swiglu_forward (swiglu.h).
struct SwigluOutput {
  Tensor gate_up;  // (rows, 2 columns), bf16
};
// x is the output of swiglu_backward, columns = 2 FF.
struct SwigluBackwardOutput {
  Tensor dout;     // (rows, columns / 2), bf16
  Tensor gate_up;  // (rows, columns), bf16
};
// x is the output of rope_backward (rope.h), columns = (NH + 2 NKV) HD.
struct RopeBackwardOutput {
  Tensor dqkv;  // (rows, columns), bf16
  RopeAngles angles;
};
// A tensor is x itself, in bf16.
using QuantizeSource = std::variant<Tensor, RmsnormOutput, SwigluOutput, SwigluBackwardOutput, RopeBackwardOutput>;

// Returns the rows and columns of x.
struct MatrixShape {
  int rows, columns;
};
MatrixShape shape_of(const QuantizeSource& source);

// Statistics of one tensor, for reports, over both orientations. The kernels add to what is there. All fields begin as
// 0, except smallest_scale: all ones.
struct QuantizeStatistics {
  uint32_t amax;  // bits of non-negative fp32 values, which are ordered as the values are
  uint32_t smallest_scale, largest_scale;
  uint32_t unused;
  // saturated: |x * scale| was beyond the largest value of the format by more than a scale's rounding (2^-20 of it).
  // underflowed: x was not 0 and became 0.
  unsigned long long values, saturated, underflowed;
};

// Returns true if a scale of the operands follows from an amax that quantize_amax must find. `has_scale`: the scale of
// per-tensor operands is known beforehand. An operand with null `data` is not wanted.
inline bool needs_amax(const QuantizedTensor& rowwise, const QuantizedTensor& columnwise, bool has_scale) {
  for (const QuantizedTensor* t : {&rowwise, &columnwise})
    if (*t && (t->has_row_scales() || (t->per_tensor_scale() && !has_scale))) return true;
  return false;
}

struct Quantization {
  // The outputs. An output with null `data` is not wanted. rowwise is (rows, columns), columnwise is its transpose. If
  // the tensor has one scale, both have the same scale_inv. With Scaling::tensor they may have more rows and columns,
  // which become zeros.
  QuantizedTensor rowwise, columnwise;
  bool power_of_two = false;
  // Largest |x|: quantize_amax raises it, and quantize computes the scale of a per-tensor operand from it.
  float* amax = nullptr;
  // Scaling::row: flat fp32 buffers for the largest |x| of each row and of each column, or longer ones.
  Tensor row_amax, column_amax;
  const float* scale = nullptr;  // for per-tensor operands, if known beforehand: they need no amax then
  bool may_lack_scale = false;   // `scale` may be 0, which stands for none: it is then computed from amax
  float* amax_step = nullptr;    // quantize raises it to the largest |x|, unless it is null
  // If some x is infinite or NaN, quantize lowers *not_finite to `nonfinite_code`, unless it is already smaller.
  uint32_t* not_finite = nullptr;
  uint32_t nonfinite_code = 0;
  QuantizeStatistics* statistics = nullptr;

  // Returns true if quantize_amax must run before quantize.
  bool needs_amax() const { return ::needs_amax(rowwise, columnwise, scale && !may_lack_scale); }
};

// The first pass, as far as the scales need it: raises amax, which the caller has cleared, and sets row_amax and
// column_amax. Throws if the source's tensors do not fit together, or `wanted` does not fit the source.
void quantize_amax(Stream& stream, const QuantizeSource& source, const Quantization& wanted);
// The second pass: writes data and scale_inv, and updates amax_step, not_finite and statistics. Throws likewise.
void quantize(Stream& stream, const QuantizeSource& source, const Quantization& wanted);

// Writes out (columns, rows) = the transpose of in (rows, columns), padded with zeros, and copies its scale_inv. Throws
// unless both have one scale and the same format.
void transpose_quantized(Stream& stream, const QuantizedTensor& out, const QuantizedTensor& in);

// Delayed scaling (Micikevicius et al. 2022; TransformerEngine): computes the next scale of each of `tensors` tensors
// from the largest |x| of this and earlier steps. history[length, tensors] is a ring buffer:
//
//   history[entries % length] = amax, ++entries, amax = 0
//   scale = fp32(largest of the format * 2^-margin / (latest, or largest of the newest `length` entries))
//
// The scale is clamped to the normal numbers of fp32. If that largest entry is 0, infinite or NaN, the scale stays as
// it is. A scale of 0 stands for none; every tensor begins with it. If state->held, only amax = 0 is
// done: scale, history and entries stay, and nothing is counted. The kernel adds to state->fp8. A tensor with a scale
// overflows if a value was beyond what the scale can represent (by more than 2^-20 of it). It underflows if all of its
// values became 0, and were not all 0. Tensors that still have no scale are counted too. largest[tensors] holds the
// largest value of each tensor's format; 0 if it is not quantized.
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
void update_delayed_scales(Stream& stream, const DelayedScaling& delayed, StepState* state);
// Sets *scale for gradients of logits, of which it takes none to be larger than 2 / labels, where labels =
// state->label_count. classifier.h has the bound: only a large z-loss goes beyond it.
//   scale = fp32(fp64(largest of the format) / 2 * max(labels, 1))
void logit_gradient_scale(Stream& stream, float* scale, const StepState* state, Fp8Format format);
// Ends the reports of a step: lowers state->fp8_not_finite to *weights, where kernels of another stream report, unless
// `weights` is null, and writes state->not_finite_ranks: 1 if a tensor was reported, else 0.
void count_not_finite(Stream& stream, StepState* state, const uint32_t* weights);

// The formula of the delayed scale for a positive amax, on the host.
float delayed_scale(float amax, Fp8Format format, int margin, bool power_of_two);

// The scale formula at the head of this file, on the host.
float fp8_scale(float amax, Fp8Format format, bool power_of_two);
