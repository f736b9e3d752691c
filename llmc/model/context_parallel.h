// The ranks that share sequences (context_part.h). Each rank computes everything for its own tokens, and needs only the
// keys and values of the other ranks' tokens. These are gathered on a stream of their own, a group of heads at a time,
// the next group's while attention runs on this group's (Llama team 2024: an all-gather, no ring). Backward gathers
// them again. Each rank then has the gradients of a group's keys and values from its own queries; they are summed over
// the ranks while the next group's are computed.
//
// Two communicators span the same ranks, one in ascending and one in descending order. One gathers the earlier chunks
// and the other the later chunks, so that both lie in the order of the sequence. Each query therefore sees its keys in
// the order in which a single rank has them.
#pragma once

#include "llmc/comm/communicator.h"
#include "llmc/config/context_part.h"
#include "llmc/device/tensor.h"

constexpr int kContextSlots = 2;  // groups whose gathered keys and values are in memory at once

// Buffers of this rank, for the largest micro-batch. The keys and the values of a group lie side by side
// (keys_values.h).
struct ContextBuffers {
  int heads = 0;  // key/value heads of a group: H
  Tensor own;     // (NKV / H, 2, B, T / (2 degree), 2, H HD) of its tokens; in backward then their gradients
  Tensor all[kContextSlots];   // (B, T, 2, H HD) of one group
  Tensor dall[kContextSlots];  // (B, T, 2, H HD), backward: gradients from this rank's queries
};

class ContextParallel {
 public:
  // All collectives run in order on `stream`.
  ContextParallel(Communicator& ascending, Communicator& descending, Stream& stream, Device& device);

  ContextPart part() const { return {ascending_.size(), ascending_.rank()}; }

  // Collectives that are enqueued from now on wait for all that compute has enqueued.
  void follow(Stream& compute);
  // all (B T, width) = the ranks' `own` (2 B T / (2 degree), width), in B sequences. Compute must call await_gathered()
  // before it reads `all`.
  void all_gather(const Tensor& all, const Tensor& own, int slot, int B);
  void await_gathered(Stream& compute, int slot);
  // own = this rank's chunks of the sums of `all` over the ranks, after all that compute has enqueued so far. Compute
  // must call await_scattered() before it reads `own`.
  void reduce_scatter(Stream& compute, const Tensor& own, const Tensor& all, int B);
  // Compute waits for the results of all scatters.
  void await_scattered(Stream& compute);

 private:
  Communicator &ascending_, &descending_;
  Stream& stream_;
  Event computed_, scattered_;
  std::vector<Event> gathered_;  // one per slot
};
