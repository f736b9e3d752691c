#include "llmc/model/head.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/number.h"
#include "llmc/kernels/rmsnorm.h"

namespace {

// What the product with the vocabulary takes: (N, C).
template <class T>
const T* inputs(const HeadContext& context, const HeadBuffers<T>& b) {
  return context.tensor ? b.gathered : b.norm;
}

// The parts of `count` rows, from all ranks.
template <class T>
void exchange_parts(const HeadContext& context, const HeadBuffers<T>& b, const int* labels, int count) {
  SoftmaxPart* own = b.parts + size_t(context.tensor->rank()) * size_t(count);
  classifier_part(context.stream, own, b.logits, labels, context.vocabulary, count, b.ld);
  context.tensor->exchange(context.stream, b.parts, own, size_t(count) * sizeof(SoftmaxPart));
}

// Losses of rows whose logits are there; with `state` these become their gradients.
template <class T>
void classify(const HeadContext& context, const HeadBuffers<T>& b, float* losses, const int* labels, StepState* state,
              int count) {
  Stream& stream = context.stream;
  if (!context.tensor) {
    const int V = context.config.V;
    if (state) classifier_forward_backward(stream, b.logits, losses, labels, state, count, V, b.ld);
    else classifier_forward(stream, losses, b.logits, labels, count, V, b.ld);
    return;
  }
  const int degree = context.tensor->degree();
  exchange_parts(context, b, labels, count);
  classifier_losses(stream, losses, b.parts, degree, labels, context.vocabulary.whole, count);
  if (state) classifier_join(stream, b.logits, b.parts, degree, labels, state, context.vocabulary, count, b.ld);
}

template <class T>
void add_losses(const HeadContext& context, const HeadBuffers<T>& b, StepState* state) {
  if (!context.tensor || context.tensor->rank() == 0) sum_losses(context.stream, state, b.losses, context.N);
}

}  // namespace

template <class T>
void head_norm(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, const T* middle,
               const T* delta) {
  const int C = context.config.C;
  add_rmsnorm_forward(context.stream, b.x, b.norm, b.rstd, middle, delta, w.norm, context.rows(), C,
                      float(context.config.norm_eps));  // (R, C)
  if (context.tensor) context.tensor->gather_all(context.stream, b.gathered, b.norm, context.N, C);
}

template <class T>
void head_logits(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, int first, int count) {
  REQUIRE(first % b.chunk == 0 && count > 0 && count <= b.chunk && first + count <= context.N,
          "logits of %d tokens from token %d: the chunk is %d, the tokens %d", count, first, b.chunk, context.N);
  const int C = context.config.C;
  context.matmul.forward(b.logits, inputs(context, b) + size_t(first) * C, w.head, count, context.config.V, C,
                         b.ld);  // (count, V)
}

template <class T>
void head_loss(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, const int* labels,
               StepState* state) {
  for (int first = 0; first < context.N; first += b.chunk) {
    const int count = std::min(b.chunk, context.N - first);
    head_logits(context, w, b, first, count);
    classify(context, b, b.losses + first, labels + first, nullptr, count);
  }
  add_losses(context, b, state);
}

template <class T>
void head_loss_backward(const HeadContext& context, const HeadWeights<T>& w, const HeadGradients& g,
                        const HeadBuffers<T>& b, const int* labels, StepState* state, T* dresidual, bool accumulate,
                        float* amax) {
  const int N = context.N, R = context.rows(), C = context.config.C, V = context.config.V;
  Stream& stream = context.stream;
  T* dinputs = context.tensor ? b.partial : b.dnorm;  // (N, C)
  for (int first = 0; first < N; first += b.chunk) {
    const int count = std::min(b.chunk, N - first);
    const size_t row = size_t(first) * C;
    const bool add = accumulate || g.head_is_tied || first > 0;
    head_logits(context, w, b, first, count);                                                  // (count, V)
    classify(context, b, b.losses + first, labels + first, state, count);                      // in place
    context.matmul.dgrad(dinputs + row, b.logits, w.head, count, V, C, b.ld);                  // (count, C)
    context.matmul.wgrad(g.head, b.logits, inputs(context, b) + row, count, V, C, add, b.ld);  // (V, C)
  }
  add_losses(context, b, state);
  if (context.tensor) context.tensor->scatter_all(stream, b.dnorm, b.partial, N, C);
  clear(stream, dresidual, size_t(R) * C);
  rmsnorm_backward(stream, dresidual, g.norm, b.norm_partials, b.dnorm, b.x, w.norm, b.rstd, R, C, amax);  // (R, C)
}

#define INSTANTIATE(T)                                                                                               \
  template void head_norm(const HeadContext&, const HeadWeights<T>&, const HeadBuffers<T>&, const T*, const T*);     \
  template void head_logits(const HeadContext&, const HeadWeights<T>&, const HeadBuffers<T>&, int, int);             \
  template void head_loss(const HeadContext&, const HeadWeights<T>&, const HeadBuffers<T>&, const int*, StepState*); \
  template void head_loss_backward(const HeadContext&, const HeadWeights<T>&, const HeadGradients&,                  \
                                   const HeadBuffers<T>&, const int*, StepState*, T*, bool, float*);
INSTANTIATE(float)
INSTANTIATE(bf16)
