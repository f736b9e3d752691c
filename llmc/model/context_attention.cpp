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

  // A call has the queries of one half and all keys up to the last query's position.
  AttentionOptions options(int half) const {
    AttentionOptions o;
    o.query_offset = ranks.part().first(half, T_all);
    o.kernel = context.attention;
    if (context.document_start) o.document_start = Tensor(context.document_start, {2, B, chunk}).at(half);
    return o;
  }
  int keys(int half) const { return ranks.part().first(half, T_all) + chunk; }
  // Returns the head's queries of one half (B, chunk, G, HD), in rows of `row` elements that begin with the query
  // heads.
  Tensor queries(const T* data, int row, int head, int half) const {
    const int64_t count = int64_t(B) * chunk;
    return Tensor(data, {N, row}).rows(half * count, count).columns(head * G * HD, G * HD).heads(B, HD);
  }
  Tensor outputs(const T* data, int head, int half) const { return queries(data, G * NKV * HD, head, half); }
  // Returns the keys (from column 0) or values (from column HD) of a call, (B, keys, 1, HD).
  Tensor seen(const T* gathered, int column, int half) const {
    return Tensor(gathered, {int64_t(B) * T_all, width}).columns(column, HD).heads(B, HD).slice(1, 0, keys(half));
  }
  // The lse is (NKV, 2, B, G, chunk): each call's part of it is contiguous.
  Tensor lse(const float* data, int head, int half) const {
    return Tensor(data, {2 * NKV, B, G, chunk}).at(2 * head + half);
  }

  T* own(int head) const { return buffers.own + size_t(head) * size_t(N) * size_t(width); }
  T* all(int head) const { return buffers.all[head % kContextSlots]; }
  T* dall(int head) const { return buffers.dall[head % kContextSlots]; }

  void gather(int head) const { ranks.gather(all(head), own(head), head % kContextSlots, B, T_all, width); }
  // Arranges this rank's keys and values by head, and starts the all-gather of the first kContextSlots heads.
  void start(const T* qkv) const {
    keys_values_by_head(context.stream, buffers.own, qkv + size_t(G * NKV * HD), QKV, N, NKV, HD);
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
  heads.start(a.qkv);
  for (int head = 0; head < heads.NKV; ++head) {
    heads.ranks.await_gathered(context.stream, head % kContextSlots);
    const T* gathered = heads.all(head);
    for (const int half : {0, 1})
      attention_forward(context.stream, heads.outputs(a.attention, head, half), heads.lse(a.lse, head, half),
                        heads.queries(a.qkv, heads.QKV, head, half), heads.seen(gathered, 0, half),
                        heads.seen(gathered, heads.HD, half), heads.options(half), amax);
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
  const int T_all = heads.T_all, width = heads.width, HD = heads.HD, QKV = heads.QKV;
  const Tensor delta(s.attention_delta, {heads.B, heads.G, heads.chunk});
  for (int head = 0; head < heads.NKV; ++head) {
    // This also waits until the last gradients in this slot have been summed: the same stream sums and gathers.
    heads.ranks.await_gathered(context.stream, head % kContextSlots);
    const T* gathered = heads.all(head);
    T* dgathered = heads.dall(head);
    // The later chunk goes first. It sees all keys that the earlier chunk sees, so it sets their gradients and the
    // earlier chunk adds to them. Keys behind the later chunk get no gradient from this rank, so theirs are cleared.
    for (const int half : {1, 0}) {
      const int keys = heads.keys(half);
      attention_backward(context.stream, heads.queries(s.dqkv, QKV, head, half), heads.seen(dgathered, 0, half),
                         heads.seen(dgathered, HD, half), delta, heads.outputs(s.dattention, head, half),
                         heads.outputs(a.attention, head, half), heads.lse(a.lse, head, half),
                         heads.queries(a.qkv, QKV, head, half), heads.seen(gathered, 0, half),
                         heads.seen(gathered, HD, half), heads.options(half), {false, half == 0});
      if (half == 1 && keys < T_all)
        for (int b = 0; b < heads.B; ++b)
          clear(context.stream, dgathered + (size_t(b) * size_t(T_all) + size_t(keys)) * size_t(width),
                size_t(T_all - keys) * size_t(width));
    }
    heads.ranks.scatter(context.stream, heads.own(head), dgathered, heads.B, T_all, width);
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
