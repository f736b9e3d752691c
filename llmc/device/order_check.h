// Checks the happens-before order of accesses to declared byte ranges, with vector clocks (Mattern 1989). Each stream
// has a timeline, and so has the host. Recording an event copies the clock of a stream; waiting for the event joins
// that clock into the clock of the waiter. Two accesses to the same bytes must be ordered if at least one of them is a
// write. If they are not, the check throws an error that names both, whichever schedule the run took.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/device/work.h"

class OrderCheck {
 public:
  using Clock = std::vector<uint32_t>;
  static constexpr int kHost = 0;

  OrderCheck();
  int add_timeline(const char* name);

  // Declares work that the host enqueues on `timeline`, or that the host does itself (kHost). Throws Error if an access
  // is not ordered after an earlier one that conflicts with it.
  void access(int timeline, const char* name, CallSite site, const Access* accesses, size_t count);

  Clock now(int timeline) const { return clocks_[size_t(timeline)]; }  // the clock that an event records
  void join(int timeline, const Clock& clock);                         // `timeline` waits for an event with this clock
  // The memory was released: forgets the accesses to it.
  void forget(const void* data, size_t bytes);
  size_t entries() const { return log_.size(); }

 private:
  struct Entry {
    uintptr_t begin, end;
    int timeline;
    uint32_t time;
    bool write;
    const char* name;
    CallSite site;
  };
  bool ordered_after(int timeline, const Entry& earlier) const;
  [[noreturn]] void report(int timeline, const char* name, CallSite site, const Access& access,
                           const Entry& earlier) const;

  std::vector<std::string> names_;
  std::vector<Clock> clocks_;
  std::vector<Entry> log_;
};
