#include "llmc/model/tensor_parallel.h"

#include <algorithm>
#include <type_traits>

#include "llmc/base/error.h"
#include "llmc/device/faults.h"
#include "llmc/kernels/initialize.h"

TensorParallel::TensorParallel(Communicator& ranks, Stream& stream, int chunks, DType sums, Device& device)
    : ranks_(ranks), stream_(stream), chunks_(chunks), sums_(sums), computed_(device), scattered_(device) {
  REQUIRE(chunks > 0, "--tensor-parallel-overlap %d: expected at least one chunk", chunks);
  for (int i = 0; i < chunks; ++i) gathered_.emplace_back(device);
  for (int slot = 0; slot < kExchangeSlots; ++slot) exchanged_.emplace_back(device);
}

// Returns up to chunks_ chunks of whole tiles, of 128 tokens per rank each, as equal as possible. Returns one chunk if
// N is not a multiple of 128 * degree or has only one tile.
std::vector<TensorParallel::Chunk> TensorParallel::chunks(int N) const {
  constexpr int kTile = 128;
  const int step = kTile * degree(), tiles = N / step, count = std::min(chunks_, tiles);
  if (count < 2 || N % step != 0) return {{0, N, 0, own_rows(N)}};
  std::vector<Chunk> all;
  for (int i = 0; i < count; ++i) {
    const int begin = tiles * i / count, size = tiles * (i + 1) / count - begin;
    all.push_back({begin * step, size * step, begin * kTile, size * kTile});
  }
  return all;
}

template <class T>
void TensorParallel::gather(Stream& compute, T* all, const T* own, int N, int width, const char* file, int line) {
  if (fault_skips(file, line)) return;
  computed_.record(compute);
  stream_.wait(computed_);
  size_t i = 0;
  for (const Chunk& chunk : chunks(N)) {
    ranks_.all_gather(stream_, all + size_t(chunk.first) * size_t(width), own + size_t(chunk.own) * size_t(width),
                      size_t(chunk.own_count) * size_t(width) * sizeof(T), file, line);
    gathered_[i++].record(stream_);
  }
}

void TensorParallel::await_gathered(Stream& compute, int chunk, const char* file, int line) {
  if (fault_skips(file, line)) return;
  compute.wait(gathered_[size_t(chunk)]);
}

void TensorParallel::await_tokens(Stream& compute, int N, int first, int count, const char* file, int line) {
  int i = 0;
  for (const Chunk& chunk : chunks(N)) {
    if (chunk.first < first + count && first < chunk.first + chunk.count) await_gathered(compute, i, file, line);
    ++i;
  }
}

template <class T, class Sum>
void TensorParallel::scatter(Stream& compute, T* own, Sum* partial, int N, int width, int chunk, const char* file,
                             int line) {
  if (fault_skips(file, line)) return;
  const Chunk c = chunks(N)[size_t(chunk)];
  computed_.record(compute);
  stream_.wait(computed_);
  const size_t count = size_t(c.own_count) * size_t(width);
  partial += size_t(c.first) * size_t(width), own += size_t(c.own) * size_t(width);
  if constexpr (std::is_same_v<T, Sum>) {
    ranks_.reduce_scatter_sum(stream_, own, partial, count, file, line);
  } else {
    Sum* sums = partial + size_t(rank()) * count;
    ranks_.reduce_scatter_sum(stream_, sums, partial, count, file, line);
    cast(stream_, Tensor(own, {c.own_count, width}), Tensor(sums, {c.own_count, width}));
  }
}

void TensorParallel::await_scattered(Stream& compute, const char* file, int line) {
  if (fault_skips(file, line)) return;
  scattered_.record(stream_);
  compute.wait(scattered_);
}

template <class T>
void TensorParallel::clear_padding(Stream& compute, T* partial, int N, int width) const {
  const size_t rows = size_t(padded(N) - N);
  if (rows) clear(compute, partial + size_t(N) * size_t(width), rows * size_t(width));
}

void TensorParallel::exchange(Stream& compute, void* all, const void* own, size_t bytes, int slot, const char* file,
                              int line) {
  if (fault_skips(file, line)) return;
  computed_.record(compute);
  stream_.wait(computed_);
  ranks_.all_gather(stream_, all, own, bytes, file, line);
  exchanged_[size_t(slot)].record(stream_);
}

void TensorParallel::await_exchanged(Stream& compute, int slot, const char* file, int line) {
  if (fault_skips(file, line)) return;
  compute.wait(exchanged_[size_t(slot)]);
}

void TensorParallel::all_reduce_max(Stream& compute, float* data, size_t count, const char* file, int line) {
  if (fault_skips(file, line)) return;
  computed_.record(compute);
  stream_.wait(computed_);
  ranks_.all_reduce_max(stream_, data, count, file, line);
  await_scattered(compute);
}

template void TensorParallel::gather(Stream&, uint8_t*, const uint8_t*, int, int, const char*, int);
template void TensorParallel::scatter(Stream&, bf16*, float*, int, int, int, const char*, int);
#define INSTANTIATE(T)                                                                     \
  template void TensorParallel::gather(Stream&, T*, const T*, int, int, const char*, int); \
  template void TensorParallel::clear_padding(Stream&, T*, int, int) const;                \
  template void TensorParallel::scatter(Stream&, T*, T*, int, int, int, const char*, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
