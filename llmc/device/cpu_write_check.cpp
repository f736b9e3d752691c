#include "llmc/device/cpu_write_check.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "llmc/base/error.h"

namespace {

struct Declared {
  const char* name;
  CallSite site;
  std::vector<Access> accesses;
};

// Bytes begin .. end-1 of a buffer.
struct Range {
  size_t begin, end;
};

// The part of `access` that lies in the buffer; empty: none does.
Range part_of(const Access& access, const std::byte* data, size_t bytes) {
  const std::byte* const first = static_cast<const std::byte*>(access.data);
  if (!overlap(first, access.bytes, data, bytes)) return {0, 0};
  return {first > data ? size_t(first - data) : 0, std::min(size_t(first + access.bytes - data), bytes)};
}

[[noreturn]] void report(const Declared& work, const std::byte* data, size_t bytes, size_t offset) {
  std::string there;
  for (const Access& access : work.accesses) {
    const Range range = part_of(access, data, bytes);
    if (range.begin < range.end)
      there += format("%s %s bytes %zu to %zu", there.empty() ? "" : ",",
                      access.updated ? "updates"
                      : access.write ? "writes"
                                     : "reads",
                      range.begin, range.end - 1);
  }
  fail(
      "%s (%s:%d) wrote byte %zu of a buffer of %zu bytes, and did not declare it\n"
      "  it declares there:%s\n"
      "  add writes(…) to the launch's list (updates(…) if it also reads it), or mend the index",
      work.name, work.site.file, work.site.line, offset, bytes, there.empty() ? " nothing" : there.c_str());
}

// Throws if the buffer has other bytes than before, outside of what the work declares as written.
void compare(const Declared& work, const std::byte* data, const std::vector<std::byte>& before) {
  std::vector<Range> written;
  for (const Access& access : work.accesses)
    if (access.write) written.push_back(part_of(access, data, before.size()));
  written.push_back({before.size(), before.size()});
  std::sort(written.begin(), written.end(), [](Range a, Range b) { return a.begin < b.begin; });
  size_t at = 0;
  for (const Range& range : written) {
    if (range.begin > at && memcmp(data + at, &before[at], range.begin - at)) {
      while (data[at] == before[at]) ++at;
      report(work, data, before.size(), at);
    }
    at = std::max(at, range.end);
  }
}

}  // namespace

WriteCheck::WriteCheck() {
  const char* text = getenv("LLMC_CPU_WRITES");
  const std::string choice = text && *text ? text : "free";
  REQUIRE(choice == "free" || choice == "checked", "LLMC_CPU_WRITES=%s is not a choice\n  choose one of: checked free",
          choice.c_str());
  on_ = choice == "checked";
}

void WriteCheck::forget(const std::byte* data) {
  std::erase_if(memory_, [&](const Memory& memory) { return memory.data == data; });
}

std::function<void()> WriteCheck::watched(const Work& work, std::function<void()> task) {
  if (!on_ || !work.shape.kernel) return task;
  Declared declared{work.name, work.site, {work.accesses, work.accesses + work.access_count}};
  return [this, declared = std::move(declared), task = std::move(task)] {
    for (Memory& memory : memory_) memory.before.assign(memory.data, memory.data + memory.bytes);
    task();
    for (const Memory& memory : memory_) compare(declared, memory.data, memory.before);
  };
}
