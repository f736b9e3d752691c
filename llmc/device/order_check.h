// Happens-before over declared byte ranges (vector clocks: Mattern 1989). Every stream and the host are a line of time;
// recording an event copies a stream's clock, waiting for it joins that clock into another. An access that is not
// ordered after an earlier one of the same bytes, where one of the two writes, is an error with both names, whichever
// schedule the run took.
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

  // Work enqueued by the host on `timeline`, or done by the host itself (kHost). Throws Error at a conflict.
  void access(int timeline, const char* name, const char* file, int line, const Access* accesses, size_t count);

  Clock now(int timeline) const { return clocks_[size_t(timeline)]; }  // what an event records
  void join(int timeline, const Clock& clock);                         // what a wait does
  // Memory was given back: what used it no longer matters.
  void forget(const void* data, size_t bytes);
  size_t entries() const { return log_.size(); }

 private:
  struct Entry {
    uintptr_t begin, end;
    int timeline;
    uint32_t time;
    bool write;
    const char *name, *file;
    int line;
  };
  bool ordered_after(int timeline, const Entry& earlier) const;
  [[noreturn]] void report(int timeline, const char* name, const char* file, int line, const Access& access,
                           const Entry& earlier) const;

  std::vector<std::string> names_;
  std::vector<Clock> clocks_;
  std::vector<Entry> log_;
};
