#include "llmc/device/order_check.h"

#include <algorithm>

#include "llmc/base/error.h"

OrderCheck::OrderCheck() { add_timeline("the host"); }

int OrderCheck::add_timeline(const char* name) {
  names_.push_back(name);
  for (Clock& clock : clocks_) clock.push_back(0);
  clocks_.push_back(Clock(names_.size(), 0));
  return int(names_.size()) - 1;
}

void OrderCheck::join(int timeline, const Clock& clock) {
  Clock& mine = clocks_[size_t(timeline)];
  for (size_t i = 0; i < clock.size(); ++i) mine[i] = std::max(mine[i], clock[i]);
  // Everything enqueued from here on is ordered after the work for which the host has waited, so such entries can no
  // longer conflict.
  if (timeline == kHost) std::erase_if(log_, [&](const Entry& e) { return ordered_after(kHost, e); });
}

void OrderCheck::forget(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  std::erase_if(log_, [&](const Entry& e) { return e.begin < begin + bytes && begin < e.end; });
}

bool OrderCheck::ordered_after(int timeline, const Entry& earlier) const {
  return clocks_[size_t(timeline)][size_t(earlier.timeline)] >= earlier.time;
}

void OrderCheck::access(int timeline, const char* name, CallSite site, const Access* accesses, size_t count) {
  if (timeline != kHost) join(timeline, clocks_[kHost]);  // work starts after all that the host did before enqueuing it
  const uint32_t time = ++clocks_[size_t(timeline)][size_t(timeline)];
  for (const Access* a = accesses; a != accesses + count; ++a) {
    if (a->bytes == 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(a->data), end = begin + a->bytes;
    size_t kept = 0;
    for (size_t i = 0; i < log_.size(); ++i) {
      const Entry& e = log_[i];
      const bool overlaps = e.begin < end && begin < e.end;
      const bool mine = e.timeline == timeline && e.time == time;  // another range of the same work
      if (overlaps && !mine && (a->write || e.write) && !ordered_after(timeline, e))
        report(timeline, name, site, *a, e);
      // An earlier entry is no longer needed if this access covers its bytes and is ordered after it: work that is
      // ordered after this access is then ordered after the entry too. A read can replace only a read.
      const bool covered =
          begin <= e.begin && e.end <= end && (a->write || !e.write) && !mine && ordered_after(timeline, e);
      if (covered) continue;
      if (kept != i) log_[kept] = e;
      ++kept;
    }
    log_.resize(kept);
    log_.push_back({begin, end, timeline, time, a->write, name, site});
  }
}

void OrderCheck::report(int timeline, const char* name, CallSite site, const Access& access,
                        const Entry& earlier) const {
  const auto begin = std::max(reinterpret_cast<uintptr_t>(access.data), earlier.begin);
  const auto end = std::min(reinterpret_cast<uintptr_t>(access.data) + access.bytes, earlier.end);
  fail(
      "unordered access: %s %s %zu bytes at %p in stream '%s' (%s:%d)\n"
      "  that %s %s in stream '%s' (%s:%d), and no event orders the two\n"
      "  record an event after the earlier one and let the later one's stream wait for it",
      name, access.write ? "writes" : "reads", size_t(end - begin), reinterpret_cast<void*>(begin),
      names_[size_t(timeline)].c_str(), site.file, site.line, earlier.name, earlier.write ? "writes" : "reads",
      names_[size_t(earlier.timeline)].c_str(), earlier.site.file, earlier.site.line);
}
