#include "llmc/model/transformer.h"

#include <algorithm>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/range.h"
#include "llmc/kernels/embedding.h"
#include "llmc/kernels/rope.h"
#include "llmc/model/attention.h"

// ---------------------------------------------------------------------------------------------- memory

Transformer::Transformer(MemoryPlan& plan, const RankPart& part, const PassSettings& settings,
                         ParameterStore& parameters, Fp8Scales* scales, Stream& compute, HostStreams* host)
    : part_(part),
      settings_(settings),
      parameters_(parameters),
      scales_(scales),
      stream_(compute),
      activations_(plan, saved_sizes(), settings.training ? std::optional(settings.activations) : std::nullopt,
                   compute.device(), compute, host) {
  if (fp8_.on()) {
    std::optional<DType> partial_sums;
    if (part.tensor_parallel) partial_sums = part.tensor_parallel->sum_type(settings.dtype);
    fp8_scratch_.emplace(plan, fp8_, layout_.projections, int(saved_sizes().N), settings.training, partial_sums);
  }
  plan_scratch(plan, {saved_sizes(), context_heads()});
  rope_table_ = plan.add(Segment::device, "tables", "RoPE", DType::fp32, {settings.T, config_.HD / 2, 2});
  plan_head(plan);
  if (part.tensor_parallel) plan_tensor_parallel(plan);
  if (part.context_parallel) plan_context_parallel(plan);
  if (part.sequence_group)
    logits_by_rank_ = plan.add(Segment::symmetric, "logits", "logits of a row by rank", settings.dtype,
                               {part.sequence_group->size(), head_buffers_.logits[0]->columns()});
}

// Tensor-parallel ranks gather and scatter the rows of the residual stream. NCCL uses its kernels for symmetric memory
// only if both the source and the destination of a collective lie in such memory.
Segment Transformer::rows_segment() const { return part_.tensor_parallel ? Segment::symmetric : Segment::device; }

SavedSizes Transformer::saved_sizes() const {
  return {config_,
          layout_.projections,
          fp8_,
          settings_.dtype,
          int64_t(part_.tokens(settings_.B, settings_.T)),
          int64_t(part_.rows(settings_.B, settings_.T)),
          part_.tensor_parallel != nullptr,
          settings_.training};
}

void Transformer::plan_scratch(MemoryPlan& plan, const ScratchSizes& sizes) {
  plan_logits(plan, block_scratch_bytes(sizes));
  size_t offset = 0;
  for (const ScratchRow& row : scratch_rows()) {
    const Tensor tensor = row.of(sizes);
    const bool blocks = row.use == ScratchUse::blocks;
    const auto add = [&](TensorShape shape) {
      if (blocks) return plan.add_within(blocks_or_logits_, offset, row.name, tensor.type, shape);
      const Segment segment = row.use == ScratchUse::exchanged ? rows_segment() : Segment::device;
      return plan.add(segment, "scratch", row.name, tensor.type, shape);
    };
    scratch_.emplace_back();
    if (tensor.axes == 1) scratch_.back() = add({tensor.columns()});
    else if (tensor) scratch_.back() = add({tensor.rows(), tensor.columns()});
    if (blocks) offset += MemoryPlan::aligned(tensor.span_bytes());
  }
}

void Transformer::plan_logits(MemoryPlan& plan, size_t blocks_bytes) {
  const int64_t N = saved_sizes().N, chunk = std::min<int64_t>(settings_.head_chunk, (N + 127) / 128 * 128);
  const int slots = part_.tensor_parallel && chunk < N ? kExchangeSlots : 1;
  const int64_t ld = (part_.vocabulary.most + 63) / 64 * 64;
  const size_t of_slot = MemoryPlan::aligned(size_t(chunk) * size_t(ld) * bytes_of(settings_.dtype));
  const size_t of_logits = size_t(slots) * of_slot;
  const DType sums = part_.tensor_parallel ? part_.tensor_parallel->sum_type(settings_.dtype) : settings_.dtype;
  const Fp8HeadSizes in_fp8{config_.V, int(ld), config_.C, int(chunk), bytes_of(sums), settings_.training};
  const bool fp8 = fp8_.computes_head(settings_.training);
  const size_t head_bytes = of_logits + (fp8 ? Fp8Head::chunk_bytes(in_fp8) : 0);
  blocks_or_logits_ = plan.add(Segment::device, "scratch", "of blocks or logits", DType::uint8,
                               {int64_t(std::max(blocks_bytes, head_bytes))});
  if (fp8)
    fp8_head_.emplace(plan, fp8_, in_fp8, layout_.projections.head_id(Role::input), blocks_or_logits_, of_logits);
  for (int slot = 0; slot < slots; ++slot)
    head_buffers_.logits[slot] =
        plan.add_within(blocks_or_logits_, size_t(slot) * of_slot, "logits", settings_.dtype, {chunk, ld});
}

void Transformer::plan_head(MemoryPlan& plan) {
  const int64_t N = saved_sizes().N, R = saved_sizes().R, C = config_.C;
  const DType type = settings_.dtype;
  head_buffers_.x = plan.add(Segment::device, "activations", "head x", type, {R, C});
  head_buffers_.norm = plan.add(rows_segment(), "activations", "head norm", type, {R, C});
  head_buffers_.rstd = plan.add(Segment::device, "activations", "head rstd", DType::fp32, {R});
  head_buffers_.losses = plan.add(Segment::device, "logits", "losses", DType::fp32, {N});
  if (settings_.training && settings_.z_loss > 0)
    head_buffers_.z_losses = plan.add(Segment::device, "logits", "z-losses", DType::fp32, {N});
}

void Transformer::plan_tensor_parallel(MemoryPlan& plan) {
  const char* const category = "tensor parallelism";
  const int64_t degree = part_.tensor_parallel->degree(), C = config_.C, rows = degree * saved_sizes().R;
  // The buffer must also hold the rows as FP8 bytes, with their padding.
  const int64_t element = int64_t(bytes_of(settings_.dtype));
  const int64_t size = std::max(rows * C, ((rows + 15) * (C + 15) + element - 1) / element);
  gathered_ = plan.add(Segment::symmetric, category, "all ranks' rows", settings_.dtype, {size});
  sums_ = plan.add(Segment::symmetric, category, "partial sums of all tokens",
                   part_.tensor_parallel->sum_type(settings_.dtype), {rows, C});
  for (int slot = 0; slot < kExchangeSlots && head_buffers_.logits[slot]; ++slot)
    head_buffers_.parts[slot] =
        plan.add_array<SoftmaxPart>(Segment::symmetric, category, "softmax by rank", size_t(degree * head_chunk()));
}

void Transformer::plan_context_parallel(MemoryPlan& plan) {
  const int64_t group = int64_t(2) * context_heads() * config_.HD, all = int64_t(settings_.B) * settings_.T;
  const auto add = [&](const char* name, TensorShape shape) {
    return plan.add(Segment::symmetric, "context parallelism", name, settings_.dtype, shape);
  };
  own_keys_values_ = add("keys and values", {saved_sizes().N, 2 * config_.kv_width()});
  for (int slot = 0; slot < std::min(kContextSlots, config_.NKV / context_heads()); ++slot) {
    keys_values_[slot] = add("all keys and values of some heads", {all, group});
    if (settings_.training) dkeys_values_[slot] = add("gradients of some heads", {all, group});
  }
}

// Returns the key/value heads whose attention is computed together; 0 if this rank has whole sequences.
int Transformer::context_heads() const {
  if (!part_.context_parallel) return 0;
  if (settings_.context_heads) return settings_.context_heads;
  const ContextPart part = part_.context();
  return choose_context_heads(config_, settings_.B, part.chunk(settings_.T), part.degree);
}

void Transformer::prepare(Matmul& matmul) {
  matmul_ = &matmul;
  if (fp8_head_) fp8_head_->prepare(scales_->not_finite());
  const std::vector<float> table = stream_.device().executes() ? rope_table(config_.rope, config_.HD, settings_.T)
                                                               : std::vector<float>(size_t(rope_table_->size()));
  copy(stream_, rope_table_->as<float>(), table.data(), table.size());
  stream_.synchronize();
}

// ---------------------------------------------------------------------------------------------- parts of a pass

std::optional<Fp8Pass> Transformer::fp8_pass() const {
  if (!scales_) return {};
  Fp8Pass fp8{fp8_, fp8_scratch_->tensors()};
  fp8.scales = scales_->refs();
  fp8.not_finite = scales_->not_finite();
  fp8.share_amax = scales_->share_amax();
  fp8.observer = observer_ ? &observer_ : nullptr;
  return fp8;
}

Pass Transformer::make_pass(int B, int seq_len, const Fp8Pass* fp8) const {
  const int N = B * (seq_len / part_.context().degree);
  Pass pass{stream_, *matmul_, config_, B, seq_len, N, part_.tensor_parallel ? part_.tensor_parallel->own_rows(N) : N,
            {}};
  pass.attention = settings_.attention;
  pass.z_loss = settings_.z_loss;
  pass.fp8 = fp8;
  pass.observer = tensor_observer_ ? &tensor_observer_ : nullptr;
  pass.tensor_parallel = part_.tensor_parallel, pass.gathered = gathered_, pass.sums = sums_;
  if (part_.context_parallel) {
    pass.B = 2 * B, pass.T = part_.context().chunk(seq_len);
    pass.context_parallel = part_.context_parallel;
    pass.context_buffers.heads = context_heads(), pass.context_buffers.own = own_keys_values_;
    for (int slot = 0; slot < kContextSlots; ++slot)
      pass.context_buffers.all[slot] = keys_values_[slot], pass.context_buffers.dall[slot] = dkeys_values_[slot];
  }
  return pass;
}

Pass Transformer::make_pass(const MicroBatch& batch, int past, bool training, const Fp8Pass* fp8) const {
  Pass pass = make_pass(batch.B, batch.T, fp8);
  pass.training = training;
  pass.rope = {rope_table_, batch.positions, config_.NH + config_.NKV};
  pass.document_start = batch.document_start.first({pass.B, pass.T});
  pass.window_start = batch.window_start.first({pass.B, pass.T});
  pass.past = past;
  return pass;
}

// Call this when the block's weights have been gathered.
BlockTensors Transformer::block_tensors(int layer) const {
  BlockTensors tensors{layer, layout_.projections,    parameters_.get(layout_.block_unit(layer)), {},
                       {},    activations_.get(layer)};
  for (const LayerProjection& p : layout_.projections.of(layer)) {
    tensors.fp8[size_t(p.which)] = parameters_.quantized(p);
    tensors.recomputes_inputs[size_t(p.which)] = activations_.recomputes_input(p);
  }
  return tensors;
}

ScratchTensors Transformer::scratch() const {
  return ScratchTensors(std::vector<Tensor>(scratch_.begin(), scratch_.end()));
}

// Call this when the head's weights have been gathered. With `gradients`, its backward begins (GradientStore::begin()).
Head Transformer::make_head(const Pass& pass, GradientStore* gradients) {
  const int unit = layout_.head_unit();
  const UnitTensors weights = parameters_.get(unit);
  Parameter norm{weights["norm"]};
  Parameter head{config_.tied ? parameters_.get(layout_.embedding_unit())["embedding"] : weights["head"]};
  if (gradients) {
    const UnitTensors grads(layout_, unit, gradients->begin(unit));
    norm.grad = grads["norm"];
    head.grad = config_.tied ? begin_embedding_gradient(*gradients) : grads["head"];
  }
  const ScratchTensors scratch = this->scratch();
  HeadBuffers buffers{.x = head_buffers_.x,
                      .rstd = head_buffers_.rstd,
                      .norm = head_buffers_.norm,
                      .dnorm = scratch["dnorm"],
                      .losses = head_buffers_.losses,
                      .z_losses = head_buffers_.z_losses,
                      .norm_partials = scratch["norm partials"],
                      .fp8 = fp8_head_ ? &*fp8_head_ : nullptr};
  for (int slot = 0; slot < kExchangeSlots; ++slot)
    buffers.logits[slot] = head_buffers_.logits[slot], buffers.parts[slot] = head_buffers_.parts[slot];
  return Head(pass, norm, head, config_.tied, part_.vocabulary, buffers);
}

// Begins the embedding's gradient. If the head is tied, make_head() calls this, once for both.
Tensor Transformer::begin_embedding_gradient(GradientStore& gradients) const {
  const int unit = layout_.embedding_unit();
  return UnitTensors(layout_, unit, gradients.begin(unit))["embedding"];
}

// ---------------------------------------------------------------------------------------------- forward

void Transformer::forward(const MicroBatch& batch, bool training) { forward_from(batch, 0, training); }

void Transformer::forward_cached(const MicroBatch& batch, int past) {
  REQUIRE(batch.B == 1, "%d sequences are to be continued: expected one", batch.B);
  REQUIRE(past >= 0 && past <= cached_ && past + batch.T <= settings_.T,
          "%d tokens after %d of a sequence: the keys and values of %d are there, the longest sequence is %d", batch.T,
          past, cached_, settings_.T);
  forward_from(batch, past, false);
}

void Transformer::forward_from(const MicroBatch& batch, int past, bool training) {
  const int B = batch.B, T = batch.T;
  REQUIRE(B > 0 && T > 0 && T <= settings_.T && size_t(B) * T <= size_t(settings_.B) * settings_.T,
          "a pass of %d x %d tokens, planned were at most %d x %d", B, T, settings_.B, settings_.T);
  cached_ = B == 1 && !training ? past + T : 0;  // a training pass may save other rows than keys
  release_head();
  B_ = B, T_ = T;
  if (scales_) scales_->begin_pass(training);
  const std::optional<Fp8Pass> fp8 = fp8_pass();
  const Pass pass = make_pass(batch, past, training, fp8 ? &*fp8 : nullptr);
  const Range range("forward");
  tokens_ = pass.N;
  const int embedding = layout_.embedding_unit();

  parameters_.gather(embedding);
  const int L = config_.L, ahead = std::min(settings_.prefetch, L);
  for (int layer = 0; layer < ahead; ++layer) parameters_.gather(layout_.block_unit(layer));
  const Tensor table = parameters_.get(embedding)["embedding"];
  activations_.begin_forward(0, training);
  embed(pass, batch, table);
  pass.show(-1, "the output", activations_.get(0)["x"].rows(0, pass.R));
  if (!config_.tied) parameters_.release(embedding);  // else the head needs it, too
  const ScratchTensors all_scratch = scratch();
  const BlockScratch block_scratch(all_scratch, pass.N, pass.R);
  const Tensor mlp_out = all_scratch["delta"].rows(0, pass.R);
  Tensor h;  // of the previous block
  for (int layer = 0; layer < L; ++layer) {
    const Range of_block("block %lld", layer);
    if (layer + ahead <= L) parameters_.gather(layout_.block_unit(layer + ahead));  // a later block, or the head
    if (layer) activations_.begin_forward(layer, training);  // block 0 began before the embedding wrote its x
    const Block block(pass, block_tensors(layer), block_scratch);
    block.forward(h, mlp_out);
    activations_.end_forward(layer, training);
    h = block.h();
    parameters_.release(layout_.block_unit(layer));
  }
  holds_head_ = true;                            // logits(), loss() and backward() use its weights
  make_head(pass, nullptr).forward(h, mlp_out);  // (N, C)
}

// The first block's input (R, C).
void Transformer::embed(const Pass& pass, const MicroBatch& batch, const Tensor& table) {
  const Tensor x = activations_.get(0)["x"].rows(0, pass.R);
  TensorParallel* tensor = pass.tensor_parallel;
  if (!tensor) return embedding_forward(stream_, x, batch.inputs, table, embedding_rows());  // (N, C)
  // Each sum has one rank's element and zeros, so the model's type is exact.
  const Tensor all(pass.sums.data, settings_.dtype, {tensor->padded(pass.N), config_.C});
  tensor->clear_padding(stream_, all, pass.N);
  for (const TensorParallel::Chunk& chunk : tensor->chunks(pass.N)) {
    embedding_forward(stream_, all.rows(chunk.first, chunk.count), batch.inputs.elements(chunk.first, chunk.count),
                      table, embedding_rows());
    tensor->reduce_scatter(stream_, x, all, chunk);
  }
  tensor->await_scattered(stream_);
}

void Transformer::embed_backward(const Pass& pass, const MicroBatch& batch, const Tensor& gradient,
                                 const Tensor& dresidual) {
  Tensor dout = dresidual;
  if (TensorParallel* tensor = pass.tensor_parallel) {
    const Tensor all = pass.gathered.first({tensor->padded(pass.N), config_.C});
    tensor->all_gather(stream_, all, dout, pass.N);
    tensor->await_tokens(stream_, pass.N, 0, pass.N);
    dout = all.rows(0, pass.N);
  }
  embedding_backward(stream_, gradient, dout, batch.inputs, batch.order, embedding_rows());  // +=
}

void Transformer::release_head() {
  if (!holds_head_) return;
  holds_head_ = false;
  parameters_.release(layout_.head_unit());
  if (config_.tied) parameters_.release(layout_.embedding_unit());
}

Tensor Transformer::logits(int first) {
  const Pass pass = make_pass(B_, T_, nullptr);
  return make_head(pass, nullptr).logits(first, std::min(head_chunk(), tokens_ - first));
}

Transformer::RowParts Transformer::row_parts(const Tensor& logits, int row) {
  const Tensor own = logits.rows(row, 1);
  const int ld = int(logits.columns());
  if (!part_.sequence_group) return {own, 1, config_.V, ld};
  const Tensor here = logits_by_rank_->rows(part_.sequence_group->rank(), 1);
  copy(stream_, here, own);
  part_.sequence_group->all_gather(stream_, *logits_by_rank_, here);
  part_.sequence_group->wait_for(stream_);
  return {logits_by_rank_, part_.sequence_group->size() / part_.context().degree, part_.vocabulary.most, ld};
}

void Transformer::forward_loss(const MicroBatch& batch, StepState* state) {
  forward(batch, false);
  make_head(make_pass(B_, T_, nullptr), nullptr).loss(batch.labels, state);
  release_head();
}

// ---------------------------------------------------------------------------------------------- backward

void Transformer::backward(const MicroBatch& batch, StepState* state, GradientStore& gradients, bool first, bool last) {
  const Range range("backward");
  const std::optional<Fp8Pass> fp8 = fp8_pass();
  Pass pass = make_pass(batch, 0, true, fp8 ? &*fp8 : nullptr);
  const int embedding = layout_.embedding_unit();
  gradients.begin_micro_batch(first, last);
  pass.accumulate = gradients.accumulates(layout_.head_unit());
  const ScratchTensors all_scratch = scratch();
  const BlockScratch block_scratch(all_scratch, pass.N, pass.R);
  const Tensor dresidual = all_scratch["dresidual"].rows(0, pass.R);
  // Where the kernel that produces the gradient of a block's output writes its amax, for `down`. Null in families with
  // a norm after `down`, because `down` takes that norm's gradient.
  const auto amax_of = [&](int layer) {
    const LayerProjection* down = layout_.projections.find(layer, Projection::down);
    return fp8 && down && !config_.family->norm_after ? wanted_amax(fp8_, fp8->scales, *down, Role::output_gradient)
                                                      : nullptr;
  };
  const int L = config_.L, ahead = std::min(settings_.prefetch, L);
  const Head head = make_head(pass, &gradients);
  head.loss_backward(batch.labels, state, dresidual, amax_of(L - 1));
  for (int layer = L - 1; layer >= L - ahead; --layer) parameters_.gather(layout_.block_unit(layer));
  release_head();
  reduce(pass, gradients, layout_.head_unit());
  for (int layer = L - 1; layer >= 0; --layer) {
    const Range of_block("block %lld", layer);
    if (layer >= ahead) parameters_.gather(layout_.block_unit(layer - ahead));
    pass.accumulate = gradients.accumulates(layout_.block_unit(layer));
    backward_block(pass, layer, block_scratch, gradients, dresidual, amax_of(layer), amax_of(layer - 1));
    parameters_.release(layout_.block_unit(layer));
    reduce(pass, gradients, layout_.block_unit(layer));
  }
  embed_backward(pass, batch, config_.tied ? head.weight_gradient() : begin_embedding_gradient(gradients), dresidual);
  reduce(pass, gradients, embedding);
}

// Call this after the unit's backward is enqueued: its gradients are summed over the ranks.
void Transformer::reduce(const Pass& pass, GradientStore& gradients, int unit) const {
  const Unit& u = layout_.units[size_t(unit)];
  const int layer = u.kind == UnitKind::block ? u.layer : u.kind == UnitKind::head ? config_.L : -1;
  pass.show(layer, nullptr, gradients.whole(unit));
  gradients.reduce(unit);
}

// Recomputes what the block's forward did not keep, then computes its backward.
void Transformer::backward_block(const Pass& pass, int layer, const BlockScratch& scratch, GradientStore& gradients,
                                 const Tensor& dresidual, const float* amax, float* amax_of_previous) {
  BlockTensors tensors = block_tensors(layer);
  activations_.begin_backward(layer);
  if (const Recompute level = activations_.recompute(layer); level != Recompute::none) {
    Pass again = pass;
    again.recomputing = true;
    const Range range("recompute");
    Block(again, tensors, scratch).recompute(level);
  }
  const int unit = layout_.block_unit(layer);
  tensors.gradients.emplace(layout_, unit, gradients.begin(unit));
  Block(pass, tensors, scratch).backward(dresidual, amax, amax_of_previous);
  activations_.end_backward(layer);
}
