// Flags by which the blocks of one kernel wait for each other, in the CPU backend. As many blocks are resident as the
// device has threads, so a block may wait only for blocks that have begun. A wait that can never end stops the kernel.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace cpu_backend {

// The resident blocks of one launch.
class ResidentBlocks {
 public:
  explicit ResidentBlocks(int most) : most_(most) {}

  void block_begins() { ++begun_; }
  void block_ends() {
    ++ended_;
    if (waiting_) news();
  }
  // Sets the flag. A block that has waited for the flag sees everything that the caller did before this call.
  void set(uint32_t* flag, uint32_t value);
  // Calls `come` at once and again whenever a flag was set or a block ended. Returns true when `come` does; false if it
  // never can, because every block waits.
  bool wait(const std::function<bool()>& come);

 private:
  void news();

  const int most_;  // blocks resident at the same time, at most
  std::atomic<int> begun_{0}, ended_{0};
  std::atomic<int> waiting_{0};  // blocks in wait()
  std::mutex mutex_;             // guards the members below and the flags' values
  std::condition_variable changed_;
  uint64_t changes_ = 0;
  int in_vain_ = 0;  // blocks whose `come` returned false since the last change
  bool hang_ = false;
};

}  // namespace cpu_backend
