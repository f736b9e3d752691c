// Finds what a kernel of the CPU backend writes without declaring it: around each launch it compares the bytes of all
// the device's memory outside of the ranges that the launch declares as written or updated. LLMC_CPU_WRITES=checked
// turns it on, as the check of each kernel program does. It copies all memory at each launch, so memory must be small.
// A write of the value that was there already is not seen.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "llmc/device/work.h"

class WriteCheck {
 public:
  WriteCheck();  // reads the environment; throws if LLMC_CPU_WRITES is neither "checked" nor "free"

  void add(const std::byte* data, size_t bytes) { memory_.push_back({data, bytes, {}}); }
  void forget(const std::byte* data);
  // Returns the task to execute for `work`: `task` itself or, for a kernel if the check is on, one that throws Error
  // after `task` if it wrote what the work does not declare. The error names kernel, buffer and offset.
  std::function<void()> watched(const Work& work, std::function<void()> task);

 private:
  struct Memory {
    const std::byte* data;
    size_t bytes;
    std::vector<std::byte> before;  // its bytes before the launch
  };
  bool on_;
  std::vector<Memory> memory_;
};
