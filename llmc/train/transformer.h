// Runs a pass over the units of a model: gather, forward, backward, reduce. Owns all buffers that a pass needs beyond
// the stores.
#pragma once

#include <optional>

#include "llmc/kernels/embedding.h"
#include "llmc/memory/activation_store.h"
#include "llmc/memory/fp8_scratch.h"
#include "llmc/memory/gradient_store.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/plan.h"
#include "llmc/model/block.h"
#include "llmc/model/head.h"
#include "llmc/train/batch_uploader.h"

struct WalkSizes {
  int B, T;                                // the largest micro-batch
  int head_chunk;                          // tokens whose logits exist at once, a multiple of 128
  int prefetch;                            // units whose weights are gathered ahead of their use
  std::optional<ActivationPolicy> policy;  // none: only forward passes are planned
  TensorParallel* tensor = nullptr;        // null: this rank computes all of each product
  VocabularyPart vocabulary = {};          // this rank's part
  ContextParallel* sequences = nullptr;    // null: this rank has all of each sequence
  Communicator* computing = nullptr;       // ranks that compute the same sequences; null: this rank alone

  ContextPart part() const { return sequences ? sequences->part() : ContextPart{}; }
  size_t tokens() const { return size_t(B) * size_t(T) / size_t(part().degree); }  // of this rank
  size_t rows() const { return tensor ? TensorParallel::own_rows(tokens(), tensor->degree()) : tokens(); }
};

template <class T>
class Transformer {
 public:
  Transformer(MemoryPlan& plan, const LlamaConfig& config, const ParameterLayout& layout, WalkSizes sizes,
              AttentionKernel attention, const Fp8Settings& fp8, Device& device, HostStreams* host);
  // Fills the RoPE table, which then stays. `scales` are those of FP8 products; null: there are none.
  void bind(const Arena& arena, Stream& stream, Matmul& matmul, ParameterStore<T>& parameters, Fp8Scales* scales);
  // Calls `observer` for each FP8 product that is enqueued; empty: nothing is called.
  void observe(std::function<void(const ObservedProduct&)> observer) { observer_ = std::move(observer); }

  // Forward, loss and backward of one micro-batch (B, seq_len), which was sent to the device. `first`: it is the first
  // of its step, so that gradients of matrices are set and not added to. `last`: it is the last of its step, after
  // which each unit's reduced gradients are final.
  void forward_backward(BatchUploader::DeviceBatch batch, int B, int seq_len, StepState* state,
                        GradientStore& gradients, bool first, bool last);
  // Forward only. Adds the losses to state->loss_sum.
  void forward_loss(BatchUploader::DeviceBatch batch, int B, int seq_len, StepState* state);
  // Returns the losses of this rank's tokens, (N), after forward_loss().
  const float* losses() const { return head_.losses; }
  // Forward only, for `count` more tokens of one sequence. Its first `past` tokens must be the last that went through
  // this function or forward(). Afterwards logits() may be called, as below.
  void forward_cached(BatchUploader::DeviceBatch batch, int count, int past);
  // Forward only. Afterwards logits(first) returns rows first .. first+head_chunk-1 of the logits of this rank's
  // tokens. They are valid until the next call of any function here but row_parts().
  void forward(BatchUploader::DeviceBatch batch, int B, int seq_len);
  const T* logits(int first);
  // A row of these logits, of all ranks that compute the same sequences. There is one group of parts for each
  // context-parallel rank, since its tokens differ. A group has `ranks` parts of V logits; the last part may have
  // fewer. All parts begin `stride` apart.
  struct RowParts {
    const T* data;
    int ranks, V, stride;
  };
  RowParts row_parts(const T* logits, int row);  // the host waits for the other ranks
  int head_chunk() const { return head_.chunk; }
  int vocabulary() const { return sizes_.vocabulary.whole; }
  ContextPart part() const { return sizes_.part(); }
  int tokens() const { return tokens_; }  // of this rank, in the last pass
  // True if forward_cached() may be called.
  bool keeps_keys() const { return !sizes_.sequences && activations_.keeps_keys(); }

 private:
  void plan_tensor_parallel(MemoryPlan& plan);
  void plan_context_parallel(MemoryPlan& plan);
  void embed(BatchUploader::DeviceBatch batch, const T* table);
  void embed_backward(BatchUploader::DeviceBatch batch, float* gradient);
  // The number of buffers for chunks of logits.
  int head_slots() const { return sizes_.tensor && size_t(head_.chunk) < sizes_.tokens() ? kExchangeSlots : 1; }
  EmbeddingRows embedding_rows() const { return {sizes_.vocabulary.first, sizes_.vocabulary.whole}; }
  void release_head();
  void forward_from(BatchUploader::DeviceBatch batch, int B, int seq_len, int past, bool training = false);
  BlockContext with_fp8(BlockContext context, BlockFp8& fp8, int layer, bool backward) const;
  BlockContext block_context(BatchUploader::DeviceBatch batch, int B, int seq_len, int past = 0) const;
  HeadContext head_context() const;
  BlockGradients block_gradients(int layer, GradientStore& gradients) const;
  HeadWeights<T> head_weights();
  HeadGradients head_gradients(GradientStore& gradients) const;
  float* embedding_gradient(GradientStore& gradients) const;

  const LlamaConfig& config_;
  const ParameterLayout& layout_;
  WalkSizes sizes_;
  AttentionKernel attention_;
  const Fp8Settings& fp8_;
  ActivationStore<T> activations_;
  std::optional<Fp8Scratch> fp8_scratch_;
  std::function<void(const ObservedProduct&)> observer_;

  struct {
    Planned<T> projected, dnorm, dattention, dqkv, dswiglu, dgate_up, delta, dresidual;
    Planned<float> attention_delta, norm_partials, rope_table;
    Planned<T> head_x, head_norm, logits[kExchangeSlots];
    Planned<float> head_rstd, losses;
    Planned<T> gathered, partial, logits_by_rank;
    Planned<float> wide_partial;
    Planned<SoftmaxPart> parts[kExchangeSlots];
    Planned<T> own, all[kContextSlots], dall[kContextSlots];
  } planned_;
  BlockScratch<T> scratch_{};
  HeadBuffers<T> head_{};
  ContextBuffers<T> sequence_buffers_;
  T *delta_ = nullptr, *dresidual_ = nullptr, *logits_by_rank_ = nullptr;
  float* rope_table_ = nullptr;

  Stream* stream_ = nullptr;
  Matmul* matmul_ = nullptr;
  ParameterStore<T>* parameters_ = nullptr;
  Fp8Scales* scales_ = nullptr;
  int tokens_ = 0;           // in the last forward pass
  int cached_ = 0;           // tokens of one sequence whose keys and values are kept
  bool holds_head_ = false;  // the head's weights are still gathered since the last pass
};
