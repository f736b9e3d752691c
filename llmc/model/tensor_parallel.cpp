#include "llmc/model/tensor_parallel.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/initialize.h"

TensorParallel::TensorParallel(Communicator& ranks, Stream& stream, int chunks, DType sums, Device& device)
    : ranks_(ranks), stream_(stream), chunks_(chunks), sum_type_(sums), computed_(device), scattered_(device) {
  for (int i = 0; i < chunks; ++i) gathered_.emplace_back(device);
  for (int slot = 0; slot < kExchangeSlots; ++slot) exchanged_.emplace_back(device);
}

// Returns up to chunks_ chunks of whole tiles, of 128 tokens per rank each, as equal as possible. Returns one chunk if
// N is not a multiple of 128 * degree or has only one tile.
std::vector<TensorParallel::Chunk> TensorParallel::chunks(int N) const {
  constexpr int kTile = 128;
  const int step = kTile * degree(), tiles = N / step, count = std::min(chunks_, tiles);
  if (count < 2 || N % step != 0) return {{0, 0, N, 0, own_rows(N)}};
  std::vector<Chunk> all;
  for (int i = 0; i < count; ++i) {
    const int begin = tiles * i / count, size = tiles * (i + 1) / count - begin;
    all.push_back({i, begin * step, size * step, begin * kTile, size * kTile});
  }
  return all;
}

void TensorParallel::all_gather(Stream& compute, const Tensor& all, const Tensor& own, int N) {
  computed_.record(compute);
  stream_.wait(computed_);
  for (const Chunk& chunk : chunks(N)) {
    ranks_.all_gather(stream_, all.rows(chunk.first, chunk.own_count * degree()), own.rows(chunk.own, chunk.own_count));
    gathered_[size_t(chunk.index)].record(stream_);
  }
}

void TensorParallel::await_gathered(Stream& compute, int chunk) { compute.wait(gathered_[size_t(chunk)]); }

void TensorParallel::await_tokens(Stream& compute, int N, int first, int count) {
  for (const Chunk& chunk : chunks(N))
    if (chunk.first < first + count && first < chunk.first + chunk.count) await_gathered(compute, chunk.index);
}

void TensorParallel::reduce_scatter(Stream& compute, const Tensor& own, const Tensor& partial, const Chunk& chunk) {
  computed_.record(compute);
  stream_.wait(computed_);
  const Tensor all = partial.rows(chunk.first, chunk.own_count * degree()), here = own.rows(chunk.own, chunk.own_count);
  if (own.type == partial.type) return ranks_.reduce_scatter_sum(stream_, here, all);
  const Tensor sums = all.rows(rank() * chunk.own_count, chunk.own_count);
  ranks_.reduce_scatter_sum(stream_, sums, all);
  cast(stream_, here, sums);
}

void TensorParallel::await_scattered(Stream& compute) {
  scattered_.record(stream_);
  compute.wait(scattered_);
}

void TensorParallel::clear_padding(Stream& compute, const Tensor& partial, int N) const {
  if (const int rows = padded(N) - N; rows > 0) clear(compute, partial.rows(N, rows));
}

void TensorParallel::exchange(Stream& compute, void* all, const void* own, size_t bytes, int slot) {
  computed_.record(compute);
  stream_.wait(computed_);
  ranks_.all_gather(stream_, all, own, bytes);
  exchanged_[size_t(slot)].record(stream_);
}

void TensorParallel::await_exchanged(Stream& compute, int slot) { compute.wait(exchanged_[size_t(slot)]); }

void TensorParallel::all_reduce_sum(Stream& compute, const Tensor& numbers) {
  computed_.record(compute);
  stream_.wait(computed_);
  ranks_.all_reduce_sum(stream_, numbers);
  await_scattered(compute);
}

void TensorParallel::all_reduce_max(Stream& compute, const Tensor& numbers) {
  computed_.record(compute);
  stream_.wait(computed_);
  ranks_.all_reduce_max(stream_, numbers);
  await_scattered(compute);
}
