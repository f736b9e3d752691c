// One transformer block, forward and backward, on borrowed pointers: residual stream, RMSNorm, attention, SwiGLU MLP.
//
// The residual stream is passed on as two addends, `x` and `delta` (the part that the block before adds), so that each
// residual addition is fused with the norm that follows it:
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

struct BlockGradients {  // fp32, with the shapes of BlockWeights
  float *norm1, *qkv, *o, *norm2, *gate_up, *down;
};

// Under tensor parallelism, NH, NKV and FF count what this rank holds, in weights and activations alike. R is this
// rank's number of rows between products; without tensor parallelism, R = N, the number of tokens.

// The tensors that forward saves for backward. An input that is saved in FP8 instead is null here (projection.h).
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

// Buffers that all blocks use, one after the other.
template <class T>
struct BlockScratch {
  T* projected;            // (R, C) output of Wo
  T* dnorm;                // (R, C)
  T* dattention;           // (N, NH HD)
  T* dqkv;                 // (N, QKV); in forward with a `past`: the new tokens' q, k and v before they are copied
  T* dswiglu;              // (N, FF)
  T* dgate_up;             // (N, 2 FF); null where quantization computes it and nobody stores it
  float* attention_delta;  // (B, NH, T), or the part of one head and chunk (context_attention.h)
  float* norm_partials;    // rmsnorm_backward_scratch(R, C)
};

// How much of a block backward recomputes instead of keeping it. Each level includes the one before:
//   norms   the outputs of both norms and of SwiGLU
//   mlp     all of the MLP: also the output of its first product
//   block   all but the block's input
enum class Recompute { none, norms, mlp, block };

// The values that all blocks of a pass share.
struct BlockContext {
  Stream& stream;
  Matmul& matmul;
  const LlamaConfig& config;
  const float* rope_table;  // (rope_positions, HD / 2, 2)
  int rope_positions;
  const int* positions;       // (B, T), on the device
  const int* document_start;  // (B, T), on the device: where each token's document starts in its row; null: 0
  int B, T;
  AttentionKernel attention;
  const BlockFp8* fp8 = nullptr;  // null: all products are in T
  // Number of tokens that precede these in the sequence; forward only, with B = 1. Their keys and values lie before
  // those of the new tokens in the activations' qkv.
  int past = 0;
  TensorParallel* tensor = nullptr;  // null: this rank computes all of each product
  // Scratch of tensor parallelism, (padded N, C) each. `gathered` holds all ranks' rows, in T or as FP8 bytes.
  // `partial` holds partial sums of all tokens, in fp32 or T (TensorParallel::with_sums).
  void *gathered = nullptr, *partial = nullptr;

  // Null: this rank has the whole of each sequence. Otherwise B counts two chunks for each sequence, T is the length of
  // a chunk, and a whole sequence has T * sequences->part().multiple() tokens (context_part.h).
  ContextParallel* sequences = nullptr;
  const void* sequence_buffers = nullptr;  // a ContextBuffers of the model's number type

  int tokens() const { return B * T; }
  int rows() const { return tensor ? tensor->own_rows(B * T) : B * T; }  // between products
};

// `middle_before` and `delta` are the two addends that the block before left. For the first block `middle_before` is
// null, and activations.x holds the embedding. On return `delta` holds what this block adds to activations.middle.
template <class T>
void block_forward(const BlockContext& context, const BlockWeights<T>& weights, const BlockActivations<T>& activations,
                   const BlockScratch<T>& scratch, const T* middle_before, T* delta);

// Call this before block_backward. It recomputes the activations that the level leaves out from the others, with the
// same bits. The context's scales must be those of the forward pass that had the input activations.x.
template <class T>
void block_recompute(const BlockContext& context, const BlockWeights<T>& weights,
                     const BlockActivations<T>& activations, const BlockScratch<T>& scratch, Recompute level);

// On entry `dresidual` (R, C) holds the gradient of the block's output, and its amax has been written if wanted_amax()
// asks for it (projection.h). On return the same holds for the gradient of the block's input. The weight gradients of
// norms are added to (+=); those of matrices are added to if `accumulate`, else set (=).
template <class T>
void block_backward(const BlockContext& context, const BlockWeights<T>& weights, const BlockGradients& gradients,
                    const BlockActivations<T>& activations, const BlockScratch<T>& scratch, T* dresidual,
                    bool accumulate);
