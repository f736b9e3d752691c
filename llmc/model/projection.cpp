#include "llmc/model/projection.h"

#include "llmc/base/error.h"
#include "llmc/kernels/quantized_product.h"
#include "llmc/model/block.h"

namespace {

using Kind = ObservedProduct::Kind;

const BlockFp8* fp8_of(const BlockContext& context, Product product) {
  return context.fp8 && context.fp8->quantizes(product) ? context.fp8 : nullptr;
}

QuantizedTensor with_memory(QuantizedTensor tensor, const OperandMemory& memory) {
  tensor.data = memory.data;
  tensor.factors = memory.factors;
  return tensor;
}

// x (rows, columns) in the role, by rows into scratch and by columns into `kept`, if that is there. `again`: its traces
// are left already.
Quantization quantization(const BlockFp8& f, Product product, Role role, int rows, int columns,
                          const OperandMemory& kept, bool again) {
  const int number = fp8_number(f.layer, product, role);
  Quantization q;
  q.by_rows = with_memory(f.settings->operand(role, false, rows, columns), f.by_rows);
  if (kept.data) q.by_columns = with_memory(f.settings->operand(role, true, rows, columns), kept);
  q.power_of_two = f.settings->power_of_two;
  q.amax = f.words.amax + number;
  q.row_amax = f.row_amax, q.column_amax = f.column_amax;
  if (f.words.scale) q.scale = f.words.scale + number;
  if (f.words.seen && !again) q.seen = f.words.seen + number;
  if (f.words.statistics && !again) q.statistics = f.words.statistics + number;
  q.not_finite = f.not_finite;
  q.number = not_finite_word(number);
  return q;
}

void quantize_operand(const BlockContext& context, const BlockFp8& f, int number, const QuantizeSource& source,
                      int rows, int columns, const Quantization& q, bool has_amax) {
  if (q.needs_amax()) {
    if (!has_amax) quantize_amax(context.stream, source, rows, columns, q);
    if (f.agree && !f.again) (*f.agree)(number);
  }
  quantize(context.stream, source, rows, columns, q);
}

void observe(const BlockFp8& f, const ObservedProduct& product) {
  if (f.observer) (*f.observer)(product);
}

// The input by columns alone, whose amax forward has found.
QuantizedTensor quantize_by_columns(const BlockContext& context, const BlockFp8& f, Product product,
                                    const QuantizeSource& source, int N, int IC, const OperandMemory& memory) {
  Quantization q = quantization(f, product, Role::input, N, IC, memory, true);
  q.by_rows = {};
  if (q.needs_amax() && !f.settings->has_one_scale()) quantize_amax(context.stream, source, N, IC, q);
  quantize(context.stream, source, N, IC, q);
  return q.by_columns;
}

// Forward's input for the weight gradient: as it was kept, or quantized from `x`.
template <class T>
QuantizedTensor input_by_columns(const BlockContext& context, const BlockFp8& f, Product product, const T* x, int N,
                                 int IC) {
  const OperandMemory& kept = f.saved_inputs[int(product)];
  if (kept.data) return with_memory(f.settings->operand(Role::input, true, N, IC), kept);
  return quantize_by_columns(context, f, product, PlainSource{quantizable(x)}, N, IC, f.input_by_columns);
}

template <class T>
QuantizeSource source_of(const ProjectionOperand<T>& x) {
  return x.wide ? PlainSource{quantizable(x.wide)} : x.source;
}

// Qkv, gate and up take all tokens and leave this rank's columns; o and down take these, and leave sums.
bool gathers(Product product) { return product == Product::qkv || product == Product::gate_up; }

template <class T>
T* gather(const BlockContext& context, const T* own, int width) {
  T* all = static_cast<T*>(context.gathered);
  context.tensor->gather(context.stream, all, own, context.tokens(), width);
  return all;
}

// own (R, width) = this rank's rows of the sums over the ranks of what compute(first, count, to) leaves in `to` of
// tokens first .. first+count-1.
template <class T, class F>
void scatter(const BlockContext& context, T* own, int width, F&& compute) {
  TensorParallel& tensor = *context.tensor;
  const int N = context.tokens();
  T* partial = static_cast<T*>(context.partial);
  tensor.clear_padding(context.stream, partial, N, width);
  int i = 0;
  for (const TensorParallel::Chunk& chunk : tensor.chunks(N)) {
    compute(chunk.first, chunk.count, partial + size_t(chunk.first) * size_t(width));
    tensor.scatter(context.stream, own, partial, N, width, i++);
  }
  tensor.await_scattered(context.stream);
}

// Calls compute(first, count, from) for each chunk of what is gathered, when it has come.
template <class T, class F>
void for_gathered(const BlockContext& context, const T* all, int width, F&& compute) {
  int i = 0;
  for (const TensorParallel::Chunk& chunk : context.tensor->chunks(context.tokens())) {
    context.tensor->await_gathered(context.stream, i++);
    compute(chunk.first, chunk.count, all + size_t(chunk.first) * size_t(width));
  }
}

template <class T>
void project_in_parts(const BlockContext& context, Product product, T* out, const T* x, const T* weight) {
  const auto [OC, IC] = product_shape(context.config, product);
  if (gathers(product))
    for_gathered(context, gather(context, x, IC), IC, [&, OC = OC, IC = IC](int first, int count, const T* from) {
      context.matmul.forward(out + size_t(first) * size_t(OC), from, weight, count, OC, IC);
    });
  else
    scatter(context, out, OC, [&, OC = OC, IC = IC](int first, int count, T* to) {
      context.matmul.forward(to, x + size_t(first) * size_t(IC), weight, count, OC, IC);
    });
}

template <class T>
void project_backward_in_parts(const BlockContext& context, Product product, T* dx, float* dweight, const T* dy,
                               const T* weight, const T* x, bool accumulate) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.tokens();
  if (gathers(product)) {
    const T* all = gather(context, x, IC);  // for the weight's gradient, on its way during the input's
    scatter(context, dx, IC, [&, OC = OC, IC = IC](int first, int count, T* to) {
      context.matmul.dgrad(to, dy + size_t(first) * size_t(OC), weight, count, OC, IC);
    });
    for_gathered(context, all, IC, [](int, int, const T*) {});
    context.matmul.wgrad(dweight, dy, all, N, OC, IC, accumulate);
  } else {
    const T* all = gather(context, dy, OC);
    for_gathered(context, all, OC, [&, OC = OC, IC = IC](int first, int count, const T* from) {
      context.matmul.dgrad(dx + size_t(first) * size_t(IC), from, weight, count, OC, IC);
    });
    context.matmul.wgrad(dweight, all, x, N, OC, IC, accumulate);
  }
}

void require_fp8_is_bf16() { fail("FP8 products were asked for, and the model computes in fp32"); }

}  // namespace

bool wants_wide(const BlockContext& context, Product product) {
  const BlockFp8* f = fp8_of(context, product);
  return !f || f->settings->wide_wgrad();
}

float* wanted_amax(const Fp8Settings& settings, const ScaleWords& words, int layer, Product product, Role role) {
  if (!settings.quantizes(layer, product) || !settings.has_one_scale() || words.scale) return nullptr;
  return words.amax + fp8_number(layer, product, role);
}

float* input_amax(const BlockContext& context, Product product) {
  const BlockFp8* f = context.fp8;
  return f && !f->again ? wanted_amax(*f->settings, f->words, f->layer, product, Role::input) : nullptr;
}

float* output_gradient_amax(const BlockContext& context, int layer, Product product) {
  const BlockFp8* f = context.fp8;
  return f && layer >= 0 ? wanted_amax(*f->settings, f->words, layer, product, Role::output_gradient) : nullptr;
}

template <class T>
void quantize_input(const BlockContext& context, Product product, const ProjectionOperand<T>& x) {
  const BlockFp8* f = fp8_of(context, product);
  if (!f || !f->saved_inputs[int(product)].data) return;
  quantize_by_columns(context, *f, product, source_of(x), context.B * context.T,
                      product_shape(context.config, product).IC, f->saved_inputs[int(product)]);
}

template <class T>
void project(const BlockContext& context, Product product, T* out, const ProjectionOperand<T>& x, const T* weight) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.B * context.T;
  const BlockFp8* f = fp8_of(context, product);
  if (!f && context.tensor) return project_in_parts(context, product, out, x.wide, weight);
  if (!f) return context.matmul.forward(out, x.wide, weight, N, OC, IC);
  if constexpr (std::is_same_v<T, float>) return require_fp8_is_bf16();
  const QuantizeSource source = source_of(x);
  const Quantization q = quantization(*f, product, Role::input, N, IC, f->saved_inputs[int(product)], f->again);
  const bool has_amax = f->again ? f->settings->has_one_scale() : x.left_amax && input_amax(context, product);
  quantize_operand(context, *f, fp8_number(f->layer, product, Role::input), source, N, IC, q, has_amax);
  const QuantizedTensor& w = f->weights[int(product)].by_rows;
  quantized_product(context.stream, context.matmul, "fp8_forward", out, q.by_rows, w, false, f->settings->fast(true),
                    f->padded);
  if (!f->again)
    observe(*f, {f->layer, product, Kind::forward, q.by_rows, w, nullptr, nullptr, out, false, N, &source});
}

template <class T>
void project_backward(const BlockContext& context, Product product, T* dx, float* dweight,
                      const ProjectionOperand<T>& dy, const T* weight, const T* x, bool accumulate) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.B * context.T;
  Stream& stream = context.stream;
  Matmul& matmul = context.matmul;
  const BlockFp8* f = fp8_of(context, product);
  if (!f && context.tensor)
    return project_backward_in_parts(context, product, dx, dweight, dy.wide, weight, x, accumulate);
  if (!f) {
    matmul.dgrad(dx, dy.wide, weight, N, OC, IC);
    matmul.wgrad(dweight, dy.wide, x, N, OC, IC, accumulate);
    return;
  }
  if constexpr (std::is_same_v<T, float>) return require_fp8_is_bf16();
  const bool wide = f->settings->wide_wgrad();
  const QuantizeSource source = source_of(dy);
  const Quantization q =
      quantization(*f, product, Role::output_gradient, N, OC, wide ? OperandMemory{} : f->by_columns, false);
  quantize_operand(context, *f, fp8_number(f->layer, product, Role::output_gradient), source, N, OC, q,
                   dy.left_amax && output_gradient_amax(context, f->layer, product));
  const QuantizedTensor& w = f->weights[int(product)].by_columns;
  quantized_product(stream, matmul, "fp8_dgrad", dx, q.by_rows, w, false, f->settings->fast(false), f->padded);
  observe(*f, {f->layer, product, Kind::dgrad, q.by_rows, w, nullptr, nullptr, dx, false, N, &source});
  if (wide) {
    matmul.wgrad(dweight, dy.wide, x, N, OC, IC, accumulate);
    observe(*f, {f->layer,
                 product,
                 Kind::wgrad,
                 {},
                 {},
                 quantizable(dy.wide),
                 quantizable(x),
                 dweight,
                 accumulate,
                 N,
                 &source});
    return;
  }
  const QuantizedTensor saved = input_by_columns(context, *f, product, x, N, IC);
  quantized_product(stream, matmul, "fp8_wgrad", dweight, q.by_columns, saved, accumulate, f->settings->fast(false),
                    f->padded);
  observe(*f, {f->layer, product, Kind::wgrad, q.by_columns, saved, nullptr, nullptr, dweight, accumulate, N, &source});
}

#define INSTANTIATE(T)                                                                                            \
  template void quantize_input(const BlockContext&, Product, const ProjectionOperand<T>&);                        \
  template void project(const BlockContext&, Product, T*, const ProjectionOperand<T>&, const T*);                 \
  template void project_backward(const BlockContext&, Product, T*, float*, const ProjectionOperand<T>&, const T*, \
                                 const T*, bool);
INSTANTIATE(float)
INSTANTIATE(bf16)
