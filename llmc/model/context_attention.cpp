#include "llmc/model/context_attention.h"

#include "llmc/device/number.h"
#include "llmc/kernels/keys_values.h"

namespace {

// The sizes and addresses of one head's calls. This rank's rows are (2, B, chunk); its context counts 2 B as B.
template <class T>
struct Heads {
  const BlockContext& context;
  ContextParallel& ranks = *context.sequences;
  const ContextBuffers<T>& buffers = *static_cast<const ContextBuffers<T>*>(context.sequence_buffers);
  // G: query heads per key/value head.
  const int NKV = context.config.NKV, HD = context.config.HD, G = context.config.NH / NKV;
  const int B = context.B / 2, chunk = context.T, T_all = chunk * ranks.part().multiple();
  const int N = context.tokens(), QKV = context.config.qkv_width(), width = 2 * HD;
  const size_t rows = size_t(B) * size_t(chunk);  // of one half

  // The shape of a call: the queries of one half against all keys up to the last query's position.
  AttentionShape shape(int half) const {
    AttentionShape s;
    s.B = B, s.Tq = chunk, s.NH = G, s.NKV = 1, s.HD = HD;
    s.query_offset = ranks.part().first(half, T_all);
    s.Tk = s.query_offset + chunk;
    s.q = {QKV, int64_t(chunk) * QKV};
    s.k = s.v = {width, int64_t(T_all) * width};
    s.out = {int64_t(G) * NKV * HD, int64_t(chunk) * G * NKV * HD};
    if (context.document_start) s.document_start = context.document_start + size_t(half) * rows;
    return s;
  }
  // Returns the offset of the head's first query of a half, in a matrix whose rows have `stride` elements.
  size_t at(int head, int half, int stride) const {
    return size_t(half) * rows * size_t(stride) + size_t(head * G * HD);
  }
  // The lse is (NKV, 2, B, G, chunk): each call's part of it is contiguous.
  size_t lse_at(int head, int half) const { return size_t(head * 2 + half) * size_t(G) * rows; }

  T* own(int head) const { return buffers.own + size_t(head) * size_t(N) * size_t(width); }
  T* all(int head) const { return buffers.all[head % kContextSlots]; }
  T* dall(int head) const { return buffers.dall[head % kContextSlots]; }

  void gather(int head) const { ranks.gather(all(head), own(head), head % kContextSlots, B, T_all, width); }
  // This rank's keys and values, or their gradients: the columns of qkv (N, QKV) behind the query heads; by head.
  Tensor by_row(const T* qkv) const { return Tensor(qkv, {N, QKV}).columns(G * NKV * HD, NKV * width); }
  Tensor by_head() const { return Tensor(buffers.own, {NKV, N, 2, HD}); }
  // Arranges this rank's keys and values by head, and starts the all-gather of the first kContextSlots heads.
  void start(const T* qkv) const {
    keys_values_by_head(context.stream, by_head(), by_row(qkv));
    ranks.follow(context.stream);
    for (int head = 0; head < std::min(kContextSlots, NKV); ++head) gather(head);
  }
  // Call this when compute is done with the head's keys and values: it starts the next gather into their slot.
  void next(int head) const {
    if (head + kContextSlots >= NKV) return;
    ranks.follow(context.stream);
    gather(head + kContextSlots);
  }
};

}  // namespace

template <class T>
void attention_in_chunks(const BlockContext& context, const BlockActivations<T>& a, float* amax) {
  const Heads<T> heads{context};
  const int q_width = context.config.q_width();
  heads.start(a.qkv);
  for (int head = 0; head < heads.NKV; ++head) {
    heads.ranks.await_gathered(context.stream, head % kContextSlots);
    const T* k = heads.all(head);
    for (const int half : {0, 1})
      attention_forward(context.stream, a.attention + heads.at(head, half, q_width), a.lse + heads.lse_at(head, half),
                        a.qkv + heads.at(head, half, heads.QKV), k, k + heads.HD, heads.shape(half), context.attention,
                        amax);
    heads.next(head);
  }
}

template <class T>
void gather_keys_values(const BlockContext& context, const T* qkv) {
  Heads<T>{context}.start(qkv);
}

template <class T>
void attention_in_chunks_backward(const BlockContext& context, const BlockActivations<T>& a, const BlockScratch<T>& s) {
  const Heads<T> heads{context};
  const int q_width = context.config.q_width(), T_all = heads.T_all, width = heads.width;
  for (int head = 0; head < heads.NKV; ++head) {
    // This also waits until the last gradients in this slot have been summed: the same stream sums and gathers.
    heads.ranks.await_gathered(context.stream, head % kContextSlots);
    const T* k = heads.all(head);
    T* dk = heads.dall(head);
    // The later chunk goes first. It sees all keys that the earlier chunk sees, so it sets their gradients and the
    // earlier chunk adds to them. Keys behind the later chunk get no gradient from this rank, so theirs are cleared.
    for (const int half : {1, 0}) {
      const AttentionShape shape = heads.shape(half);
      attention_backward(context.stream, s.dqkv + heads.at(head, half, heads.QKV), dk, dk + heads.HD, s.attention_delta,
                         s.dattention + heads.at(head, half, q_width), a.attention + heads.at(head, half, q_width),
                         a.lse + heads.lse_at(head, half), a.qkv + heads.at(head, half, heads.QKV), k, k + heads.HD,
                         shape, context.attention, {false, half == 0});
      if (half == 1 && shape.Tk < T_all)
        for (int b = 0; b < heads.B; ++b)
          clear(context.stream, dk + (size_t(b) * size_t(T_all) + size_t(shape.Tk)) * size_t(width),
                size_t(T_all - shape.Tk) * size_t(width));
    }
    heads.ranks.scatter(context.stream, heads.own(head), dk, heads.B, T_all, width);
    heads.next(head);
  }
  heads.ranks.await_scattered(context.stream);
  keys_values_by_row(context.stream, heads.by_row(s.dqkv), heads.by_head());
}

#define INSTANTIATE(T)                                                                        \
  template void gather_keys_values(const BlockContext&, const T*);                            \
  template void attention_in_chunks(const BlockContext&, const BlockActivations<T>&, float*); \
  template void attention_in_chunks_backward(const BlockContext&, const BlockActivations<T>&, const BlockScratch<T>&);
INSTANTIATE(float)
INSTANTIATE(bf16)
