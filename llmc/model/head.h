// The end of the model: the last residual addition, the final norm, the product with the vocabulary and the loss. The
// logits of only `chunk` tokens exist at a time. Each chunk's logits are turned into their gradient in place, and are
// used up before the next chunk's are computed.
//
// Under tensor parallelism each rank has the logits of all N tokens for its part of the vocabulary, and its R rows of
// everything else. The softmax of a chunk is joined from the ranks' parts. The ranks exchange these while the next
// chunk's logits are computed in a second buffer.
#pragma once

#include "llmc/config/parameters.h"
#include "llmc/kernels/classifier.h"
#include "llmc/kernels/step_state.h"
#include "llmc/model/fp8_head.h"
#include "llmc/model/linear.h"

// Buffers of the head, for the largest micro-batch.
struct HeadBuffers {
  Tensor x;                            // (R, C) residual stream after the last block
  Tensor rstd;                         // (R)
  Tensor norm;                         // (R, C)
  Tensor dnorm;                        // (R, C)
  Tensor logits[kExchangeSlots] = {};  // (chunk, ld), used in turn; the second may be absent
  Tensor losses;                       // (N)
  Tensor z_losses;                     // (N); absent without z-loss
  Tensor norm_partials;                // (rmsnorm_backward_scratch(R, C))
  // (degree, chunk), one buffer for each buffer of logits; null without tensor parallelism.
  SoftmaxPart* parts[kExchangeSlots] = {};
  const Fp8Head* fp8 = nullptr;  // null: all products are in the model's type

  // A multiple of 128, so that each chunk's rows have the alignment that products need.
  int chunk() const { return int(logits[0].rows()); }
  // The row stride of logits: V rounded up to 64.
  int ld() const { return int(logits[0].columns()); }
};

class Head {
 public:
  // `norm` (C); `head` (V, C) with this rank's V, the embedding if it is tied. A tied head's gradient already holds
  // zeros or a part of this step's gradient, so it is always added to (+=). `vocabulary` is this rank's part; it is
  // used only under tensor parallelism. The views are cut for this pass, so the object lives no longer than it.
  Head(const Pass& pass, const Parameter& norm, const Parameter& head, bool tied, VocabularyPart vocabulary,
       const HeadBuffers& buffers);

  // x = h + mlp_out (R, C), norm = RMSNorm(x). All other functions are called after this one.
  void forward(const Tensor& h, const Tensor& mlp_out) const;
  // Computes the logits (count, ld) of tokens first .. first+count-1 and returns them. count <= chunk, and first is a
  // multiple of chunk.
  Tensor logits(int first, int count) const;
  // Adds the losses of all tokens to state->loss_sum; in a tensor-parallel group only rank 0 does so. labels (N).
  void loss(const Tensor& labels, StepState* state) const;
  // Adds the losses as loss() does, the z-losses to state->z_loss_sum, and computes backward: dresidual (R, C) =
  // gradient of x; weight gradients as in Block::backward(). `amax` receives the amax of dresidual, unless it is null.
  void loss_backward(const Tensor& labels, StepState* state, const Tensor& dresidual, float* amax) const;

  const Tensor& weight_gradient() const { return head_.grad; }

 private:
  void show(const char* name, const Tensor& tensor) const { pass_.show(pass_.config.L, name, tensor); }
  Tensor inputs() const;
  int slot_of(int first) const { return b_.logits[1] ? first / b_.chunk() % kExchangeSlots : 0; }
  int tokens_of_chunk(int first) const;
  void begin_chunk(const Tensor& labels, int first) const;
  void classify(const Tensor& labels, StepState* state, int first) const;
  template <class F>
  void for_chunks(const Tensor& labels, F&& finish) const;
  void add_losses(double* sum, const Tensor& losses) const;
  void dgrad(const Tensor& dlogits, int first, int& scattered) const;
  void dgrad(const Tensor& dnorm, const Tensor& dlogits) const;
  void wgrad(const Tensor& dlogits, int first, bool add) const;

  const Pass& pass_;
  const Parameter norm_, head_;
  const bool tied_;
  const VocabularyPart vocabulary_;
  HeadBuffers b_;
};
