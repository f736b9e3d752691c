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
    compute(size_t(chunk.first), chunk.count);
  }
}
void await_gathered(const BlockContext& context, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  context.tensor->await_tokens(context.stream, context.tokens(), 0, context.tokens(), file, line);
}

// own (R, width) = this rank's rows of the sums over the ranks of the partial sums, which compute(first, count, to)
// writes to `to` for tokens first .. first+count-1. The sums are only started: compute must await them
// (await_scattered).
template <class T, class F>
void scatter(const BlockContext& context, T* own, int width, F&& compute) {
  TensorParallel& tensor = *context.tensor;
  const int N = context.tokens();
  tensor.with_sums<T>(context.partial, [&](auto* partial) {
    tensor.clear_padding(context.stream, partial, N, width);
    int i = 0;
    for (const Chunk& chunk : tensor.chunks(N)) {
      compute(size_t(chunk.first), chunk.count, partial + size_t(chunk.first) * size_t(width));
      tensor.scatter(context.stream, own, partial, N, width, i++);
    }
  });
}
void await_scattered(const BlockContext& context, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  context.tensor->await_scattered(context.stream, file, line);
}

// ---- bytes

QuantizedTensor rows_of(QuantizedTensor tensor, size_t first, int count) {
  tensor.data += first * size_t(tensor.stride());
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
  const ProductShape shape = product_shape(context.config, product);
  const size_t OC = size_t(shape.OC), IC = size_t(shape.IC);
  if (gathers_inputs(product)) {
    const T* all = gather(context, x, shape.IC);
    for_gathered(context, [&](size_t first, int count) {
      context.matmul.forward(out + first * OC, all + first * IC, weight, count, shape.OC, shape.IC);
    });
  } else {
    scatter(context, out, shape.OC, [&](size_t first, int count, auto* to) {
      context.matmul.forward(to, x + first * IC, weight, count, shape.OC, shape.IC);
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
  const ProductShape shape = product_shape(context.config, product);
  const size_t OC = size_t(shape.OC), IC = size_t(shape.IC);
  if (gathers_inputs(product)) {
    scatter(context, dx, shape.IC, [&](size_t first, int count, auto* to) {
      context.matmul.dgrad(to, dy + first * OC, weight, count, shape.OC, shape.IC);
    });
    await_gathered(context);
    context.matmul.wgrad(dweight, dy, static_cast<const T*>(context.gathered), context.tokens(), shape.OC, shape.IC,
                         accumulate);
    await_scattered(context);  // dx travels while the weight's gradient is computed
  } else {
    const T* all = gather(context, dy, shape.OC);
    for_gathered(context, [&](size_t first, int count) {
      context.matmul.dgrad(dx + first * IC, all + first * OC, weight, count, shape.OC, shape.IC);
    });
    context.matmul.wgrad(dweight, all, x, context.tokens(), shape.OC, shape.IC, accumulate);
  }
}

// ---------------------------------------------------------------------------------------------- in FP8

QuantizedTensor quantize_own_input(const BlockContext& context, const BlockFp8& f, Product product,
                                   const LinearInput<bf16>& x) {
  const int R = context.rows(), IC = product_shape(context.config, product).IC;
  const OperandMemory& kept = f.saved_inputs[int(product)];
  Quantization q = quantization(f, product, Role::input, R, IC, {}, f.again);
  if (kept.data) q.by_rows = with_memory(q.by_rows, kept);
  quantize_operand(context, f, fp8_tensor_id(f.layer, product, Role::input), source_of(x, R, IC), q,
                   f.again || (x.left_amax && input_amax(context, product)), true);
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

  template <class Out>
  void multiply(Out* out, const QuantizedTensor& rows) const {
    fp8_matmul(context.stream, context.matmul, name, out, rows, weight, false, fast, f.padded);
  }
  // out (N, width) = the product of the gathered rows, chunk by chunk.
  void of_gathered(bf16* out, int width, const QuantizedTensor& all) const {
    for_gathered(context,
                 [&](size_t first, int count) { multiply(out + first * size_t(width), rows_of(all, first, count)); });
  }
  // own (R, width) = this rank's rows of the sums of the ranks' products. The sums are only started.
  void scattered(bf16* own, int width, const QuantizedTensor& all) const {
    const bool in_chunks = all.scaling == Scaling::tensor;
    scatter(context, own, width, [&](size_t first, int count, auto* to) {
      if (in_chunks) multiply(to, rows_of(all, first, count));
      else if (first == 0) multiply(to, all);
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
  const Tensor all(gather(context, own, width), {N, width});
  await_gathered(context);
  const Quantization q = quantization(f, product, role, N, width, by_columns, f.again);
  quantize_operand(context, f, fp8_tensor_id(f.layer, product, role), all, q, false);
  return q;
}

}  // namespace

void project_fp8_in_parts(const BlockContext& context, const BlockFp8& f, Product product, bf16* out,
                          const LinearInput<bf16>& x) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.tokens();
  const QuantizedTensor& w = f.weights[int(product)].by_rows;
  const RowProducts products{context, f, "fp8_forward", w, f.settings->fast(true)};
  const QuantizeSource source = source_of(x, gathers_inputs(product) ? context.rows() : N, IC);
  QuantizedTensor all;
  if (gathers_inputs(product) && f.settings->per_tensor_scale()) {
    all = gather_bytes(context, quantize_own_input(context, f, product, x));
    products.of_gathered(out, OC, all);
  } else if (gathers_inputs(product)) {
    all = gather_and_quantize(context, f, product, Role::input, x.wide, IC, {}).by_rows;
    products.multiply(out, all);
  } else {
    const Quantization q = quantization(f, product, Role::input, N, IC, f.saved_inputs[int(product)], f.again);
    const bool has_amax = f.again ? f.settings->per_tensor_scale() : x.left_amax && input_amax(context, product);
    quantize_operand(context, f, fp8_tensor_id(f.layer, product, Role::input), source, q, has_amax);
    all = q.by_rows;
    products.scattered(out, OC, all);
    await_scattered(context);
  }
  if (!f.again) observe(f, {f.layer, product, Kind::forward, all, w, {}, {}, out, false, N, &source});
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
  const QuantizeSource source = source_of(dy, gathers_inputs(product) ? N : R, OC);
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
    quantize_operand(context, f, number, source, q, has_amax);
    all_dy = q.by_rows, dy_by_columns = q.by_columns;
    products.scattered(dx, IC, all_dy);
    await_gathered(context);
    if (one_scale) {
      x_by_columns = with_memory(f.settings->operand(Role::input, true, N, IC), f.input_by_columns);
      transpose_quantized(context.stream, x_by_columns, all_rows(context, kept_input(context, f, product)));
    } else if (!wide) {
      x_by_columns = quantize_by_columns(context, f, product, Tensor(wide_x, {N, IC}), f.input_by_columns);
    }
  } else if (one_scale) {
    q = quantization(f, product, Role::output_gradient, R, OC, {}, false);
    quantize_operand(context, f, number, source, q, has_amax, true);
    all_dy = gather_bytes(context, q.by_rows);
    products.of_gathered(dx, IC, all_dy);
    dy_by_columns = with_memory(f.settings->operand(Role::output_gradient, true, N, OC), f.by_columns);
    transpose_quantized(context.stream, dy_by_columns, all_dy);
  } else {
    q = gather_and_quantize(context, f, product, Role::output_gradient, dy.wide, OC, dy_memory);
    all_dy = q.by_rows, dy_by_columns = q.by_columns;
    wide_dy = static_cast<const bf16*>(context.gathered);
    products.multiply(dx, all_dy);
  }
  observe(f, {f.layer, product, Kind::dgrad, all_dy, products.weight, {}, {}, dx, false, N, &source});
  if (wide) {
    context.matmul.wgrad(dweight, wide_dy, wide_x, N, OC, IC, accumulate);
    observe(f, {f.layer,
                product,
                Kind::wgrad,
                {},
                {},
                Tensor(wide_dy, {N, OC}),
                Tensor(wide_x, {N, IC}),
                dweight,
                accumulate,
                N,
                &source});
    return await_input_gradient();
  }
  if (!gathers_inputs(product)) x_by_columns = input_by_columns(context, f, product, Tensor(x, {N, IC}));
  fp8_matmul(context.stream, context.matmul, "fp8_wgrad", dweight, dy_by_columns, x_by_columns, accumulate,
             f.settings->fast(false), f.padded);
  observe(f, {f.layer, product, Kind::wgrad, dy_by_columns, x_by_columns, {}, {}, dweight, accumulate, N, &source});
  await_input_gradient();
}

#define INSTANTIATE(T)                                                                  \
  template void project_in_parts(const BlockContext&, Product, T*, const T*, const T*); \
  template void gather_input_in_parts(const BlockContext&, Product, const T*);          \
  template void project_backward_in_parts(const BlockContext&, Product, T*, float*, const T*, const T*, const T*, bool);
INSTANTIATE(float)
INSTANTIATE(bf16)
