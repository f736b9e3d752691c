#include "llmc/device/cpu_block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>

#include "llmc/base/error.h"
#include "llmc/device/cpu_block_state.h"
#include "llmc/device/cpu_hopper_state.h"
#include "llmc/device/cpu_memory_fault.h"

// Defined by the sanitizers' runtime. Null in a program without a sanitizer.
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());
#if LLMC_TSAN
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace cpu_backend {

constinit thread_local Block* current_block = nullptr;

Block::Block(const CpuBackend& backend, int number)
    : random_order_(backend.order == CpuBackend::ThreadOrder::random),
      backend_(backend),
      random_(backend.seed * 0x9E3779B97F4A7C15ull + unsigned(number)) {
  void* memory = mmap(nullptr, kSharedMapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail_as(ExitCode::does_not_fit, "no memory for a block's shared memory");
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

// The plain loop that called the running thread ends here. The running thread becomes the fiber in which the loop runs;
// the threads that the loop called before it have returned and are finished.
void Block::become_fiber() {
  in_loop_ = false;
  const int me = linear(*thread_index_);
  if (order_.empty()) next_ = me + 1;
  current_ = me;
  threads_[me].index = *thread_index_;
  threads_[me].fiber = switch_.running();
  for (int t = loop_first_; t < me; ++t) finish_thread(t);
}

// Picks the next thread in every order other than the ring's. With random copy timing it also lets copies and products
// in flight proceed at random moments.
int Block::pick_otherwise() {
  const Unwatched unwatched(*this);
  if (uses_hopper_ && backend_.copy_timing == CpuBackend::CopyTiming::random && random_.below(4) == 0)
    hopper_->go_on_somewhere();
  const unsigned ready = ready_end_ - ready_begin_;
  if (ready == 0) return next_ < count_ ? kStartNext : nobody_is_ready();
  if (ahead_) return ready_[--ready_end_ % kMaxThreads];
  if (random_order_) {
    if (next_ < count_ && random_.below(4) == 0) return kStartNext;
    std::swap(ready_[ready_begin_ % kMaxThreads], ready_[(ready_begin_ + random_.below(ready)) % kMaxThreads]);
  }
  return ready_[ready_begin_++ % kMaxThreads];
}

// No thread is ready. Only a load that lands can make one ready. Loads need not land in the order in which they were
// started.
int Block::nobody_is_ready() {
  using Which = AsyncProxy::Which;
  if (done_ == count_) return kNothing;
  const Unwatched unwatched(*this);
  const bool reverse = backend_.order == CpuBackend::ThreadOrder::reverse;
  while (uses_hopper_ && hopper_->proxy.land_one(random_order_ ? Which::any : reverse ? Which::newest : Which::oldest))
    if (ready_begin_ != ready_end_) return ready_[ready_begin_++ % kMaxThreads];
  return kNothing;
}

Fiber* Block::new_fiber() {
  stacks_.push_back(std::make_unique<FiberStack>());
  fibers_.push_back(std::make_unique<Fiber>());
  Fiber* fiber = fibers_.back().get();
  fiber->stack = stacks_.back()->bottom();
  fiber->stack_bytes = kFiberStackBytes;
  // The tops of the stacks have different offsets within a page. Otherwise the frames of all threads would share the
  // same few cache sets.
  FiberSwitch::prepare(*fiber, fiber->stack + kFiberStackBytes - (fibers_.size() * 320 & 4032), &Block::fiber_entry);
  return fiber;
}

void Block::fiber_entry(FiberSwitch::Transfer from) {
  current_block->switch_.arrived(from);
  current_block->fiber_main();
}

// Calls the next threads in a loop. The loop ends with the first thread that had to wait, which has returned by then
// and is finished here too.
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
  const Unwatched unwatched(*this);
  Thread& thread = threads_[t];
  if (!thread.copies.empty()) thread.copies.finish();
  ended_.release();
  ++done_;
  Warp& warp = warps_[t / kWarpSize];
  warp.alive &= ~(1u << t % kWarpSize);
  if (warp.waiting | uint32_t(barrier_count_)) release_others(t);
  if (uses_hopper_) hopper_->thread_returns(t);
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
  if (backend_.order != CpuBackend::ThreadOrder::forward || LLMC_TSAN) {
    order_.resize(size_t(count_));
    std::iota(order_.begin(), order_.end(), 0);
    if (backend_.order != CpuBackend::ThreadOrder::forward) std::reverse(order_.begin(), order_.end());
    if (backend_.order == CpuBackend::ThreadOrder::random)
      for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_.below(i)]);
  }
  ahead_ = backend_.order == CpuBackend::ThreadOrder::reverse || (random_order_ && random_.below(2));
  otherwise_ = ahead_ || random_order_ || backend_.copy_timing == CpuBackend::CopyTiming::random;
  uses_hopper_ = uses_named_arrivals_ = false;
  if (LLMC_TSAN)
    while (int(fibers_.size()) < count_) new_fiber();
  next_ = done_ = 0;
  for (int w = 0; w * kWarpSize < count_; ++w) {
    const int lanes = count_ - w * kWarpSize;
    warps_[w].alive = lanes >= kWarpSize ? ~0u : (1u << lanes) - 1;
    warps_[w].waiting = 0;
  }
}

void Block::begin_hopper() {
  uses_hopper_ = true;
  if (!hopper_) hopper_ = std::make_unique<HopperState>(*this);
  hopper_->begin();
}

void Block::run(const KernelLaunch& launch, size_t number) {
  begin(launch, number);
  report_memory_faults();
  // Poison: shared memory that the kernel has not written reads as NaN.
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
  if (uses_hopper_) hopper_->end();
  if (uses_named_arrivals_) end_named();
#if LLMC_ASAN
  ASAN_UNPOISON_MEMORY_REGION(end, kSharedGuardBytes);
#endif
  for (size_t i = 0; i < kSharedGuardBytes; ++i)
    if (end[i] != std::byte{0xff})
      stop_kernel("a thread of this block wrote shared memory at byte %zu, but the launch asked for %zu bytes",
                  launch.shared_bytes + i, launch.shared_bytes);
  current_block = nullptr;
}

// ---------------------------------------------------------------------------------------------- asynchronous copies

size_t Block::shared_offset(const void* pointer, size_t bytes, size_t alignment, const char* what,
                            const Place& place) const {
  const auto* at = static_cast<const std::byte*>(pointer);
  if (at < shared_ || at + bytes > shared_ + launch_->shared_bytes)
    stop_kernel("%s:%d: %s: %s is not in the block's %zu bytes of shared memory", place.file, place.line, place.what,
                what, launch_->shared_bytes);
  const size_t offset = size_t(at - shared_);
  if (offset % alignment)
    stop_kernel("%s:%d: %s: %s, byte %zu of shared memory, is not aligned to %zu bytes", place.file, place.line,
                place.what, what, offset, alignment);
  return offset;
}

void Block::async_copy(void* to, const void* from, int bytes, const Place& place) {
  leave_loop();
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & uintptr_t(bytes - 1))
    stop_kernel("%s:%d: %s of %d bytes from %p to %p: not aligned to its size", place.file, place.line, place.what,
                bytes, from, to);
  shared_offset(to, size_t(bytes), 1, "the target", place);
  const bool early = backend_.copy_timing == CpuBackend::CopyTiming::early ||
                     (backend_.copy_timing == CpuBackend::CopyTiming::random && random_.below(2));
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
  fprintf(stderr, "  kernel %s, launched at %s:%d, block (%u,%u,%u) of (%u,%u,%u)", launch_->name, launch_->site.file,
          launch_->site.line, block_index_.x, block_index_.y, block_index_.z, launch_->grid.x, launch_->grid.y,
          launch_->grid.z);
  fprintf(stderr, ", thread (%u,%u,%u) of (%u,%u,%u)\n", thread_index_->x, thread_index_->y, thread_index_->z,
          launch_->block.x, launch_->block.y, launch_->block.z);
  std::map<std::string, std::pair<int, int>> waiting;  // place → number of threads, lowest thread number
  const auto add = [&](int thread, const std::string& detail) {
    const Place& place = *threads_[thread].place;
    const auto where = format("%s at %s:%d", place.what, place.file, place.line) + detail;
    auto& [threads, first] = waiting.emplace(where, std::make_pair(0, thread)).first->second;
    ++threads;
    first = std::min(first, thread);
  };
  for (int i = 0; i < barrier_count_; ++i) add(barrier_waiters_[i], "");
  for (const NamedBarrier& barrier : named_)
    for (int i = 0; i < barrier.waiting; ++i)
      add(barrier.waiters[i],
          format(", barrier %d of %d", int(&barrier - named_), barrier.expected) +
              (barrier.count > barrier.waiting ? format(", where %d more came", barrier.count - barrier.waiting) : ""));
  for (int t = 0; t < count_; ++t)
    if (const Warp& warp = warps_[t / kWarpSize]; warp.waiting >> t % kWarpSize & 1)
      add(t, format(", warp %d, mask %08x", t / kWarpSize, warp.mask[t % kWarpSize]));
  if (uses_hopper_) hopper_->describe_waiting(add);
  for (const auto& [where, who] : waiting)
    fprintf(stderr, "  %d thread(s) wait in %s; the first is thread %d\n", who.first, where.c_str(), who.second);
  if (uses_hopper_) hopper_->proxy.describe();
  fprintf(stderr, "  %d of %d thread(s) have returned\n", done_, count_);
}

// Adds the kernel, block and thread to a sanitizer's report of an error in a kernel.
extern "C" void __ubsan_on_report() { describe_block(); }

void describe_block() {
  if (current_block) current_block->describe();
}

void stop_if_kernel_faulted(const void* address) {
  if (!current_block) return;
  if (current_block->overflowed_at(address))
    stop_kernel("stack overflow: a thread has %zu KiB for its variables and calls", kFiberStackBytes >> 10);
  stop_kernel("a thread read or wrote at %p, where there is no memory", address);
}

// ---------------------------------------------------------------------------------------------- the public face

BlockRunner::BlockRunner(const CpuBackend& backend, int number) : block_(std::make_unique<Block>(backend, number)) {
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(describe_block);
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

}  // namespace cpu_backend
