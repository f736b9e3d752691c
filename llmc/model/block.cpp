#include "llmc/model/block.h"

#include "llmc/device/number.h"
#include "llmc/kernels/rmsnorm.h"
#include "llmc/kernels/rope.h"
#include "llmc/kernels/swiglu.h"
#include "llmc/model/context_attention.h"

namespace {

AttentionOptions attention_options(const BlockContext& context) {
  AttentionOptions options;
  options.query_offset = context.past;
  options.kernel = context.attention;
  if (context.document_start) options.document_start = Tensor(context.document_start, {context.B, context.T});
  return options;
}

// The columns of packed rows (B T, QKV) or of their gradients.
struct QkvHeads {
  Tensor q, k, v;  // (B, T, NH, HD), (B, T, NKV, HD) twice
};
QkvHeads qkv_heads(const BlockContext& context, const Tensor& qkv) {
  const LlamaConfig& c = context.config;
  const auto heads = [&](int first, int count) {
    return qkv.columns(first * c.HD, count * c.HD).heads(context.B, c.HD);
  };
  return {heads(0, c.NH), heads(c.NH, c.NKV), heads(c.NH + c.NKV, c.NKV)};
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

template <class T>
void norm(const BlockContext& context, T* y, float* rstd, const T* x, const T* weight, float* amax) {
  const LlamaConfig& c = context.config;
  rmsnorm_forward(context.stream, y, rstd, x, weight, context.rows(), c.C, float(c.norm_eps), amax);  // (R, C)
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
  const int N = context.tokens(), QKV = c.qkv_width();
  Stream& stream = context.stream;
  const Tensor all(a.qkv, {context.past + N, QKV}), own = all.rows(context.past, N);
  T* qkv = context.past ? s.dqkv : a.qkv;

  project<T>(context, Product::qkv, qkv, qkv_input(w, a), w.qkv);  // (N, QKV)
  rope_forward(stream, Tensor(qkv, {N, QKV}), rope_angles(context));
  if (context.past) copy(stream, own.as<T>(), qkv, size_t(N) * QKV);
  float* amax = input_amax(context, Product::o);
  if (context.sequences) attention_in_chunks(context, a, amax);
  else {
    const auto [q, k, v] = qkv_heads(context, all);
    attention_forward(stream, Tensor(a.attention, {N, c.q_width()}).heads(context.B, c.HD),
                      Tensor(a.lse, {context.B, c.NH, context.T}), qkv_heads(context, own).q, k, v,
                      attention_options(context), amax);
  }
  project<T>(context, Product::o, s.projected, {a.attention, {}}, w.o);  // (R, C)
  add_rmsnorm_forward(stream, a.middle, a.norm2, a.rstd2, a.x, s.projected, w.norm2, context.rows(), c.C,
                      float(c.norm_eps), input_amax(context, Product::gate_up));  // (R, C)
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
  const LlamaConfig& c = context.config;
  float* amax = input_amax(context, Product::qkv);
  if (middle_before)
    add_rmsnorm_forward(context.stream, a.x, a.norm1, a.rstd1, middle_before, delta, w.norm1, context.rows(), c.C,
                        float(c.norm_eps), amax);  // (R, C)
  else norm<T>(context, a.norm1, a.rstd1, a.x, w.norm1, amax);
  attention_half(context, w, a, s);
  mlp_input(context, w, a);
  project<T>(context, Product::down, delta, down_input(a), w.down);  // (R, C)
}

template <class T>
void block_recompute(const BlockContext& context, const BlockWeights<T>& w, const BlockActivations<T>& a,
                     const BlockScratch<T>& s, Recompute level) {
  if (level == Recompute::none) return;
  const bool all = level == Recompute::block;
  if (all || a.norm1) norm<T>(context, a.norm1, a.rstd1, a.x, w.norm1, nullptr);
  if (all) attention_half(context, w, a, s);
  else {
    quantize_input(context, Product::qkv, qkv_input(w, a));
    if (a.norm2) norm<T>(context, a.norm2, a.rstd2, a.middle, w.norm2, nullptr);
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
  const int N = context.tokens(), R = context.rows(), C = c.C, NH = c.NH, NKV = c.NKV, HD = c.HD, FF = c.FF,
            QKV = c.qkv_width();
  Stream& stream = context.stream;
  const int layer = context.fp8 ? context.fp8->layer : 0;

  project_backward<T>(context, Product::down, s.dswiglu, g.down, {dresidual, {}}, w.down, a.swiglu, accumulate);
  gather_input(context, Product::gate_up, a.norm2);
  T* dgate_up = wants_wide(context, Product::gate_up) ? s.dgate_up : nullptr;  // (N, 2 FF)
  if (dgate_up)
    swiglu_backward(stream, Tensor(dgate_up, {N, 2 * FF}), Tensor(s.dswiglu, {N, FF}), Tensor(a.gate_up, {N, 2 * FF}));
  const SwigluBackwardSource dswiglu{quantizable(s.dswiglu), quantizable(a.gate_up)};
  project_backward<T>(context, Product::gate_up, s.dnorm, g.gate_up, {dgate_up, dswiglu, false}, w.gate_up, a.norm2,
                      accumulate);
  rmsnorm_backward(stream, dresidual, g.norm2, s.norm_partials, s.dnorm, a.middle, w.norm2, a.rstd2, R, C,
                   output_gradient_amax(context, layer, Product::o));  // +=
  if (context.sequences) gather_keys_values(context, a.qkv);
  project_backward<T>(context, Product::o, s.dattention, g.o, {dresidual, {}}, w.o, a.attention, accumulate);
  gather_input(context, Product::qkv, a.norm1);
  if (context.sequences) attention_in_chunks_backward(context, a, s);
  else {
    const auto [q, k, v] = qkv_heads(context, Tensor(a.qkv, {N, QKV}));
    const auto [dq, dk, dv] = qkv_heads(context, Tensor(s.dqkv, {N, QKV}));
    attention_backward(stream, dq, dk, dv, Tensor(s.attention_delta, {context.B, NH, context.T}),
                       Tensor(s.dattention, {N, NH * HD}).heads(context.B, HD),
                       Tensor(a.attention, {N, NH * HD}).heads(context.B, HD),
                       Tensor(a.lse, {context.B, NH, context.T}), q, k, v, attention_options(context));
  }
  T* dqkv = wants_wide(context, Product::qkv) ? s.dqkv : nullptr;  // rotated back in place; null: as it is quantized
  if (dqkv) rope_backward(stream, Tensor(dqkv, {N, QKV}), rope_angles(context));
  const RopeBackwardSource turned{quantizable(s.dqkv),   context.rope_table, context.positions, NH + NKV, HD,
                                  context.rope_positions};
  project_backward<T>(context, Product::qkv, s.dnorm, g.qkv, {dqkv, turned, false}, w.qkv, a.norm1, accumulate);
  rmsnorm_backward(stream, dresidual, g.norm1, s.norm_partials, s.dnorm, a.x, w.norm1, a.rstd1, R, C,
                   output_gradient_amax(context, layer - 1, Product::down));  // +=
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
