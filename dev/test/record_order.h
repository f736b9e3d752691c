// Which entries of a record come before which, whatever the streams' speed.
#pragma once

#include <set>
#include <utility>
#include <vector>

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
