// A fixed set of threads that share out the iterations of a loop. The caller works too, and waits only for those that
// came: on a busy machine, or for a short loop, it may do them all. Which thread does which iteration is left to
// chance: no result may depend on it.
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
  // body(iteration, worker) for every iteration below `count`; `worker` is below size() and never used twice at once.
  void run(size_t count, const std::function<void(size_t, int)>& body);

 private:
  void work(int worker);
  void take_iterations(int worker);

  std::vector<std::thread> workers_;
  // A loop is a round: its number, whether threads may still join, how many are at work in it.
  static constexpr uint32_t kAtWork = 0x7ff, kOpen = 0x800, kNextRound = 0x1000;
  std::atomic<uint32_t> round_{0};
  std::atomic<bool> ending_{false};
  std::atomic<size_t> next_{0};
  size_t count_ = 0, chunk_ = 1;
  const std::function<void(size_t, int)>* body_ = nullptr;
};
