// One transformer block, forward and backward: residual stream, RMSNorm, attention, SwiGLU MLP.
//
// The residual stream is passed on as two addends, `x` and `delta` (the part that the block before adds), so that each
// residual addition is fused with the norm that follows it:
//
//   x      = x_before + delta_before                      (first block: the embedding itself)
//   middle = x + Wo attention(rope(Wqkv norm1(x)))
//   output = middle + delta,   delta = Wdown swiglu(Wgate_up norm2(middle))
//
// Under tensor parallelism, NH, NKV and FF count what this rank holds, in weights and activations alike.
#pragma once

#include <array>
#include <optional>

#include "llmc/model/activations.h"
#include "llmc/model/linear.h"
#include "llmc/model/parameters.h"

// Buffers that all blocks use, one after the other, for the largest micro-batch. Forward needs the first two.
struct BlockScratch {
  Tensor projected;        // (R, C) output of Wo
  Tensor dqkv;             // (N, QKV); in forward with a `past`: the new tokens' q, k and v before they are copied
  Tensor dnorm;            // (R, C)
  Tensor dattention;       // (N, NH HD)
  Tensor dswiglu;          // (N, FF)
  Tensor dgate_up;         // (N, 2 FF); absent where quantization computes it and nobody stores it
  Tensor attention_delta;  // (attention_delta_size(N))
  Tensor norm_partials;    // (rmsnorm_backward_scratch(R, C))
};

// One block's tensors, by name.
struct BlockTensors {
  UnitTensors weights;
  std::optional<UnitTensors> gradients;        // in backward
  std::array<QuantizedWeight, kProducts> fp8;  // empty where the product is not in FP8
  SavedTensors saved;
  bool recomputes_inputs[kProducts] = {};  // recomputation saves the product's FP8 input, not forward
};

class Block {
 public:
  // The views are cut for this pass, so the object lives no longer than it.
  Block(const Pass& pass, int layer, const BlockTensors& tensors, const BlockScratch& scratch);

  // `middle_before` and `delta` (R, C) are the two addends that the block before left. For the first block
  // `middle_before` is absent, and the saved x holds the embedding. On return `delta` holds what this block adds to
  // middle().
  void forward(const Tensor& middle_before, const Tensor& delta) const;
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
  void attention_half() const;
  void mlp_input() const;
  LinearInput qkv_input() const;
  LinearInput gate_up_input() const;
  LinearInput down_input() const;

  const Pass& pass_;
  const BlockScratch s_;
  Parameter norm1_, norm2_;          // (C)
  Linear qkv_, o_, gate_up_, down_;  // (QKV, C), (C, NH HD), (2 FF, C), (C, FF) with QKV = (NH + 2 NKV) HD
  Tensor x_, rstd1_, norm1_out_, qkv_out_, attention_, lse_, middle_, rstd2_, norm2_out_, gate_up_out_, swiglu_;
};
