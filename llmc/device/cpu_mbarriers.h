// The transaction barriers (mbarrier) of one block in the CPU backend. A kernel has only the barrier's 8 bytes of
// shared memory. They encode the barrier's state, so that an overwritten barrier is detected. The waiting threads are
// known only here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "llmc/device/cpu_block.h"
#include "llmc/device/fiber.h"

namespace cpu_backend {

using DescribeThread = std::function<void(int thread, const std::string& detail)>;

class TransactionBarriers {
 public:
  explicit TransactionBarriers(Block& block) : block_(block) {}
  void begin();      // a block begins, without barriers
  void end() const;  // the block has ended: stops the kernel unless announced and landed bytes match

  void initialize(uint64_t* bits, int arrivals, const Place& place);
  void publish();  // publishes all barriers that the running thread initialised
  void arrive(uint64_t* bits, int expected_bytes, const Place& place);
  void wait(uint64_t* bits, int parity, const Place& place);
  bool passed(uint64_t* bits, int parity, const Place& place);  // wait() would return at once

  // For a copy that counts its bytes at a barrier. number_for_copy returns the barrier's number; bytes_came counts
  // `bytes` that have landed.
  int number_for_copy(uint64_t* bits, const Place& place);
  void bytes_came(int number, int bytes, const Place& copy);

  void describe_waiting(const DescribeThread& add) const;

 private:
  struct Barrier {
    uint64_t* bits;
    int initializer;
    bool published;
    int expected, pending;  // arrivals of a phase; arrivals still missing
    int bytes;              // bytes announced minus bytes landed
    Place counted;          // the call that counted bytes last
    uint64_t phase;
    std::vector<uint16_t> waiters;  // threads that wait for the current phase
    std::vector<uint16_t> woken;    // threads that waited for the previous phase and have not run since
    OrderToken arrived[2];          // indexed by the phase's parity

    uint64_t encoded() const;
  };
  Barrier& find(uint64_t* bits, const Place& place);
  void require_intact(const Barrier& barrier, const Place& place) const;
  size_t offset_of(const Barrier& barrier) const;
  void count_bytes(Barrier& barrier, int bytes, const Place& place);
  void complete_if_due(Barrier& barrier, const Place& place);

  Block& block_;
  std::deque<Barrier> barriers_;  // the first count_ are this block's
  int count_ = 0;
  std::vector<int16_t> number_at_;  // barrier number of each 8 bytes of shared memory; -1: none
};

}  // namespace cpu_backend
