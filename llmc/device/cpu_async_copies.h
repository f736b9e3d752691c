// The asynchronous copies of one thread in the CPU world that have not landed yet, in groups. Included by cpu_block.cpp
// only.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace cpu_world {

class AsyncCopies {
 public:
  bool empty() const { return copies_.empty(); }
  void add(void* to, const void* from, int bytes) { copies_.push_back({to, from, bytes, group_}); }
  void commit() { ++group_; }
  // All land but those of the `groups_in_flight` newest groups.
  void wait(int groups_in_flight) { land(group_ - groups_in_flight); }
  // All land, also what was not committed.
  void finish() { land(group_ + 1); }

 private:
  struct Copy {
    void* to;
    const void* from;
    int bytes, group;
  };
  void land(int before_group) {
    size_t kept = 0;
    for (const Copy& copy : copies_) {
      if (copy.group < before_group) memcpy(copy.to, copy.from, size_t(copy.bytes));
      else copies_[kept++] = copy;
    }
    copies_.resize(kept);
  }

  int group_ = 0;  // that the next copies belong to
  std::vector<Copy> copies_;
};

}  // namespace cpu_world
