// One transformer block, forward and backward: residual stream, RMSNorm, attention, SwiGLU MLP.
//
// The residual stream is passed on as two addends, `x` and `mlp_out` (the part that the block before adds), so that
// each residual addition is fused with the norm that follows it:
//
//   x      = x_before + delta_before                      (first block: the embedding itself)
//   middle = x + Wo attention(rotated(Wqkv norm1(x)))
//   output = middle + delta,   delta = Wdown swiglu(Wgate_up norm2(middle))
//
// Between the product of queries, keys and values and attention these are `rotated`: RoPE and, in some families, biases
// or norms before it (qk_norm_rope.h). In families with `norm_after` the norms are behind the layers:
//
//   middle = x + norm1(Wo attention(rotated(Wqkv x)))
//   output = middle + delta,   delta = norm2(Wdown swiglu(Wgate_up middle))
//
// Under tensor parallelism, NH, NKV and FF count what this rank holds, in weights and activations alike.
#pragma once

#include <array>
#include <optional>

#include "llmc/config/activations.h"
#include "llmc/config/parameters.h"
#include "llmc/kernels/qk_norm_rope.h"
#include "llmc/model/linear.h"
#include "llmc/model/scratch.h"

// One block's tensors, by name.
struct BlockTensors {
  UnitTensors weights;
  std::optional<UnitTensors> gradients;               // in backward
  std::array<QuantizedWeight, kProjectionCount> fp8;  // empty where the product is not in FP8
  SavedTensors saved;
  bool recomputes_inputs[kProjectionCount] = {};  // recomputation saves the product's FP8 input, not forward
};

class Block {
 public:
  // The views are cut for this pass, so the object lives no longer than it and `scratch`.
  Block(const Pass& pass, int layer, const BlockTensors& tensors, const BlockScratch& scratch);

  // `middle_before` and `mlp_out` (R, C) are the two addends that the block before left. For the first block
  // `middle_before` is absent, and the saved x holds the embedding. On return `mlp_out` holds what this block adds to
  // middle().
  void forward(const Tensor& middle_before, const Tensor& mlp_out) const;
  const Tensor& middle() const { return middle_; }

  // Call this before backward, with a pass that is `recomputing`. It recomputes the activations that the level leaves
  // out from the others, with the same bits. The pass's scales must be those of the forward pass.
  void recompute(Recompute level) const;

  // On entry `dresidual` (R, C) holds the gradient of the block's output. On return it holds that of the block's input.
  // `amax` holds the amax of the incoming dresidual, for down's output gradient; the kernel that produced dresidual has
  // written it. `amax_before` receives that of the outgoing dresidual, for the block before. Both may be null
  // (wanted_amax). The weight gradients of norms are added to (+=).
  void backward(const Tensor& dresidual, const float* amax, float* amax_before) const;

 private:
  bool norm_after() const { return pass_.config.family->norm_after; }
  bool norms_qk() const { return pass_.config.family->qk_norm != QkNorm::none; }
  bool has_vectors() const { return norms_qk() || pass_.config.family->qkv_bias; }  // of q, k and v
  // True if the product's output is kept for backward as it was, and attention reads a copy of it after RoPE.
  bool rotates_apart() const { return norms_qk() && pass_.training; }
  const Tensor& rotated() const { return rotates_apart() ? s_.rotated : qkv_out_; }

  void show(const char* name, const Tensor& tensor) const { pass_.show(layer_, name, tensor); }
  void attention_half() const;
  void rotate(const Tensor& qkv) const;
  void sum_over_heads(const Tensor& sums, const Tensor& a, const Tensor& b) const;
  void mlp_input() const;
  LinearInput rotate_backward() const;
  LinearInput output_gradient(const Tensor& dresidual, const float* amax, const Linear& linear, const Parameter& norm,
                              const Tensor& x, const Tensor& rstd) const;
  void add_input_gradient(const Tensor& dresidual, float* amax, const Parameter& norm, const Tensor& x,
                          const Tensor& rstd) const;
  LinearInput qkv_input() const;
  LinearInput gate_up_input() const;
  LinearInput down_input() const;

  const Pass& pass_;
  const BlockScratch& s_;
  const int layer_;
  Parameter norm1_, norm2_;                // (C)
  QkvVectors vectors_, vector_gradients_;  // absent where the family has none
  Linear qkv_, o_, gate_up_, down_;        // (QKV, C), (C, NH HD), (2 FF, C), (C, FF) with QKV = (NH + 2 NKV) HD
  // qkv_in_ (R, C) and gate_up_in_ (R, C) are the products' inputs in the model's type, absent where these are only
  // quantized: the norms' outputs, or the residual stream where norms come after the layers.
  Tensor x_, rstd1_, qkv_in_, qkv_out_, squares_, attention_, lse_, o_out_, middle_, rstd2_, gate_up_in_, gate_up_out_,
      swiglu_, down_out_;
};
