// The ranks that compute the same tokens together. Each has a part of every product's weight (Shoeybi et al. 2019: qkv,
// gate and up are split by rows of the weight, o and down by columns). Between the products each has a part of the
// tokens (sequence parallelism: Korthikanti et al. 2022).
//
// A rank has N / degree of the N tokens: its own rows. A product that is split by rows of its weight gathers them. One
// that is split by columns leaves partial sums of all tokens, which are reduce-scattered. Both travel in up to `chunks`
// chunks, on a stream of their own, while the product that consumes or produces them computes. Chunk k is the k-th part
// of the tokens, and each rank owns an equal share of it, so gathered rows lie in the tokens' own order.
//
// Partial sums are sent and added in the type of the activations, as in Megatron-LM and torchtitan, or in fp32 on
// request. In fp32 a sum is rounded to bf16 once, as on a single rank. In bf16 it takes half the bytes, and is rounded
// at each rank that it passes.
#pragma once

#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/device/tensor.h"

constexpr int kExchangeSlots = 2;  // exchanges that may be in flight at once

class TensorParallel {
 public:
  // All collectives run in order on `stream`. `sums` is the type of partial sums.
  TensorParallel(Communicator& ranks, Stream& stream, int chunks, DType sums, Device& device);

  int degree() const { return ranks_.size(); }
  int rank() const { return ranks_.rank(); }
  // The type of partial sums if activations have this type.
  DType sum_type(DType activations) const { return sums_ == DType::fp32 ? DType::fp32 : activations; }
  // Rows of each rank. If N is no multiple of the degree, the last rows belong to no token: they are padding.
  static size_t own_rows(size_t N, int degree) { return (N + size_t(degree) - 1) / size_t(degree); }
  int own_rows(int N) const { return int(own_rows(size_t(N), degree())); }
  int padded(int N) const { return own_rows(N) * degree(); }

  // Chunk number `index` of N tokens: `count` of them from `first` on. This rank owns `own_count` of these, its own
  // rows from `own` on.
  struct Chunk {
    int index, first, count, own, own_count;
  };
  std::vector<Chunk> chunks(int N) const;

  // all (padded(N), width) = the ranks' `own` (own_rows(N), width), after all that compute has enqueued. Compute must
  // await each chunk, in order.
  void all_gather(Stream& compute, const Tensor& all, const Tensor& own, int N);
  void await_gathered(Stream& compute, int chunk);
  // Awaits the chunks of N that contain any of the tokens first .. first+count-1.
  void await_tokens(Stream& compute, int N, int first, int count);
  // own (own_rows(N), width) = this rank's rows of the sums of `partial` (padded(N), width) over the ranks. A call
  // sends one chunk, after all that compute has enqueued so far; await_scattered() waits for all chunks. `partial` has
  // the type of `own` or is fp32. If only `own` is bf16, the sums replace this rank's rows of `partial` and are rounded
  // to `own` from there, once.
  void reduce_scatter(Stream& compute, const Tensor& own, const Tensor& partial, const Chunk& chunk);
  // Clears the rows of `partial` that belong to no token. Call it before the rows are summed.
  void clear_padding(Stream& compute, const Tensor& partial, int N) const;
  void await_scattered(Stream& compute);

  // data (count) = the maximum over the ranks. Compute waits for it at once.
  void all_reduce_max(Stream& compute, float* data, size_t count);
  // numbers = their sum over the ranks. Compute waits for it at once.
  void all_reduce_sum(Stream& compute, const Tensor& numbers);
  // all (degree, bytes) = the ranks' `own`; `own` must be this rank's place in `all`. Compute must call
  // await_exchanged(slot).
  void exchange(Stream& compute, void* all, const void* own, size_t bytes, int slot);
  void await_exchanged(Stream& compute, int slot);

 private:
  Communicator& ranks_;
  Stream& stream_;
  const int chunks_;
  const DType sums_;
  Event computed_, scattered_;
  std::vector<Event> gathered_, exchanged_;  // one per chunk; one per slot
};
