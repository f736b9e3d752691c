#include "llmc/model/linear.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/fp8_matmul.h"

namespace {

// The tensor in memory; absent if the kernel that quantizes it computes it.
Tensor in_memory(const ProductSource& x) {
  const Tensor* tensor = std::get_if<Tensor>(&x.source);
  return tensor ? *tensor : Tensor();
}

}  // namespace

float* wanted_amax(const Fp8Settings& settings, const Fp8ScaleRefs& scales, const LayerProjection& projection,
                   Role role) {
  if (!settings.quantizes(projection) || !settings.per_tensor_scale() || !scales.needs_amax()) return nullptr;
  return scales.amax + projection.id(role);
}

float* Linear::wanted_amax(const Pass& pass, Role role) const {
  if (!pass.fp8 || (role == Role::input && pass.recomputing)) return nullptr;
  return ::wanted_amax(pass.fp8->settings, pass.fp8->scales, projection_, role);
}

// ---------------------------------------------------------------------------------------------- the three products

void Linear::forward(const Pass& pass, const Tensor& out, const ProductSource& x) const {
  const Operand x_operand = prepare(pass, Role::input, x).rowwise;
  multiply_by_weight(pass, ProductKind::forward, out, x_operand);
  if (gathers(pass, Role::output_gradient)) pass.tensor_parallel->await_scattered(pass.stream);
  if (!pass.recomputing) observe(pass, ProductKind::forward, out, x_operand, weight_for(pass, ProductKind::forward), x);
}

void Linear::backward(const Pass& pass, const Tensor& dx, const ProductSource& dy, const Tensor& x) const {
  Operands dy_operands = prepare(pass, Role::output_gradient, dy);
  multiply_by_weight(pass, ProductKind::dgrad, dx, dy_operands.rowwise);
  observe(pass, ProductKind::dgrad, dx, dy_operands.rowwise, weight_for(pass, ProductKind::dgrad), dy);
  // Gathered bytes are transposed after dgrad, which has awaited all of them.
  if (!dy_operands.columnwise)
    dy_operands.columnwise =
        transposed(pass, Role::output_gradient, dy_operands.rowwise.fp8, pass.fp8->scratch.columnwise);
  const Operand x_operand = input_for_wgrad(pass, x);
  multiply(pass, ProductKind::wgrad, weight_.grad, dy_operands.columnwise, x_operand);
  observe(pass, ProductKind::wgrad, weight_.grad, dy_operands.columnwise, x_operand, dy);
  // dx is sent while wgrad computes.
  if (gathers(pass, Role::input)) pass.tensor_parallel->await_scattered(pass.stream);
}

// out = a Wᵀ (forward) or a W (dgrad).
void Linear::multiply_by_weight(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a) const {
  const Role role = kind == ProductKind::forward ? Role::input : Role::output_gradient;
  if (!pass.tensor_parallel) multiply(pass, kind, out, a, weight_for(pass, kind));
  else if (gathers(pass, role)) multiply_gathered(pass, kind, out, a);
  else multiply_scattered(pass, kind, out, a);
}

// In the model's type: out = a bᵀ (forward), a b (dgrad), = or += aᵀ b (wgrad). In FP8: out = or += a bᵀ.
void Linear::multiply(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a, const Operand& b) const {
  const bool accumulate = kind == ProductKind::wgrad && pass.accumulate;
  if (a.high_precision) {
    if (kind == ProductKind::forward) pass.matmul.forward(out, a.high_precision, b.high_precision);
    else if (kind == ProductKind::dgrad) pass.matmul.dgrad(out, a.high_precision, b.high_precision);
    else pass.matmul.wgrad(out, a.high_precision, b.high_precision, accumulate);
    return;
  }
  const char* const names[] = {"fp8_forward", "fp8_dgrad", "fp8_wgrad"};
  fp8_matmul(pass.stream, pass.matmul, names[int(kind)], out, a.fp8, b.fp8, accumulate,
             pass.fp8->settings.fast_accumulation(kind == ProductKind::forward), pass.fp8->scratch.padded);
}

void Linear::observe(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a, const Operand& b,
                     const ProductSource& x) const {
  if (!quantized(pass) || !pass.fp8->observer) return;
  (*pass.fp8->observer)({projection_, kind, a.fp8, b.fp8, a.high_precision, b.high_precision, out,
                         kind == ProductKind::wgrad && pass.accumulate, pass.N, &x.source});
}

// ---------------------------------------------------------------------------------------------- operands

// Returns the operands of all rows of x or dy, and saves x in FP8. The gather of operands that can be cut may still
// run, so multiply_gathered() awaits each chunk. Gathered bytes have no columnwise operand yet.
Linear::Operands Linear::prepare(const Pass& pass, Role role, const ProductSource& x) const {
  if (!gathers(pass, role)) return prepare_local(pass, role, x);
  if (!gathers_bytes(pass, role)) {
    const Tensor rows = gather_rows(pass, role, in_memory(x));
    if (quantized(pass)) pass.tensor_parallel->await_tokens(pass.stream, pass.N, 0, pass.N);
    return prepare_local(pass, role, {rows});
  }
  const OperandMemory saved = role == Role::input ? memory_for_input(pass) : OperandMemory{};
  const Operands own = quantize(pass, role, x, {.rowwise = saved.data ? saved : pass.fp8->scratch.rowwise});
  return {gather_bytes(pass, own.rowwise.fp8), {}};
}

// Returns the operands of x or dy where this rank has all rows, and saves x in FP8.
Linear::Operands Linear::prepare_local(const Pass& pass, Role role, const ProductSource& x) const {
  const Operand high_precision = in_memory(x);
  if (!quantized(pass)) return {high_precision, high_precision};
  const Fp8ScratchTensors& scratch = pass.fp8->scratch;
  if (wgrad_in_model_type(pass)) return {quantize(pass, role, x, {.rowwise = scratch.rowwise}).rowwise, high_precision};
  return quantize(pass, role, x, {scratch.rowwise, role == Role::input ? memory_for_input(pass) : scratch.columnwise});
}

void Linear::save_input(const Pass& pass, const ProductSource& x) const {
  if (!quantized(pass) || !saved_.data) return;
  if (gathers(pass, Role::input)) quantize_again(pass, x.source, {.rowwise = saved_});
  else quantize_again(pass, x.source, {.columnwise = saved_});
}

// Returns forward's input for the weight gradient, of which prefetch_input() has gathered the rows or the bytes.
Linear::Operand Linear::input_for_wgrad(const Pass& pass, const Tensor& x) const {
  if (!gathers(pass, Role::input)) return local_input_for_wgrad(pass, x);
  pass.tensor_parallel->await_tokens(pass.stream, pass.N, 0, pass.N);
  if (!gathers_bytes(pass, Role::input))
    return local_input_for_wgrad(pass, pass.gathered.first({pass.N, width(Role::input)}));
  // All ranks quantized their rows with one scale, so this rank's scale_inv is that of all rows.
  const OperandMemory bytes{static_cast<uint8_t*>(pass.gathered.data), saved_.scale_inv};
  return transposed(pass, Role::input, in_fp8(pass, Role::input, false, pass.N, bytes),
                    pass.fp8->scratch.input_columnwise);
}

// Returns forward's input for the weight gradient where this rank has all rows: `x` itself, as it was saved in FP8, or
// quantized again from `x`.
Linear::Operand Linear::local_input_for_wgrad(const Pass& pass, const Tensor& x) const {
  if (wgrad_in_model_type(pass)) return x;
  if (saved_.data) return in_fp8(pass, Role::input, true, pass.N, saved_);
  return quantize_again(pass, x, {.columnwise = pass.fp8->scratch.input_columnwise}).columnwise;
}

Linear::Operand Linear::weight_for(const Pass& pass, ProductKind kind) const {
  if (!quantized(pass)) return weight_.value;
  return kind == ProductKind::forward ? fp8_.rowwise : fp8_.columnwise;
}

Linear::Operand Linear::Operand::rows(int first, int count) const {
  if (high_precision) return high_precision.rows(first, count);
  QuantizedTensor part = fp8;
  part.data += size_t(first) * size_t(fp8.stride());
  part.rows = count;
  return part;
}

// ---------------------------------------------------------------------------------------------- FP8

// Quantizes x or dy: finds the amax if the scales need it, and records amax and statistics.
Linear::Operands Linear::quantize(const Pass& pass, Role role, const ProductSource& x, const Memory& memory) const {
  if (pass.recomputing) return quantize_again(pass, x.source, memory);
  const Fp8Pass& f = *pass.fp8;
  const int tensor_id = projection_.id(role);
  Quantization q = quantization(pass, role, shape_of(x.source).rows, memory);
  if (f.scales.amax_step) q.amax_step = f.scales.amax_step + tensor_id;
  if (f.scales.statistics) q.statistics = f.scales.statistics + tensor_id;
  if (q.needs_amax()) {
    if (!x.amax) quantize_amax(pass.stream, x.source, q);
    // The ranks that are to have one scale take the maximum of their amaxes.
    if (f.share_amax) (*f.share_amax)(tensor_id);
    else if (gathers_bytes(pass, role)) pass.tensor_parallel->all_reduce_max(pass.stream, {q.amax, {1}});
  }
  ::quantize(pass.stream, x.source, q);
  return {q.rowwise, q.columnwise};
}

// Quantizes an x that was quantized before in this step, with the same scales, and records nothing. The amax of a
// tensor with one scale is still in memory; those of rows and columns are not.
Linear::Operands Linear::quantize_again(const Pass& pass, const QuantizeSource& x, const Memory& memory) const {
  const Quantization q = quantization(pass, Role::input, shape_of(x).rows, memory);
  if (q.needs_amax() && !pass.fp8->settings.per_tensor_scale()) quantize_amax(pass.stream, x, q);
  ::quantize(pass.stream, x, q);
  return {q.rowwise, q.columnwise};
}

// Fills in the fields of a Quantization that quantize() and quantize_again() share.
Quantization Linear::quantization(const Pass& pass, Role role, int rows, const Memory& memory) const {
  const Fp8Pass& f = *pass.fp8;
  const int tensor_id = projection_.id(role);
  Quantization q;
  q.rowwise = in_fp8(pass, role, false, rows, memory.rowwise);
  q.columnwise = in_fp8(pass, role, true, rows, memory.columnwise);
  q.power_of_two = f.settings.power_of_two;
  q.amax = f.scales.amax + tensor_id;
  q.row_amax = f.scratch.row_amax, q.column_amax = f.scratch.column_amax;
  if (f.scales.scale) q.scale = f.scales.scale + tensor_id;
  q.may_lack_scale = f.scales.may_lack_scale;
  q.not_finite = f.not_finite;
  q.nonfinite_code = nonfinite_code(tensor_id, role);
  return q;
}

// Describes an operand in `memory` that holds `rows` rows of x or dy; empty if there is no memory.
QuantizedTensor Linear::in_fp8(const Pass& pass, Role role, bool columnwise, int rows, OperandMemory memory) const {
  if (!memory.data) return {};
  QuantizedTensor tensor = pass.fp8->settings.operand(role, columnwise, rows, width(role));
  tensor.data = memory.data;
  tensor.scale_inv = memory.scale_inv;
  return tensor;
}

Linear::Operand Linear::transposed(const Pass& pass, Role role, const QuantizedTensor& rowwise,
                                   OperandMemory memory) const {
  const QuantizedTensor columnwise = in_fp8(pass, role, true, pass.N, memory);
  transpose_quantized(pass.stream, columnwise, rowwise);
  return columnwise;
}

// ---------------------------------------------------------------------------------------------- tensor parallelism

void Linear::prefetch_input(const Pass& pass, const Tensor& x) const {
  if (gathers_bytes(pass, Role::input)) gather_bytes(pass, in_fp8(pass, Role::input, false, pass.R, saved_));
  else if (gathers(pass, Role::input)) gather_rows(pass, Role::input, x);
}

// Starts the all-gather of rows in the model's type and returns where they arrive, (N, width).
Tensor Linear::gather_rows(const Pass& pass, Role role, const Tensor& own) const {
  const Tensor all = pass.gathered.first({pass.tensor_parallel->padded(pass.N), width(role)});
  pass.tensor_parallel->all_gather(pass.stream, all, own, pass.N);
  return all.rows(0, pass.N);
}

// Starts the all-gather of rows in FP8 and describes the operand that they become.
QuantizedTensor Linear::gather_bytes(const Pass& pass, const QuantizedTensor& own) const {
  QuantizedTensor all = own;
  all.rows = pass.N, all.data = static_cast<uint8_t*>(pass.gathered.data);
  const int sent = pass.tensor_parallel->padded(pass.N), stride = own.stride();
  const Tensor bytes(all.data, {std::max(sent, all.padded_rows()), stride});
  if (all.padded_rows() > sent) clear(pass.stream, bytes.rows(sent, all.padded_rows() - sent));
  pass.tensor_parallel->all_gather(pass.stream, bytes.rows(0, sent), Tensor(own.data, {pass.R, stride}), pass.N);
  return all;
}

// Multiplies each chunk of gathered rows when it has arrived. If `a` cannot be cut, prepare() has awaited all of them.
void Linear::multiply_gathered(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a) const {
  const Operand weight = weight_for(pass, kind);
  if (!a.can_be_cut()) return multiply(pass, kind, out, a, weight);
  for (const auto& chunk : pass.tensor_parallel->chunks(pass.N)) {
    pass.tensor_parallel->await_gathered(pass.stream, chunk.index);
    multiply(pass, kind, out.rows(chunk.first, chunk.count), a.rows(chunk.first, chunk.count), weight);
  }
}

// Computes this rank's partial sums of all N rows, and reduce-scatters each chunk while it computes the next one. Call
// await_scattered() before `out`, this rank's R rows of the sums, is read.
void Linear::multiply_scattered(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a) const {
  TensorParallel& ranks = *pass.tensor_parallel;
  const Operand weight = weight_for(pass, kind);
  const Tensor sums = pass.sums.first({ranks.padded(pass.N), out.columns()});
  ranks.clear_padding(pass.stream, sums, pass.N);
  if (!a.can_be_cut()) multiply(pass, kind, sums.rows(0, pass.N), a, weight);
  for (const auto& chunk : ranks.chunks(pass.N)) {
    if (a.can_be_cut())
      multiply(pass, kind, sums.rows(chunk.first, chunk.count), a.rows(chunk.first, chunk.count), weight);
    ranks.reduce_scatter(pass.stream, out, sums, chunk);
  }
}
