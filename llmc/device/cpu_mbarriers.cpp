#include "llmc/device/cpu_mbarriers.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "llmc/device/cpu_block_state.h"

namespace cpu_backend {
namespace {

constexpr int kMostArrivals = (1 << 20) - 1, kMostBytes = (1 << 20) - 1;

}  // namespace

// The encoding is never all ones, because all ones are poison.
uint64_t TransactionBarriers::Barrier::encoded() const {
  return uint64_t(pending) | uint64_t(expected) << 20 | uint64_t(bytes & 0x1fffff) << 40 | (phase & 1) << 61 |
         1ull << 62;
}

void TransactionBarriers::begin() {
  if (number_at_.empty()) number_at_.assign(kMaxSharedBytes / 8, -1);
  for (int i = 0; i < count_; ++i) number_at_[offset_of(barriers_[size_t(i)]) / 8] = -1;
  count_ = 0;
}

size_t TransactionBarriers::offset_of(const Barrier& barrier) const {
  return size_t(reinterpret_cast<std::byte*>(barrier.bits) - block_.shared());
}

void TransactionBarriers::initialize(uint64_t* bits, int arrivals, const Place& place) {
  const int me = block_.current();
  const size_t offset = block_.shared_offset(bits, 8, 8, "the barrier", place);
  if (arrivals < 1 || arrivals > kMostArrivals)
    stop_kernel("%s:%d: %s: %d arrivals, expected 1 to %d", place.file, place.line, place.what, arrivals,
                kMostArrivals);
  if (number_at_[offset / 8] >= 0)
    stop_kernel("%s:%d: %s: the barrier at byte %zu of shared memory was initialised before, by thread %d", place.file,
                place.line, place.what, offset, barriers_[size_t(number_at_[offset / 8])].initializer);
  number_at_[offset / 8] = int16_t(count_);
  if (size_t(count_) == barriers_.size()) barriers_.emplace_back();
  Barrier& barrier = barriers_[size_t(count_++)];
  barrier.bits = bits;
  barrier.initializer = me;
  barrier.published = false;
  barrier.expected = barrier.pending = arrivals;
  barrier.bytes = 0;
  barrier.phase = 0;
  barrier.waiters.clear();
  barrier.woken.clear();
  *bits = barrier.encoded();
  block_.writes(bits, sizeof *bits);
}

void TransactionBarriers::publish() {
  const int me = block_.current();
  for (int i = 0; i < count_; ++i)
    if (barriers_[size_t(i)].initializer == me) barriers_[size_t(i)].published = true;
}

// Bytes beyond those announced count for the next phase, so a thread that waited for them continued too early.
void TransactionBarriers::end() const {
  for (int i = 0; i < count_; ++i)
    if (const Barrier& barrier = barriers_[size_t(i)]; barrier.bytes)
      stop_kernel("%s:%d: %s: the block ended when %d bytes %s at the barrier at byte %zu of shared memory",
                  barrier.counted.file, barrier.counted.line, barrier.counted.what, std::abs(barrier.bytes),
                  barrier.bytes < 0 ? "had come that nobody announced" : "were announced that never came",
                  offset_of(barrier));
}

TransactionBarriers::Barrier& TransactionBarriers::find(uint64_t* bits, const Place& place) {
  const int me = block_.current();
  const size_t offset = block_.shared_offset(bits, 8, 8, "the barrier", place);
  if (number_at_[offset / 8] < 0)
    stop_kernel("%s:%d: %s: the barrier at byte %zu of shared memory is not initialised", place.file, place.line,
                place.what, offset);
  Barrier& barrier = barriers_[size_t(number_at_[offset / 8])];
  require_intact(barrier, place);
  block_.reads(bits, sizeof *bits);  // ThreadSanitizer: a barrier must order mbarrier_init before this
  if (!barrier.published && barrier.initializer != me)
    stop_kernel(
        "%s:%d: %s: the barrier at byte %zu of shared memory is not published: thread %d uses it, thread %d has "
        "initialised it and not called fence_mbarrier_init",
        place.file, place.line, place.what, offset, me, barrier.initializer);
  return barrier;
}

void TransactionBarriers::require_intact(const Barrier& barrier, const Place& place) const {
  if (*barrier.bits != barrier.encoded())
    stop_kernel("%s:%d: %s: the barrier at byte %zu of shared memory was overwritten: it holds %016llx, not %016llx",
                place.file, place.line, place.what, offset_of(barrier), static_cast<unsigned long long>(*barrier.bits),
                static_cast<unsigned long long>(barrier.encoded()));
}

void TransactionBarriers::count_bytes(Barrier& barrier, int bytes, const Place& place) {
  barrier.bytes += bytes;
  barrier.counted = place;
  if (barrier.bytes > kMostBytes || barrier.bytes < -kMostBytes)
    stop_kernel("%s:%d: %s: the barrier at byte %zu of shared memory counts %d bytes, at most %d fit", place.file,
                place.line, place.what, offset_of(barrier), barrier.bytes, kMostBytes);
}

void TransactionBarriers::complete_if_due(Barrier& barrier, const Place& place) {
  if (barrier.pending == 0 && barrier.bytes == 0) {
    if (!barrier.woken.empty())
      stop_kernel(
          "%s:%d: %s: the barrier at byte %zu of shared memory went through two phases while thread %d still waited "
          "for the first",
          place.file, place.line, place.what, offset_of(barrier), barrier.woken.front());
    ++barrier.phase;
    barrier.pending = barrier.expected;
    std::swap(barrier.woken, barrier.waiters);
    for (const int thread : barrier.woken) block_.make_ready(thread);
  }
  *barrier.bits = barrier.encoded();
}

void TransactionBarriers::arrive(uint64_t* bits, int expected_bytes, const Place& place) {
  Barrier& barrier = find(bits, place);
  if (barrier.pending == 0)
    stop_kernel("%s:%d: %s: too many arrivals at the barrier at byte %zu of shared memory: a phase has %d", place.file,
                place.line, place.what, offset_of(barrier), barrier.expected);
  if (expected_bytes < 0) stop_kernel("%s:%d: %s: %d bytes", place.file, place.line, place.what, expected_bytes);
  count_bytes(barrier, expected_bytes, place);
  barrier.arrived[barrier.phase & 1].release();
  --barrier.pending;
  complete_if_due(barrier, place);
  block_.step_aside();
}

void TransactionBarriers::wait(uint64_t* bits, int parity, const Place& place) {
  Barrier& barrier = find(bits, place);
  if (parity != 0 && parity != 1)
    stop_kernel("%s:%d: %s: parity %d, expected 0 or 1", place.file, place.line, place.what, parity);
  if (int(barrier.phase & 1) == parity) {
    const auto me = uint16_t(block_.current());
    barrier.waiters.push_back(me);
    block_.wait_at(place);
    barrier.woken.erase(std::find(barrier.woken.begin(), barrier.woken.end(), me));
  }
  barrier.arrived[parity].acquire();
}

bool TransactionBarriers::passed(uint64_t* bits, int parity, const Place& place) {
  return int(find(bits, place).phase & 1) != parity;
}

int TransactionBarriers::number_for_copy(uint64_t* bits, const Place& place) {
  const Barrier& barrier = find(bits, place);
  if (!barrier.published)
    stop_kernel("%s:%d: %s: the barrier at byte %zu of shared memory is not published: the copy engine does not see it",
                place.file, place.line, place.what, offset_of(barrier));
  return number_at_[offset_of(barrier) / 8];
}

void TransactionBarriers::bytes_came(int number, int bytes, const Place& copy) {
  Barrier& barrier = barriers_[size_t(number)];
  require_intact(barrier, copy);
  count_bytes(barrier, -bytes, copy);
  complete_if_due(barrier, copy);
}

void TransactionBarriers::describe_waiting(const DescribeThread& add) const {
  for (int i = 0; i < count_; ++i) {
    const Barrier& barrier = barriers_[size_t(i)];
    for (const int thread : barrier.waiters)
      add(thread,
          format(", barrier at byte %zu of shared memory, parity %d: %d of %d arrivals and %d bytes are missing",
                 offset_of(barrier), int(barrier.phase & 1), barrier.pending, barrier.expected, barrier.bytes));
  }
}

}  // namespace cpu_backend
