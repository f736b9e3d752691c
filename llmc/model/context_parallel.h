// The ranks that share sequences out (context_part.h): each computes all of its own tokens, and of the others' it needs
// keys and values alone. These are gathered head by head (Llama team 2024: an all-gather, no ring), on a stream of
// their own, the next head's while attention runs on this one's; backward gathers them again, and sums the gradients of
// each head's over the ranks, which have those of their queries, while the next head's are computed.
//
// Two communicators span the same ranks, one in ascending and one in descending order: so the earlier chunks that one
// gathers and the later chunks that the other does lie in the order of the sequence, and each query sees its keys as
// one rank has them.
#pragma once

#include "llmc/comm/communicator.h"
#include "llmc/model/context_part.h"

constexpr int kContextSlots = 2;  // heads whose keys and values are there at once

// Of this rank; a head's keys and values lie side by side (keys_values.h).
template <class T>
struct ContextBuffers {
  T* own = nullptr;             // (NKV, 2, B, T / (2 degree), 2, HD): its tokens', and then, backward, their gradients
  T* all[kContextSlots] = {};   // (B, T, 2, HD) of one head
  T* dall[kContextSlots] = {};  // the gradients that this rank's queries give; backward
};

class ContextParallel {
 public:
  // `stream` orders all that travels.
  ContextParallel(Communicator& ascending, Communicator& descending, Stream& stream, Device& device);

  ContextPart part() const { return {ascending_.size(), ascending_.rank()}; }

  // What travels from now on comes behind what compute has enqueued.
  void follow(Stream& compute, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // all (B, T, width) = the ranks' `own` (2, B, T / (2 degree), width). Compute must await it.
  template <class T>
  void gather(T* all, const T* own, int slot, int B, int seq_len, int width, const char* file = __builtin_FILE(),
              int line = __builtin_LINE());
  void await_gathered(Stream& compute, int slot, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // own = this rank's chunks of the sums of `all` over the ranks, behind what compute has enqueued by now.
  template <class T>
  void scatter(Stream& compute, T* own, const T* all, int B, int seq_len, int width,
               const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // Compute may read what all scatters wrote.
  void await_scattered(Stream& compute, const char* file = __builtin_FILE(), int line = __builtin_LINE());

 private:
  Communicator &ascending_, &descending_;
  Stream& stream_;
  Event computed_, scattered_;
  std::vector<Event> gathered_;  // a slot
};
