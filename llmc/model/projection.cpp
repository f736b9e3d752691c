#include "llmc/model/projection.h"

#include "llmc/base/error.h"
#include "llmc/kernels/fp8_matmul.h"
#include "llmc/model/block.h"
#include "llmc/model/projection_operands.h"
#include "llmc/model/tensor_projection.h"

namespace {

using Kind = ObservedProduct::Kind;

void require_fp8_is_bf16() { fail("FP8 products were asked for, and the model computes in fp32"); }

}  // namespace

bool wants_wide(const BlockContext& context, Product product) {
  const BlockFp8* f = fp8_of(context, product);
  return !f || f->settings->bf16_wgrad();
}

float* wanted_amax(const Fp8Settings& settings, const Fp8ScaleRefs& words, int layer, Product product, Role role) {
  if (!settings.quantizes(layer, product) || !settings.per_tensor_scale() || !words.needs_amax()) return nullptr;
  return words.amax + fp8_tensor_id(layer, product, role);
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
void quantize_input(const BlockContext& context, Product product, const LinearInput<T>& x) {
  const BlockFp8* f = fp8_of(context, product);
  if (!f || !f->saved_inputs[int(product)].data) return;
  if constexpr (!std::is_same_v<T, float>)
    if (context.tensor && gathers_inputs(product)) return void(quantize_own_input(context, *f, product, x));
  quantize_by_columns(context, *f, product, source_of(x), context.B * context.T,
                      product_shape(context.config, product).IC, f->saved_inputs[int(product)]);
}

template <class T>
void project(const BlockContext& context, Product product, T* out, const LinearInput<T>& x, const T* weight) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.B * context.T;
  const BlockFp8* f = fp8_of(context, product);
  if (!f && context.tensor) return project_in_parts(context, product, out, x.wide, weight);
  if (!f) return context.matmul.forward(Tensor(out, {N, OC}), Tensor(x.wide, {N, IC}), Tensor(weight, {OC, IC}));
  if constexpr (std::is_same_v<T, float>) return require_fp8_is_bf16();
  else if (context.tensor) return project_fp8_in_parts(context, *f, product, out, x);
  const QuantizeSource source = source_of(x);
  const Quantization q = quantization(*f, product, Role::input, N, IC, f->saved_inputs[int(product)], f->again);
  const bool has_amax = f->again ? f->settings->per_tensor_scale() : x.left_amax && input_amax(context, product);
  quantize_operand(context, *f, fp8_tensor_id(f->layer, product, Role::input), source, N, IC, q, has_amax);
  const QuantizedTensor& w = f->weights[int(product)].by_rows;
  fp8_matmul(context.stream, context.matmul, "fp8_forward", Tensor(out, {N, OC}), q.by_rows, w, false,
             f->settings->fast(true), f->padded);
  if (!f->again)
    observe(*f, {f->layer, product, Kind::forward, q.by_rows, w, nullptr, nullptr, out, false, N, &source});
}

template <class T>
void gather_input(const BlockContext& context, Product product, const T* x) {
  if (!context.tensor) return;
  const BlockFp8* f = fp8_of(context, product);
  if constexpr (!std::is_same_v<T, float>)
    if (f) return gather_fp8_input_in_parts(context, *f, product, x);
  gather_input_in_parts(context, product, x);
}

template <class T>
void project_backward(const BlockContext& context, Product product, T* dx, float* dweight, const LinearInput<T>& dy,
                      const T* weight, const T* x, bool accumulate) {
  const auto [OC, IC] = product_shape(context.config, product);
  const int N = context.B * context.T;
  Stream& stream = context.stream;
  Matmul& matmul = context.matmul;
  const BlockFp8* f = fp8_of(context, product);
  if (!f && context.tensor)
    return project_backward_in_parts(context, product, dx, dweight, dy.wide, weight, x, accumulate);
  if (!f) {
    matmul.dgrad(Tensor(dx, {N, IC}), Tensor(dy.wide, {N, OC}), Tensor(weight, {OC, IC}));
    matmul.wgrad(Tensor(dweight, {OC, IC}), Tensor(dy.wide, {N, OC}), Tensor(x, {N, IC}), accumulate);
    return;
  }
  if constexpr (std::is_same_v<T, float>) return require_fp8_is_bf16();
  else if (context.tensor) return project_fp8_backward_in_parts(context, *f, product, dx, dweight, dy, x, accumulate);
  const bool wide = f->settings->bf16_wgrad();
  const QuantizeSource source = source_of(dy);
  const Quantization q =
      quantization(*f, product, Role::output_gradient, N, OC, wide ? OperandMemory{} : f->by_columns, false);
  quantize_operand(context, *f, fp8_tensor_id(f->layer, product, Role::output_gradient), source, N, OC, q,
                   dy.left_amax && output_gradient_amax(context, f->layer, product));
  const QuantizedTensor& w = f->weights[int(product)].by_columns;
  fp8_matmul(stream, matmul, "fp8_dgrad", Tensor(dx, {N, IC}), q.by_rows, w, false, f->settings->fast(false),
             f->padded);
  observe(*f, {f->layer, product, Kind::dgrad, q.by_rows, w, nullptr, nullptr, dx, false, N, &source});
  if (wide) {
    matmul.wgrad(Tensor(dweight, {OC, IC}), Tensor(dy.wide, {N, OC}), Tensor(x, {N, IC}), accumulate);
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
  const QuantizedTensor saved = input_by_columns(context, *f, product, quantizable(x), N, IC);
  fp8_matmul(stream, matmul, "fp8_wgrad", Tensor(dweight, {OC, IC}), q.by_columns, saved, accumulate,
             f->settings->fast(false), f->padded);
  observe(*f, {f->layer, product, Kind::wgrad, q.by_columns, saved, nullptr, nullptr, dweight, accumulate, N, &source});
}

#define INSTANTIATE(T)                                                                                                \
  template void quantize_input(const BlockContext&, Product, const LinearInput<T>&);                                  \
  template void project(const BlockContext&, Product, T*, const LinearInput<T>&, const T*);                           \
  template void gather_input(const BlockContext&, Product, const T*);                                                 \
  template void project_backward(const BlockContext&, Product, T*, float*, const LinearInput<T>&, const T*, const T*, \
                                 bool);
INSTANTIATE(float)
INSTANTIATE(bf16)
