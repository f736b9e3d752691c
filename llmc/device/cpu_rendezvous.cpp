// Synchronization of the threads of a block: __syncthreads, named barriers and warp collectives.
#include <bit>
#include <cstring>

#include "llmc/device/cpu_block_state.h"

namespace cpu_backend {

// Completes a barrier at which all threads that have not returned have arrived. `running` is the thread that arrived
// last; it continues by itself and is not made ready (-1: none).
void Block::complete_barrier(int running) {
  for (int i = 0; i < barrier_count_; ++i) threads_[barrier_waiters_[i]].arrived.acquire();
  if (barrier_operation_) barrier_operation_(barrier_posted_, count_);
  for (int i = 0; i < barrier_count_; ++i) {
    threads_[barrier_waiters_[i]].left.release();
    if (barrier_waiters_[i] != running) make_ready(barrier_waiters_[i]);
  }
  barrier_count_ = 0;
}

// Thread t has returned: releases the threads that waited for it alone.
void Block::release_others(int t) {
  Warp& warp = warps_[t / kWarpSize];
  for (int l = 0; warp.waiting && l < kWarpSize; ++l) {
    if (!(warp.waiting >> l & 1)) continue;
    const uint32_t lanes = warp.mask[l] & warp.alive;
    if ((warp.waiting & lanes) == lanes) complete_warp(t / kWarpSize, lanes, -1);
  }
  if (barrier_count_ == 0) return;
  if (barrier_operation_) stop_kernel("thread %d returned while others wait in a sum over the block", t);
  if (barrier_count_ == count_ - done_) complete_barrier(-1);
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

// Counts one more arrival at a named barrier and returns the barrier.
NamedBarrier& Block::come_to_named(int number, int threads, const Place& place) {
  leave_loop();
  if (number < 1 || number >= kNamedBarriers || threads % kWarpSize || threads < kWarpSize || threads > count_)
    stop_kernel("%s:%d: %s: barrier %d of %d threads, expected 1 to 15 and whole warps of the block", place.file,
                place.line, place.what, number, threads);
  NamedBarrier& barrier = named_[number];
  if (barrier.count && barrier.expected != threads)
    stop_kernel("%s:%d: %s: barrier %d of %d threads, but %d wait there for %d", place.file, place.line, place.what,
                number, threads, barrier.count, barrier.expected);
  barrier.expected = threads;
  ++barrier.count;
  return barrier;
}

// Completes a named barrier at which all threads have arrived. `running` continues by itself and is not made ready.
void Block::complete_named(NamedBarrier& barrier, int running) {
  barrier.arrived.acquire();
  for (int i = 0; i < barrier.waiting; ++i) threads_[barrier.waiters[i]].arrived.acquire();
  for (int i = 0; i < barrier.waiting; ++i) {
    threads_[barrier.waiters[i]].left.release();
    if (barrier.waiters[i] != running) make_ready(barrier.waiters[i]);
  }
  barrier.count = barrier.waiting = 0;
}

void Block::sync_named(int number, int threads, const Place& place) {
  NamedBarrier& barrier = come_to_named(number, threads, place);
  const int me = current_;
  barrier.waiters[barrier.waiting++] = uint16_t(me);
  threads_[me].place = &place;
  threads_[me].arrived.release();
  if (barrier.count < threads) {
    park();
  } else {
    complete_named(barrier, me);
    step_aside();
  }
  threads_[me].left.acquire();
}

void Block::arrive_named(int number, int threads, const Place& place) {
  NamedBarrier& barrier = come_to_named(number, threads, place);
  uses_named_arrivals_ = true;
  barrier.last_arrival = place;
  barrier.arrived.release();
  if (barrier.count == threads) complete_named(barrier, current_);
  step_aside();
}

// Stops the kernel if a named barrier is incomplete when the block ends. If its threads only arrived and did not wait,
// no waiting thread would reveal that the others never arrived.
void Block::end_named() {
  for (const NamedBarrier& barrier : named_)
    if (barrier.count)
      stop_kernel("%s:%d: %s: the block ended when %d of %d threads had come to barrier %d", barrier.last_arrival.file,
                  barrier.last_arrival.line, barrier.last_arrival.what, barrier.count, barrier.expected,
                  int(&barrier - named_));
}

// Completes a collective at which the lanes `lanes` of warp w have arrived. `running` is the lane that arrived last; it
// continues by itself and is not made ready (-1: none).
void Block::complete_warp(int w, uint32_t lanes, int running) {
  Warp& warp = warps_[w];
  const int first = std::countr_zero(lanes);
  const uint32_t mask = warp.mask[first];
  const WarpOperation operation = warp.operation[first];
  uint32_t others = 0;  // lanes in another collective than `first`
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

}  // namespace cpu_backend
