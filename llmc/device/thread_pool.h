// A fixed set of threads that share the iterations of a loop. The caller works too, and waits only for the threads that
// joined: on a busy machine, or for a short loop, it may execute all iterations itself. It is not determined which
// thread executes which iteration, so no result may depend on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();

  int size() const { return int(workers_.size()) + 1; }
  // Calls body(iteration, worker) for every iteration below `count` and returns when all are done. `worker` is below
  // size(); two calls that run at the same time never have the same one.
  void run(size_t count, const std::function<void(size_t, int)>& body);

 private:
  void work(int worker);
  void take_iterations(int worker);

  std::vector<std::thread> workers_;
  // Each loop is a round. round_ holds its number (in steps of kNextRound), whether threads may still join it (kOpen),
  // and the number of threads at work in it (kAtWork).
  static constexpr uint32_t kAtWork = 0x7ff, kOpen = 0x800, kNextRound = 0x1000;
  std::atomic<uint32_t> round_{0};
  std::atomic<bool> ending_{false};
  std::atomic<size_t> next_{0};
  size_t count_ = 0, chunk_ = 1;
  const std::function<void(size_t, int)>* body_ = nullptr;
};
