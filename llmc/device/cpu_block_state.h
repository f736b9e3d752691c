// The state of one block in execution: its threads, which of them are ready, and where the others wait. Only the files
// that implement the threads of a block include it. The functions that every switch calls are inline here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/cpu_async_copies.h"
#include "llmc/device/cpu_block.h"
#include "llmc/device/fiber.h"
#include "llmc/device/fiber_stack.h"
#include "llmc/device/random.h"

namespace cpu_backend {

// Guard bytes behind the shared memory that the kernel asked for. They must still be poison when the block ends.
inline constexpr size_t kSharedGuardBytes = 256;
inline constexpr size_t kSharedMapping = (kMaxSharedBytes + kSharedGuardBytes + 65535) / 65536 * 65536;
inline constexpr int kWarpSize = 32, kWarpgroupSize = 128, kNamedBarriers = 16;

// The bookkeeping of a thread that runs, or ran, as a fiber.
struct alignas(64) Thread {
  CpuIndex index;
  Fiber* fiber = nullptr;
  const Place* place = nullptr;  // where it waits; points into its stack
  OrderToken arrived, left;      // its arrival at, and departure from, the barrier or collective
  AsyncCopies copies;
};

struct alignas(64) Warp {
  uint32_t alive, waiting;  // masks: lanes that have not returned; lanes that wait in a collective
  uint32_t mask[kWarpSize];
  WarpOperation operation[kWarpSize];
  uint64_t posted[kWarpSize];
};

// A named barrier, 1 to 15. It completes when `expected` threads have arrived, each from any place in the kernel.
struct NamedBarrier {
  int expected = 0, count = 0, waiting = 0;  // threads needed; threads arrived; of these, threads that wait
  uint16_t waiters[kMaxThreads];
  Place last_arrival = {};  // last named_barrier_arrive, whose thread does not wait
  OrderToken arrived;
};

struct HopperState;

class Block {
 public:
  Block(const CpuBackend& backend, int number);
  ~Block();

  void run(const KernelLaunch& launch, size_t block_number);
  uint64_t sync_block(BlockOperation operation, uint64_t posted, const Place& place);
  void sync_named(int barrier, int threads, const Place& place);
  void arrive_named(int barrier, int threads, const Place& place);
  uint64_t sync_warp(uint32_t mask, WarpOperation operation, uint64_t posted, const Place& place);
  void async_copy(void* to, const void* from, int bytes, const Place& place);
  void async_copy_commit();
  void async_copy_wait(int groups_in_flight);
  void describe() const;
  bool overflowed_at(const void* address) const;

  const CpuBackend& backend() const { return backend_; }
  std::byte* shared() const { return shared_; }
  size_t shared_bytes() const { return launch_->shared_bytes; }
  int lane() const { return linear(*thread_index_) % kWarpSize; }
  int count() const { return count_; }
  bool returned(int thread) const { return !(warps_[thread / kWarpSize].alive >> thread % kWarpSize & 1); }
  Random& random() { return random_; }

  // Returns the number of the running thread. If the thread is still in the plain loop, it gets its bookkeeping first.
  int current() {
    leave_loop();
    return current_;
  }
  // Tell ThreadSanitizer that the running thread reads or writes. While an Unwatched lives, ThreadSanitizer ignores the
  // accesses of the backend itself, which no thread of the kernel makes.
  void reads(const void* data, size_t bytes) { switch_.reads(data, bytes); }
  void writes(const void* data, size_t bytes) { switch_.writes(data, bytes); }
  class Unwatched {
   public:
    explicit Unwatched(Block& block) : switch_(block.switch_), before_(switch_.watch(false)) {}
    ~Unwatched() { switch_.watch(before_); }
    Unwatched(const Unwatched&) = delete;
    Unwatched& operator=(const Unwatched&) = delete;

   private:
    FiberSwitch& switch_;
    const bool before_;
  };
  // The running thread waits at `place` until make_ready() was called for it and it is picked.
  void wait_at(const Place& place) {
    threads_[current_].place = &place;
    park();
  }
  void make_ready(int thread) { ready_[ready_end_++ % kMaxThreads] = uint16_t(thread); }
  void step_aside();

  // The state for Hopper's instructions. The first of them in a block begins it.
  HopperState& hopper() {
    if (!uses_hopper_) begin_hopper();
    return *hopper_;
  }
  // Returns the byte offset of `pointer` in shared memory. Stops the kernel if the `bytes` from there are not all in
  // shared memory, or if the offset is not a multiple of `alignment`.
  size_t shared_offset(const void* pointer, size_t bytes, size_t alignment, const char* what, const Place& place) const;

 private:
  static constexpr int kStartNext = -1, kNothing = -2;

  int linear(CpuIndex i) const { return int(i.x + launch_->block.x * (i.y + launch_->block.y * i.z)); }
  CpuIndex index_of(int thread) const;
  void begin(const KernelLaunch& launch, size_t block_number);
  void begin_hopper();
  void end_named();
  void leave_loop() {
    if (in_loop_) become_fiber();
  }
  void become_fiber();
  int pick();
  int pick_otherwise();
  int nobody_is_ready();
  void park();
  Fiber* new_or_free_fiber();
  Fiber* new_fiber();
  static void fiber_entry(FiberSwitch::Transfer from);
  void fiber_main();
  void start_threads();
  int next_thread() const { return order_.empty() ? next_ : order_[size_t(next_)]; }
  void finish_thread(int thread);
  void release_others(int thread);
  void complete_warp(int warp, uint32_t lanes, int running);
  void complete_barrier(int running);
  NamedBarrier& come_to_named(int number, int threads, const Place& place);
  void complete_named(NamedBarrier& barrier, int running);

  FiberSwitch switch_;
  CpuIndex* thread_index_ = nullptr;  // threadIdx of the kernel's file
  int count_ = 0;                     // threads of this block
  int next_ = 0, done_ = 0, current_ = 0;
  // A ring buffer of the ready threads, in the order in which they became ready. It holds each thread once at most.
  unsigned ready_begin_ = 0, ready_end_ = 0;
  // While in_loop_ is true, one plain loop calls the threads loop_first_ .. threadIdx; they have no bookkeeping yet.
  bool in_loop_ = false;
  bool start_pending_ = false;
  const bool random_order_;
  bool ahead_ = false;  // picks the thread that was made ready last: one warp runs as far as it can before another
  bool otherwise_;      // pick_otherwise() picks, not the ring's order
  bool uses_hopper_ = false, uses_named_arrivals_ = false;
  int loop_first_ = 0;
  const KernelLaunch* launch_ = nullptr;
  uint16_t ready_[kMaxThreads];
  Warp warps_[kMaxThreads / kWarpSize];
  Thread threads_[kMaxThreads];
  // __syncthreads and block operations: all threads that have not returned wait at the same place.
  int barrier_count_ = 0;
  uint16_t barrier_waiters_[kMaxThreads];
  const Place* barrier_place_ = nullptr;
  BlockOperation barrier_operation_ = nullptr;
  uint64_t barrier_posted_[kMaxThreads];
  NamedBarrier named_[kNamedBarriers];

  const CpuBackend backend_;
  Random random_;
  CpuIndex block_index_;
  std::byte* shared_ = nullptr;
  std::unique_ptr<HopperState> hopper_;
  OrderToken begun_, ended_;
  std::vector<int> order_;  // the order in which threads start; empty: 0, 1, 2, …
  std::vector<std::unique_ptr<FiberStack>> stacks_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;
};

// The block that this OS thread executes; null: none.
extern constinit thread_local Block* current_block;

// Returns what runs next: the number of a ready thread, kStartNext, or kNothing.
inline int Block::pick() {
  if (otherwise_) return pick_otherwise();
  if (ready_begin_ != ready_end_) return ready_[ready_begin_++ % kMaxThreads];
  return next_ < count_ ? kStartNext : nobody_is_ready();
}

// The running thread waits. Other threads run until it is made ready and picked.
inline void Block::park() {
  const int me = current_, next = pick();
  if (next >= 0) {
    if (next != me) switch_.to(threads_[next].fiber);
  } else {
    if (next == kNothing) stop_kernel("hang: no thread of the block can go on");
    start_pending_ = true;
    switch_.to(new_or_free_fiber());
  }
  current_ = me;
  *thread_index_ = threads_[me].index;
}

// In random order, a thread that could continue (it completed a collective, or arrived without waiting) may let other
// ready threads run first.
inline void Block::step_aside() {
  if (!random_order_ || random_.below(2)) return;
  make_ready(current_);
  park();
}

// Returns the fiber in which the next threads start. Under ThreadSanitizer each thread of the block always has the same
// fiber: otherwise two threads that use one stack in turn would seem to race, or to be ordered.
inline Fiber* Block::new_or_free_fiber() {
  if (LLMC_TSAN) return fibers_[size_t(next_thread())].get();
  if (!free_fibers_.empty()) {
    Fiber* fiber = free_fibers_.back();
    free_fibers_.pop_back();
    return fiber;
  }
  return new_fiber();
}

}  // namespace cpu_backend
