// The hashes by which ranks find out whether they have the same bits: tables on the device, one word for each tensor of
// the model, and the exchange of a few numbers between all ranks. All of it is planned memory.
//
//   hashes.clear(compute);
//   hash_bits(compute, hashes.of(Hashed::weights, tensor), …);
//   hashes.fetch(compute, communicator);            // the host waits
//   hashes.digest(Hashed::weights, …);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/memory/plan.h"

// The kinds of bits that are hashed, each with a table of its own. In `losses` the first word alone is used, in
// `fp8_weights` one for each product. `other_…`: of the micro-batch of another data rank.
enum class Hashed {
  weights,
  fp8_weights,
  master,
  first_moment,
  second_moment,
  gradients,
  losses,
  other_gradients,
  other_losses
};
inline constexpr int kHashedKinds = 9;

class BitHashes {
 public:
  // The tables have `tensors` words each; a rank of `ranks`.
  BitHashes(MemoryPlan& plan, size_t tensors, int ranks, Device& device);

  // Sets all tables to 0.
  void clear(Stream& stream) const { ::clear(stream, on_device_); }
  uint64_t* of(Hashed kind, size_t tensor) const {
    return reinterpret_cast<uint64_t*>(on_device_->as<int64_t>()) + size_t(kind) * tensors_ + tensor;
  }
  // The host gets all tables, and waits for all work of the stream.
  void fetch(Stream& stream, Communicator& communicator);
  // After fetch().
  uint64_t value(Hashed kind, size_t tensor) const {
    return uint64_t(on_host_->as<int64_t>()[size_t(kind) * tensors_ + tensor]);
  }
  // Returns one number for those of these tables' words that are counted.
  uint64_t digest(std::span<const Hashed> kinds, const std::function<bool(Hashed kind, size_t tensor)>& counts) const;

  // Returns number i of every rank, by world rank, as element i of the result. All ranks call. The communicator spans
  // them, and `stream` is the one of its other collectives.
  static constexpr size_t kNumbers = 8;
  using OfRanks = std::array<std::vector<uint64_t>, kNumbers>;
  OfRanks exchange(Stream& stream, Communicator& communicator, const std::array<uint64_t, kNumbers>& own);

 private:
  const size_t tensors_;
  const int ranks_;
  Device& device_;
  PlannedTensor on_device_, on_host_;            // (kHashedKinds, tensors) int64
  PlannedTensor exchanged_, exchanged_on_host_;  // (ranks, kNumbers) int64
};
