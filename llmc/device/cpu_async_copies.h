// The pending asynchronous copies (cp.async) of one thread in the CPU backend, in groups. Only cpu_block_state.h
// includes this file.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace cpu_backend {

class AsyncCopies {
 public:
  bool empty() const { return copies_.empty(); }
  void add(void* to, const void* from, int bytes) { copies_.push_back({to, from, bytes, group_}); }
  void commit() { ++group_; }
  // Executes all committed copies except those of the `groups_in_flight` newest committed groups.
  void wait(int groups_in_flight) { land(group_ - groups_in_flight); }
  // Executes all copies, including those that were not committed.
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

  int group_ = 0;  // the group to which the next copies belong
  std::vector<Copy> copies_;
};

}  // namespace cpu_backend
