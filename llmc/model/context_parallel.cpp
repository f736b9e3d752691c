#include "llmc/model/context_parallel.h"

#include "llmc/device/faults.h"
#include "llmc/device/number.h"

ContextParallel::ContextParallel(Communicator& ascending, Communicator& descending, Stream& stream, Device& device)
    : ascending_(ascending), descending_(descending), stream_(stream), computed_(device), scattered_(device) {
  for (int slot = 0; slot < kContextSlots; ++slot) gathered_.emplace_back(device);
}

void ContextParallel::follow(Stream& compute, const char* file, int line) {
  if (fault_skips(file, line)) return;
  computed_.record(compute);
  stream_.wait(computed_);
}

template <class T>
void ContextParallel::gather(T* all, const T* own, int slot, int B, int seq_len, int width, const char* file,
                             int line) {
  if (fault_skips(file, line)) return;
  const size_t chunk = size_t(part().chunk(seq_len)) * size_t(width), half = chunk * size_t(ascending_.size());
  for (int b = 0; b < B; ++b) {
    T* sequence = all + size_t(b) * 2 * half;
    ascending_.all_gather(stream_, sequence, own + size_t(b) * chunk, chunk * sizeof(T), file, line);
    descending_.all_gather(stream_, sequence + half, own + size_t(B + b) * chunk, chunk * sizeof(T), file, line);
  }
  gathered_[size_t(slot)].record(stream_);
}

void ContextParallel::await_gathered(Stream& compute, int slot, const char* file, int line) {
  if (fault_skips(file, line)) return;
  compute.wait(gathered_[size_t(slot)]);
}

template <class T>
void ContextParallel::scatter(Stream& compute, T* own, const T* all, int B, int seq_len, int width, const char* file,
                              int line) {
  if (fault_skips(file, line)) return;
  follow(compute);
  const size_t chunk = size_t(part().chunk(seq_len)) * size_t(width), half = chunk * size_t(ascending_.size());
  for (int b = 0; b < B; ++b) {
    const T* sequence = all + size_t(b) * 2 * half;
    ascending_.reduce_scatter_sum(stream_, own + size_t(b) * chunk, sequence, chunk, file, line);
    descending_.reduce_scatter_sum(stream_, own + size_t(B + b) * chunk, sequence + half, chunk, file, line);
  }
}

void ContextParallel::await_scattered(Stream& compute, const char* file, int line) {
  if (fault_skips(file, line)) return;
  scattered_.record(stream_);
  compute.wait(scattered_);
}

#define INSTANTIATE(T)                                                                       \
  template void ContextParallel::gather(T*, const T*, int, int, int, int, const char*, int); \
  template void ContextParallel::scatter(Stream&, T*, const T*, int, int, int, const char*, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
