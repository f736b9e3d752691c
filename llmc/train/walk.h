// The walk over the units of a model: gather, forward, backward, reduce. All buffers that a pass needs beyond the
// stores.
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
#include "llmc/train/batch_feed.h"

struct WalkSizes {
  int B, T;                                // the largest micro-batch
  int head_chunk;                          // tokens whose logits exist at once, a multiple of 128
  int prefetch;                            // units whose weights are gathered ahead of their use
  std::optional<ActivationPolicy> policy;  // none: forward passes only, nothing is planned for more
  TensorParallel* tensor = nullptr;        // null: this rank computes all of each product
  VocabularyPart vocabulary = {};          // of this rank
  ContextParallel* sequences = nullptr;    // null: this rank has all of each sequence
  Communicator* computing = nullptr;       // the ranks that compute the same sequences; null: this one alone

  ContextPart part() const { return sequences ? sequences->part() : ContextPart{}; }
  size_t tokens() const { return size_t(B) * size_t(T) / size_t(part().degree); }  // of this rank
  size_t rows() const { return tensor ? TensorParallel::own_rows(tokens(), tensor->degree()) : tokens(); }
};

template <class T>
class Walk {
 public:
  Walk(MemoryPlan& plan, const LlamaConfig& config, const TensorLayout& layout, WalkSizes sizes,
       AttentionKernel attention, const Fp8Settings& fp8, Device& device, HostStreams* host);
  // Fills the RoPE table, which lasts. `scales`: of FP8 products; null: there are none.
  void bind(const Arena& arena, Stream& stream, Matmul& matmul, ParameterStore<T>& parameters, ScaleStore* scales);
  // Is told each FP8 product that is enqueued; empty: nobody.
  void observe(std::function<void(const ObservedProduct&)> observer) { observer_ = std::move(observer); }

  // Forward, loss and backward of one micro-batch (B, T) that was sent to the device. `first`: the first of its step,
  // whose matrices' gradients are set, not added to. `last`: the last, after which each unit's gradients are reduced.
  void forward_backward(BatchFeed::DeviceBatch batch, int B, int seq_len, StepState* state, GradientStore& gradients,
                        bool first, bool last);
  // Forward alone; adds the losses to state->loss_sum.
  void forward_loss(BatchFeed::DeviceBatch batch, int B, int seq_len, StepState* state);
  // Those of each of this rank's tokens, (N), after forward_loss.
  const float* losses() const { return head_.losses; }
  // Forward alone of one sequence, whose first `past` tokens were the last that went through this or `forward`; for
  // logits as below.
  void forward_more(BatchFeed::DeviceBatch batch, int count, int past);
  // Forward alone; then logits(first) gives the rows first .. first+head_chunk-1 of this rank's logits of its tokens,
  // valid until the next call of anything here but row_parts().
  void forward(BatchFeed::DeviceBatch batch, int B, int seq_len);
  const T* logits(int first);
  // A row of these, of all ranks that compute the same sequences: for each of those that share them out, whose tokens
  // differ, V logits of each of `ranks`, but the last, which may have fewer; all `stride` apart.
  struct RowParts {
    const T* data;
    int ranks, V, stride;
  };
  RowParts row_parts(const T* logits, int row);  // the host waits for other ranks
  int head_chunk() const { return head_.chunk; }
  int vocabulary() const { return sizes_.vocabulary.whole; }
  ContextPart part() const { return sizes_.part(); }
  int tokens() const { return tokens_; }  // of this rank, in the last pass
  // Whether forward_more() can be asked for.
  bool keeps_keys() const { return !sizes_.sequences && activations_.keeps_keys(); }

 private:
  void plan_tensor_parallel(MemoryPlan& plan);
  void plan_context_parallel(MemoryPlan& plan);
  void embed(BatchFeed::DeviceBatch batch, const T* table);
  void embed_backward(BatchFeed::DeviceBatch batch, float* gradient);
  // Chunks of logits that are there at once.
  int head_slots() const { return sizes_.tensor && size_t(head_.chunk) < sizes_.tokens() ? kExchangeSlots : 1; }
  EmbeddingRows embedding_rows() const { return {sizes_.vocabulary.first, config_.V, sizes_.vocabulary.whole}; }
  void release_head();
  void forward_from(BatchFeed::DeviceBatch batch, int B, int seq_len, int past, bool training = false);
  BlockContext with_fp8(BlockContext context, BlockFp8& fp8, int layer, bool backward) const;
  BlockContext block_context(BatchFeed::DeviceBatch batch, int B, int seq_len, int past = 0) const;
  HeadContext head_context() const;
  BlockGradients block_gradients(int layer, GradientStore& gradients) const;
  HeadWeights<T> head_weights();
  HeadGradients head_gradients(GradientStore& gradients) const;
  float* embedding_gradient(GradientStore& gradients) const;

  const LlamaConfig& config_;
  const TensorLayout& layout_;
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
  ScaleStore* scales_ = nullptr;
  int tokens_ = 0;           // of the last forward pass
  int cached_ = 0;           // tokens of one sequence whose keys and values are there
  bool holds_head_ = false;  // the head's weights are still gathered since then
};
