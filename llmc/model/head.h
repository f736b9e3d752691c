// The end of the model: the last residual addition, the final norm, the product with the vocabulary and the loss. The
// logits exist for `chunk` tokens at a time only: each chunk's are turned into their gradient in place and used up
// before the next. Of tensor parallelism each rank has the logits of its part of the vocabulary, of all N tokens, and
// of the rest its R rows; a chunk's softmax is joined from the ranks' parts, which travel while the next chunk's logits
// are computed in memory of their own.
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
  const T* head;  // (V, C), V of this rank; the embedding if tied
};

struct HeadGradients {
  float* norm;        // (C)
  float* head;        // (V, C)
  bool head_is_tied;  // head already holds a part of this step's gradient, or zeros: only ever +=
};

template <class T>
struct HeadBuffers {
  T* x;                       // (R, C) residual stream after the last block
  float* rstd;                // (R)
  T* norm;                    // (R, C)
  T* dnorm;                   // (R, C)
  T* logits[kExchangeSlots];  // (chunk, ld), in turns; one, where the other is null
  float* losses;              // (N)
  float* norm_partials;       // rmsnorm_backward_scratch(R, C)
  int chunk;                  // a multiple of 128, so that each chunk's rows are aligned as products want them
  int ld;                     // row stride of logits: V rounded up to 64
  // Of tensor parallelism, (padded N, C) each: all ranks' rows of norm; partial sums of all tokens' dnorm, of their
  // type.
  T* gathered = nullptr;
  void* partial = nullptr;
  // (degree, chunk) of logits.
  SoftmaxPart* parts[kExchangeSlots] = {};
};

struct HeadContext {
  Stream& stream;
  Matmul& matmul;
  const LlamaConfig& config;  // of this rank's part
  int N;                      // tokens
  TensorParallel* tensor = nullptr;
  VocabularyPart vocabulary = {};  // with it

  int rows() const { return tensor ? tensor->own_rows(N) : N; }
};

// x = middle + delta, norm = RMSNorm(x).
template <class T>
void head_norm(const HeadContext& context, const HeadWeights<T>& weights, const HeadBuffers<T>& buffers,
               const T* middle, const T* delta);

// After head_norm: the logits of the tokens first .. first+count-1, count <= chunk, first a multiple of chunk; where
// they are.
template <class T>
T* head_logits(const HeadContext& context, const HeadWeights<T>& weights, const HeadBuffers<T>& buffers, int first,
               int count);

// After head_norm: adds the losses of all tokens to state->loss_sum, one rank of a tensor-parallel group for all.
template <class T>
void head_loss(const HeadContext& context, const HeadWeights<T>& weights, const HeadBuffers<T>& buffers,
               const int* labels, StepState* state);

// After head_norm: the same, and backward: dresidual (R, C) = gradient of x, weight gradients as in block_backward.
// The largest |dresidual| goes to `amax` unless that is null.
template <class T>
void head_loss_backward(const HeadContext& context, const HeadWeights<T>& weights, const HeadGradients& gradients,
                        const HeadBuffers<T>& buffers, const int* labels, StepState* state, T* dresidual,
                        bool accumulate, float* amax);
