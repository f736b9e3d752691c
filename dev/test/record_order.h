// Two questions of tests to a record: which entries come before which, whatever the streams' speed, and whether another
// record is of the same work.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/record.h"

class Order {
 public:
  explicit Order(const Record& record) : before_(record.entries.size()) {
    std::vector<int> last(record.streams.size(), -1);
    std::vector<std::pair<int, int>> points;
    for (int i = 0; i < int(record.entries.size()); ++i) {
      const Record::Entry& entry = record.entries[size_t(i)];
      if (last[size_t(entry.stream)] >= 0) before_[size_t(i)].push_back(last[size_t(entry.stream)]);
      last[size_t(entry.stream)] = i;
      if (entry.kind == Record::Entry::Kind::record) points.push_back({entry.point, i});
      if (entry.kind == Record::Entry::Kind::wait)
        for (const auto& [point, at] : points)
          if (point == entry.point) before_[size_t(i)].push_back(at);
    }
  }
  bool orders(int first, int second) const {
    std::set<int> seen;
    std::vector<int> to_see = {second};
    while (!to_see.empty()) {
      const int at = to_see.back();
      to_see.pop_back();
      if (at == first) return true;
      for (const int b : before_[size_t(at)])
        if (b >= first && seen.insert(b).second) to_see.push_back(b);
    }
    return false;
  }

 private:
  std::vector<std::vector<int>> before_;  // directly
};

inline bool touches(const Record::Entry& entry, const Access& range, bool writes) {
  for (const Access& a : entry.accesses)
    if (a.write == writes && overlap(a.data, a.bytes, range.data, range.bytes)) return true;
  return false;
}

// Two records must be of the same work: they may differ in addresses alone.
inline void require_alike(const Record& executed, const Record& recorded) {
  REQUIRE(executed.streams == recorded.streams, "%zu streams were executed, %zu recorded", executed.streams.size(),
          recorded.streams.size());
  REQUIRE(executed.entries.size() == recorded.entries.size(), "%zu entries were executed, %zu recorded",
          executed.entries.size(), recorded.entries.size());
  for (size_t i = 0; i < executed.entries.size(); ++i) {
    const Record::Entry &a = executed.entries[i], &b = recorded.entries[i];
    bool alike = a.kind == b.kind && a.stream == b.stream && a.name == b.name && a.place == b.place &&
                 a.flops == b.flops && a.rate == b.rate && a.head_size == b.head_size && a.sent == b.sent &&
                 a.ranks == b.ranks && a.accesses.size() == b.accesses.size();
    for (size_t k = 0; alike && k < a.accesses.size(); ++k)
      alike = a.accesses[k].bytes == b.accesses[k].bytes && a.accesses[k].write == b.accesses[k].write;
    REQUIRE(alike, "entry %zu: %s (%s), %zu bytes sent, was executed; %s (%s), %zu bytes, recorded", i, a.name.c_str(),
            a.place.c_str(), a.sent, b.name.c_str(), b.place.c_str(), b.sent);
  }
}
