#include "llmc/model/block.h"

#include "llmc/device/number.h"
#include "llmc/kernels/rmsnorm.h"
#include "llmc/kernels/rope.h"
#include "llmc/kernels/swiglu.h"

namespace {

AttentionShape attention_shape(const BlockContext& context) {
  const LlamaConfig& c = context.config;
  AttentionShape shape = packed_attention_shape(context.B, context.T, c.NH, c.NKV, c.HD);
  shape.document_start = context.document_start;
  shape.query_offset = context.past;
  shape.Tk += context.past;
  return shape;
}

}  // namespace

template <class T>
void block_forward(const BlockContext& context, const BlockWeights<T>& w, const BlockActivations<T>& a,
                   const BlockScratch<T>& s, const T* middle_before, T* delta) {
  const LlamaConfig& c = context.config;
  const int N = context.B * context.T, C = c.C, NH = c.NH, NKV = c.NKV, HD = c.HD, FF = c.FF, QKV = c.qkv_width();
  const float eps = float(c.norm_eps);
  Stream& stream = context.stream;
  Matmul& matmul = context.matmul;
  const T *k = a.qkv + NH * HD, *v = k + NKV * HD;  // in each row of qkv
  T *q = a.qkv + size_t(context.past) * QKV, *qkv = context.past ? s.dqkv : a.qkv;

  if (middle_before)
    add_rmsnorm_forward(stream, a.x, a.norm1, a.rstd1, middle_before, delta, w.norm1, N, C, eps);  // (N, C)
  else rmsnorm_forward(stream, a.norm1, a.rstd1, a.x, w.norm1, N, C, eps);                         // (N, C)
  matmul.forward(qkv, a.norm1, w.qkv, N, QKV, C);                                                  // (N, QKV)
  rope_forward(stream, qkv, context.rope_table, context.positions, N, NH, NKV, HD, context.rope_positions);
  if (context.past) copy(stream, q, qkv, size_t(N) * QKV);
  attention_forward(stream, a.attention, a.lse, q, k, v, attention_shape(context), context.attention);  // (N, NH HD)
  matmul.forward(s.projected, a.attention, w.o, N, C, NH * HD);                                         // (N, C)
  add_rmsnorm_forward(stream, a.middle, a.norm2, a.rstd2, a.x, s.projected, w.norm2, N, C, eps);        // (N, C)
  matmul.forward(a.gate_up, a.norm2, w.gate_up, N, 2 * FF, C);                                          // (N, 2 FF)
  swiglu_forward(stream, a.swiglu, a.gate_up, N, FF);                                                   // (N, FF)
  matmul.forward(delta, a.swiglu, w.down, N, C, FF);                                                    // (N, C)
}

template <class T>
void block_backward(const BlockContext& context, const BlockWeights<T>& w, const BlockGradients& g,
                    const BlockActivations<T>& a, const BlockScratch<T>& s, T* dresidual, bool accumulate) {
  const LlamaConfig& c = context.config;
  const int N = context.B * context.T, C = c.C, NH = c.NH, NKV = c.NKV, HD = c.HD, FF = c.FF, QKV = c.qkv_width();
  Stream& stream = context.stream;
  Matmul& matmul = context.matmul;
  const T *q = a.qkv, *k = q + NH * HD, *v = k + NKV * HD;
  T *dq = s.dqkv, *dk = dq + NH * HD, *dv = dk + NKV * HD;

  matmul.dgrad(s.dswiglu, dresidual, w.down, N, C, FF);                    // (N, FF)
  matmul.wgrad(g.down, dresidual, a.swiglu, N, C, FF, accumulate);         // (C, FF)
  swiglu_backward(stream, s.dgate_up, s.dswiglu, a.gate_up, N, FF);        // (N, 2 FF)
  matmul.dgrad(s.dnorm, s.dgate_up, w.gate_up, N, 2 * FF, C);              // (N, C)
  matmul.wgrad(g.gate_up, s.dgate_up, a.norm2, N, 2 * FF, C, accumulate);  // (2 FF, C)
  rmsnorm_backward(stream, dresidual, g.norm2, s.norm_partials, s.dnorm, a.middle, w.norm2, a.rstd2, N, C);  // +=
  matmul.dgrad(s.dattention, dresidual, w.o, N, C, NH * HD);             // (N, NH HD)
  matmul.wgrad(g.o, dresidual, a.attention, N, C, NH * HD, accumulate);  // (C, NH HD)
  attention_backward(stream, dq, dk, dv, s.attention_delta, s.dattention, a.attention, a.lse, q, k, v,
                     attention_shape(context), context.attention);  // (N, QKV)
  rope_backward(stream, s.dqkv, context.rope_table, context.positions, N, NH, NKV, HD, context.rope_positions);
  matmul.dgrad(s.dnorm, s.dqkv, w.qkv, N, QKV, C);                                                      // (N, C)
  matmul.wgrad(g.qkv, s.dqkv, a.norm1, N, QKV, C, accumulate);                                          // (QKV, C)
  rmsnorm_backward(stream, dresidual, g.norm1, s.norm_partials, s.dnorm, a.x, w.norm1, a.rstd1, N, C);  // +=
}

#define INSTANTIATE(T)                                                                                 \
  template void block_forward(const BlockContext&, const BlockWeights<T>&, const BlockActivations<T>&, \
                              const BlockScratch<T>&, const T*, T*);                                   \
  template void block_backward(const BlockContext&, const BlockWeights<T>&, const BlockGradients&,     \
                               const BlockActivations<T>&, const BlockScratch<T>&, T*, bool);
INSTANTIATE(float)
INSTANTIATE(bf16)
