// One transformer block, forward and backward, on borrowed pointers: residual stream, RMSNorm, attention, SwiGLU MLP.
//
// The residual stream travels as two addends, `x` and `delta` (what the block before adds to it), so that each residual
// addition is fused with the norm that follows it:
//
//   x      = x_before + delta_before                      (first block: the embedding itself)
//   middle = x + Wo attention(rope(Wqkv norm1(x)))
//   output = middle + delta,   delta = Wdown swiglu(Wgate_up norm2(middle))
#pragma once

#include "llmc/device/device.h"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/matmul.h"
#include "llmc/model/config.h"
#include "llmc/model/context_parallel.h"
#include "llmc/model/projection.h"
#include "llmc/model/tensor_parallel.h"

template <class T>
struct BlockWeights {
  const T* norm1;    // (C)
  const T* qkv;      // (QKV, C) with QKV = (NH + 2 NKV) HD
  const T* o;        // (C, NH HD)
  const T* norm2;    // (C)
  const T* gate_up;  // (2 FF, C)
  const T* down;     // (C, FF)
};

struct BlockGradients {  // fp32, as BlockWeights
  float *norm1, *qkv, *o, *norm2, *gate_up, *down;
};

// Of tensor parallelism: NH, NKV, FF are this rank's, of weights and activations alike, and so are the R rows (all N
// tokens without it) of what lies between products.

// What forward leaves for backward. Inputs of products in FP8 are null, and kept as those have them (projection.h).
template <class T>
struct BlockActivations {
  T* x;          // (R, C) residual stream before the block
  float* rstd1;  // (R)
  T* norm1;      // (R, C)
  T* qkv;        // (N, QKV) after RoPE
  T* attention;  // (N, NH HD)
  float* lse;    // (B, NH, T) log-sum-exp of the scores
  T* middle;     // (R, C) residual stream between attention and MLP
  float* rstd2;  // (R)
  T* norm2;      // (R, C)
  T* gate_up;    // (N, 2 FF)
  T* swiglu;     // (N, FF)
};

// Buffers that one block after the other uses.
template <class T>
struct BlockScratch {
  T* projected;            // (R, C) output of Wo
  T* dnorm;                // (R, C)
  T* dattention;           // (N, NH HD)
  T* dqkv;                 // (N, QKV); forward with a `past`: the new tokens' q, k, v on their way to the others
  T* dswiglu;              // (N, FF)
  T* dgate_up;             // (N, 2 FF); null where it is quantized as it is computed
  float* attention_delta;  // (B, NH, T), or of one head and chunk at a time (context_attention.h)
  float* norm_partials;    // rmsnorm_backward_scratch(R, C)
};

// How much of a block backward computes again instead of keeping it, each more than the one before:
//   norms   both norms' and SwiGLU's outputs
//   mlp     all of the MLP: also the output of its first product
//   block   all but the block's input
enum class Recompute { none, norms, mlp, block };

// What all blocks of a pass share.
struct BlockContext {
  Stream& stream;
  Matmul& matmul;
  const LlamaConfig& config;
  const float* rope_table;  // (rope_positions, HD / 2, 2)
  int rope_positions;
  const int* positions;       // (B, T) on the device, as the next
  const int* document_start;  // in each row, of each token's document; null: 0
  int B, T;
  AttentionKernel attention;
  const BlockFp8* fp8 = nullptr;  // null: all products are in T
  // Forward alone, B = 1: the tokens follow so many, whose keys and values lie before theirs in the activations' qkv.
  int past = 0;
  TensorParallel* tensor = nullptr;  // null: this rank computes all of each product
  // Its scratch, (padded N, C) each: all ranks' rows, of T, and partial sums of all tokens, of the type that they have.
  void *gathered = nullptr, *partial = nullptr;

  // Null: this rank has all of each sequence. Else B counts both chunks of each, which are of T tokens, and all T of a
  // sequence are as many times as long (context_part.h).
  ContextParallel* sequences = nullptr;
  const void* sequence_buffers = nullptr;  // a ContextBuffers of T

  int tokens() const { return B * T; }
  int rows() const { return tensor ? tensor->own_rows(B * T) : B * T; }  // between products
};

// `middle_before` and `delta` come in as the two addends that the block before left; the first block has no such
// (`middle_before` null) and finds the embedding in activations.x. `delta` goes out as what this block adds to
// activations.middle.
template <class T>
void block_forward(const BlockContext& context, const BlockWeights<T>& weights, const BlockActivations<T>& activations,
                   const BlockScratch<T>& scratch, const T* middle_before, T* delta);

// Before block_backward: what the level leaves out of `activations`, computed again from the rest, to the same bits.
// The context's scales are those of the forward pass, in which the block's input was x.
template <class T>
void block_recompute(const BlockContext& context, const BlockWeights<T>& weights,
                     const BlockActivations<T>& activations, const BlockScratch<T>& scratch, Recompute level);

// `dresidual` (N, C) comes in as the gradient of the block's output, with its largest number where that is wanted
// (projection.h), and goes out as that of its input, likewise. Weight gradients: norms +=, matrices = or += by
// `accumulate`.
template <class T>
void block_backward(const BlockContext& context, const BlockWeights<T>& weights, const BlockGradients& gradients,
                    const BlockActivations<T>& activations, const BlockScratch<T>& scratch, T* dresidual,
                    bool accumulate);
