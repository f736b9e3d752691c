// The ranks that compute the same tokens together. Each rank has a part of every product's weight (Shoeybi et al.
// 2019): qkv, gate and up are column-parallel (this rank has some rows of the weight), o and down are row-parallel
// (some columns). Between the products, each rank has a part of the tokens (sequence parallelism: Korthikanti et al.
// 2022).
//
// A rank has N / degree of the N tokens: its own rows. A column-parallel product gathers the rows of all ranks. A
// row-parallel product leaves partial sums of all tokens, which are reduce-scattered. Both are sent in up to `chunks`
// chunks, on a separate stream, while the product computes. Chunk k is the k-th part of the tokens, and each rank owns
// an equal share of it, so gathered rows are in the order of the tokens.
//
// Partial sums are sent and added in the type of the activations, as in Megatron-LM and torchtitan, or in fp32 on
// request. In fp32, a sum is rounded to bf16 once, as on a single rank. In bf16, the ranks send half the bytes, and
// each rank that adds to a sum rounds it.
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
  DType sum_type(DType activations) const { return sum_type_ == DType::fp32 ? DType::fp32 : activations; }
  // Rows of each rank. If N is not a multiple of the degree, the last rows are padding.
  static size_t own_rows(size_t N, int degree) { return (N + size_t(degree) - 1) / size_t(degree); }
  int own_rows(int N) const { return int(own_rows(size_t(N), degree())); }
  int padded(int N) const { return own_rows(N) * degree(); }

  // Chunk `index` has the tokens first .. first+count-1. This rank owns `own_count` of them: its rows from `own` on.
  struct Chunk {
    int index, first, count, own, own_count;
  };
  std::vector<Chunk> chunks(int N) const;

  // all (padded(N), width) = the ranks' `own` (own_rows(N), width). The gather starts after the work that compute has
  // enqueued so far. Compute must await each chunk, in order.
  void all_gather(Stream& compute, const Tensor& all, const Tensor& own, int N);
  void await_gathered(Stream& compute, int chunk);
  // Awaits the chunks of N that contain any of the tokens first .. first+count-1.
  void await_tokens(Stream& compute, int N, int first, int count);
  // own (own_rows(N), width) = this rank's rows of the sums of `partial` (padded(N), width) over the ranks. A call
  // sends one chunk, after the work that compute has enqueued so far. await_scattered() waits for all chunks. `partial`
  // has the type of `own` or is fp32. If only `partial` is fp32, the sums replace this rank's rows of `partial`, and
  // are rounded once, into `own`.
  void reduce_scatter(Stream& compute, const Tensor& own, const Tensor& partial, const Chunk& chunk);
  // Clears the padding of `partial`. Call this before reduce_scatter().
  void clear_padding(Stream& compute, const Tensor& partial, int N) const;
  void await_scattered(Stream& compute);

  // numbers = their maximum over the ranks. Compute waits for it at once.
  void all_reduce_max(Stream& compute, const Tensor& numbers);
  // numbers = their sum over the ranks. Compute waits for it at once.
  void all_reduce_sum(Stream& compute, const Tensor& numbers);
  // all (degree, bytes) = the ranks' `own`, which must be this rank's row of `all`. Compute must call
  // await_exchanged(slot) before it reads `all`.
  void exchange(Stream& compute, void* all, const void* own, size_t bytes, int slot);
  void await_exchanged(Stream& compute, int slot);

 private:
  Communicator& ranks_;
  Stream& stream_;
  const int chunks_;
  const DType sum_type_;
  Event computed_, scattered_;
  std::vector<Event> gathered_, exchanged_;  // one per chunk; one per slot
};
