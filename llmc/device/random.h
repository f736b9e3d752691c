// A small random generator (xorshift64*) for the schedules of the CPU backend. Training never takes numbers from it.
#pragma once

#include <cstddef>
#include <cstdint>

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed ? seed : 1) {
    for (int i = 0; i < 8; ++i) next();
  }
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Dull;
  }
  size_t below(size_t bound) { return size_t((next() >> 33) % bound); }

 private:
  uint64_t state_;
};
