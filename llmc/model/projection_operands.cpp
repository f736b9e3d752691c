#include "llmc/model/projection_operands.h"

Quantization quantization(const BlockFp8& f, Product product, Role role, int rows, int columns,
                          const OperandMemory& kept, bool again) {
  const int number = fp8_tensor_id(f.layer, product, role);
  Quantization q;
  q.by_rows = with_memory(f.settings->operand(role, false, rows, columns), f.by_rows);
  if (kept.data) q.by_columns = with_memory(f.settings->operand(role, true, rows, columns), kept);
  q.power_of_two = f.settings->power_of_two;
  q.amax = f.words.amax + number;
  q.row_amax = f.row_amax, q.column_amax = f.column_amax;
  if (f.words.scale) q.scale = f.words.scale + number;
  q.may_lack_scale = f.words.may_lack_scale;
  if (f.words.seen && !again) q.seen = f.words.seen + number;
  if (f.words.statistics && !again) q.statistics = f.words.statistics + number;
  q.not_finite = f.not_finite;
  q.number = nonfinite_code(number);
  return q;
}

void quantize_operand(const BlockContext& context, const BlockFp8& f, int number, const QuantizeSource& source,
                      const Quantization& q, bool has_amax, bool travels) {
  if (q.needs_amax()) {
    if (!has_amax) quantize_amax(context.stream, source, q);
    if (f.share_amax && !f.again) (*f.share_amax)(number);
    else if (travels && !f.again) context.tensor->all_reduce_max(context.stream, q.amax, 1);
  }
  quantize(context.stream, source, q);
}

QuantizedTensor quantize_by_columns(const BlockContext& context, const BlockFp8& f, Product product,
                                    const QuantizeSource& source, const OperandMemory& memory) {
  const auto [N, IC] = shape_of(source);
  Quantization q = quantization(f, product, Role::input, N, IC, memory, true);
  q.by_rows = {};
  if (q.needs_amax() && !f.settings->per_tensor_scale()) quantize_amax(context.stream, source, q);
  quantize(context.stream, source, q);
  return q.by_columns;
}

QuantizedTensor input_by_columns(const BlockContext& context, const BlockFp8& f, Product product, const Tensor& x) {
  const OperandMemory& kept = f.saved_inputs[int(product)];
  if (!kept.data) return quantize_by_columns(context, f, product, x, f.input_by_columns);
  return with_memory(f.settings->operand(Role::input, true, int(x.rows()), int(x.columns())), kept);
}
