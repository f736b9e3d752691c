#include "llmc/model/tensor_projection.h"

#include "llmc/device/number.h"
#include "llmc/kernels/fp8_matmul.h"
#include "llmc/model/projection_operands.h"

namespace {

using Kind = ObservedProduct::Kind;
using Chunk = TensorParallel::Chunk;

template <class T>
T* gather(const BlockContext& context, const T* own, int width) {
  T* all = static_cast<T*>(context.gathered);
  context.tensor->gather(context.stream, all, own, context.tokens(), width);
  return all;
}

// Waits for each chunk of the gathered rows, and calls compute(first, count) for it.
template <class F>
void for_gathered(const BlockContext& context, F&& compute) {
  int i = 0;
  for (const Chunk& chunk : context.tensor->chunks(context.tokens())) {
    context.tensor->await_gathered(context.stream, i++);
    compute(chunk.first, chunk.count);
  }
}
void await_gathered(const BlockContext& context, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  context.tensor->await_tokens(context.stream, context.tokens(), 0, context.tokens(), file, line);
}

// own (R, width) = this rank's rows of the sums over the ranks of the partial sums (N, width), which
// compute(first, count, sums) writes for tokens first .. first+count-1. The sums are only started: compute must await
// them (await_scattered).
template <class T, class F>
void scatter(const BlockContext& context, T* own, int width, F&& compute) {
  TensorParallel& tensor = *context.tensor;
  const int N = context.tokens();
  tensor.with_sums<T>(context.partial, [&](auto* partial) {
    tensor.clear_padding(context.stream, partial, N, width);
    int i = 0;
    for (const Chunk& chunk : tensor.chunks(N)) {
      compute(chunk.first, chunk.count, Tensor(partial, {N, width}));
      tensor.scatter(context.stream, own, partial, N, width, i++);
    }
  });
}
void await_scattered(const BlockContext& context, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  context.tensor->await_scattered(context.stream, file, line);
}

// ---- bytes

QuantizedTensor rows_of(QuantizedTensor tensor, int first, int count) {
  tensor.data += size_t(first) * size_t(tensor.stride());
  tensor.rows = count;
  return tensor;
}

// Describes the gathered matrix of all ranks' rows. `own` describes this rank's rows of it.
QuantizedTensor all_rows(const BlockContext& context, const QuantizedTensor& own) {
  QuantizedTensor all = own;
  all.rows = context.tokens(), all.data = static_cast<uint8_t*>(context.gathered);
  return all;
}

// Starts the gather of all ranks' rows and describes the result. Compute must await the chunks.
QuantizedTensor gather_bytes(const BlockContext& context, const QuantizedTensor& own) {
  const int N = context.tokens(), stride = own.stride();
  const QuantizedTensor all = all_rows(context, own);
  const size_t there = size_t(context.tensor->padded(N)), wanted = size_t(all.padded_rows());
  if (wanted > there)
    fill_bytes(context.stream, reinterpret_cast<std::byte*>(all.data) + there * size_t(stride), 0,
               (wanted - there) * size_t(stride));
  context.tensor->gather(context.stream, all.data, own.data, N, stride);
  return all;
}

}  // namespace

// ---------------------------------------------------------------------------------------------- in T

template <class T>
void project_in_parts(const BlockContext& context, Product product, T* out, const T* x, const T* weight) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.tokens();
  const Tensor w(weight, {OC, IC});
  if (gathers_inputs(product)) {
    const Tensor all(gather(context, x, IC), {N, IC}), y(out, {N, OC});
    for_gathered(context, [&](int first, int count) {
      context.matmul.forward(y.rows(first, count), all.rows(first, count), w);
    });
  } else {
    const Tensor inputs(x, {N, IC});
    scatter(context, out, OC, [&](int first, int count, const Tensor& sums) {
      context.matmul.forward(sums.rows(first, count), inputs.rows(first, count), w);
    });
    await_scattered(context);
  }
}

template <class T>
void gather_input_in_parts(const BlockContext& context, Product product, const T* x) {
  gather(context, x, product_shape(context.config, product).IC);
}

template <class T>
void project_backward_in_parts(const BlockContext& context, Product product, T* dx, float* dweight, const T* dy,
                               const T* weight, const T* x, bool accumulate) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.tokens();
  const Tensor w(weight, {OC, IC}), dw(dweight, {OC, IC});
  if (gathers_inputs(product)) {
    const Tensor gradients(dy, {N, OC});
    scatter(context, dx, IC, [&](int first, int count, const Tensor& sums) {
      context.matmul.dgrad(sums.rows(first, count), gradients.rows(first, count), w);
    });
    await_gathered(context);
    context.matmul.wgrad(dw, gradients, Tensor(static_cast<const T*>(context.gathered), {N, IC}), accumulate);
    await_scattered(context);  // dx travels while the weight's gradient is computed
  } else {
    const Tensor all(gather(context, dy, OC), {N, OC}), result(dx, {N, IC});
    for_gathered(context, [&](int first, int count) {
      context.matmul.dgrad(result.rows(first, count), all.rows(first, count), w);
    });
    context.matmul.wgrad(dw, all, Tensor(x, {N, IC}), accumulate);
  }
}

// ---------------------------------------------------------------------------------------------- in FP8

QuantizedTensor quantize_own_input(const BlockContext& context, const BlockFp8& f, Product product,
                                   const LinearInput<bf16>& x) {
  const int R = context.rows(), IC = product_shape(context.config, product).IC;
  const OperandMemory& kept = f.saved_inputs[int(product)];
  Quantization q = quantization(f, product, Role::input, R, IC, {}, f.again);
  if (kept.data) q.by_rows = with_memory(q.by_rows, kept);
  quantize_operand(context, f, fp8_tensor_id(f.layer, product, Role::input), x.wide ? PlainSource{x.wide} : x.source, R,
                   IC, q, f.again || (x.left_amax && input_amax(context, product)), true);
  return q.by_rows;
}

namespace {

// Products of some rows of an operand with the whole weight. If the operand has more than one scale, its rows are
// multiplied all at once, since its factors cannot be cut by rows.
struct RowProducts {
  const BlockContext& context;
  const BlockFp8& f;
  const char* name;
  const QuantizedTensor& weight;
  bool fast;

  void multiply(const Tensor& out, const QuantizedTensor& rows) const {
    fp8_matmul(context.stream, context.matmul, name, out, rows, weight, false, fast, f.padded);
  }
  // out (N, width) = the product of the gathered rows, chunk by chunk.
  void of_gathered(const Tensor& out, const QuantizedTensor& all) const {
    for_gathered(context, [&](int first, int count) { multiply(out.rows(first, count), rows_of(all, first, count)); });
  }
  // own (R, width) = this rank's rows of the sums of the ranks' products. The sums are only started.
  void scattered(bf16* own, int width, const QuantizedTensor& all) const {
    const bool in_chunks = all.scaling == Scaling::tensor;
    scatter(context, own, width, [&](int first, int count, const Tensor& sums) {
      if (in_chunks) multiply(sums.rows(first, count), rows_of(all, first, count));
      else if (first == 0) multiply(sums, all);
    });
  }
};

// Describes the input that quantize_own_input() kept.
QuantizedTensor kept_input(const BlockContext& context, const BlockFp8& f, Product product) {
  const int IC = product_shape(context.config, product).IC;
  return with_memory(f.settings->operand(Role::input, false, context.rows(), IC), f.saved_inputs[int(product)]);
}

// Gathers all ranks' rows of `own` in bf16 and quantizes all of them.
Quantization gather_and_quantize(const BlockContext& context, const BlockFp8& f, Product product, Role role,
                                 const bf16* own, int width, const OperandMemory& by_columns) {
  const int N = context.tokens();
  const PlainSource all{gather(context, own, width)};
  await_gathered(context);
  const Quantization q = quantization(f, product, role, N, width, by_columns, f.again);
  quantize_operand(context, f, fp8_tensor_id(f.layer, product, role), all, N, width, q, false);
  return q;
}

}  // namespace

void project_fp8_in_parts(const BlockContext& context, const BlockFp8& f, Product product, bf16* out,
                          const LinearInput<bf16>& x) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.tokens();
  const QuantizedTensor& w = f.weights[int(product)].by_rows;
  const RowProducts products{context, f, "fp8_forward", w, f.settings->fast(true)};
  const QuantizeSource source = source_of(x);
  QuantizedTensor all;
  if (gathers_inputs(product) && f.settings->per_tensor_scale()) {
    all = gather_bytes(context, quantize_own_input(context, f, product, x));
    products.of_gathered(Tensor(out, {N, OC}), all);
  } else if (gathers_inputs(product)) {
    all = gather_and_quantize(context, f, product, Role::input, x.wide, IC, {}).by_rows;
    products.multiply(Tensor(out, {N, OC}), all);
  } else {
    const Quantization q = quantization(f, product, Role::input, N, IC, f.saved_inputs[int(product)], f.again);
    const bool has_amax = f.again ? f.settings->per_tensor_scale() : x.left_amax && input_amax(context, product);
    quantize_operand(context, f, fp8_tensor_id(f.layer, product, Role::input), source, N, IC, q, has_amax);
    all = q.by_rows;
    products.scattered(out, OC, all);
    await_scattered(context);
  }
  if (!f.again) observe(f, {f.layer, product, Kind::forward, all, w, nullptr, nullptr, out, false, N, &source});
}

void gather_fp8_input_in_parts(const BlockContext& context, const BlockFp8& f, Product product, const bf16* x) {
  if (f.settings->per_tensor_scale()) gather_bytes(context, kept_input(context, f, product));
  else gather(context, x, product_shape(context.config, product).IC);
}

void project_fp8_backward_in_parts(const BlockContext& context, const BlockFp8& f, Product product, bf16* dx,
                                   float* dweight, const LinearInput<bf16>& dy, const bf16* x, bool accumulate) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.tokens(), R = context.rows(), number = fp8_tensor_id(f.layer, product, Role::output_gradient);
  const bool one_scale = f.settings->per_tensor_scale(), wide = f.settings->bf16_wgrad();
  const bool has_amax = dy.left_amax && output_gradient_amax(context, f.layer, product);
  const RowProducts products{context, f, "fp8_dgrad", f.weights[int(product)].by_columns, f.settings->fast(false)};
  const QuantizeSource source = source_of(dy);
  const OperandMemory dy_memory = wide ? OperandMemory{} : f.by_columns;
  // Called last, since the input gradient travels while the weight's gradient is computed.
  const auto await_input_gradient = [&] {
    if (gathers_inputs(product)) await_scattered(context);
  };
  Quantization q;
  QuantizedTensor all_dy, dy_by_columns, x_by_columns;
  const bf16 *wide_dy = dy.wide, *wide_x = x;
  if (gathers_inputs(product)) {
    wide_x = static_cast<const bf16*>(context.gathered);
    q = quantization(f, product, Role::output_gradient, N, OC, dy_memory, false);
    quantize_operand(context, f, number, source, N, OC, q, has_amax);
    all_dy = q.by_rows, dy_by_columns = q.by_columns;
    products.scattered(dx, IC, all_dy);
    await_gathered(context);
    if (one_scale) {
      x_by_columns = with_memory(f.settings->operand(Role::input, true, N, IC), f.input_by_columns);
      transpose_quantized(context.stream, x_by_columns, all_rows(context, kept_input(context, f, product)));
    } else if (!wide) {
      x_by_columns = quantize_by_columns(context, f, product, PlainSource{wide_x}, N, IC, f.input_by_columns);
    }
  } else if (one_scale) {
    q = quantization(f, product, Role::output_gradient, R, OC, {}, false);
    quantize_operand(context, f, number, source, R, OC, q, has_amax, true);
    all_dy = gather_bytes(context, q.by_rows);
    products.of_gathered(Tensor(dx, {N, IC}), all_dy);
    dy_by_columns = with_memory(f.settings->operand(Role::output_gradient, true, N, OC), f.by_columns);
    transpose_quantized(context.stream, dy_by_columns, all_dy);
  } else {
    q = gather_and_quantize(context, f, product, Role::output_gradient, dy.wide, OC, dy_memory);
    all_dy = q.by_rows, dy_by_columns = q.by_columns;
    wide_dy = static_cast<const bf16*>(context.gathered);
    products.multiply(Tensor(dx, {N, IC}), all_dy);
  }
  observe(f, {f.layer, product, Kind::dgrad, all_dy, products.weight, nullptr, nullptr, dx, false, N, &source});
  if (wide) {
    context.matmul.wgrad(Tensor(dweight, {OC, IC}), Tensor(wide_dy, {N, OC}), Tensor(wide_x, {N, IC}), accumulate);
    observe(f, {f.layer, product, Kind::wgrad, {}, {}, wide_dy, wide_x, dweight, accumulate, N, &source});
    return await_input_gradient();
  }
  if (!gathers_inputs(product)) x_by_columns = input_by_columns(context, f, product, x, N, IC);
  fp8_matmul(context.stream, context.matmul, "fp8_wgrad", Tensor(dweight, {OC, IC}), dy_by_columns, x_by_columns,
             accumulate, f.settings->fast(false), f.padded);
  observe(f, {f.layer, product, Kind::wgrad, dy_by_columns, x_by_columns, nullptr, nullptr, dweight, accumulate, N,
              &source});
  await_input_gradient();
}

#define INSTANTIATE(T)                                                                  \
  template void project_in_parts(const BlockContext&, Product, T*, const T*, const T*); \
  template void gather_input_in_parts(const BlockContext&, Product, const T*);          \
  template void project_backward_in_parts(const BlockContext&, Product, T*, float*, const T*, const T*, const T*, bool);
INSTANTIATE(float)
INSTANTIATE(bf16)
