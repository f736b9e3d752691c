// One transformer block, forward and backward: residual stream, RMSNorm, attention, and the SwiGLU MLP (mlp.h).
//
//   x = h_before + mlp_out_before                              the block's input; in the first block, the embedding
//   h = x + Wo attention(rotated(Wqkv norm1(x)))               the residual stream between attention and MLP
//   mlp_out = Wdown swiglu(Wgate_up norm2(h))                  the block's output is h + mlp_out
//
// A block passes on both addends of its output, so that each residual addition is fused with the norm that follows it.
//
// `rotated` stands between the qkv projection and attention: RoPE and, in some families, biases or norms before it
// (qk_norm_rope.h). In families with `norm_after` the norms follow attention and the MLP:
//
//   h = x + norm1(Wo attention(rotated(Wqkv x)))
//   mlp_out = norm2(Wdown swiglu(Wgate_up h))
//
// Under tensor parallelism, NH, NKV and FF count what this rank holds, in weights and activations alike.
#pragma once

#include "llmc/kernels/qk_norm_rope.h"
#include "llmc/model/attention.h"
#include "llmc/model/mlp.h"

class Block {
 public:
  // The views are cut for this pass, so the object lives no longer than it and `scratch`.
  Block(const Pass& pass, const BlockTensors& tensors, const BlockScratch& scratch);

  // `h_before` and `mlp_out` (R, C) are the two addends of the former block's output. For the first block `h_before` is
  // absent, and the saved x holds the embedding. On return `mlp_out` holds this block's.
  void forward(const Tensor& h_before, const Tensor& mlp_out) const;
  const Tensor& h() const { return h_; }

  // Call this before backward, with a pass that is `recomputing`. It recomputes the activations that the level leaves
  // out from the others, with the same bits. The pass's scales must be those of the forward pass.
  void recompute(Recompute level) const;

  // On entry `dresidual` (R, C) holds the gradient of the block's output. On return it holds that of the block's input.
  // `amax` holds the amax of the incoming dresidual, for down's output gradient; the kernel that produced dresidual has
  // written it. `amax_of_previous` receives that of the outgoing dresidual, for the previous block. Both may be
  // null (wanted_amax). The weight gradients of norms are added to (+=).
  void backward(const Tensor& dresidual, const float* amax, float* amax_of_previous) const;

 private:
  // A norm of x (R, C), with what its backward needs.
  struct Norm {
    Parameter weight;  // (C)
    Tensor x, rstd;    // (R, C), (R)
    RmsnormOutput output() const { return {x, rstd, weight.value}; }
  };

  bool norm_after() const { return pass_.config.family->norm_after; }
  bool norms_qk() const { return bool(vectors_.q_norm); }
  bool has_biases_or_norms() const { return norms_qk() || vectors_.q_bias; }  // of q, k and v
  // True if the product's output is kept for backward as it was, and attention reads a copy of it after RoPE.
  bool rope_out_of_place() const { return norms_qk() && pass_.training; }
  const Tensor& rotated() const { return rope_out_of_place() ? s_.rotated : qkv_out_; }
  AttentionTensors attention() const { return {.qkv = rotated(), .out = attention_, .lse = lse_}; }

  void show(const char* name, const Tensor& tensor) const { pass_.show(layer_, name, tensor); }
  void attention_sublayer() const;
  void rotate(const Tensor& qkv) const;
  void sum_over_heads(const Tensor& sums, const Tensor& a, const Tensor& b) const;
  ProductSource rotate_backward() const;
  ProductSource output_gradient(const Tensor& dresidual, const float* amax, float* amax_after_norm,
                                const Norm& norm) const;
  void add_input_gradient(const Tensor& dresidual, float* amax, const Norm& norm) const;
  ProductSource qkv_input() const;
  ProductSource mlp_input() const;

  const Pass& pass_;
  const BlockScratch& s_;
  const int layer_;
  // qkv_in_ (R, C) and mlp_in_ (R, C) are the products' inputs in the model's type, absent where these are only
  // quantized: the norms' outputs, or the residual stream where norms come after attention and the MLP.
  Tensor x_, qkv_in_, qkv_out_, squares_, attention_, lse_, o_out_, h_, mlp_in_, down_out_;
  Norm norm1_, norm2_;
  QkvVectors vectors_, vector_gradients_;  // absent where the family has none
  Linear qkv_, o_;                         // (QKV, C), (C, NH HD) with QKV = (NH + 2 NKV) HD
  Mlp mlp_;
};
