#include "llmc/train/bit_hashes.h"

#include "llmc/base/checksum.h"

BitHashes::BitHashes(MemoryPlan& plan, size_t tensors, int ranks, Device& device)
    : tensors_(tensors), ranks_(ranks), device_(device) {
  const auto add = [&](Segment segment, const char* name, TensorShape shape) {
    return plan.add(segment, "verification", name, DType::int64, shape);
  };
  on_device_ = add(Segment::device, "hashes of tensors", {kHashedKinds, tensors});
  on_host_ = add(Segment::pinned, "hashes of tensors", {kHashedKinds, tensors});
  exchanged_ = add(Segment::symmetric, "hashes of ranks", {ranks, kNumbers});
  exchanged_on_host_ = add(Segment::pinned, "hashes of ranks", {ranks, kNumbers});
}

void BitHashes::fetch(Stream& stream, Communicator& communicator) {
  copy(stream, on_host_, on_device_);
  communicator.wait_for(stream);
  host_accesses(device_, "the hashes", {reads(*on_host_)});
}

uint64_t BitHashes::digest(std::span<const Hashed> kinds, const std::function<bool(Hashed, size_t)>& counts) const {
  Checksum checksum;
  for (const Hashed kind : kinds)
    for (size_t tensor = 0; tensor < tensors_; ++tensor) {
      const uint64_t word = value(kind, tensor);
      if (counts(kind, tensor)) checksum.add(&word, sizeof word);
    }
  return checksum.value();
}

BitHashes::OfRanks BitHashes::exchange(Stream& stream, Communicator& communicator,
                                       const std::array<uint64_t, kNumbers>& own) {
  const Tensor here = exchanged_->rows(communicator.rank(), 1),
               on_host = exchanged_on_host_->rows(communicator.rank(), 1);
  host_accesses(device_, "the hashes of the ranks", {writes(on_host)});
  std::copy(own.begin(), own.end(), on_host.as<int64_t>());
  copy(stream, here, on_host);
  communicator.all_gather(stream, exchanged_, here);
  copy(stream, exchanged_on_host_, exchanged_);
  communicator.wait_for(stream);
  host_accesses(device_, "the hashes of the ranks", {reads(*exchanged_on_host_)});
  OfRanks of_ranks;
  for (int rank = 0; rank < ranks_; ++rank)
    for (size_t i = 0; i < kNumbers; ++i)
      of_ranks[i].push_back(uint64_t(exchanged_on_host_->as<int64_t>()[size_t(rank) * kNumbers + i]));
  return of_ranks;
}
