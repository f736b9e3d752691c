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

// Waits until `value` is no longer `old`: for some microseconds awake, since the next loop often follows at once.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int i = 0; i < 2000; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_cpu();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  ending_ = true;
  ++round_;
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
  busy_.store(int(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  take_iterations(0);
  for (int busy; (busy = busy_.load(std::memory_order_acquire)) != 0;) wait_while(busy_, busy);
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
  unsigned seen = 0;
  for (;;) {
    wait_while(round_, seen);
    ++seen;
    if (ending_) return;
    take_iterations(worker);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_all();
  }
}
