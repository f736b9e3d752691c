// Runs a pass over the units of a model: gather, forward, backward, reduce. Plans the buffers that a pass needs beyond
// the stores.
#pragma once

#include <optional>
#include <vector>

#include "llmc/kernels/embedding.h"
#include "llmc/memory/activation_store.h"
#include "llmc/memory/fp8_scratch.h"
#include "llmc/memory/gradient_store.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/plan.h"
#include "llmc/model/block.h"
#include "llmc/model/head.h"
#include "llmc/model/pass_settings.h"

// What this rank computes of a pass, and the ranks that compute the rest.
struct RankPart {
  const ModelConfig& config;  // of this rank's part of the model
  const ParameterLayout& layout;
  VocabularyPart vocabulary;
  TensorParallel* tensor_parallel;    // null: this rank computes all of each product
  ContextParallel* context_parallel;  // null: this rank has all of each sequence
  Communicator* sequence_group;       // ranks that compute the same sequences; null: this rank alone

  ContextPart context() const { return context_parallel ? context_parallel->part() : ContextPart{}; }
  // This rank's tokens of B sequences of T tokens, and its rows of the residual stream.
  size_t tokens(int B, int T) const { return size_t(B) * size_t(T) / size_t(context().degree); }
  size_t rows(int B, int T) const {
    return tensor_parallel ? TensorParallel::own_rows(tokens(B, T), tensor_parallel->degree()) : tokens(B, T);
  }
};

class Transformer {
 public:
  // `settings` must outlive the transformer. `scales` are those of FP8 products; null: there are none.
  Transformer(MemoryPlan& plan, const RankPart& part, const PassSettings& settings, ParameterStore& parameters,
              Fp8Scales* scales, Stream& compute, HostStreams* host);
  // Call this once the plan has memory: it fills the RoPE table, which then stays. `matmul` computes the products.
  void prepare(Matmul& matmul);
  // Calls `observer` for each FP8 product that is enqueued; empty: nothing is called.
  void observe(std::function<void(const ObservedProduct&)> observer) { observer_ = std::move(observer); }
  // Calls `observer` for each tensor of a pass, and for each unit's gradients of a micro-batch before they are summed
  // over the ranks; empty: nothing is called.
  void observe_tensors(TensorObserver observer) { tensor_observer_ = std::move(observer); }

  // Forward of one micro-batch that was sent to the device. `training`: its backward() follows, and is the next call.
  // Otherwise logits() may be called afterwards.
  void forward(const MicroBatch& batch, bool training);
  // The loss and backward of the micro-batch of the last forward(). Adds the losses to state->loss_sum, and the
  // z-losses to state->z_loss_sum. `first` and `last`: whether it is the first and the last of its step; see
  // GradientStore::begin_micro_step().
  void backward(const MicroBatch& batch, StepState* state, GradientStore& gradients, bool first, bool last);
  // Forward only. Adds the losses to state->loss_sum.
  void forward_loss(const MicroBatch& batch, StepState* state);
  // Returns the losses of this rank's tokens, (N), after forward_loss().
  Tensor losses() const { return head_buffers_.losses->elements(0, tokens_); }
  // Forward only, for the batch's tokens of one sequence (B = 1). Its first `past` tokens must be the last that went
  // through this function or forward(). Afterwards logits() may be called.
  void forward_cached(const MicroBatch& batch, int past);
  // Returns rows first .. first+head_chunk-1 of the logits of this rank's tokens. They are valid until the next call of
  // any function here but row_parts().
  Tensor logits(int first);
  // A row of these logits, of all ranks that compute the same sequences. There is one group of parts for each
  // context-parallel rank, since its tokens differ. A group has `ranks` parts of V logits; the last part may have
  // fewer. All parts begin `stride` apart.
  struct RowParts {
    Tensor data;  // (parts, stride)
    int ranks, V, stride;
  };
  RowParts row_parts(const Tensor& logits, int row);  // the host waits for the other ranks
  int head_chunk() const { return int(head_buffers_.logits[0]->rows()); }
  int vocabulary() const { return part_.vocabulary.whole; }
  ContextPart context_part() const { return part_.context(); }
  int tokens() const { return tokens_; }  // of this rank, in the last pass
  // True if forward_cached() may be called.
  bool keeps_keys() const { return !part_.context_parallel && activations_.keeps_keys(); }

 private:
  Segment rows_segment() const;
  SavedSizes saved_sizes() const;
  void plan_scratch(MemoryPlan& plan, const ScratchSizes& sizes);
  void plan_logits(MemoryPlan& plan, size_t blocks_bytes);
  void plan_head(MemoryPlan& plan);
  void plan_tensor_parallel(MemoryPlan& plan);
  void plan_context_parallel(MemoryPlan& plan);
  void embed(const Pass& pass, const MicroBatch& batch, const Tensor& table);
  void embed_backward(const Pass& pass, const MicroBatch& batch, const Tensor& gradient, const Tensor& dresidual);
  EmbeddingRows embedding_rows() const { return {part_.vocabulary.first, part_.vocabulary.whole, config_.pad}; }
  void release_head();
  void forward_from(const MicroBatch& batch, int past, bool training);
  std::optional<Fp8Pass> fp8_pass() const;
  // A pass without a batch, for the head's products after a forward.
  Pass make_pass(int B, int seq_len, const Fp8Pass* fp8) const;
  // The pass of this micro-batch. `fp8` must outlive it.
  Pass make_pass(const MicroBatch& batch, int past, bool training, const Fp8Pass* fp8) const;
  BlockTensors block_tensors(int layer) const;
  void backward_block(const Pass& pass, int layer, const BlockScratch& scratch, GradientStore& gradients,
                      const Tensor& dresidual, const float* amax, float* amax_of_previous);
  ScratchTensors scratch() const;
  int context_heads() const;
  void reduce(const Pass& pass, GradientStore& gradients, int unit) const;
  Head make_head(const Pass& pass, GradientStore* gradients);
  Tensor begin_embedding_gradient(GradientStore& gradients) const;

  const RankPart part_;
  const ModelConfig& config_ = part_.config;
  const ParameterLayout& layout_ = part_.layout;
  const PassSettings& settings_;
  const Fp8Settings& fp8_ = settings_.fp8;
  ParameterStore& parameters_;
  Fp8Scales* scales_;
  Stream& stream_;
  ActivationStore activations_;
  std::optional<Fp8Scratch> fp8_scratch_;
  std::optional<Fp8Head> fp8_head_;
  std::function<void(const ObservedProduct&)> observer_;
  TensorObserver tensor_observer_;

  PlannedTensor blocks_or_logits_;      // memory that blocks and the head use in turn
  std::vector<PlannedTensor> scratch_;  // in the order of scratch_rows()
  struct {
    PlannedTensor x, norm, rstd, logits[kExchangeSlots], losses, z_losses;
    PlannedArray<SoftmaxPart> parts[kExchangeSlots];
  } head_buffers_;
  PlannedTensor rope_table_;       // (T, HD / 2, 2)
  PlannedTensor gathered_, sums_;  // of tensor parallelism: see Pass
  PlannedTensor own_keys_values_, keys_values_[kContextSlots], dkeys_values_[kContextSlots];  // see ContextBuffers
  PlannedTensor logits_by_rank_;  // (ranks that compute the same sequences, ld)

  Matmul* matmul_ = nullptr;
  int B_ = 0, T_ = 0;        // of the last forward pass
  int tokens_ = 0;           // of this rank in it
  int cached_ = 0;           // tokens of one sequence whose keys and values are kept
  bool holds_head_ = false;  // the head's weights stay gathered after forward, until release_head()
};
