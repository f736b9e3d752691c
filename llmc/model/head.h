// The end of the model: the last residual addition, the final norm, the product with the vocabulary and the loss. The
// logits of only `chunk` tokens exist at a time. Each chunk's logits are turned into their gradient in place, and are
// used up before the next chunk's are computed.
//
// Under tensor parallelism each rank has the logits of all N tokens for its part of the vocabulary, and its R rows of
// everything else. The softmax of a chunk is joined from the ranks' parts. These travel while the next chunk's logits
// are computed in a second buffer.
#pragma once

#include "llmc/device/device.h"
#include "llmc/kernels/classifier.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/step_state.h"
#include "llmc/model/config.h"
#include "llmc/model/tensor_parallel.h"

template <class T>
struct HeadWeights {
  const T* norm;  // (C)
  const T* head;  // (V, C) with this rank's V; the embedding if tied
};

struct HeadGradients {
  float* norm;        // (C)
  float* head;        // (V, C)
  bool head_is_tied;  // `head` already holds zeros or a part of this step's gradient, so it is always added to (+=)
};

template <class T>
struct HeadBuffers {
  T* x;                       // (R, C) residual stream after the last block
  float* rstd;                // (R)
  T* norm;                    // (R, C)
  T* dnorm;                   // (R, C)
  T* logits[kExchangeSlots];  // (chunk, ld), used in turn; the second may be null
  float* losses;              // (N)
  float* norm_partials;       // rmsnorm_backward_scratch(R, C)
  int chunk;                  // a multiple of 128, so that each chunk's rows have the alignment that products need
  int ld;                     // row stride of logits: V rounded up to 64
  // For tensor parallelism, (padded N, C) each: `gathered` holds all ranks' rows of norm, `partial` holds partial sums
  // of all tokens' dnorm (TensorParallel::with_sums).
  T* gathered = nullptr;
  void* partial = nullptr;
  // (degree, chunk), one buffer for each buffer of logits.
  SoftmaxPart* parts[kExchangeSlots] = {};
};

struct HeadContext {
  Stream& stream;
  Matmul& matmul;
  const LlamaConfig& config;  // of this rank's part of the model
  int N;                      // tokens
  TensorParallel* tensor = nullptr;
  VocabularyPart vocabulary = {};  // this rank's part; used only with `tensor`

  int rows() const { return tensor ? tensor->own_rows(N) : N; }
};

// x = middle + delta, norm = RMSNorm(x).
template <class T>
void head_norm(const HeadContext& context, const HeadWeights<T>& weights, const HeadBuffers<T>& buffers,
               const T* middle, const T* delta);

// Call this after head_norm. Computes the logits (count, ld) of tokens first .. first+count-1 and returns where they
// are. count <= chunk, and first is a multiple of chunk.
template <class T>
T* head_logits(const HeadContext& context, const HeadWeights<T>& weights, const HeadBuffers<T>& buffers, int first,
               int count);

// Call this after head_norm. Adds the losses of all tokens to state->loss_sum; in a tensor-parallel group only rank 0
// does so.
template <class T>
void head_loss(const HeadContext& context, const HeadWeights<T>& weights, const HeadBuffers<T>& buffers,
               const int* labels, StepState* state);

// Call this after head_norm. Does the same as head_loss, and backward: dresidual (R, C) = gradient of x; weight
// gradients as in block_backward. The largest |dresidual| goes to `amax` unless that is null.
template <class T>
void head_loss_backward(const HeadContext& context, const HeadWeights<T>& weights, const HeadGradients& gradients,
                        const HeadBuffers<T>& buffers, const int* labels, StepState* state, T* dresidual,
                        bool accumulate, float* amax);
