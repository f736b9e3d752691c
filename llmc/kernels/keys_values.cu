// Moves keys and values between rows and heads (contract: keys_values.h). Limited by memory: each element is read and
// written once.
#include "llmc/kernels/keys_values.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/device/number.h"

namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;  // elements that a thread moves

// A block moves blockDim.y tokens of head blockIdx.y. Thread x moves piece x of the token's key and value.
template <class T, bool kToHeads>
__global__ void __launch_bounds__(kThreads)
    keys_values_kernel(T* __restrict__ to, const T* __restrict__ from, int64_t stride, int N, int NKV, int HD) {
  const int token = blockIdx.x * blockDim.y + threadIdx.y, head = blockIdx.y, i = threadIdx.x * kWidth;
  if (token >= N) return;
  const int column = i < HD ? head * HD + i : (NKV + head) * HD + i - HD;
  const size_t by_row = size_t(token) * size_t(stride) + size_t(column);
  const size_t by_head = (size_t(head) * N + token) * 2 * HD + i;
  using Piece = Vector<T, kWidth>;
  *reinterpret_cast<Piece*>(to + (kToHeads ? by_head : by_row)) =
      *reinterpret_cast<const Piece*>(from + (kToHeads ? by_row : by_head));
}

template <class T, bool kToHeads>
void move(Stream& stream, const char* name, T* to, const T* from, int64_t stride, int N, int NKV, int HD) {
  REQUIRE(N > 0 && NKV > 0 && NKV < (1 << 16) && HD > 0 && HD % 8 == 0 && HD <= kThreads * kWidth / 2,
          "%s: N = %d tokens, NKV = %d heads of HD = %d: expected at least one of each, and HD in steps of 8", name, N,
          NKV, HD);
  REQUIRE(stride >= int64_t(2) * NKV * HD && stride % 8 == 0,
          "%s: rows %lld numbers apart: expected a multiple of 8, and at least 2 x %d x %d", name, (long long)stride,
          NKV, HD);
  const size_t span = size_t(N - 1) * size_t(stride) + size_t(2) * NKV * HD, dense = size_t(2) * NKV * N * HD;
  const size_t to_size = kToHeads ? dense : span, from_size = kToHeads ? span : dense;
  for (const void* data : {static_cast<const void*>(to), static_cast<const void*>(from)})
    REQUIRE(reinterpret_cast<uintptr_t>(data) % 16 == 0, "%s: the buffer at %p is not 16-byte aligned", name, data);
  REQUIRE(!overlap(to, to_size * sizeof(T), from, from_size * sizeof(T)), "%s: the buffers overlap", name);
  const int pieces = 2 * HD / kWidth;
  const dim3 block(pieces, std::max(kThreads / pieces, 1));
  launch<keys_values_kernel<T, kToHeads>>({stream, name, {writes(to, to_size), reads(from, from_size)}},
                                          dim3(blocks_for(size_t(N), block.y), NKV), block, 0, to, from, stride, N, NKV,
                                          HD);
}

}  // namespace

template <class T>
void keys_values_by_head(Stream& stream, T* by_head, const T* rows, int64_t stride, int N, int NKV, int HD) {
  move<T, true>(stream, "keys_values_by_head", by_head, rows, stride, N, NKV, HD);
}

template <class T>
void keys_values_by_row(Stream& stream, T* rows, const T* by_head, int64_t stride, int N, int NKV, int HD) {
  move<T, false>(stream, "keys_values_by_row", rows, by_head, stride, N, NKV, HD);
}

#define INSTANTIATE(T)                                                              \
  template void keys_values_by_head(Stream&, T*, const T*, int64_t, int, int, int); \
  template void keys_values_by_row(Stream&, T*, const T*, int64_t, int, int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
