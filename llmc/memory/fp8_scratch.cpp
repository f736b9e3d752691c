#include "llmc/memory/fp8_scratch.h"

#include <algorithm>

#include "llmc/kernels/fp8_matmul.h"

namespace {

// The largest size that any product needs of each buffer.
struct Sizes {
  size_t rowwise = 0, columnwise = 0, row_scale_inv = 0, column_scale_inv = 0, columns = 0, padded = 0;
};

// `bytes`: of one element of the output. Forward may have fewer rows than N, in sampling and in evaluation on
// questions.
void add_forward(Sizes& sizes, const Fp8Settings& settings, const LayerProjection& p, int N, size_t bytes) {
  const QuantizedTensor x = settings.operand(Role::input, false, N, p.IC);
  const QuantizedTensor w = settings.operand(Role::weight, false, p.OC, p.IC);
  sizes.rowwise = std::max(sizes.rowwise, x.bytes());
  sizes.row_scale_inv = std::max(sizes.row_scale_inv, x.scale_inv_count());
  sizes.columns = std::max(sizes.columns, size_t(p.IC));
  sizes.padded = std::max(sizes.padded, fp8_matmul_most_scratch(x, w, bytes));
}

void add_backward(Sizes& sizes, const Fp8Settings& settings, const LayerProjection& p, int N, size_t bytes) {
  const QuantizedTensor dy = settings.operand(Role::output_gradient, false, N, p.OC);
  const QuantizedTensor w = settings.operand(Role::weight, true, p.OC, p.IC);
  sizes.rowwise = std::max(sizes.rowwise, dy.bytes());
  sizes.row_scale_inv = std::max(sizes.row_scale_inv, dy.scale_inv_count());
  sizes.padded = std::max(sizes.padded, fp8_matmul_scratch(dy, w, bytes));
  if (settings.bf16_wgrad()) return;
  const QuantizedTensor dy_t = settings.operand(Role::output_gradient, true, N, p.OC);
  const QuantizedTensor x_t = settings.operand(Role::input, true, N, p.IC);
  sizes.columnwise = std::max(sizes.columnwise, dy_t.bytes());
  sizes.column_scale_inv = std::max(sizes.column_scale_inv, dy_t.scale_inv_count());
  sizes.columns = std::max(sizes.columns, size_t(p.OC));
  sizes.padded = std::max(sizes.padded, fp8_matmul_scratch(dy_t, x_t, sizeof(float)));
}

}  // namespace

Fp8Scratch::Fp8Scratch(MemoryPlan& plan, const Fp8Settings& settings, const LayerProjections& projections, int tokens,
                       bool backward, std::optional<DType> partial_sums) {
  const size_t sum = bytes_of(partial_sums.value_or(DType::bf16));
  Sizes sizes;
  // Inputs that are saved in the model's type are quantized columnwise for the weight gradient. With tensor
  // parallelism, inputs that are gathered are transposed or quantized columnwise, too.
  int width = 0;
  bool any_turned = partial_sums.has_value();
  for (const LayerProjection& p : projections.all()) {
    const bool column = p.row().parallel == Parallel::column, saved = p.row().saved_input;
    if (!saved || (partial_sums && column)) width = std::max(width, p.IC);
    if (!settings.quantizes(p)) continue;
    any_turned = any_turned || !saved;
    add_forward(sizes, settings, p, tokens, column ? sizeof(bf16) : sum);
    if (backward) add_backward(sizes, settings, p, tokens, column ? sum : sizeof(bf16));
  }
  const bool keeps_inputs = backward && !settings.bf16_wgrad();
  const QuantizedTensor input = settings.operand(Role::input, true, tokens, width);
  const auto add = [&](PlannedTensor& planned, const char* name, DType type, size_t count) {
    if (count) planned = plan.add(Segment::device, "scratch", name, type, {count});
  };
  const bool needs_input = keeps_inputs && any_turned;
  // Tensor-parallel ranks gather rows from here, and NCCL wants both ends in windows (Transformer::rows_segment).
  if (sizes.rowwise)
    rowwise_.data = plan.add(partial_sums ? Segment::symmetric : Segment::device, "scratch", "FP8 operand by rows",
                             DType::uint8, {sizes.rowwise});
  add(rowwise_.scale_inv, "FP8 operand by rows, factors", DType::fp32, sizes.row_scale_inv);
  add(columnwise_.data, "FP8 operand by columns", DType::uint8, sizes.columnwise);
  add(columnwise_.scale_inv, "FP8 operand by columns, factors", DType::fp32, sizes.column_scale_inv);
  add(input_.data, "FP8 input by columns", DType::uint8, needs_input ? input.bytes() : 0);
  add(input_.scale_inv, "FP8 input by columns, factors", DType::fp32, needs_input ? input.scale_inv_count() : 0);
  const bool rows_have_scales = settings.recipe == Fp8Recipe::rowwise || settings.recipe == Fp8Recipe::rowwise_hp_wgrad;
  add(row_amax_, "largest numbers of rows", DType::fp32, rows_have_scales ? size_t(tokens) : 0);
  add(column_amax_, "largest numbers of columns", DType::fp32, rows_have_scales && keeps_inputs ? sizes.columns : 0);
  add(padded_, "FP8 products with their padding", DType::fp32, (sizes.padded + sizeof(float) - 1) / sizeof(float));
}

Fp8ScratchTensors Fp8Scratch::tensors() const {
  return {rowwise_.memory(), columnwise_.memory(), input_.memory(),
          row_amax_,         column_amax_,         static_cast<std::byte*>(padded_->data)};
}
