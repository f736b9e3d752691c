#include "llmc/model/linear.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/fp8_matmul.h"

namespace {

QuantizedTensor with_memory(QuantizedTensor tensor, const OperandMemory& memory) {
  tensor.data = memory.data;
  tensor.scale_inv = memory.scale_inv;
  return tensor;
}

// The operand in memory; absent if the kernel that quantizes it computes it.
Tensor in_memory(const LinearInput& x) {
  const Tensor* tensor = std::get_if<Tensor>(&x.x);
  return tensor ? *tensor : Tensor();
}

std::vector<TensorParallel::Chunk> chunks_of(const Pass& pass) {
  if (pass.tensor_parallel) return pass.tensor_parallel->chunks(pass.N);
  return {{0, 0, pass.N, 0, pass.N}};
}

}  // namespace

float* wanted_amax(const Fp8Settings& settings, const Fp8ScaleRefs& scales, int layer, Projection projection,
                   Role role) {
  if (!settings.quantizes(layer, projection) || !settings.per_tensor_scale() || !scales.needs_amax()) return nullptr;
  return scales.amax + fp8_tensor_id(layer, projection, role);
}

// ---------------------------------------------------------------------------------------------- the three products

void Linear::forward(const Pass& pass, const Tensor& out, const LinearInput& x) const {
  const Operand a =
      (parallel(pass) == Parallel::column ? gathered(pass, Role::input, x) : local(pass, Role::input, x)).rowwise;
  multiply(pass, ProductKind::forward, out, a);
  if (parallel(pass) == Parallel::row) pass.tensor_parallel->await_scattered(pass.stream);
  if (!pass.recomputing) observe(pass, ProductKind::forward, out, a, weight_for(pass, ProductKind::forward), x);
}

void Linear::backward(const Pass& pass, const Tensor& dx, const LinearInput& dy, const Tensor& x) const {
  const bool gathers = parallel(pass) == Parallel::row;
  Operands g = gathers ? gathered(pass, Role::output_gradient, dy) : local(pass, Role::output_gradient, dy);
  multiply(pass, ProductKind::dgrad, dx, g.rowwise);
  if (gathers && shares_one_scale(pass))  // the bytes came by rows
    g.columnwise = transposed(pass, Role::output_gradient, g.rowwise.fp8, pass.fp8->columnwise);
  observe(pass, ProductKind::dgrad, dx, g.rowwise, weight_for(pass, ProductKind::dgrad), dy);
  const Operand a = input_for_wgrad(pass, x);
  projection_of(pass, ProductKind::wgrad, weight_.grad, g.columnwise, a);
  observe(pass, ProductKind::wgrad, weight_.grad, g.columnwise, a, dy);
  if (parallel(pass) == Parallel::column)
    pass.tensor_parallel->await_scattered(pass.stream);  // dx traveled beside wgrad
}

// Computes all rows of out = a Wᵀ or a W, chunk by chunk if rows of `a` are on their way to this rank, or if rows of
// `out` leave it. An operand with more than one scale is multiplied all at once, since its scale_inv cannot be cut by
// rows.
void Linear::multiply(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a) const {
  const bool forward = kind == ProductKind::forward;
  const bool arrives = parallel(pass) == (forward ? Parallel::column : Parallel::row) && a.can_be_cut();
  const bool leaves = parallel(pass) == (forward ? Parallel::row : Parallel::column);
  const Operand weight = weight_for(pass, kind);
  const Tensor all = leaves ? pass.sums.first({pass.tensor_parallel->padded(pass.N), out.columns()}) : out;
  if (leaves) pass.tensor_parallel->clear_padding(pass.stream, all, pass.N);
  for (const TensorParallel::Chunk& chunk : chunks_of(pass)) {
    if (arrives) pass.tensor_parallel->await_gathered(pass.stream, chunk.index);
    if (a.can_be_cut())
      projection_of(pass, kind, all.rows(chunk.first, chunk.count), a.rows(chunk.first, chunk.count), weight);
    else if (chunk.index == 0) projection_of(pass, kind, all.rows(0, pass.N), a, weight);
    if (leaves) pass.tensor_parallel->reduce_scatter(pass.stream, out, all, chunk);
  }
}

void Linear::projection_of(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a,
                           const Operand& b) const {
  const bool accumulate = kind == ProductKind::wgrad && pass.accumulate;
  if (a.high_precision) {
    if (kind == ProductKind::forward) pass.matmul.forward(out, a.high_precision, b.high_precision);
    else if (kind == ProductKind::dgrad) pass.matmul.dgrad(out, a.high_precision, b.high_precision);
    else pass.matmul.wgrad(out, a.high_precision, b.high_precision, accumulate);
    return;
  }
  const char* const names[] = {"fp8_forward", "fp8_dgrad", "fp8_wgrad"};
  fp8_matmul(pass.stream, pass.matmul, names[int(kind)], out, a.fp8, b.fp8, accumulate,
             pass.fp8->settings.fast(kind == ProductKind::forward), pass.fp8->padded);
}

Linear::Operand Linear::weight_for(const Pass& pass, ProductKind kind) const {
  if (!quantized(pass)) return {weight_.value, {}};
  return {{}, kind == ProductKind::forward ? fp8_.rowwise : fp8_.columnwise};
}

Linear::Operand Linear::Operand::rows(int first, int count) const {
  if (high_precision) return {high_precision.rows(first, count), {}};
  Operand part{{}, fp8};
  part.fp8.data += size_t(first) * size_t(fp8.stride());
  part.fp8.rows = count;
  return part;
}

// ---------------------------------------------------------------------------------------------- operands

// Returns the operands of x or dy if this rank has all of its rows.
Linear::Operands Linear::local(const Pass& pass, Role role, const LinearInput& x) const {
  if (!quantized(pass)) return {{in_memory(x), {}}, {in_memory(x), {}}};
  OperandMemory columnwise = saved_late_ && !pass.recomputing ? OperandMemory{} : saved_;
  if (role == Role::output_gradient) columnwise = wgrad_in_model_type(pass) ? OperandMemory{} : pass.fp8->columnwise;
  Operands made = quantize(pass, role, x, pass.fp8->rowwise, columnwise);
  if (wgrad_in_model_type(pass)) made.columnwise = {in_memory(x), {}};
  return made;
}

// Returns the operands of all ranks' rows, of which this rank has its own. If they can be cut, they are on their way,
// and multiply() awaits the chunks. With one scale, bytes travel. Otherwise rows travel in the model's type, and each
// rank quantizes all of them.
Linear::Operands Linear::gathered(const Pass& pass, Role role, const LinearInput& x) const {
  if (shares_one_scale(pass)) {
    const bool keep = role == Role::input && saved_.data && (!saved_late_ || pass.recomputing);
    const OperandMemory memory = keep ? saved_ : pass.fp8->rowwise;
    return {{{}, gather_bytes(pass, quantize(pass, role, x, memory, {}, true).rowwise.fp8)}, {}};
  }
  const Tensor all = pass.gathered.first({pass.tensor_parallel->padded(pass.N), width(pass, role)});
  pass.tensor_parallel->all_gather(pass.stream, all, in_memory(x), pass.N);
  const Tensor tokens = all.rows(0, pass.N);
  if (!quantized(pass)) return {{tokens, {}}, {tokens, {}}};
  pass.tensor_parallel->await_tokens(pass.stream, pass.N, 0, pass.N);
  const OperandMemory columnwise =
      role == Role::input || wgrad_in_model_type(pass) ? OperandMemory{} : pass.fp8->columnwise;
  Operands made = quantize(pass, role, {tokens}, pass.fp8->rowwise, columnwise);
  if (wgrad_in_model_type(pass)) made.columnwise = {tokens, {}};
  return made;
}

// Returns forward's input for the weight gradient: as it was saved, as prefetch_input() gathered it, or quantized from
// `x`.
Linear::Operand Linear::input_for_wgrad(const Pass& pass, const Tensor& x) const {
  Tensor tokens = x;
  if (parallel(pass) == Parallel::column) {
    pass.tensor_parallel->await_tokens(pass.stream, pass.N, 0, pass.N);
    const int IC = width(pass, Role::input);
    if (shares_one_scale(pass)) {
      QuantizedTensor bytes = with_memory(pass.fp8->settings.operand(Role::input, false, pass.N, IC), saved_);
      bytes.data = static_cast<uint8_t*>(pass.gathered.data);
      return transposed(pass, Role::input, bytes, pass.fp8->input_by_columns);
    }
    tokens = pass.gathered.first({pass.N, IC});
  }
  if (wgrad_in_model_type(pass)) return {tokens, {}};
  if (parallel(pass) != Parallel::column && saved_.data)
    return {{}, with_memory(pass.fp8->settings.operand(Role::input, true, pass.N, width(pass, Role::input)), saved_)};
  return quantize(pass, Role::input, {tokens}, {}, pass.fp8->input_by_columns).columnwise;
}

void Linear::save_input(const Pass& pass, const LinearInput& x) const {
  if (!quantized(pass) || !saved_.data) return;
  if (parallel(pass) == Parallel::column) quantize(pass, Role::input, x, saved_, {}, true);
  else quantize(pass, Role::input, x, {}, saved_);
}

void Linear::prefetch_input(const Pass& pass, const Tensor& x) const {
  if (parallel(pass) != Parallel::column) return;
  const int IC = width(pass, Role::input);
  if (shares_one_scale(pass))
    gather_bytes(pass, with_memory(pass.fp8->settings.operand(Role::input, false, pass.R, IC), saved_));
  else
    pass.tensor_parallel->all_gather(pass.stream, pass.gathered.first({pass.tensor_parallel->padded(pass.N), IC}), x,
                                     pass.N);
}

int Linear::width(const Pass& pass, Role role) const {
  const auto [OC, IC] = projection_shape(pass.config, projection_);
  return role == Role::input ? IC : OC;
}

// ---------------------------------------------------------------------------------------------- FP8

float* Linear::wanted_amax(const Pass& pass, Role role) const {
  if (!pass.fp8 || (role == Role::input && pass.recomputing)) return nullptr;
  return ::wanted_amax(pass.fp8->settings, pass.fp8->scales, layer_, projection_, role);
}

// Quantizes x or dy by rows, by columns, or both: as far as there is memory. `travels`: the tensor-parallel ranks
// gather the bytes, so they take the maximum of their amaxes and share the scale.
Linear::Operands Linear::quantize(const Pass& pass, Role role, const LinearInput& x, OperandMemory rowwise,
                                  OperandMemory columnwise, bool travels) const {
  const Fp8Pass& f = *pass.fp8;
  const int tensor_id = fp8_tensor_id(layer_, projection_, role);
  const auto [rows, columns] = shape_of(x.x);
  // True for an input that was quantized before: its amax is known, and history and statistics have been updated.
  const bool is_recompute = role == Role::input && (pass.recomputing || !rowwise.data);
  Quantization q;
  if (rowwise.data) q.rowwise = with_memory(f.settings.operand(role, false, rows, columns), rowwise);
  if (columnwise.data) q.columnwise = with_memory(f.settings.operand(role, true, rows, columns), columnwise);
  q.power_of_two = f.settings.power_of_two;
  q.amax = f.scales.amax + tensor_id;
  q.row_amax = f.row_amax, q.column_amax = f.column_amax;
  if (f.scales.scale) q.scale = f.scales.scale + tensor_id;
  q.may_lack_scale = f.scales.may_lack_scale;
  if (f.scales.amax_step && !is_recompute) q.amax_step = f.scales.amax_step + tensor_id;
  if (f.scales.statistics && !is_recompute) q.statistics = f.scales.statistics + tensor_id;
  q.not_finite = f.not_finite;
  q.number = nonfinite_code(tensor_id);
  if (q.needs_amax()) {
    const bool known = is_recompute ? f.settings.per_tensor_scale() : x.amax != nullptr;
    if (!known) quantize_amax(pass.stream, x.x, q);
    if (f.share_amax && !is_recompute) (*f.share_amax)(tensor_id);
    else if (travels && !is_recompute) pass.tensor_parallel->all_reduce_max(pass.stream, q.amax, 1);
  }
  ::quantize(pass.stream, x.x, q);
  return {{{}, q.rowwise}, {{}, q.columnwise}};
}

// Starts the gather of all ranks' rows and describes the result. Compute must await the chunks.
QuantizedTensor Linear::gather_bytes(const Pass& pass, const QuantizedTensor& own) const {
  QuantizedTensor all = own;
  all.rows = pass.N, all.data = static_cast<uint8_t*>(pass.gathered.data);
  const int there = pass.tensor_parallel->padded(pass.N), stride = own.stride();
  const Tensor bytes(all.data, {std::max(there, all.padded_rows()), stride});
  if (all.padded_rows() > there) clear(pass.stream, bytes.rows(there, all.padded_rows() - there));
  pass.tensor_parallel->all_gather(pass.stream, bytes.rows(0, there), Tensor(own.data, {pass.R, stride}), pass.N);
  return all;
}

Linear::Operand Linear::transposed(const Pass& pass, Role role, const QuantizedTensor& all,
                                   OperandMemory memory) const {
  const QuantizedTensor t = with_memory(pass.fp8->settings.operand(role, true, pass.N, width(pass, role)), memory);
  transpose_quantized(pass.stream, t, all);
  return {{}, t};
}

void Linear::observe(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a, const Operand& b,
                     const LinearInput& x) const {
  if (!quantized(pass) || !pass.fp8->observer) return;
  (*pass.fp8->observer)({layer_, projection_, kind, a.fp8, b.fp8, a.high_precision, b.high_precision, out,
                         kind == ProductKind::wgrad && pass.accumulate, pass.N, &x.x});
}
