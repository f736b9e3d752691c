#include "llmc/model/context_parallel.h"

#include "llmc/device/faults.h"

ContextParallel::ContextParallel(Communicator& ascending, Communicator& descending, Stream& stream, Device& device)
    : ascending_(ascending), descending_(descending), stream_(stream), computed_(device), scattered_(device) {
  for (int slot = 0; slot < kContextSlots; ++slot) gathered_.emplace_back(device);
}

void ContextParallel::follow(Stream& compute, const char* file, int line) {
  if (fault_skips(file, line)) return;
  computed_.record(compute);
  stream_.wait(computed_);
}

void ContextParallel::gather(const Tensor& all, const Tensor& own, int slot, int B, const char* file, int line) {
  if (fault_skips(file, line)) return;
  const int64_t half = all.rows() / B / 2, chunk = half / ascending_.size();  // rows
  for (int b = 0; b < B; ++b) {
    ascending_.all_gather(stream_, all.rows(2 * b * half, half), own.rows(b * chunk, chunk), file, line);
    descending_.all_gather(stream_, all.rows((2 * b + 1) * half, half), own.rows((B + b) * chunk, chunk), file, line);
  }
  gathered_[size_t(slot)].record(stream_);
}

void ContextParallel::await_gathered(Stream& compute, int slot, const char* file, int line) {
  if (fault_skips(file, line)) return;
  compute.wait(gathered_[size_t(slot)]);
}

void ContextParallel::scatter(Stream& compute, const Tensor& own, const Tensor& all, int B, const char* file,
                              int line) {
  if (fault_skips(file, line)) return;
  follow(compute);
  const int64_t half = all.rows() / B / 2, chunk = half / ascending_.size();  // rows
  for (int b = 0; b < B; ++b) {
    ascending_.reduce_scatter_sum(stream_, own.rows(b * chunk, chunk), all.rows(2 * b * half, half), file, line);
    descending_.reduce_scatter_sum(stream_, own.rows((B + b) * chunk, chunk), all.rows((2 * b + 1) * half, half), file,
                                   line);
  }
}

void ContextParallel::await_scattered(Stream& compute, const char* file, int line) {
  if (fault_skips(file, line)) return;
  scattered_.record(stream_);
  compute.wait(scattered_);
}
