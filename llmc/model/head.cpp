#include "llmc/model/head.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/number.h"
#include "llmc/kernels/rmsnorm.h"

namespace {

// Returns the input of the product with the vocabulary, (N, C).
template <class T>
Tensor inputs(const HeadContext& context, const HeadBuffers<T>& b) {
  return Tensor(context.tensor ? b.gathered : b.norm, {context.N, context.config.C});
}

// Returns the weight of that product or its gradient, (V, C).
template <class T>
Tensor vocabulary_weight(const HeadContext& context, T* weight) {
  return Tensor(weight, {context.config.V, context.config.C});
}

template <class T>
int slot_of(const HeadBuffers<T>& b, int first) {
  return b.logits[1] ? first / b.chunk % kExchangeSlots : 0;
}

// Computes the logits of the chunk that begins at token `first`. Under tensor parallelism it also starts the exchange
// of the chunk's parts of the softmax.
template <class T>
void begin_chunk(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, const int* labels,
                 int first) {
  const int count = std::min(b.chunk, context.N - first), slot = slot_of(b, first);
  const T* logits = head_logits(context, w, b, first, count);
  if (!context.tensor) return;
  SoftmaxPart* own = b.parts[slot] + size_t(context.tensor->rank()) * size_t(count);
  classifier_part(context.stream, own, Tensor(logits, {count, b.ld}), Tensor(labels + first, {count}),
                  context.vocabulary);
  context.tensor->exchange(context.stream, b.parts[slot], own, size_t(count) * sizeof(SoftmaxPart), slot);
}

// Computes the chunk's losses. If `state` is not null, the logits become their gradients.
template <class T>
void classify(const HeadContext& context, const HeadBuffers<T>& b, const int* all, StepState* state, int first) {
  Stream& stream = context.stream;
  const int count = std::min(b.chunk, context.N - first), slot = slot_of(b, first);
  const Tensor logits(b.logits[slot], {count, b.ld}), losses(b.losses + first, {count}), labels(all + first, {count});
  if (!context.tensor) {
    const int V = context.config.V;
    if (state) classifier_forward_backward(stream, logits, losses, labels, state, V);
    else classifier_forward(stream, losses, logits, labels, V);
    return;
  }
  const int degree = context.tensor->degree();
  const SoftmaxPart* parts = b.parts[slot];
  context.tensor->await_exchanged(stream, slot);
  classifier_losses(stream, losses, parts, degree, labels, context.vocabulary.whole);
  if (state) classifier_join(stream, logits, parts, degree, labels, state, context.vocabulary);
}

// Returns the logits (count, V) of the chunk that begins at token `first`, without their padding.
template <class T>
Tensor logits_of(const HeadContext& context, const HeadBuffers<T>& b, int first, int count) {
  return Tensor(b.logits[slot_of(b, first)], {count, b.ld}).columns(0, context.config.V);
}

// Calls finish(first) for each chunk of tokens after begin_chunk(). With two buffers of logits, the next chunk has
// begun too.
template <class T, class F>
void for_chunks(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, const int* labels,
                F&& finish) {
  const int ahead = b.logits[1] ? b.chunk : 0;
  int begun = 0;
  for (int first = 0; first < context.N; first += b.chunk) {
    for (; begun <= first + ahead && begun < context.N; begun += b.chunk) begin_chunk(context, w, b, labels, begun);
    finish(first);
  }
}

template <class T>
void add_losses(const HeadContext& context, const HeadBuffers<T>& b, StepState* state) {
  if (!context.tensor || context.tensor->rank() == 0) sum_losses(context.stream, state, Tensor(b.losses, {context.N}));
}

// Computes dnorm of the chunk that begins at token `first` from the gradients of its logits. Under tensor parallelism
// that is a partial sum; the function then starts the reduce-scatter of each of the TensorParallel's chunks that is
// complete by now. `scattered` counts those that have been started.
template <class T>
void head_dgrad(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, const Tensor& dlogits,
                int first, int& scattered) {
  const int N = context.N, C = context.config.C, count = std::min(b.chunk, N - first);
  const Tensor weight = vocabulary_weight(context, w.head);
  TensorParallel* tensor = context.tensor;
  if (!tensor) return context.matmul.dgrad(Tensor(b.dnorm, {N, C}).rows(first, count), dlogits, weight);
  tensor->with_sums<T>(b.partial, [&](auto* partial) {
    if (first == 0) tensor->clear_padding(context.stream, partial, N, C);
    context.matmul.dgrad(Tensor(partial, {N, C}).rows(first, count), dlogits, weight);
    const std::vector<TensorParallel::Chunk> chunks = tensor->chunks(N);
    for (; scattered < int(chunks.size()); ++scattered) {
      const TensorParallel::Chunk& chunk = chunks[size_t(scattered)];
      if (chunk.first + chunk.count > first + count) break;
      tensor->scatter(context.stream, b.dnorm, partial, N, C, scattered);
    }
  });
}

}  // namespace

template <class T>
void head_norm(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, const T* middle,
               const T* delta) {
  const int C = context.config.C;
  add_rmsnorm_forward(context.stream, b.x, b.norm, b.rstd, middle, delta, w.norm, context.rows(), C,
                      float(context.config.norm_eps));  // (R, C)
  if (context.tensor) context.tensor->gather(context.stream, b.gathered, b.norm, context.N, C);
}

template <class T>
T* head_logits(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, int first, int count) {
  REQUIRE(first % b.chunk == 0 && count > 0 && count <= b.chunk && first + count <= context.N,
          "logits of %d tokens from token %d: the chunk is %d, the tokens %d", count, first, b.chunk, context.N);
  if (context.tensor) context.tensor->await_tokens(context.stream, context.N, first, count);
  context.matmul.forward(logits_of(context, b, first, count), inputs(context, b).rows(first, count),
                         vocabulary_weight(context, w.head));
  return b.logits[slot_of(b, first)];
}

template <class T>
void head_loss(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, const int* labels,
               StepState* state) {
  for_chunks(context, w, b, labels, [&](int first) { classify(context, b, labels, nullptr, first); });
  add_losses(context, b, state);
}

template <class T>
void head_loss_backward(const HeadContext& context, const HeadWeights<T>& w, const HeadGradients& g,
                        const HeadBuffers<T>& b, const int* labels, StepState* state, T* dresidual, bool accumulate,
                        float* amax) {
  const int N = context.N, R = context.rows(), C = context.config.C;
  Stream& stream = context.stream;
  int scattered = 0;
  for_chunks(context, w, b, labels, [&](int first) {
    const int count = std::min(b.chunk, N - first);
    const bool add = accumulate || g.head_is_tied || first > 0;
    const Tensor logits = logits_of(context, b, first, count);
    classify(context, b, labels, state, first);  // in place
    head_dgrad(context, w, b, logits, first, scattered);
    context.matmul.wgrad(vocabulary_weight(context, g.head), logits, inputs(context, b).rows(first, count), add);
  });
  add_losses(context, b, state);
  clear(stream, dresidual, size_t(R) * C);
  if (context.tensor) context.tensor->await_scattered(stream);
  rmsnorm_backward(stream, dresidual, g.norm, b.norm_partials, b.dnorm, b.x, w.norm, b.rstd, R, C, amax);  // (R, C)
}

#define INSTANTIATE(T)                                                                                               \
  template void head_norm(const HeadContext&, const HeadWeights<T>&, const HeadBuffers<T>&, const T*, const T*);     \
  template T* head_logits(const HeadContext&, const HeadWeights<T>&, const HeadBuffers<T>&, int, int);               \
  template void head_loss(const HeadContext&, const HeadWeights<T>&, const HeadBuffers<T>&, const int*, StepState*); \
  template void head_loss_backward(const HeadContext&, const HeadWeights<T>&, const HeadGradients&,                  \
                                   const HeadBuffers<T>&, const int*, StepState*, T*, bool, float*);
INSTANTIATE(float)
INSTANTIATE(bf16)
