// The memory plan. Every buffer of a run is registered here before anything is allocated. So the memory that the run
// will need is known, printed, and allocated as one arena for each segment. The same registration makes the plan of
// --dry-run. The plan also counts the device memory that the driver and the libraries take by themselves (reserve.h).
//
//   MemoryPlan plan;
//   Planned<float> m = plan.add<float>(Segment::device, "optimizer", "first moments", n);
//   Arena arena(device, plan);
//   float* pointer = arena[m];
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/device/device.h"

enum class Segment {
  device,     // memory of one rank's GPU
  symmetric,  // device memory at equal offsets on all ranks, for buffers that collectives work on
  pinned,     // page-locked memory of the host
};

// A registered buffer of `count` elements.
template <class T>
struct Planned {
  int buffer = -1;
  size_t count = 0;
};

class MemoryPlan {
 public:
  static constexpr size_t kAlignment = 256;

  struct Buffer {
    Segment segment;
    std::string category;  // "weights", "gradients", "optimizer", "activations", "scratch", …
    std::string name;
    size_t bytes, offset;  // offset in its segment
    size_t element_bytes;
  };

  template <class T>
  Planned<T> add(Segment segment, const std::string& category, const std::string& name, size_t count) {
    return {add_bytes(segment, category, name, count * sizeof(T), sizeof(T)), count};
  }

  // The same for a type that is known only at run time, with elements of 1, 2 or 4 bytes. The count of the result is in
  // bytes.
  Planned<std::byte> add_elements(Segment segment, const std::string& category, const std::string& name, size_t count,
                                  size_t element_bytes) {
    return {add_bytes(segment, category, name, count * element_bytes, element_bytes), count * element_bytes};
  }

  // Counts device memory that the run needs beside its buffers. The arena does not hold it.
  void reserve(const std::string& what, size_t bytes) { reserved_.push_back({what, bytes}); }

  const std::vector<Buffer>& buffers() const { return buffers_; }
  size_t bytes(Segment segment) const { return sizes_[size_t(segment)]; }
  // Device and symmetric memory together: the arena's share of a GPU.
  size_t device_bytes() const { return bytes(Segment::device) + bytes(Segment::symmetric); }
  size_t reserved_bytes() const;
  // Device bytes and reserve together: this must fit on a GPU.
  size_t needed_device_bytes() const { return device_bytes() + reserved_bytes(); }
  // Returns one line per category with its bytes, largest first, and the sums, first for the device and then for the
  // host. After the device's sum there is one line for each reserve. There is no newline at the end.
  std::string table() const;

 private:
  int add_bytes(Segment segment, const std::string& category, const std::string& name, size_t bytes,
                size_t element_bytes);

  std::vector<Buffer> buffers_;
  std::vector<std::pair<std::string, size_t>> reserved_;
  size_t sizes_[3] = {0, 0, 0};
};

// The memory of a plan.
class Arena {
 public:
  Arena() = default;
  // The communicator, if there is one, allocates the symmetric segment; then all ranks must call this.
  Arena(Device& device, const MemoryPlan& plan, Communicator* communicator = nullptr);

  template <class T>
  T* operator[](const Planned<T>& planned) const {
    return reinterpret_cast<T*>(address(planned.buffer));
  }
  std::byte* base(Segment segment) const;

 private:
  std::byte* address(int buffer) const;

  std::vector<MemoryPlan::Buffer> buffers_;
  DeviceMemory device_, symmetric_;
  PinnedMemory pinned_;
};
