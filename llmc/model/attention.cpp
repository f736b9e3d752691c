#include "llmc/model/attention.h"

#include <algorithm>

#include "llmc/kernels/keys_values.h"

namespace {

AttentionOptions options_of(const Pass& pass, int layer) {
  AttentionOptions options;
  options.query_offset = pass.past;
  options.window_for_flops = pass.config.window_of(layer);
  options.document_start = options.window_for_flops ? pass.window_start : pass.document_start;
  options.kernel = pass.attention;
  return options;
}

// The columns of packed rows (B T, QKV) or of their gradients.
struct QkvHeads {
  Tensor q, k, v;  // (B, T, NH, HD), (B, T, NKV, HD) twice
};
QkvHeads qkv_heads(const Pass& pass, const Tensor& qkv) {
  const int NH = pass.config.NH, NKV = pass.config.NKV, HD = pass.config.HD;
  const auto heads = [&](int first, int count) { return qkv.columns(first * HD, count * HD).heads(pass.B, HD); };
  return {heads(0, NH), heads(NH, NKV), heads(NH + NKV, NKV)};
}

// Cuts the tensors for each call of the kernel under context parallelism. A call takes one group of key/value heads
// with their query heads, and one of this rank's two chunks. This rank's rows are (2, B, chunk); its pass counts 2 B as
// B.
struct SharedHeads {
  const Pass& pass;
  const int layer;
  ContextParallel& ranks = *pass.context_parallel;
  const ContextBuffers& buffers = pass.context_buffers;
  const int NKV = pass.config.NKV, HD = pass.config.HD, H = buffers.heads, groups = NKV / H;
  const int G = pass.config.NH / groups;  // query heads of a group
  const int B = pass.B / 2, chunk = pass.T, T_all = chunk * ranks.part().multiple();

  // A call has the queries of one half and all keys up to the last query's position.
  AttentionOptions options(int half) const {
    AttentionOptions options = options_of(pass, layer);
    options.query_offset = ranks.part().first(half, T_all);
    if (options.document_start) options.document_start = options.document_start.first({2, B, chunk}).at(half);
    return options;
  }
  int keys(int half) const { return ranks.part().first(half, T_all) + chunk; }
  // Returns the group's queries of one half (B, chunk, G, HD), in rows that begin with the query heads.
  Tensor queries(const Tensor& rows, int group, int half) const {
    return rows.rows(half * B * chunk, B * chunk).columns(group * G * HD, G * HD).heads(B, HD);
  }
  // Returns the keys or values of a call, (B, keys, H, HD).
  Tensor seen_keys(const Tensor& gathered, int half) const { return seen(gathered, 0, half); }
  Tensor seen_values(const Tensor& gathered, int half) const { return seen(gathered, H * HD, half); }
  Tensor seen(const Tensor& gathered, int column, int half) const {
    return gathered.columns(column, H * HD).heads(B, HD).slice(1, 0, keys(half));
  }
  Tensor lse(const Tensor& all, int group, int half) const {
    return all.first({2 * groups, B, G, chunk}).at(2 * group + half);
  }

  // This rank's keys and values of all groups (groups, N, 2, H HD), and of one (N, 2 H HD).
  Tensor own() const { return buffers.own.first({groups, pass.N, 2, H * HD}); }
  Tensor own(int group) const { return own().at(group).first({pass.N, 2 * H * HD}); }
  // The keys and values of whole sequences (B T, 2 H HD), and their gradients.
  Tensor all(int group) const { return buffers.all[group % kContextSlots].first({B * T_all, 2 * H * HD}); }
  Tensor dall(int group) const { return buffers.dall[group % kContextSlots].first({B * T_all, 2 * H * HD}); }

  void gather(int group) const { ranks.all_gather(all(group), own(group), group % kContextSlots, B); }
  // Arranges this rank's keys and values by group, and starts the all-gather of the first kContextSlots groups.
  void start(const Tensor& qkv) const {
    keys_values_by_head(pass.stream, own(), qkv.columns(groups * G * HD, 2 * NKV * HD));
    ranks.follow(pass.stream);
    for (int group = 0; group < std::min(kContextSlots, groups); ++group) gather(group);
  }
  // Call this when compute is done with the group's keys and values: it starts the next gather into their slot.
  void next(int group) const {
    if (group + kContextSlots >= groups) return;
    ranks.follow(pass.stream);
    gather(group + kContextSlots);
  }
};

void shared_forward(const Pass& pass, int layer, const AttentionTensors& a, float* amax) {
  const SharedHeads heads{pass, layer};
  heads.start(a.qkv);
  for (int group = 0; group < heads.groups; ++group) {
    heads.ranks.await_gathered(pass.stream, group % kContextSlots);
    const Tensor gathered = heads.all(group);
    for (const int half : {0, 1})
      attention_forward(pass.stream, heads.queries(a.out, group, half), heads.lse(a.lse, group, half),
                        heads.queries(a.qkv, group, half), heads.seen_keys(gathered, half),
                        heads.seen_values(gathered, half), heads.options(half), amax);
    heads.next(group);
  }
}

void shared_backward(const Pass& pass, int layer, const Tensor& dqkv, const Tensor& dout, const AttentionTensors& a,
                     const Tensor& rowsum_scratch) {
  const SharedHeads heads{pass, layer};
  const int B = heads.B, T_all = heads.T_all;
  const Tensor rowsum_dO_O = rowsum_scratch.first({B, heads.G, heads.chunk});
  for (int group = 0; group < heads.groups; ++group) {
    // This also waits until the last gradients in this slot have been summed: the same stream sums and gathers.
    heads.ranks.await_gathered(pass.stream, group % kContextSlots);
    const Tensor gathered = heads.all(group), dgathered = heads.dall(group);
    // The later chunk goes first. It sees all keys that the earlier chunk sees, so it sets their gradients and the
    // earlier chunk adds to them. Keys after the later chunk get no gradient from this rank, so theirs are cleared.
    for (const int half : {1, 0}) {
      const int keys = heads.keys(half);
      attention_backward(pass.stream, heads.queries(dqkv, group, half), heads.seen_keys(dgathered, half),
                         heads.seen_values(dgathered, half), rowsum_dO_O, heads.queries(dout, group, half),
                         heads.queries(a.out, group, half), heads.lse(a.lse, group, half),
                         heads.queries(a.qkv, group, half), heads.seen_keys(gathered, half),
                         heads.seen_values(gathered, half), heads.options(half), {false, half == 0});
      if (half == 1 && keys < T_all)
        for (int b = 0; b < B; ++b) clear(pass.stream, dgathered.rows(b * T_all + keys, T_all - keys));
    }
    heads.ranks.reduce_scatter(pass.stream, heads.own(group), dgathered, B);
    heads.next(group);
  }
  heads.ranks.await_scattered(pass.stream);
  keys_values_by_row(pass.stream, dqkv.columns(heads.groups * heads.G * heads.HD, 2 * heads.NKV * heads.HD),
                     heads.own());
}

}  // namespace

int choose_context_heads(const ModelConfig& config, int B, int chunk, int ranks) {
  constexpr int kRows = 128, kEnough = 128;  // rows of a block; blocks that keep an H100's 132 multiprocessors busy
  constexpr double kMostIdle = 0.04;
  const double of_a_head = double((chunk + kRows - 1) / kRows) * B;
  const auto busy = [&](int heads) {
    const double blocks = of_a_head * heads;  // of dK and dV for the first chunk, which sees no other keys
    const double longer = std::max(0.0, kEnough / blocks - 1), share = 1.0 / (4 * ranks);
    return blocks * (config.NH / config.NKV) >= kEnough && longer * share <= kMostIdle;
  };
  int heads = 1;
  while (heads < config.NKV && (config.NKV % heads || !busy(heads))) ++heads;
  return heads;
}

void attention_forward(const Pass& pass, int layer, const AttentionTensors& a, float* amax) {
  if (pass.context_parallel) return shared_forward(pass, layer, a, amax);
  const Tensor q = qkv_heads(pass, a.qkv.rows(pass.past, pass.N)).q;
  const auto [_, k, v] = qkv_heads(pass, a.qkv);
  attention_forward(pass.stream, a.out.heads(pass.B, pass.config.HD), a.lse.first({pass.B, pass.config.NH, pass.T}), q,
                    k, v, options_of(pass, layer), amax);
}

void attention_prefetch(const Pass& pass, int layer, const Tensor& qkv) {
  if (pass.context_parallel) SharedHeads{pass, layer}.start(qkv);
}

void attention_backward(const Pass& pass, int layer, const Tensor& dqkv, const Tensor& dout, const AttentionTensors& a,
                        const Tensor& rowsum_dO_O) {
  if (pass.context_parallel) return shared_backward(pass, layer, dqkv, dout, a, rowsum_dO_O);
  const int B = pass.B, NH = pass.config.NH, T = pass.T, HD = pass.config.HD;
  const auto [q, k, v] = qkv_heads(pass, a.qkv);
  const auto [dq, dk, dv] = qkv_heads(pass, dqkv);
  attention_backward(pass.stream, dq, dk, dv, rowsum_dO_O.first({B, NH, T}), dout.heads(B, HD), a.out.heads(B, HD),
                     a.lse.first({B, NH, T}), q, k, v, options_of(pass, layer));
}
