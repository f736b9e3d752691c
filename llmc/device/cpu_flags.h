// Blocks of one kernel that wait for each other, in the CPU world. As many are resident as the device has threads, so
// that what a block waits for must come from one that has begun; what can never come ends the kernel.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace cpu_world {

// Of one launch.
class ResidentBlocks {
 public:
  explicit ResidentBlocks(int most) : most_(most) {}

  void block_begins() { ++begun_; }
  void block_ends() {
    ++ended_;
    if (waiting_) news();
  }
  // What the caller did before is seen by whoever has waited for the flag.
  void set(uint32_t* flag, uint32_t value);
  // Returns true when `come` does, asked whenever a flag was set; false if it never can, since every block waits.
  bool wait(const std::function<bool()>& come);

 private:
  void news();

  const int most_;  // at once
  std::atomic<int> begun_{0}, ended_{0};
  std::atomic<int> waiting_{0};  // blocks in wait()
  std::mutex mutex_;             // of what follows, and of the flags' values
  std::condition_variable changed_;
  uint64_t changes_ = 0;
  int in_vain_ = 0;  // blocks that have asked since the last change
  bool hang_ = false;
};

}  // namespace cpu_world
