// The ranks that compute the same tokens together, each with a part of every product's weight (Shoeybi et al. 2019:
// qkv, gate and up by rows of the weight, o and down by columns), and between the products each with a part of the
// tokens (sequence parallelism: Korthikanti et al. 2022).
//
// Of N tokens a rank has N / degree, its own rows. A product by rows of its weight gathers them; one by columns leaves
// partial sums of all tokens, which are scattered. Both travel in up to `chunks` chunks, on a stream of their own,
// beside the product that eats or feeds them. Chunk k is the k-th part of the tokens, of which each rank has as many:
// so what is gathered lies in the tokens' own order.
#pragma once

#include <vector>

#include "llmc/comm/communicator.h"

constexpr int kExchangeSlots = 2;  // that may be on their way at once

class TensorParallel {
 public:
  // `stream` orders all that travels.
  TensorParallel(Communicator& ranks, Stream& stream, int chunks, Device& device);

  int degree() const { return ranks_.size(); }
  int rank() const { return ranks_.rank(); }
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
  // chunk, each behind what compute has enqueued by then; compute must await them all.
  template <class T>
  void scatter(Stream& compute, T* own, const T* partial, int N, int width, int chunk,
               const char* file = __builtin_FILE(), int line = __builtin_LINE());
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
  Event computed_, scattered_;
  std::vector<Event> gathered_, exchanged_;  // a chunk; a slot
};
