#include "llmc/device/cpu_flags.h"

#include <chrono>

namespace cpu_backend {

// An idle thread of the device takes less time than this to begin another block.
static constexpr std::chrono::seconds kPatience{10};

void ResidentBlocks::news() {
  const std::lock_guard lock(mutex_);
  ++changes_;
  in_vain_ = 0;
  changed_.notify_all();
}

void ResidentBlocks::set(uint32_t* flag, uint32_t value) {
  const std::lock_guard lock(mutex_);
  std::atomic_ref<uint32_t>(*flag).store(value, std::memory_order_release);
  ++changes_;
  in_vain_ = 0;
  changed_.notify_all();
}

bool ResidentBlocks::wait(const std::function<bool()>& come) {
  ++waiting_;
  std::unique_lock lock(mutex_);
  bool has_come;
  while (!(has_come = come()) && !hang_) {
    const uint64_t seen = changes_;
    const int begun = begun_;
    ++in_vain_;
    // When all running blocks wait, only a block that has not begun could still set a flag. If there is room for one,
    // it gets kPatience to begin.
    const auto all_wait = [&] { return in_vain_ == begun_ - ended_; };
    const auto changed = [&] { return changes_ != seen || hang_; };
    if (all_wait() && begun_ - ended_ == most_) hang_ = true;
    else if (!changed_.wait_for(lock, kPatience, changed) && all_wait() && begun_ == begun) hang_ = true;
    if (hang_) changed_.notify_all();
    else if (changes_ == seen) --in_vain_;
  }
  --waiting_;
  return has_come;
}

}  // namespace cpu_backend
