#include "llmc/model/context_parallel.h"

ContextParallel::ContextParallel(Communicator& ascending, Communicator& descending, Stream& stream, Device& device)
    : ascending_(ascending), descending_(descending), stream_(stream), computed_(device), scattered_(device) {
  for (int slot = 0; slot < kContextSlots; ++slot) gathered_.emplace_back(device);
}

void ContextParallel::follow(Stream& compute) {
  computed_.record(compute);
  stream_.wait(computed_);
}

void ContextParallel::all_gather(const Tensor& all, const Tensor& own, int slot, int B) {
  const int64_t half = all.rows() / B / 2, chunk = half / ascending_.size();  // rows
  ascending_.group([&] {
    for (int b = 0; b < B; ++b)
      ascending_.all_gather(stream_, all.rows(2 * b * half, half), own.rows(b * chunk, chunk));
  });
  descending_.group([&] {
    for (int b = 0; b < B; ++b)
      descending_.all_gather(stream_, all.rows((2 * b + 1) * half, half), own.rows((B + b) * chunk, chunk));
  });
  gathered_[size_t(slot)].record(stream_);
}

void ContextParallel::await_gathered(Stream& compute, int slot) { compute.wait(gathered_[size_t(slot)]); }

void ContextParallel::reduce_scatter(Stream& compute, const Tensor& own, const Tensor& all, int B) {
  follow(compute);
  const int64_t half = all.rows() / B / 2, chunk = half / ascending_.size();  // rows
  ascending_.group([&] {
    for (int b = 0; b < B; ++b)
      ascending_.reduce_scatter_sum(stream_, own.rows(b * chunk, chunk), all.rows(2 * b * half, half));
  });
  descending_.group([&] {
    for (int b = 0; b < B; ++b)
      descending_.reduce_scatter_sum(stream_, own.rows((B + b) * chunk, chunk), all.rows((2 * b + 1) * half, half));
  });
}

void ContextParallel::await_scattered(Stream& compute) {
  scattered_.record(stream_);
  compute.wait(scattered_);
}
