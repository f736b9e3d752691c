#include "llmc/model/context_attention.h"

#include "llmc/device/number.h"
#include "llmc/kernels/keys_values.h"

namespace {

// The sizes of one head's calls. Rows of this rank are (2, B, chunk), as its context has them.
template <class T>
struct Heads {
  const BlockContext& context;
  ContextParallel& ranks = *context.sequences;
  const ContextBuffers<T>& buffers = *static_cast<const ContextBuffers<T>*>(context.sequence_buffers);
  const int NKV = context.config.NKV, HD = context.config.HD, G = context.config.NH / NKV;  // G query heads of each
  const int B = context.B / 2, chunk = context.T, T_all = chunk * ranks.part().multiple();
  const int N = context.tokens(), QKV = context.config.qkv_width(), width = 2 * HD;
  const size_t rows = size_t(B) * size_t(chunk);  // of one half

  // Queries of a half against the keys up to their last.
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
  // Where in rows of `stride` numbers the head's first query of a half is.
  size_t at(int head, int half, int stride) const {
    return size_t(half) * rows * size_t(stride) + size_t(head * G * HD);
  }
  // (NKV, 2, B, G, chunk): of each call in one piece.
  size_t lse_at(int head, int half) const { return size_t(head * 2 + half) * size_t(G) * rows; }

  T* own(int head) const { return buffers.own + size_t(head) * size_t(N) * size_t(width); }
  T* all(int head) const { return buffers.all[head % kContextSlots]; }
  T* dall(int head) const { return buffers.dall[head % kContextSlots]; }

  void gather(int head) const { ranks.gather(all(head), own(head), head % kContextSlots, B, T_all, width); }
  // All ranks' keys and values, from this one's rows: the first two heads' are on their way.
  void start(const T* qkv) const {
    keys_values_by_head(context.stream, buffers.own, qkv + size_t(G * NKV * HD), QKV, N, NKV, HD);
    ranks.follow(context.stream);
    for (int head = 0; head < std::min(kContextSlots, NKV); ++head) gather(head);
  }
  // The head's are used up.
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
    heads.ranks.await_gathered(context.stream, head % kContextSlots);  // behind the sums of the slot's last gradients
    const T* k = heads.all(head);
    T* dk = heads.dall(head);
    // The later chunk sees all keys that the earlier one does, and sets their gradients; those behind get none.
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
  keys_values_by_row(context.stream, s.dqkv + heads.G * heads.NKV * heads.HD, heads.buffers.own, heads.QKV, heads.N,
                     heads.NKV, heads.HD);
}

#define INSTANTIATE(T)                                                                        \
  template void gather_keys_values(const BlockContext&, const T*);                            \
  template void attention_in_chunks(const BlockContext&, const BlockActivations<T>&, float*); \
  template void attention_in_chunks_backward(const BlockContext&, const BlockActivations<T>&, const BlockScratch<T>&);
INSTANTIATE(float)
INSTANTIATE(bf16)
