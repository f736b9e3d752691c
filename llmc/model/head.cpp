#include "llmc/model/head.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/number.h"
#include "llmc/kernels/classifier.h"
#include "llmc/kernels/rmsnorm.h"

template <class T>
void head_norm(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, const T* middle,
               const T* delta) {
  add_rmsnorm_forward(context.stream, b.x, b.norm, b.rstd, middle, delta, w.norm, context.N, context.config.C,
                      float(context.config.norm_eps));  // (N, C)
}

template <class T>
void head_logits(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, int first, int count) {
  REQUIRE(first % b.chunk == 0 && count > 0 && count <= b.chunk && first + count <= context.N,
          "logits of %d tokens from token %d: the chunk is %d, the tokens %d", count, first, b.chunk, context.N);
  const int C = context.config.C;
  context.matmul.forward(b.logits, b.norm + size_t(first) * C, w.head, count, context.config.V, C, b.ld);  // (count, V)
}

template <class T>
void head_loss(const HeadContext& context, const HeadWeights<T>& w, const HeadBuffers<T>& b, const int* labels,
               StepState* state) {
  const int N = context.N, V = context.config.V;
  for (int first = 0; first < N; first += b.chunk) {
    const int count = std::min(b.chunk, N - first);
    head_logits(context, w, b, first, count);
    classifier_forward(context.stream, b.losses + first, b.logits, labels + first, count, V, b.ld);
  }
  sum_losses(context.stream, state, b.losses, N);
}

template <class T>
void head_loss_backward(const HeadContext& context, const HeadWeights<T>& w, const HeadGradients& g,
                        const HeadBuffers<T>& b, const int* labels, StepState* state, T* dresidual, bool accumulate,
                        float* amax) {
  const int N = context.N, C = context.config.C, V = context.config.V;
  Stream& stream = context.stream;
  for (int first = 0; first < N; first += b.chunk) {
    const int count = std::min(b.chunk, N - first);
    const size_t row = size_t(first) * C;
    const bool add = accumulate || g.head_is_tied || first > 0;
    head_logits(context, w, b, first, count);  // (count, V)
    classifier_forward_backward(stream, b.logits, b.losses + first, labels + first, state, count, V, b.ld);  // in place
    context.matmul.dgrad(b.dnorm + row, b.logits, w.head, count, V, C, b.ld);      // (count, C)
    context.matmul.wgrad(g.head, b.logits, b.norm + row, count, V, C, add, b.ld);  // (V, C)
  }
  sum_losses(stream, state, b.losses, N);
  clear(stream, dresidual, size_t(N) * C);
  rmsnorm_backward(stream, dresidual, g.norm, b.norm_partials, b.dnorm, b.x, w.norm, b.rstd, N, C, amax);  // (N, C)
}

#define INSTANTIATE(T)                                                                                               \
  template void head_norm(const HeadContext&, const HeadWeights<T>&, const HeadBuffers<T>&, const T*, const T*);     \
  template void head_logits(const HeadContext&, const HeadWeights<T>&, const HeadBuffers<T>&, int, int);             \
  template void head_loss(const HeadContext&, const HeadWeights<T>&, const HeadBuffers<T>&, const int*, StepState*); \
  template void head_loss_backward(const HeadContext&, const HeadWeights<T>&, const HeadGradients&,                  \
                                   const HeadBuffers<T>&, const int*, StepState*, T*, bool, float*);
INSTANTIATE(float)
INSTANTIATE(bf16)
