// The ranks that compute the same tokens together, each with a part of every product's weight (Shoeybi et al. 2019:
// qkv, gate and up by rows of the weight, o and down by columns), and between the products each with a part of the
// tokens (sequence parallelism: Korthikanti et al. 2022).
//
// Of N tokens a rank has N / degree, its own rows. A product by rows of its weight gathers them; one by columns leaves
// partial sums of all tokens, which are scattered. Both travel in up to `chunks` chunks, on a stream of their own,
// beside the product that eats or feeds them. Chunk k is the k-th part of the tokens, of which each rank has as many:
// so what is gathered lies in the tokens' own order.
//
// Partial sums travel and are added in fp32, or in the type of the numbers where that is asked for: half the bytes,
// but a sum of bf16 numbers is then rounded at each rank that it passes, which one rank alone does once.
#pragma once

#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/device/number.h"

constexpr int kExchangeSlots = 2;  // that may be on their way at once

class TensorParallel {
 public:
  // `stream` orders all that travels; `sums`: the type of partial sums.
  TensorParallel(Communicator& ranks, Stream& stream, int chunks, DType sums, Device& device);

  int degree() const { return ranks_.size(); }
  int rank() const { return ranks_.rank(); }
  DType sums() const { return sums_; }
  // Calls use(partial) with the type of partial sums of numbers of T.
  template <class T, class F>
  void with_sums(void* partial, F&& use) const {
    if (sums_ == DType::fp32) use(static_cast<float*>(partial));
    else use(static_cast<T*>(partial));
  }
  template <class T>
  size_t bytes_of_sum() const {
    return sums_ == DType::fp32 ? sizeof(float) : sizeof(T);
  }
  // Tokens of each rank; where N is no multiple, the last rows are of no token.
  static size_t own_rows(size_t N, int degree) { return (N + size_t(degree) - 1) / size_t(degree); }
  int own_rows(int N) const { return int(own_rows(size_t(N), degree())); }
  int padded(int N) const { return own_rows(N) * degree(); }

  // A chunk of N tokens: all of them from `first` on, and this rank's from `own` on.
  struct Chunk {
    int first, count, own, own_count;
  };
  std::vector<Chunk> chunks(int N) const;

  // all (padded(N), width) = the ranks' `own` (own_rows(N), width), behind what compute has enqueued. Compute must
  // await each chunk, in their order.
  template <class T>
  void gather(Stream& compute, T* all, const T* own, int N, int width, const char* file = __builtin_FILE(),
              int line = __builtin_LINE());
  void await_gathered(Stream& compute, int chunk, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // Those chunks of N that have some of the tokens first .. first+count-1.
  void await_tokens(Stream& compute, int N, int first, int count, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE());
  // own (own_rows(N), width) = this rank's rows of the sums of `partial` (padded(N), width) over the ranks, chunk by
  // chunk, each behind what compute has enqueued by then; compute must await them all. Sum is T, or float: then the
  // sums take the place of this rank's rows of `partial`, and are rounded from there, once.
  template <class T, class Sum>
  void scatter(Stream& compute, T* own, Sum* partial, int N, int width, int chunk, const char* file = __builtin_FILE(),
               int line = __builtin_LINE());
  template <class T>
  void clear_padding(Stream& compute, T* partial, int N, int width) const;  // rows of no token, before they are summed
  void await_scattered(Stream& compute, const char* file = __builtin_FILE(), int line = __builtin_LINE());

  // data (count) = largest of the ranks'; compute awaits it at once.
  void agree(Stream& compute, float* data, size_t count, const char* file = __builtin_FILE(),
             int line = __builtin_LINE());
  // all (degree, bytes) = the ranks' `own`, which is this rank's place there. Compute must await it.
  void exchange(Stream& compute, void* all, const void* own, size_t bytes, int slot,
                const char* file = __builtin_FILE(), int line = __builtin_LINE());
  void await_exchanged(Stream& compute, int slot, const char* file = __builtin_FILE(), int line = __builtin_LINE());

 private:
  Communicator& ranks_;
  Stream& stream_;
  const int chunks_;
  const DType sums_;
  Event computed_, scattered_;
  std::vector<Event> gathered_, exchanged_;  // a chunk; a slot
};
