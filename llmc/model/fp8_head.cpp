#include "llmc/model/fp8_head.h"

#include <algorithm>

#include "llmc/kernels/fp8_matmul.h"

namespace {

QuantizedTensor operand(Fp8Format format, int rows, int columns, OperandMemory memory = {}) {
  return {memory.data, memory.scale_inv, rows, columns, format, Scaling::tensor};
}

// This struct has the bytes of each tensor of a chunk.
struct ChunkBytes {
  size_t x, dlogits_rowwise, dlogits_columnwise, padded;

  explicit ChunkBytes(const Fp8HeadSizes& s) {
    constexpr Fp8Format kAny = Fp8Format::e4m3;
    const QuantizedTensor rows = operand(kAny, s.chunk, s.C), columns = operand(kAny, s.C, s.chunk);
    const QuantizedTensor dlogits = operand(kAny, s.chunk, s.ld), dlogits_t = operand(kAny, s.ld, s.chunk);
    x = std::max(rows.bytes(), columns.bytes());
    dlogits_rowwise = s.training ? dlogits.bytes() : 0, dlogits_columnwise = s.training ? dlogits_t.bytes() : 0;
    padded = s.training ? std::max(fp8_matmul_scratch(dlogits, operand(kAny, s.C, s.ld), s.sum_bytes),
                                   fp8_matmul_scratch(operand(kAny, s.V, s.chunk), columns, sizeof(float)))
                        : 0;
  }
};

}  // namespace

size_t Fp8Head::chunk_bytes(const Fp8HeadSizes& sizes) {
  const ChunkBytes bytes(sizes);
  size_t sum = 0;
  for (const size_t part : {bytes.x, bytes.dlogits_rowwise, bytes.dlogits_columnwise, bytes.padded})
    sum += MemoryPlan::aligned(part);
  return sum;
}

Fp8Head::Fp8Head(MemoryPlan& plan, const Fp8Settings& settings, const Fp8HeadSizes& sizes, int first_id,
                 const PlannedTensor& room, size_t offset)
    : settings_(settings), sizes_(sizes), first_id_(first_id) {
  const auto factor = [&](const std::string& name) {
    return plan.add(Segment::device, "FP8 weights", name + ", factor", DType::fp32, {1});
  };
  const auto add_weight = [&](PlannedOperand& planned, const char* name, int rows, int columns) {
    const size_t bytes = operand(Fp8Format::e4m3, rows, columns).bytes();
    planned = {plan.add(Segment::device, "FP8 weights", name, DType::uint8, {bytes}), factor(name)};
  };
  if (computes_forward()) add_weight(weight_rowwise_, "head by rows", sizes.ld, sizes.C);
  if (sizes.training) add_weight(weight_columnwise_, "head by columns", sizes.C, sizes.ld);
  const ChunkBytes bytes(sizes);
  const auto add_to_chunk = [&](const char* name, size_t count) -> PlannedTensor {
    if (!count) return {};
    const size_t at = offset;
    offset += MemoryPlan::aligned(count);
    return plan.add_within(room, at, name, DType::uint8, {count});
  };
  x_ = {add_to_chunk("FP8 head input", bytes.x), factor("head input")};
  if (sizes.training) {
    dlogits_rowwise_ = {add_to_chunk("FP8 logit gradients by rows", bytes.dlogits_rowwise), factor("logit gradients")};
    dlogits_columnwise_ = {add_to_chunk("FP8 logit gradients by columns", bytes.dlogits_columnwise),
                           factor("logit gradients by columns")};
    padded_ = add_to_chunk("FP8 head products with their padding", bytes.padded);
    scale_ = plan.add(Segment::device, "FP8 weights", "scale of logit gradients", DType::fp32, {1});
  }
  amax_ = plan.add(Segment::device, "FP8 weights", "largest numbers of the head", DType::fp32, {2});
}

QuantizedTensor Fp8Head::x(int count, bool columnwise) const {
  return columnwise ? operand(Fp8Format::e4m3, sizes_.C, count, x_.memory())
                    : operand(Fp8Format::e4m3, count, sizes_.C, x_.memory());
}

QuantizedTensor Fp8Head::dlogits(int count, bool columnwise) const {
  return columnwise ? operand(Fp8Format::e5m2, sizes_.ld, count, dlogits_columnwise_.memory())
                    : operand(Fp8Format::e5m2, count, sizes_.ld, dlogits_rowwise_.memory());
}

// Rows V .. ld-1 of the weight are 0. The operand is absent if no product of the run takes it.
QuantizedTensor Fp8Head::weight(bool columnwise) const {
  if (columnwise) return operand(Fp8Format::e4m3, sizes_.C, sizes_.ld, weight_columnwise_.memory());
  return operand(Fp8Format::e4m3, sizes_.ld, sizes_.C, weight_rowwise_.memory());
}

// x and the weight take their scale from their amax.
Quantization Fp8Head::quantization(Role role, const QuantizedTensor& rowwise, const QuantizedTensor& columnwise) const {
  Quantization q;
  q.rowwise = rowwise, q.columnwise = columnwise;
  q.power_of_two = settings_.of_head().power_of_two;
  if (role == Role::output_gradient) q.scale = scale_->as<float>();
  else q.amax = amax_->as<float>() + int(role);
  q.not_finite = not_finite_;
  q.nonfinite_code = nonfinite_code(first_id_ + int(role), role);
  return q;
}

void Fp8Head::find_amax(const Pass& pass, const Tensor& source, const Quantization& q) const {
  clear(pass.stream, q.amax, 1);
  quantize_amax(pass.stream, source, q);
}

void Fp8Head::quantize_weight(const Pass& pass, const Tensor& weight) const {
  if (pass.past) return;
  const Quantization q =
      quantization(Role::weight, this->weight(false), pass.training ? this->weight(true) : QuantizedTensor());
  find_amax(pass, weight, q);
  quantize(pass.stream, weight, q);
}

void Fp8Head::find_input_amax(const Pass& pass, const Tensor& x) const {
  find_amax(pass, x, quantization(Role::input, this->x(int(x.rows()), false), {}));
}

void Fp8Head::forward(const Pass& pass, const Tensor& logits, const Tensor& x) const {
  const QuantizedTensor rowwise = this->x(int(x.rows()), false);
  quantize(pass.stream, x, quantization(Role::input, rowwise, {}));
  multiply(pass, "fp8_forward", logits, rowwise, weight(false), false, true);
}

void Fp8Head::begin_backward(const Pass& pass, const Tensor& dlogits, const StepState* state) const {
  const int count = int(dlogits.rows());
  logit_gradient_scale(pass.stream, scale_->as<float>(), state, Fp8Format::e5m2);
  quantize(pass.stream, dlogits,
           quantization(Role::output_gradient, this->dlogits(count, false), this->dlogits(count, true)));
}

void Fp8Head::dgrad(const Pass& pass, const Tensor& dx) const {
  multiply(pass, "fp8_dgrad", dx, dlogits(int(dx.rows()), false), weight(true), false, false);
}

void Fp8Head::wgrad(const Pass& pass, const Tensor& dweight, const Tensor& x, bool accumulate) const {
  const int count = int(x.rows());
  const QuantizedTensor columnwise = this->x(count, true);
  quantize(pass.stream, x, quantization(Role::input, {}, columnwise));
  QuantizedTensor dlogits_t = dlogits(count, true);
  dlogits_t.rows = sizes_.V;
  multiply(pass, "fp8_wgrad", dweight, dlogits_t, columnwise, accumulate, false);
}

void Fp8Head::multiply(const Pass& pass, const char* name, const Tensor& out, const QuantizedTensor& a,
                       const QuantizedTensor& b, bool accumulate, bool forward) const {
  fp8_matmul(pass.stream, pass.matmul, name, out, a, b, accumulate, settings_.of_head().fast_accumulation(forward),
             static_cast<std::byte*>(padded_->data));
}
