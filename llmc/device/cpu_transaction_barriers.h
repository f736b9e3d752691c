// The transaction barriers of one block in the CPU world. What a kernel has of one are its 8 bytes of shared memory:
// they hold its state, so that whoever overwrites them is found out. Who waits is known here only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "llmc/device/cpu_block.h"
#include "llmc/device/fiber.h"

namespace cpu_world {

using DescribeThread = std::function<void(int thread, const std::string& detail)>;

class TransactionBarriers {
 public:
  explicit TransactionBarriers(Block& block) : block_(block) {}
  void begin();      // of a block, which has none yet
  void end() const;  // of the block: all bytes were announced that have come

  void initialize(uint64_t* bits, int arrivals, const Place& place);
  void publish();  // those that the running thread initialised
  void arrive(uint64_t* bits, int expected_bytes, const Place& place);
  void wait(uint64_t* bits, int parity, const Place& place);

  // Of a copy that counts its bytes there: the barrier's number, and that they have come.
  int number_for_copy(uint64_t* bits, const Place& place);
  void bytes_came(int number, int bytes, const Place& copy);

  void describe_waiting(const DescribeThread& add) const;

 private:
  struct Barrier {
    uint64_t* bits;
    int initializer;
    bool published;
    int expected, pending;  // arrivals of a phase, and those that are missing
    int bytes;              // announced less come
    Place counted;          // where they were counted last
    uint64_t phase;
    std::vector<uint16_t> waiters;  // for the running phase
    std::vector<uint16_t> woken;    // have waited for the one before, and have not run since
    OrderToken arrived[2];          // by the phase's parity

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
  std::vector<int16_t> number_at_;  // by 8 bytes of shared memory; -1: none
};

}  // namespace cpu_world
