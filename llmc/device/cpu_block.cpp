#include "llmc/device/cpu_block.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "llmc/base/error.h"
#include "llmc/device/cpu_async_copies.h"
#include "llmc/device/cpu_memory_fault.h"
#include "llmc/device/fiber.h"
#include "llmc/device/fiber_stack.h"
#include "llmc/device/random.h"

// Of the sanitizers' runtime, where the program has one.
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());
#if LLMC_TSAN
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace cpu_world {
namespace {

// Behind what a kernel asked for: must still be poison when a block ends.
constexpr size_t kSharedGuardBytes = 256;
constexpr size_t kSharedMapping = (kMaxSharedBytes + kSharedGuardBytes + 65535) / 65536 * 65536;
constexpr int kWarpSize = 32, kNamedBarriers = 16;

// What must be known of a thread that has waited.
struct alignas(64) Thread {
  CpuIndex index;
  Fiber* fiber = nullptr;
  const Place* place = nullptr;  // where it waits; lies on its stack
  OrderToken arrived, left;      // before and after the barrier or collective in which it waits
  AsyncCopies copies;
};

struct alignas(64) Warp {
  uint32_t alive, waiting;  // lanes that have not returned; lanes that wait in a collective of the warp
  uint32_t mask[kWarpSize];
  WarpOperation operation[kWarpSize];
  uint64_t posted[kWarpSize];
};

// Barrier 1 … 15: so many threads meet there, each wherever it stands in the kernel.
struct NamedBarrier {
  int expected = 0, count = 0;
  uint16_t waiters[kMaxThreads];
};

thread_local Block* current_block = nullptr;

}  // namespace

class Block {
 public:
  Block(const CpuWorld& world, int number);
  ~Block();

  void run(const KernelLaunch& launch, size_t block_number);
  uint64_t sync_block(BlockOperation operation, uint64_t posted, const Place& place);
  void sync_named(int barrier, int threads, const Place& place);
  uint64_t sync_warp(uint32_t mask, WarpOperation operation, uint64_t posted, const Place& place);
  void async_copy(void* to, const void* from, int bytes, const Place& place);
  void async_copy_commit();
  void async_copy_wait(int groups_in_flight);
  void describe() const;
  bool overflowed_at(const void* address) const;

  std::byte* shared() const { return shared_; }
  int lane() const { return linear(*thread_index_) % kWarpSize; }

 private:
  static constexpr int kStartNext = -1, kNothing = -2;

  int linear(CpuIndex i) const { return int(i.x + launch_->block.x * (i.y + launch_->block.y * i.z)); }
  CpuIndex index_of(int thread) const;
  void begin(const KernelLaunch& launch, size_t block_number);
  void leave_loop() {
    if (in_loop_) become_fiber();
  }
  void become_fiber();
  void make_ready(int thread) { ready_[ready_end_++ % kMaxThreads] = uint16_t(thread); }
  int pick();
  void park();
  void step_aside();
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

  FiberSwitch switch_;
  CpuIndex* thread_index_ = nullptr;  // threadIdx of the kernel's file
  int count_ = 0;                     // threads of this block
  int next_ = 0, done_ = 0, current_ = 0;
  // A ring of the threads that may go on, in the order in which they became ready; each stands in it once at most.
  unsigned ready_begin_ = 0, ready_end_ = 0;
  // While in_loop_, threads loop_first_ .. threadIdx are called by one loop and have no bookkeeping yet.
  bool in_loop_ = false;
  bool start_pending_ = false;
  const bool random_order_;
  bool ahead_ = false;  // who was made ready last goes on first: one warp runs as far as it can before another does
  int loop_first_ = 0;
  const KernelLaunch* launch_ = nullptr;
  uint16_t ready_[kMaxThreads];
  Warp warps_[kMaxThreads / kWarpSize];
  Thread threads_[kMaxThreads];
  // __syncthreads and block operations: all threads that have not returned meet at one place.
  int barrier_count_ = 0;
  uint16_t barrier_waiters_[kMaxThreads];
  const Place* barrier_place_ = nullptr;
  BlockOperation barrier_operation_ = nullptr;
  uint64_t barrier_posted_[kMaxThreads];
  NamedBarrier named_[kNamedBarriers];

  const CpuWorld world_;
  Random random_;
  CpuIndex block_index_;
  std::byte* shared_ = nullptr;
  OrderToken begun_, ended_;
  std::vector<int> order_;  // the order in which threads start; empty: 0, 1, 2, …
  std::vector<std::unique_ptr<FiberStack>> stacks_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;
};

Block::Block(const CpuWorld& world, int number)
    : random_order_(world.order == CpuWorld::ThreadOrder::random),
      world_(world),
      random_(world.seed * 0x9E3779B97F4A7C15ull + unsigned(number)) {
  void* memory = mmap(nullptr, kSharedMapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED, "no memory for a block's shared memory");
  shared_ = static_cast<std::byte*>(memory);
}

Block::~Block() {
  for (const auto& fiber : fibers_) FiberSwitch::retire(*fiber);
  unmap(shared_, kSharedMapping);
}

bool Block::overflowed_at(const void* address) const {
  return std::any_of(stacks_.begin(), stacks_.end(), [&](const auto& stack) { return stack->guards(address); });
}

CpuIndex Block::index_of(int thread) const {
  const CpuExtent& size = launch_->block;
  const unsigned t = unsigned(thread);
  if (t < size.x) return {t, 0, 0};
  return {t % size.x, t / size.x % size.y, t / size.x / size.y};
}

// ---------------------------------------------------------------------------------------------- scheduling

// The thread loop that called us stops being a plain loop: its threads get their bookkeeping.
void Block::become_fiber() {
  in_loop_ = false;
  const int me = linear(*thread_index_);
  if (order_.empty()) next_ = me + 1;
  current_ = me;
  threads_[me].index = *thread_index_;
  threads_[me].fiber = switch_.running();
  for (int t = loop_first_; t < me; ++t) finish_thread(t);
}

// What runs next: a thread that may go on, kStartNext, or kNothing.
inline int Block::pick() {
  const unsigned ready = ready_end_ - ready_begin_;
  if (ready == 0) return next_ < count_ ? kStartNext : kNothing;
  if (ahead_) return ready_[--ready_end_ % kMaxThreads];
  if (random_order_) {
    if (next_ < count_ && random_.below(4) == 0) return kStartNext;
    std::swap(ready_[ready_begin_ % kMaxThreads], ready_[(ready_begin_ + random_.below(ready)) % kMaxThreads]);
  }
  return ready_[ready_begin_++ % kMaxThreads];
}

// The running thread waits; somebody else runs until it is made ready and picked.
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

// In random order, who completed a collective may be overtaken by those it set free.
inline void Block::step_aside() {
  if (!random_order_ || random_.below(2)) return;
  make_ready(current_);
  park();
}

// For the next threads to start in. For ThreadSanitizer each thread of the block is always the same fiber: else two
// that use one stack in turn would seem to race, or to be ordered.
Fiber* Block::new_or_free_fiber() {
  if (LLMC_TSAN) return fibers_[size_t(next_thread())].get();
  if (!free_fibers_.empty()) {
    Fiber* fiber = free_fibers_.back();
    free_fibers_.pop_back();
    return fiber;
  }
  return new_fiber();
}

Fiber* Block::new_fiber() {
  stacks_.push_back(std::make_unique<FiberStack>());
  fibers_.push_back(std::make_unique<Fiber>());
  Fiber* fiber = fibers_.back().get();
  fiber->stack = stacks_.back()->bottom();
  fiber->stack_bytes = kFiberStackBytes;
  // Tops of stacks at different offsets in a page: else the frames of all threads share the same few cache sets.
  FiberSwitch::prepare(*fiber, fiber->stack + kFiberStackBytes - (fibers_.size() * 320 & 4032), &Block::fiber_entry);
  return fiber;
}

void Block::fiber_entry(FiberSwitch::Transfer from) {
  current_block->switch_.arrived(from);
  current_block->fiber_main();
}

// Calls the next threads in a loop until one of them has waited; that one ends here too.
inline void Block::start_threads() {
  const int first = next_thread();
  const int last = order_.empty() ? count_ : first + 1;
  if (!order_.empty()) ++next_;
  in_loop_ = true;
  loop_first_ = first;
  *thread_index_ = index_of(first);
  begun_.acquire();
  launch_->run_threads(launch_->arguments, first, last, in_loop_);
  if (!in_loop_) {
    finish_thread(current_);
    return;
  }
  in_loop_ = false;
  if (order_.empty()) next_ = count_;
  if (first == 0 && last == count_) {
    done_ = count_;
    ended_.release();
    return;
  }
  for (int t = first; t < last; ++t) finish_thread(t);
}

inline void Block::finish_thread(int t) {
  Thread& thread = threads_[t];
  if (!thread.copies.empty()) thread.copies.finish();
  ended_.release();
  ++done_;
  Warp& warp = warps_[t / kWarpSize];
  warp.alive &= ~(1u << t % kWarpSize);
  if (warp.waiting | uint32_t(barrier_count_)) release_others(t);
}

// Those who wait for thread t, which has returned, need not any more.
void Block::release_others(int t) {
  Warp& warp = warps_[t / kWarpSize];
  for (int l = 0; warp.waiting && l < kWarpSize; ++l) {
    if (!(warp.waiting >> l & 1)) continue;
    const uint32_t lanes = warp.mask[l] & warp.alive;
    if ((warp.waiting & lanes) == lanes) complete_warp(t / kWarpSize, lanes, -1);
  }
  if (barrier_count_ == 0) return;
  if (barrier_operation_) stop_kernel("thread %d returned while others wait in a block-wide sum", t);
  if (barrier_count_ == count_ - done_) complete_barrier(-1);
}

void Block::fiber_main() {
  for (;;) {
    const int next = start_pending_ ? kStartNext : pick();
    start_pending_ = false;
    if (next == kStartNext && LLMC_TSAN && new_or_free_fiber() != switch_.running()) {
      start_pending_ = true;
      switch_.to(new_or_free_fiber());
      continue;
    }
    if (next == kStartNext) {
      start_threads();
      continue;
    }
    if (next == kNothing && done_ != count_) stop_kernel("hang: no thread of the block can go on");
    if (!LLMC_TSAN) free_fibers_.push_back(switch_.running());
    switch_.to(next == kNothing ? switch_.main() : threads_[next].fiber);
  }
}

void Block::begin(const KernelLaunch& launch, size_t number) {
  launch_ = &launch;
  block_index_.x = unsigned(number % launch.grid.x);
  block_index_.y = unsigned(number / launch.grid.x % launch.grid.y);
  block_index_.z = unsigned(number / launch.grid.x / launch.grid.y);
  thread_index_ = launch.enter_block(block_index_, launch.block, launch.grid);
  count_ = int(launch.block.count());
  order_.clear();
  if (world_.order != CpuWorld::ThreadOrder::forward || LLMC_TSAN) {
    order_.resize(size_t(count_));
    std::iota(order_.begin(), order_.end(), 0);
    if (world_.order != CpuWorld::ThreadOrder::forward) std::reverse(order_.begin(), order_.end());
    if (world_.order == CpuWorld::ThreadOrder::random)
      for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_.below(i)]);
  }
  ahead_ = world_.order == CpuWorld::ThreadOrder::reverse || (random_order_ && random_.below(2));
  if (LLMC_TSAN)
    while (int(fibers_.size()) < count_) new_fiber();
  next_ = done_ = 0;
  for (int w = 0; w * kWarpSize < count_; ++w) {
    const int lanes = count_ - w * kWarpSize;
    warps_[w].alive = lanes >= kWarpSize ? ~0u : (1u << lanes) - 1;
    warps_[w].waiting = 0;
  }
}

void Block::run(const KernelLaunch& launch, size_t number) {
  begin(launch, number);
  report_memory_faults();
  // Poison: what a kernel did not write reads as NaN.
  std::byte* const end = shared_ + launch.shared_bytes;
#if LLMC_ASAN
  ASAN_UNPOISON_MEMORY_REGION(shared_, kSharedMapping);
#endif
  memset(shared_, 0xff, launch.shared_bytes + kSharedGuardBytes);
#if LLMC_ASAN
  ASAN_POISON_MEMORY_REGION(end, kSharedMapping - launch.shared_bytes);
#endif
  current_block = this;
  start_pending_ = true;
  switch_.enter();
  begun_.release();
  switch_.to(new_or_free_fiber());
  ended_.acquire();
#if LLMC_ASAN
  ASAN_UNPOISON_MEMORY_REGION(end, kSharedGuardBytes);
#endif
  for (size_t i = 0; i < kSharedGuardBytes; ++i)
    if (end[i] != std::byte{0xff})
      stop_kernel("a thread of this block wrote shared memory at byte %zu, but the launch asked for %zu bytes",
                  launch.shared_bytes + i, launch.shared_bytes);
  current_block = nullptr;
}

// ---------------------------------------------------------------------------------------------- barriers, collectives

// All threads that have not returned have met; `running` is the one that came last and goes on by itself (-1: none).
void Block::complete_barrier(int running) {
  for (int i = 0; i < barrier_count_; ++i) threads_[barrier_waiters_[i]].arrived.acquire();
  if (barrier_operation_) barrier_operation_(barrier_posted_, count_);
  for (int i = 0; i < barrier_count_; ++i) {
    threads_[barrier_waiters_[i]].left.release();
    if (barrier_waiters_[i] != running) make_ready(barrier_waiters_[i]);
  }
  barrier_count_ = 0;
}

uint64_t Block::sync_block(BlockOperation operation, uint64_t posted, const Place& place) {
  leave_loop();
  const int me = current_;
  if (barrier_count_ == 0) {
    barrier_place_ = &place;
    barrier_operation_ = operation;
  } else if (barrier_place_->line != place.line || barrier_operation_ != operation ||
             (barrier_place_->file != place.file && strcmp(barrier_place_->file, place.file) != 0)) {
    stop_kernel("divergence: thread %d reached %s at %s:%d while %d thread(s) wait in %s at %s:%d", me, place.what,
                place.file, place.line, barrier_count_, barrier_place_->what, barrier_place_->file,
                barrier_place_->line);
  }
  if (operation && done_)
    stop_kernel("%s:%d: %s after %d thread(s) returned", place.file, place.line, place.what, done_);
  threads_[me].place = &place;
  threads_[me].arrived.release();
  barrier_posted_[me] = posted;
  barrier_waiters_[barrier_count_++] = uint16_t(me);
  if (barrier_count_ < count_ - done_) {
    park();
  } else {
    complete_barrier(me);
    step_aside();
  }
  threads_[me].left.acquire();
  return barrier_posted_[me];
}

void Block::sync_named(int number, int threads, const Place& place) {
  leave_loop();
  if (number < 1 || number >= kNamedBarriers || threads % kWarpSize || threads < kWarpSize || threads > count_)
    stop_kernel("%s:%d: %s: barrier %d of %d threads, expected 1 to 15 and whole warps of the block", place.file,
                place.line, place.what, number, threads);
  const int me = current_;
  NamedBarrier& barrier = named_[number];
  if (barrier.count && barrier.expected != threads)
    stop_kernel("%s:%d: %s: barrier %d of %d threads, but %d wait there for %d", place.file, place.line, place.what,
                number, threads, barrier.count, barrier.expected);
  barrier.expected = threads;
  barrier.waiters[barrier.count++] = uint16_t(me);
  threads_[me].place = &place;
  threads_[me].arrived.release();
  if (barrier.count < threads) {
    park();
  } else {
    for (int i = 0; i < barrier.count; ++i) threads_[barrier.waiters[i]].arrived.acquire();
    for (int i = 0; i < barrier.count; ++i) {
      threads_[barrier.waiters[i]].left.release();
      if (barrier.waiters[i] != me) make_ready(barrier.waiters[i]);
    }
    barrier.count = 0;
    step_aside();
  }
  threads_[me].left.acquire();
}

// The lanes `lanes` of warp w have met; `running` is the lane that came last and goes on by itself (-1: none).
void Block::complete_warp(int w, uint32_t lanes, int running) {
  Warp& warp = warps_[w];
  const int first = std::countr_zero(lanes);
  const uint32_t mask = warp.mask[first];
  const WarpOperation operation = warp.operation[first];
  uint32_t others = 0;  // lanes in other collectives
  for (int l = 0; l < kWarpSize; ++l) others |= uint32_t(warp.mask[l] != mask || warp.operation[l] != operation) << l;
  if (others & lanes) {
    const int l = std::countr_zero(others & lanes);
    const Place &one = *threads_[w * kWarpSize + first].place, &other = *threads_[w * kWarpSize + l].place;
    stop_kernel(
        "divergence in warp %d: lane %d waits in %s at %s:%d with mask %08x, lane %d in %s at %s:%d with mask %08x", w,
        first, one.what, one.file, one.line, mask, l, other.what, other.file, other.line, warp.mask[l]);
  }
  const auto for_each_lane = [&](auto&& f) {
    for (int l = 0; l < kWarpSize; ++l)
      if (lanes >> l & 1) f(l);
  };
  for_each_lane([&](int l) { threads_[w * kWarpSize + l].arrived.acquire(); });
  if (operation) operation(warp.posted, lanes);
  warp.waiting &= ~lanes;
  for_each_lane([&](int l) {
    threads_[w * kWarpSize + l].left.release();
    if (l != running) make_ready(w * kWarpSize + l);
  });
}

uint64_t Block::sync_warp(uint32_t mask, WarpOperation operation, uint64_t posted, const Place& place) {
  leave_loop();
  const unsigned me = unsigned(current_), w = me / kWarpSize, lane = me % kWarpSize;
  Warp& warp = warps_[w];
  if (!(mask >> lane & 1))
    stop_kernel("%s:%d: %s: lane %u is not in its own mask %08x", place.file, place.line, place.what, lane, mask);
  warp.mask[lane] = mask;
  warp.operation[lane] = operation;
  warp.posted[lane] = posted;
  warp.waiting |= 1u << lane;
  threads_[me].place = &place;
  threads_[me].arrived.release();
  const uint32_t lanes = mask & warp.alive;
  if ((warp.waiting & lanes) != lanes) {
    park();
  } else {
    complete_warp(int(w), lanes, int(lane));
    step_aside();
  }
  threads_[me].left.acquire();
  return warp.posted[lane];
}

// ---------------------------------------------------------------------------------------------- asynchronous copies

void Block::async_copy(void* to, const void* from, int bytes, const Place& place) {
  leave_loop();
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & uintptr_t(bytes - 1))
    stop_kernel("%s:%d: %s of %d bytes from %p to %p: not aligned to its size", place.file, place.line, place.what,
                bytes, from, to);
  const auto* target = static_cast<std::byte*>(to);
  if (target < shared_ || target + bytes > shared_ + launch_->shared_bytes)
    stop_kernel("%s:%d: %s: the target is not in the block's %zu bytes of shared memory", place.file, place.line,
                place.what, launch_->shared_bytes);
  const bool early =
      world_.landing == CpuWorld::Landing::early || (world_.landing == CpuWorld::Landing::random && random_.below(2));
  if (early) memcpy(to, from, size_t(bytes));
  else threads_[current_].copies.add(to, from, bytes);
}

void Block::async_copy_commit() {
  leave_loop();
  threads_[current_].copies.commit();
}

void Block::async_copy_wait(int groups_in_flight) {
  leave_loop();
  threads_[current_].copies.wait(groups_in_flight);
}

// ---------------------------------------------------------------------------------------------- reports

void Block::describe() const {
  fprintf(stderr, "  kernel %s, launched at %s:%d, block (%u,%u,%u) of (%u,%u,%u)", launch_->name, launch_->file,
          launch_->line, block_index_.x, block_index_.y, block_index_.z, launch_->grid.x, launch_->grid.y,
          launch_->grid.z);
  fprintf(stderr, ", thread (%u,%u,%u) of (%u,%u,%u)\n", thread_index_->x, thread_index_->y, thread_index_->z,
          launch_->block.x, launch_->block.y, launch_->block.z);
  std::map<std::string, std::pair<int, int>> waiting;  // place → how many, the first of them
  const auto add = [&](int thread, const std::string& detail) {
    const Place& place = *threads_[thread].place;
    const auto where = format("%s at %s:%d", place.what, place.file, place.line) + detail;
    auto& [threads, first] = waiting.emplace(where, std::make_pair(0, thread)).first->second;
    ++threads;
    first = std::min(first, thread);
  };
  for (int i = 0; i < barrier_count_; ++i) add(barrier_waiters_[i], "");
  for (const NamedBarrier& barrier : named_)
    for (int i = 0; i < barrier.count; ++i)
      add(barrier.waiters[i], format(", barrier %d of %d", int(&barrier - named_), barrier.expected));
  for (int t = 0; t < count_; ++t)
    if (const Warp& warp = warps_[t / kWarpSize]; warp.waiting >> t % kWarpSize & 1)
      add(t, format(", warp %d, mask %08x", t / kWarpSize, warp.mask[t % kWarpSize]));
  for (const auto& [where, who] : waiting)
    fprintf(stderr, "  %d thread(s) wait in %s; the first is thread %d\n", who.first, where.c_str(), who.second);
  fprintf(stderr, "  %d of %d thread(s) have returned\n", done_, count_);
}

void stop_kernel(const char* pattern, ...) {
  // Never unlocked: one report is enough, and whoever comes second waits for the end.
  static std::mutex one_report;
  one_report.lock();
  va_list args;
  va_start(args, pattern);
  fprintf(stderr, "error in a kernel: %s\n", format_list(pattern, args).c_str());
  va_end(args);
  if (current_block) current_block->describe();
  fflush(stderr);
  abort();
}

// A sanitizer's report of an error in a kernel has the kernel, block and thread beside it.
static void describe_for_sanitizer() {
  if (current_block) current_block->describe();
}
extern "C" void __ubsan_on_report() { describe_for_sanitizer(); }

void stop_if_kernel_faulted(const void* address) {
  if (!current_block) return;
  if (current_block->overflowed_at(address))
    stop_kernel("stack overflow: a thread has %zu KiB for its variables and calls", kFiberStackBytes >> 10);
  stop_kernel("a thread read or wrote at %p, where there is no memory", address);
}

// ---------------------------------------------------------------------------------------------- the public face

BlockRunner::BlockRunner(const CpuWorld& world, int number) : block_(std::make_unique<Block>(world, number)) {
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(describe_for_sanitizer);
}
BlockRunner::~BlockRunner() = default;
void BlockRunner::run(const KernelLaunch& launch, size_t block_number) { block_->run(launch, block_number); }

std::byte* shared_bytes() { return current_block->shared(); }
int lane_number() { return current_block->lane(); }
void sync_block(const Place& place) { current_block->sync_block(nullptr, 0, place); }
void sync_named(int barrier, int threads, const Place& place) { current_block->sync_named(barrier, threads, place); }
uint64_t sync_block_operation(BlockOperation operation, uint64_t posted, const Place& place) {
  return current_block->sync_block(operation, posted, place);
}
uint64_t sync_warp(uint32_t mask, WarpOperation operation, uint64_t posted, const Place& place) {
  return current_block->sync_warp(mask, operation, posted, place);
}
void async_copy(void* to, const void* from, int bytes, const Place& place) {
  current_block->async_copy(to, from, bytes, place);
}
void async_copy_commit() { current_block->async_copy_commit(); }
void async_copy_wait(int groups_in_flight) { current_block->async_copy_wait(groups_in_flight); }

}  // namespace cpu_world
