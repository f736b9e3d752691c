#include "llmc/model/head.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/rmsnorm.h"

Head::Head(const Pass& pass, const Parameter& norm, const Parameter& head, bool tied, VocabularyPart vocabulary,
           const HeadBuffers& buffers)
    : pass_(pass), norm_(norm), head_(head), tied_(tied), vocabulary_(vocabulary), b_(buffers) {
  for (Tensor* t : {&b_.x, &b_.norm, &b_.dnorm}) *t = t->rows(0, pass.R);
  b_.rstd = b_.rstd.elements(0, pass.R);
  b_.losses = b_.losses.elements(0, pass.N), b_.z_losses = b_.z_losses.elements(0, pass.N);
}

// Returns the input of the product with the vocabulary, (N, C).
Tensor Head::inputs() const {
  return pass_.tensor_parallel ? pass_.gathered.first({pass_.N, pass_.config.C}) : b_.norm;
}

// Returns the number of tokens of the chunk that begins at token `first`.
int Head::tokens_of_chunk(int first) const { return std::min(b_.chunk(), pass_.N - first); }

// Computes the logits of the chunk that begins at token `first`. Under tensor parallelism it also starts the exchange
// of the chunk's parts of the softmax.
void Head::begin_chunk(const Tensor& labels, int first) const {
  const int count = tokens_of_chunk(first), slot = slot_of(first);
  const Tensor logits = this->logits(first, count);
  show("the logits", logits.columns(0, pass_.config.V));
  if (!pass_.tensor_parallel) return;
  SoftmaxPart* own = b_.parts[slot] + size_t(pass_.tensor_parallel->rank()) * size_t(count);
  classifier_part(pass_.stream, own, logits, labels.elements(first, count), vocabulary_);
  pass_.tensor_parallel->exchange(pass_.stream, b_.parts[slot], own, size_t(count) * sizeof(SoftmaxPart), slot);
}

// Computes the chunk's losses. If `state` is not null, the logits become their gradients, to which a z-loss adds.
void Head::classify(const Tensor& all_labels, StepState* state, int first) const {
  Stream& stream = pass_.stream;
  const int count = tokens_of_chunk(first), slot = slot_of(first);
  const Tensor logits = b_.logits[slot].rows(0, count), losses = b_.losses.elements(first, count),
               labels = all_labels.elements(first, count);
  const ZLoss z_loss = state ? ZLoss{pass_.z_loss, b_.z_losses.elements(first, count)} : ZLoss();
  if (!pass_.tensor_parallel) {
    const int V = pass_.config.V;
    if (state) classifier_forward_backward(stream, logits, losses, labels, state, V, z_loss);
    else classifier_forward(stream, losses, logits, labels, V);
    return show("the losses", losses);
  }
  const int degree = pass_.tensor_parallel->degree();
  pass_.tensor_parallel->await_exchanged(stream, slot);
  classifier_losses(stream, losses, b_.parts[slot], degree, labels, vocabulary_.whole, z_loss);
  if (state) classifier_join(stream, logits, b_.parts[slot], degree, labels, state, vocabulary_, z_loss.coefficient);
  show("the losses", losses);
}

// Calls finish(first) for each chunk of tokens after begin_chunk(). With two buffers of logits, the next chunk has
// begun too.
template <class F>
void Head::for_chunks(const Tensor& labels, F&& finish) const {
  const int chunk = b_.chunk(), ahead = b_.logits[1] ? chunk : 0;
  int begun = 0;
  for (int first = 0; first < pass_.N; first += chunk) {
    for (; begun <= first + ahead && begun < pass_.N; begun += chunk) begin_chunk(labels, begun);
    finish(first);
  }
}

// Adds losses (N) of this rank's tokens; tensor-parallel ranks have the same ones, so only rank 0 does so.
void Head::add_losses(double* sum, const Tensor& losses) const {
  if (!pass_.tensor_parallel || pass_.tensor_parallel->rank() == 0) sum_losses(pass_.stream, sum, losses);
}

// Computes dnorm of the chunk that begins at token `first` from the gradients of its logits. Under tensor parallelism
// that is a partial sum; the function then starts the reduce-scatter of each of the TensorParallel's chunks that is
// complete by now. `scattered` counts those that have been started.
void Head::dgrad(const Tensor& dlogits, int first, int& scattered) const {
  const int N = pass_.N, C = pass_.config.C, count = tokens_of_chunk(first);
  TensorParallel* tensor = pass_.tensor_parallel;
  if (!tensor) return dgrad(b_.dnorm.rows(first, count), dlogits);
  const Tensor sums = pass_.sums.first({tensor->padded(N), C});
  if (first == 0) tensor->clear_padding(pass_.stream, sums, N);
  dgrad(sums.rows(first, count), dlogits);
  const std::vector<TensorParallel::Chunk> chunks = tensor->chunks(N);
  for (; scattered < int(chunks.size()); ++scattered) {
    const TensorParallel::Chunk& chunk = chunks[size_t(scattered)];
    if (chunk.first + chunk.count > first + count) break;
    tensor->reduce_scatter(pass_.stream, b_.dnorm, sums, chunk);
  }
}

// dnorm (count, C) = dlogits W
void Head::dgrad(const Tensor& dnorm, const Tensor& dlogits) const {
  if (b_.fp8) b_.fp8->dgrad(pass_, dnorm);
  else pass_.matmul.dgrad(dnorm, dlogits, head_.value);
}

// The gradient of W (V, C) = or += that of the chunk that begins at token `first`.
void Head::wgrad(const Tensor& dlogits, int first, bool add) const {
  const Tensor x = inputs().rows(first, tokens_of_chunk(first));
  if (b_.fp8) b_.fp8->wgrad(pass_, head_.grad, x, add);
  else pass_.matmul.wgrad(head_.grad, dlogits, x, add);
}

void Head::forward(const Tensor& h, const Tensor& mlp_out) const {
  add_rmsnorm_forward(pass_.stream, b_.x, b_.norm, b_.rstd, h, mlp_out, norm_.value, pass_.eps());  // (R, C)
  show("the residual stream", b_.x);
  show("the output of the norm", b_.norm);
  if (pass_.tensor_parallel) {
    const Tensor all = pass_.gathered.first({pass_.tensor_parallel->padded(pass_.N), pass_.config.C});
    pass_.tensor_parallel->all_gather(pass_.stream, all, b_.norm, pass_.N);
  }
  if (!b_.fp8 || !b_.fp8->computes_in(pass_)) return;
  b_.fp8->quantize_weight(pass_, head_.value);
  if (pass_.tensor_parallel) pass_.tensor_parallel->await_tokens(pass_.stream, pass_.N, 0, pass_.N);
  b_.fp8->find_input_amax(pass_, inputs());
}

Tensor Head::logits(int first, int count) const {
  REQUIRE(first % b_.chunk() == 0 && count > 0 && count <= b_.chunk() && first + count <= pass_.N,
          "logits of %d tokens from token %d: the chunk is %d, the tokens %d", count, first, b_.chunk(), pass_.N);
  const Tensor logits = b_.logits[slot_of(first)].rows(0, count);
  if (pass_.tensor_parallel) pass_.tensor_parallel->await_tokens(pass_.stream, pass_.N, first, count);
  const Tensor x = inputs().rows(first, count);
  if (b_.fp8 && b_.fp8->computes_forward()) b_.fp8->forward(pass_, logits, x);
  else pass_.matmul.forward(logits.columns(0, pass_.config.V), x, head_.value);  // (count, V)
  return logits;
}

void Head::loss(const Tensor& labels, StepState* state) const {
  for_chunks(labels, [&](int first) { classify(labels, nullptr, first); });
  add_losses(&state->loss_sum, b_.losses);
}

void Head::loss_backward(const Tensor& labels, StepState* state, const Tensor& dresidual, float* amax) const {
  int scattered = 0;
  for_chunks(labels, [&](int first) {
    const bool add = pass_.accumulate || tied_ || first > 0;
    classify(labels, state, first);  // in place
    const Tensor padded = b_.logits[slot_of(first)].rows(0, tokens_of_chunk(first));
    const Tensor dlogits = padded.columns(0, pass_.config.V);
    show("the gradient of the logits", dlogits);
    if (b_.fp8) b_.fp8->begin_backward(pass_, padded, state);
    dgrad(dlogits, first, scattered);
    wgrad(dlogits, first, add);
  });
  add_losses(&state->loss_sum, b_.losses);
  if (b_.z_losses) add_losses(&state->z_loss_sum, b_.z_losses);
  clear(pass_.stream, dresidual);
  if (pass_.tensor_parallel) pass_.tensor_parallel->await_scattered(pass_.stream);
  show("the gradient of the norm's output", b_.dnorm);
  rmsnorm_backward(pass_.stream, dresidual, norm_.grad, b_.norm_partials, b_.dnorm, b_.x, norm_.value, b_.rstd, amax);
  show("the gradient of the residual stream", dresidual);
}
