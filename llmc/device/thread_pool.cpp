#include "llmc/device/thread_pool.h"

#include <algorithm>

namespace {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until done(value) is true and returns the value. Spins for some microseconds before it sleeps, since the next
// loop often follows at once.
template <class Done>
uint32_t wait_until(const std::atomic<uint32_t>& value, const Done& done) {
  uint32_t now = value.load(std::memory_order_acquire);
  for (int i = 0; i < 2000 && !done(now); ++i) {
    pause_cpu();
    now = value.load(std::memory_order_acquire);
  }
  while (!done(now)) {
    value.wait(now, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  }
  return now;
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  ending_ = true;
  round_ += kNextRound;
  round_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(size_t count, const std::function<void(size_t, int)>& body) {
  if (count <= 1 || workers_.empty()) {
    for (size_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  body_ = &body;
  count_ = count;
  chunk_ = std::clamp<size_t>(count / (size_t(size()) * 16), 1, 64);
  next_.store(0, std::memory_order_relaxed);
  round_.fetch_add(kNextRound + kOpen, std::memory_order_release);
  round_.notify_all();
  take_iterations(0);
  round_.fetch_sub(kOpen, std::memory_order_acq_rel);
  wait_until(round_, [](uint32_t round) { return (round & kAtWork) == 0; });
}

void ThreadPool::take_iterations(int worker) {
  for (;;) {
    const size_t first = next_.fetch_add(chunk_, std::memory_order_relaxed);
    if (first >= count_) return;
    const size_t last = std::min(count_, first + chunk_);
    for (size_t i = first; i < last; ++i) (*body_)(i, worker);
  }
}

void ThreadPool::work(int worker) {
  for (uint32_t last = 0;;) {
    uint32_t round = wait_until(round_, [&](uint32_t r) { return r / kNextRound != last; });
    if (ending_) return;
    last = round / kNextRound;
    bool joined = false;
    while (!joined && (round & kOpen) && round / kNextRound == last)
      joined = round_.compare_exchange_weak(round, round + 1, std::memory_order_acquire);
    if (!joined) continue;
    take_iterations(worker);
    if (!(round_.fetch_sub(1, std::memory_order_acq_rel) & kOpen)) round_.notify_all();
  }
}
