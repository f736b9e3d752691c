#include "llmc/model/block.h"

#include "llmc/device/number.h"
#include "llmc/kernels/rmsnorm.h"
#include "llmc/kernels/rope.h"
#include "llmc/kernels/swiglu.h"
#include "llmc/model/context_attention.h"

namespace {

AttentionShape attention_shape(const BlockContext& context) {
  const LlamaConfig& c = context.config;
  AttentionShape shape = packed_attention_shape(context.B, context.T, c.NH, c.NKV, c.HD);
  shape.document_start = context.document_start;
  shape.query_offset = context.past;
  shape.Tk += context.past;
  return shape;
}

RopeAngles rope_angles(const BlockContext& context) {
  const LlamaConfig& c = context.config;
  return {Tensor(context.rope_table, {context.rope_positions, c.HD / 2, 2}),
          Tensor(context.positions, {context.tokens()}), c.NH + c.NKV};
}

template <class T>
RmsnormSource normed(const T* x, const float* rstd, const T* weight) {
  return {quantizable(x), rstd, quantizable(weight)};
}

template <class T>
LinearInput<T> qkv_input(const BlockWeights<T>& w, const BlockActivations<T>& a) {
  return {a.norm1, normed(a.x, a.rstd1, w.norm1)};
}
template <class T>
LinearInput<T> gate_up_input(const BlockWeights<T>& w, const BlockActivations<T>& a) {
  return {a.norm2, normed(a.middle, a.rstd2, w.norm2)};
}
template <class T>
LinearInput<T> down_input(const BlockActivations<T>& a) {
  return {a.swiglu, SwigluSource{quantizable(a.gate_up)}, false};
}

// The norm of x, or with a `delta` of sum = x + delta. y may be null.
template <class T>
void norm(const BlockContext& context, T* sum, T* y, float* rstd, const T* x, const T* delta, const T* weight,
          float* amax) {
  const int R = context.rows(), C = context.config.C;
  const float eps = float(context.config.norm_eps);
  const Tensor normed = y ? Tensor(y, {R, C}) : Tensor(), rstds(rstd, {R}), in(x, {R, C}), w(weight, {C});
  if (!delta) return rmsnorm_forward(context.stream, normed, rstds, in, w, eps, amax);
  add_rmsnorm_forward(context.stream, Tensor(sum, {R, C}), normed, rstds, in, Tensor(delta, {R, C}), w, eps, amax);
}

// dresidual += the gradient through the norm of x.
template <class T>
void norm_backward(const BlockContext& context, const BlockScratch<T>& s, T* dresidual, float* dweight, const T* x,
                   const T* weight, const float* rstd, float* amax) {
  const int R = context.rows(), C = context.config.C;
  rmsnorm_backward(context.stream, Tensor(dresidual, {R, C}), Tensor(dweight, {C}),
                   Tensor(s.norm_partials, {rmsnorm_backward_scratch(R, C)}), Tensor(s.dnorm, {R, C}),
                   Tensor(x, {R, C}), Tensor(weight, {C}), Tensor(rstd, {R}), amax);
}

template <class T>
void swiglu(const BlockContext& context, const BlockActivations<T>& a) {
  const int N = context.tokens(), FF = context.config.FF;
  swiglu_forward(context.stream, Tensor(a.swiglu, {N, FF}), Tensor(a.gate_up, {N, 2 * FF}));  // (N, FF)
}

// Computes everything from the first norm's output to the second norm's output.
template <class T>
void attention_half(const BlockContext& context, const BlockWeights<T>& w, const BlockActivations<T>& a,
                    const BlockScratch<T>& s) {
  const LlamaConfig& c = context.config;
  const int N = context.tokens(), NH = c.NH, NKV = c.NKV, HD = c.HD, QKV = c.qkv_width();
  Stream& stream = context.stream;
  const T *k = a.qkv + NH * HD, *v = k + NKV * HD;  // within a row of qkv
  T *q = a.qkv + size_t(context.past) * QKV, *qkv = context.past ? s.dqkv : a.qkv;

  project<T>(context, Product::qkv, qkv, qkv_input(w, a), w.qkv);  // (N, QKV)
  rope_forward(stream, Tensor(qkv, {N, QKV}), rope_angles(context));
  if (context.past) copy(stream, q, qkv, size_t(N) * QKV);
  float* amax = input_amax(context, Product::o);
  if (context.sequences) attention_in_chunks(context, a, amax);
  else
    attention_forward(stream, a.attention, a.lse, q, k, v, attention_shape(context), context.attention,
                      amax);                                             // (N, NH HD)
  project<T>(context, Product::o, s.projected, {a.attention, {}}, w.o);  // (R, C)
  norm<T>(context, a.middle, a.norm2, a.rstd2, a.x, s.projected, w.norm2, input_amax(context, Product::gate_up));
}

// Computes everything from the second norm's output to the last product's input.
template <class T>
void mlp_input(const BlockContext& context, const BlockWeights<T>& w, const BlockActivations<T>& a) {
  project<T>(context, Product::gate_up, a.gate_up, gate_up_input(w, a), w.gate_up);  // (N, 2 FF)
  if (a.swiglu) swiglu(context, a);
}

}  // namespace

template <class T>
void block_forward(const BlockContext& context, const BlockWeights<T>& w, const BlockActivations<T>& a,
                   const BlockScratch<T>& s, const T* middle_before, T* delta) {
  float* amax = input_amax(context, Product::qkv);
  if (middle_before) norm<T>(context, a.x, a.norm1, a.rstd1, middle_before, delta, w.norm1, amax);
  else norm<T>(context, nullptr, a.norm1, a.rstd1, a.x, nullptr, w.norm1, amax);
  attention_half(context, w, a, s);
  mlp_input(context, w, a);
  project<T>(context, Product::down, delta, down_input(a), w.down);  // (R, C)
}

template <class T>
void block_recompute(const BlockContext& context, const BlockWeights<T>& w, const BlockActivations<T>& a,
                     const BlockScratch<T>& s, Recompute level) {
  if (level == Recompute::none) return;
  const bool all = level == Recompute::block;
  if (all || a.norm1) norm<T>(context, nullptr, a.norm1, a.rstd1, a.x, nullptr, w.norm1, nullptr);
  if (all) attention_half(context, w, a, s);
  else {
    quantize_input(context, Product::qkv, qkv_input(w, a));
    if (a.norm2) norm<T>(context, nullptr, a.norm2, a.rstd2, a.middle, nullptr, w.norm2, nullptr);
  }
  if (level != Recompute::norms) mlp_input(context, w, a);
  else {
    quantize_input(context, Product::gate_up, gate_up_input(w, a));
    if (a.swiglu) swiglu(context, a);
  }
  quantize_input(context, Product::down, down_input(a));
}

template <class T>
void block_backward(const BlockContext& context, const BlockWeights<T>& w, const BlockGradients& g,
                    const BlockActivations<T>& a, const BlockScratch<T>& s, T* dresidual, bool accumulate) {
  const LlamaConfig& c = context.config;
  const int N = context.tokens(), NH = c.NH, NKV = c.NKV, HD = c.HD, FF = c.FF;
  Stream& stream = context.stream;
  const T *q = a.qkv, *k = q + NH * HD, *v = k + NKV * HD;
  T *dq = s.dqkv, *dk = dq + NH * HD, *dv = dk + NKV * HD;
  const int layer = context.fp8 ? context.fp8->layer : 0;

  project_backward<T>(context, Product::down, s.dswiglu, g.down, {dresidual, {}}, w.down, a.swiglu, accumulate);
  gather_input(context, Product::gate_up, a.norm2);
  T* dgate_up = wants_wide(context, Product::gate_up) ? s.dgate_up : nullptr;  // (N, 2 FF)
  if (dgate_up)
    swiglu_backward(stream, Tensor(dgate_up, {N, 2 * FF}), Tensor(s.dswiglu, {N, FF}), Tensor(a.gate_up, {N, 2 * FF}));
  const SwigluBackwardSource dswiglu{quantizable(s.dswiglu), quantizable(a.gate_up)};
  project_backward<T>(context, Product::gate_up, s.dnorm, g.gate_up, {dgate_up, dswiglu, false}, w.gate_up, a.norm2,
                      accumulate);
  norm_backward(context, s, dresidual, g.norm2, a.middle, w.norm2, a.rstd2,
                output_gradient_amax(context, layer, Product::o));
  if (context.sequences) gather_keys_values(context, a.qkv);
  project_backward<T>(context, Product::o, s.dattention, g.o, {dresidual, {}}, w.o, a.attention, accumulate);
  gather_input(context, Product::qkv, a.norm1);
  if (context.sequences) attention_in_chunks_backward(context, a, s);
  else
    attention_backward(stream, dq, dk, dv, s.attention_delta, s.dattention, a.attention, a.lse, q, k, v,
                       attention_shape(context), context.attention);  // (N, QKV)
  T* dqkv = wants_wide(context, Product::qkv) ? s.dqkv : nullptr;     // rotated back in place; null: as it is quantized
  if (dqkv) rope_backward(stream, Tensor(dqkv, {N, c.qkv_width()}), rope_angles(context));
  const RopeBackwardSource turned{quantizable(s.dqkv),   context.rope_table, context.positions, NH + NKV, HD,
                                  context.rope_positions};
  project_backward<T>(context, Product::qkv, s.dnorm, g.qkv, {dqkv, turned, false}, w.qkv, a.norm1, accumulate);
  norm_backward(context, s, dresidual, g.norm1, a.x, w.norm1, a.rstd1,
                output_gradient_amax(context, layer - 1, Product::down));
}

#define INSTANTIATE(T)                                                                                   \
  template void block_forward(const BlockContext&, const BlockWeights<T>&, const BlockActivations<T>&,   \
                              const BlockScratch<T>&, const T*, T*);                                     \
  template void block_recompute(const BlockContext&, const BlockWeights<T>&, const BlockActivations<T>&, \
                                const BlockScratch<T>&, Recompute);                                      \
  template void block_backward(const BlockContext&, const BlockWeights<T>&, const BlockGradients&,       \
                               const BlockActivations<T>&, const BlockScratch<T>&, T*, bool);
INSTANTIATE(float)
INSTANTIATE(bf16)
