#include "llmc/train/transformer.h"

#include <algorithm>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/number.h"
#include "llmc/kernels/embedding.h"
#include "llmc/kernels/rmsnorm.h"
#include "llmc/kernels/rope.h"

template <class T>
Transformer<T>::Transformer(MemoryPlan& plan, const LlamaConfig& config, const ParameterLayout& layout, WalkSizes sizes,
                            AttentionKernel attention, const Fp8Settings& fp8, Device& device, HostStreams* host)
    : config_(config),
      layout_(layout),
      sizes_(sizes),
      attention_(attention),
      fp8_(fp8),
      activations_(plan, config, fp8, sizes.policy, {sizes.tokens(), sizes.rows()}, device, host) {
  if (fp8.on()) fp8_scratch_.emplace(plan, fp8, config, int(sizes.tokens()), sizes.policy.has_value(), sizes.tensor);
  const size_t N = sizes.tokens(), R = sizes.rows(), C = size_t(config.C), FF = size_t(config.FF);
  const auto add = [&]<class U>(Planned<U>& planned, const char* category, const char* name, size_t count) {
    planned = plan.add<U>(Segment::device, category, name, count);
  };
  add(planned_.projected, "scratch", "projected", R * C);
  add(planned_.delta, "scratch", "delta", R * C);
  add(planned_.dqkv, "scratch", "dqkv", N * size_t(config.qkv_width()));
  if (sizes.policy) {
    add(planned_.dnorm, "scratch", "dnorm", R * C);
    add(planned_.dattention, "scratch", "dattention", N * size_t(config.q_width()));
    add(planned_.dswiglu, "scratch", "dswiglu", N * FF);
    bool wide = fp8.bf16_wgrad();
    for (int layer = 0; layer < config.L; ++layer) wide = wide || !fp8.quantizes(layer, Product::gate_up);
    if (wide) add(planned_.dgate_up, "scratch", "dgate_up", N * 2 * FF);
    add(planned_.dresidual, "scratch", "dresidual", R * C);
    // Scratch for one call of attention_backward. Under context parallelism a call handles one key/value head and one
    // of two chunks, so it needs 1 / (2 NKV) of the memory.
    const size_t calls = sizes.sequences ? 2 * size_t(config.NKV) : 1;
    add(planned_.attention_delta, "scratch", "attention delta", N * size_t(config.NH) / calls);
    add(planned_.norm_partials, "scratch", "norm partials", size_t(rmsnorm_backward_scratch(int(R), config.C)));
  }
  add(planned_.rope_table, "tables", "RoPE", size_t(sizes.T) * size_t(config.HD));
  add(planned_.head_x, "activations", "head x", R * C);
  add(planned_.head_norm, "activations", "head norm", R * C);
  add(planned_.head_rstd, "activations", "head rstd", R);
  head_.ld = (sizes.vocabulary.most + 63) / 64 * 64;
  head_.chunk = std::min(sizes.head_chunk, (int(N) + 127) / 128 * 128);
  for (int slot = 0; slot < head_slots(); ++slot)
    add(planned_.logits[slot], "logits", "logits", size_t(head_.chunk) * size_t(head_.ld));
  add(planned_.losses, "logits", "losses", N);
  if (sizes.tensor) plan_tensor_parallel(plan);
  if (sizes.sequences) plan_context_parallel(plan);
  if (sizes.computing)
    planned_.logits_by_rank = plan.add<T>(Segment::symmetric, "logits", "logits of a row by rank",
                                          size_t(sizes.computing->size()) * size_t(head_.ld));
}

template <class T>
void Transformer<T>::plan_tensor_parallel(MemoryPlan& plan) {
  const size_t degree = size_t(sizes_.tensor->degree()), C = size_t(config_.C), rows = degree * sizes_.rows();
  // The buffer must also hold the rows as FP8 bytes, with their padding.
  const size_t size = std::max(rows * C, ((rows + 15) * (C + 15) + sizeof(T) - 1) / sizeof(T));
  planned_.gathered = plan.add<T>(Segment::symmetric, "tensor parallelism", "all ranks' rows", size);
  const auto add_partial = [&]<class Sum>(Planned<Sum>& planned) {
    planned = plan.add<Sum>(Segment::symmetric, "tensor parallelism", "partial sums of all tokens", rows * C);
  };
  if (sizes_.tensor->sums() == DType::fp32) add_partial(planned_.wide_partial);
  else add_partial(planned_.partial);
  for (int slot = 0; slot < head_slots(); ++slot)
    planned_.parts[slot] = plan.add<SoftmaxPart>(Segment::symmetric, "tensor parallelism", "softmax by rank",
                                                 degree * size_t(head_.chunk));
}

template <class T>
void Transformer<T>::plan_context_parallel(MemoryPlan& plan) {
  const size_t head = 2 * size_t(config_.HD), all = size_t(sizes_.B) * size_t(sizes_.T) * head;
  const auto add = [&](const char* name, size_t count) {
    return plan.add<T>(Segment::symmetric, "context parallelism", name, count);
  };
  planned_.own = add("keys and values", sizes_.tokens() * size_t(config_.NKV) * head);
  for (int slot = 0; slot < std::min(kContextSlots, config_.NKV); ++slot) {
    planned_.all[slot] = add("all keys and values of a head", all);
    if (sizes_.policy) planned_.dall[slot] = add("gradients of a head", all);
  }
}

template <class T>
void Transformer<T>::bind(const Arena& arena, Stream& stream, Matmul& matmul, ParameterStore<T>& parameters,
                          Fp8Scales* scales) {
  scales_ = scales;
  if (fp8_scratch_) fp8_scratch_->bind(arena);
  stream_ = &stream;
  matmul_ = &matmul;
  parameters_ = &parameters;
  activations_.bind(arena, stream);
  scratch_.projected = arena[planned_.projected];
  scratch_.dqkv = arena[planned_.dqkv];
  delta_ = arena[planned_.delta];
  if (sizes_.policy) {
    scratch_ = {scratch_.projected,
                arena[planned_.dnorm],
                arena[planned_.dattention],
                scratch_.dqkv,
                arena[planned_.dswiglu],
                planned_.dgate_up.count ? arena[planned_.dgate_up] : nullptr,
                arena[planned_.attention_delta],
                arena[planned_.norm_partials]};
    dresidual_ = arena[planned_.dresidual];
  }
  head_.x = arena[planned_.head_x];
  head_.rstd = arena[planned_.head_rstd];
  head_.norm = arena[planned_.head_norm];
  head_.dnorm = scratch_.dnorm;
  for (int slot = 0; slot < head_slots(); ++slot) head_.logits[slot] = arena[planned_.logits[slot]];
  head_.losses = arena[planned_.losses];
  head_.norm_partials = scratch_.norm_partials;
  if (sizes_.tensor) {
    head_.gathered = arena[planned_.gathered];
    if (planned_.wide_partial.count) head_.partial = arena[planned_.wide_partial];
    else head_.partial = arena[planned_.partial];
    for (int slot = 0; slot < head_slots(); ++slot) head_.parts[slot] = arena[planned_.parts[slot]];
  }
  if (sizes_.sequences) {
    sequence_buffers_.own = arena[planned_.own];
    for (int slot = 0; slot < std::min(kContextSlots, config_.NKV); ++slot) {
      sequence_buffers_.all[slot] = arena[planned_.all[slot]];
      if (sizes_.policy) sequence_buffers_.dall[slot] = arena[planned_.dall[slot]];
    }
  }
  if (sizes_.computing) logits_by_rank_ = arena[planned_.logits_by_rank];
  rope_table_ = arena[planned_.rope_table];
  const std::vector<float> table = stream.device().executes()
                                       ? rope_table(config_.rope, config_.HD, sizes_.T)
                                       : std::vector<float>(size_t(sizes_.T) * size_t(config_.HD));
  copy(stream, rope_table_, table.data(), table.size());
  stream.synchronize();
}

template <class T>
BlockContext Transformer<T>::block_context(BatchUploader::DeviceBatch batch, int B, int seq_len, int past) const {
  BlockContext context{*stream_, *matmul_, config_,    rope_table_, sizes_.T, batch.positions, batch.document_start,
                       B,        seq_len,  attention_, nullptr,     past};
  context.tensor = sizes_.tensor, context.gathered = head_.gathered, context.partial = head_.partial;
  if (sizes_.sequences) {
    context.B = 2 * B, context.T = sizes_.part().chunk(seq_len);
    context.sequences = sizes_.sequences, context.sequence_buffers = &sequence_buffers_;
  }
  return context;
}

// Returns the context of a block with its FP8 state, after get_block(). Fills in `fp8`, which must outlive the context.
template <class T>
BlockContext Transformer<T>::with_fp8(BlockContext context, BlockFp8& fp8, int layer, bool backward) const {
  if (!scales_) return context;
  fp8.settings = &fp8_;
  fp8.layer = layer;
  for (const Product product : kEachProduct) {
    fp8.weights[int(product)] = parameters_->quantized(layer, product);
    fp8.saved_inputs[int(product)] = activations_.saved_fp8_input(layer, product, backward);
  }
  fp8_scratch_->give(fp8);
  fp8.words = scales_->words();
  fp8.not_finite = scales_->not_finite();
  fp8.share_amax = scales_->share_amax();
  fp8.observer = observer_ ? &observer_ : nullptr;
  context.fp8 = &fp8;
  return context;
}

template <class T>
HeadContext Transformer<T>::head_context() const {
  return {*stream_, *matmul_, config_, tokens_, sizes_.tensor, sizes_.vocabulary};
}

template <class T>
BlockGradients Transformer<T>::block_gradients(int layer, GradientStore& gradients) const {
  const int unit = layout_.block_unit(layer);
  float* base = gradients.begin(unit);
  const auto at = [&](const char* product) { return base + layout_.offset(unit, product); };
  return {at("norm1"), at("qkv"), at("o"), at("norm2"), at("gate_up"), at("down")};
}

template <class T>
HeadWeights<T> Transformer<T>::head_weights() {
  const int unit = layout_.head_unit();
  const T* base = parameters_->get(unit);
  const T* head = config_.tied ? parameters_->get(layout_.embedding_unit()) + layout_.offset(0, "embedding")
                               : base + layout_.offset(unit, "head");
  return {base + layout_.offset(unit, "norm"), head};
}

template <class T>
HeadGradients Transformer<T>::head_gradients(GradientStore& gradients) const {
  const int unit = layout_.head_unit();
  float* base = gradients.begin(unit);
  return {base + layout_.offset(unit, "norm"),
          config_.tied ? embedding_gradient(gradients) : base + layout_.offset(unit, "head"), config_.tied};
}

// Begins the embedding's gradient. If the head is tied, head_gradients() calls this, once for both.
template <class T>
float* Transformer<T>::embedding_gradient(GradientStore& gradients) const {
  const int unit = layout_.embedding_unit();
  return gradients.begin(unit) + layout_.offset(unit, "embedding");
}

template <class T>
void Transformer<T>::forward(BatchUploader::DeviceBatch batch, int B, int seq_len) {
  forward_from(batch, B, seq_len, 0);
}

template <class T>
void Transformer<T>::forward_cached(BatchUploader::DeviceBatch batch, int count, int past) {
  REQUIRE(past >= 0 && past <= cached_ && past + count <= sizes_.T,
          "%d tokens after %d of a sequence: the keys and values of %d are there, the longest sequence is %d", count,
          past, cached_, sizes_.T);
  forward_from(batch, 1, count, past);
}

template <class T>
void Transformer<T>::forward_from(BatchUploader::DeviceBatch batch, int B, int seq_len, int past, bool training) {
  REQUIRE(B > 0 && seq_len > 0 && seq_len <= sizes_.T && size_t(B) * seq_len <= size_t(sizes_.B) * sizes_.T,
          "a pass of %d x %d tokens, planned were at most %d x %d", B, seq_len, sizes_.B, sizes_.T);
  REQUIRE(seq_len % sizes_.part().multiple() == 0,
          "sequences of %d tokens on %d ranks that share them: not a multiple of %d", seq_len, sizes_.part().degree,
          sizes_.part().multiple());
  cached_ = B == 1 ? past + seq_len : 0;
  release_head();
  tokens_ = B * (seq_len / sizes_.part().degree);
  if (scales_) scales_->begin_pass(training);
  const BlockContext context = block_context(batch, B, seq_len, past);
  const int embedding = layout_.embedding_unit();

  parameters_->gather(embedding);
  const int L = config_.L, ahead = std::min(sizes_.prefetch, L);
  for (int layer = 0; layer < ahead; ++layer) parameters_->gather(layout_.block_unit(layer));
  const T* table = parameters_->get(embedding) + layout_.offset(embedding, "embedding");
  activations_.begin_forward(0, training);
  embed(batch, table);
  if (!config_.tied) parameters_->release(embedding);  // else the head needs it, too
  const T* middle = nullptr;                           // of the previous block
  for (int layer = 0; layer < L; ++layer) {
    if (layer + ahead <= L) parameters_->gather(layout_.block_unit(layer + ahead));  // a later block, or the head
    if (layer) activations_.begin_forward(layer, training);
    const BlockWeights<T> weights = parameters_->get_block(layer);
    BlockFp8 fp8;
    block_forward(with_fp8(context, fp8, layer, false), weights, activations_.get(layer), scratch_, middle, delta_);
    activations_.end_forward(layer, training);
    middle = activations_.get(layer).middle;
    parameters_->release(layout_.block_unit(layer));
  }
  holds_head_ = true;
  head_norm(head_context(), head_weights(), head_, middle, delta_);  // (N, C)
}

// The first block's input (R, C).
template <class T>
void Transformer<T>::embed(BatchUploader::DeviceBatch batch, const T* table) {
  T* x = activations_.get(0).x;
  const int N = tokens_, C = config_.C;
  const Tensor tokens(batch.inputs, {N}), weight(table, {config_.V, C});
  TensorParallel* tensor = sizes_.tensor;
  if (!tensor) return embedding_forward(*stream_, Tensor(x, {N, C}), tokens, weight, embedding_rows());
  T* all = static_cast<T*>(head_.partial);  // each sum has one rank's number and zeros, so T is exact
  tensor->clear_padding(*stream_, all, N, C);
  int i = 0;
  for (const TensorParallel::Chunk& chunk : tensor->chunks(N)) {
    embedding_forward(*stream_, Tensor(all, {N, C}).rows(chunk.first, chunk.count),
                      tokens.columns(chunk.first, chunk.count), weight, embedding_rows());
    tensor->scatter(*stream_, x, all, N, C, i++);
  }
  tensor->await_scattered(*stream_);
}

template <class T>
void Transformer<T>::embed_backward(BatchUploader::DeviceBatch batch, float* gradient) {
  const int N = tokens_, C = config_.C;
  if (TensorParallel* tensor = sizes_.tensor) {
    tensor->gather(*stream_, head_.gathered, dresidual_, N, C);
    tensor->await_tokens(*stream_, N, 0, N);
  }
  const Tensor dout(sizes_.tensor ? head_.gathered : dresidual_, {N, C});
  embedding_backward(*stream_, Tensor(gradient, {config_.V, C}), dout, Tensor(batch.inputs, {N}),
                     Tensor(batch.order, {N}), embedding_rows());  // +=
}

template <class T>
void Transformer<T>::release_head() {
  if (!holds_head_) return;
  holds_head_ = false;
  parameters_->release(layout_.head_unit());
  if (config_.tied) parameters_->release(layout_.embedding_unit());
}

template <class T>
const T* Transformer<T>::logits(int first) {
  return head_logits(head_context(), head_weights(), head_, first, std::min(head_.chunk, tokens_ - first));
}

template <class T>
typename Transformer<T>::RowParts Transformer<T>::row_parts(const T* logits, int row) {
  const T* own = logits + size_t(row) * size_t(head_.ld);
  if (!sizes_.computing) return {own, 1, config_.V, head_.ld};
  T* here = logits_by_rank_ + size_t(sizes_.computing->rank()) * size_t(head_.ld);
  copy(*stream_, here, own, size_t(head_.ld));
  sizes_.computing->all_gather(*stream_, logits_by_rank_, here, size_t(head_.ld) * sizeof(T));
  sizes_.computing->wait_for(*stream_);
  return {logits_by_rank_, sizes_.computing->size() / sizes_.part().degree, sizes_.vocabulary.most, head_.ld};
}

template <class T>
void Transformer<T>::forward_loss(BatchUploader::DeviceBatch batch, int B, int seq_len, StepState* state) {
  forward(batch, B, seq_len);
  head_loss(head_context(), head_weights(), head_, batch.labels, state);
  release_head();
}

template <class T>
void Transformer<T>::forward_backward(BatchUploader::DeviceBatch batch, int B, int seq_len, StepState* state,
                                      GradientStore& gradients, bool first, bool last) {
  REQUIRE(sizes_.policy, "a backward pass was asked for, and only forward passes were planned");
  forward_from(batch, B, seq_len, 0, true);
  const BlockContext context = block_context(batch, B, seq_len);
  const int embedding = layout_.embedding_unit();
  gradients.begin_micro_step(first, last);
  const HeadGradients dhead = head_gradients(gradients);
  float* dresidual_amax =
      scales_ ? wanted_amax(fp8_, scales_->words(), config_.L - 1, Product::down, Role::output_gradient) : nullptr;
  head_loss_backward(head_context(), head_weights(), dhead, head_, batch.labels, state, dresidual_,
                     gradients.accumulates(), dresidual_amax);
  const int L = config_.L, ahead = std::min(sizes_.prefetch, L);
  for (int layer = L - 1; layer >= L - ahead; --layer) parameters_->gather(layout_.block_unit(layer));
  release_head();
  gradients.reduce(layout_.head_unit());
  for (int layer = L - 1; layer >= 0; --layer) {
    if (layer >= ahead) parameters_->gather(layout_.block_unit(layer - ahead));
    const BlockWeights<T> weights = parameters_->get_block(layer);
    activations_.begin_backward(layer);
    BlockFp8 fp8;
    const BlockContext of_block = with_fp8(context, fp8, layer, true);
    fp8.again = true;
    block_recompute(of_block, weights, activations_.get(layer), scratch_, activations_.recompute(layer));
    fp8.again = false;
    block_backward(of_block, weights, block_gradients(layer, gradients), activations_.get(layer), scratch_, dresidual_,
                   gradients.accumulates());
    activations_.end_backward(layer);
    parameters_->release(layout_.block_unit(layer));
    gradients.reduce(layout_.block_unit(layer));
  }
  float* dembedding = config_.tied ? dhead.head : embedding_gradient(gradients);
  embed_backward(batch, dembedding);
  gradients.reduce(embedding);
}

template class Transformer<float>;
template class Transformer<bf16>;
