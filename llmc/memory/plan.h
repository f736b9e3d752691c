// The memory plan. Every buffer of a run is registered here before anything is allocated. So the memory that the run
// will need is known, printed, and allocated as one arena for each segment. The same registration makes the plan of
// --dry-run. The plan also counts the device memory that the driver and the libraries take by themselves (reserve.h).
//
//   MemoryPlan plan;
//   PlannedTensor m = plan.add(Segment::device, "optimizer", "first moments", DType::fp32, {n});
//   Arena arena(device, plan);
//   clear(stream, m);             // a PlannedTensor is a Tensor
//
// The plan owns the tensors. They have a shape from the start, and an address once the arena was made, so views of them
// must be taken after that. The addresses are valid while the arena lives. A PlannedTensor keeps pointing into the plan
// that made it, never into a copy of that plan, which only lists the same buffers.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/device/device.h"
#include "llmc/device/tensor.h"

enum class Segment {
  device,     // memory of one rank's GPU
  symmetric,  // device memory at equal offsets on all ranks, for buffers that collectives work on
  pinned,     // page-locked memory of the host
};

// A tensor of a plan; absent unless MemoryPlan::add() made it. It can be passed wherever a Tensor is expected. The plan
// must outlive it.
class PlannedTensor {
 public:
  PlannedTensor() = default;
  operator const Tensor&() const { return *tensor_; }
  const Tensor& operator*() const { return *tensor_; }
  const Tensor* operator->() const { return tensor_; }
  explicit operator bool() const { return bool(*tensor_); }

 private:
  friend class MemoryPlan;
  explicit PlannedTensor(const Tensor* tensor) : tensor_(tensor) {}
  static inline const Tensor kAbsent;
  const Tensor* tensor_ = &kAbsent;
};

// `count` structs of a plan; none unless MemoryPlan::add_array() made it. It can be passed as a pointer to the first
// one, which is null if there are none. The plan must outlive it.
template <class T>
class PlannedArray {
 public:
  PlannedArray() = default;
  T* get() const { return static_cast<T*>(bytes_->data); }
  operator T*() const { return get(); }
  T* operator->() const { return get(); }
  size_t count() const { return size_t(bytes_->size()) / sizeof(T); }

 private:
  friend class MemoryPlan;
  explicit PlannedArray(const PlannedTensor& bytes) : bytes_(bytes) {}
  PlannedTensor bytes_;
};

class MemoryPlan {
 public:
  static constexpr size_t kAlignment = 256;
  static size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  struct Buffer {
    Segment segment;
    std::string category;  // "weights", "gradients", "optimizer", "activations", "scratch", …
    std::string name;
    size_t bytes, offset;  // offset in its segment
    size_t element_bytes;
  };

  PlannedTensor add(Segment segment, const std::string& category, const std::string& name, DType type,
                    TensorShape shape);
  // Plans a tensor in the memory of `room`, which add() has planned, `offset` bytes after its begin. Several tensors
  // that are never used at once may share it. Throws if the tensor does not fit there.
  PlannedTensor add_within(const PlannedTensor& room, size_t offset, const std::string& name, DType type,
                           TensorShape shape);
  template <class T>
  PlannedArray<T> add_array(Segment segment, const std::string& category, const std::string& name, size_t count) {
    return PlannedArray<T>(add(segment, category, name, DType::uint8, {int64_t(count * sizeof(T))}, sizeof(T)));
  }

  // Counts device memory that the run needs in addition to its buffers. The arena does not hold it.
  void reserve(const std::string& what, size_t bytes) { reserved_.push_back({what, bytes}); }

  const std::vector<Buffer>& buffers() const { return buffers_; }
  // Returns the tensors that lie within buffers(). Their offsets, too, count from the begin of the segment.
  const std::vector<Buffer>& parts() const { return parts_; }
  size_t bytes(Segment segment) const { return sizes_[size_t(segment)]; }
  // Device and symmetric memory together: the arena's share of a GPU.
  size_t device_bytes() const { return bytes(Segment::device) + bytes(Segment::symmetric); }
  size_t reserved_bytes() const;
  // Device bytes and reserve together: this must fit on a GPU.
  size_t needed_device_bytes() const { return device_bytes() + reserved_bytes(); }
  // Returns one line per category with its bytes, largest first, and the sums, first for the device and then for the
  // host. After the device's sum there is one line for each reserve. There is no newline at the end.
  std::string table() const;
  // Returns a line for each tensor, "1.00 GiB = 16 x 64.0 MiB  device  activations, block * q", that with the most
  // bytes first; equal ones of several blocks or slots share it. There is no newline at the end.
  std::string tensors() const;
  // Returns the first so many of these lines that are of the device.
  std::string largest_on_device(size_t lines) const;

 private:
  friend class Arena;
  PlannedTensor add(Segment segment, const std::string& category, const std::string& name, DType type,
                    TensorShape shape, size_t element_bytes);

  std::vector<Buffer> buffers_;
  std::vector<Buffer> parts_;
  std::deque<Tensor> tensors_;         // one per buffer; a deque, because PlannedTensor points into it
  std::deque<Tensor> tensors_within_;  // one per part
  std::vector<std::pair<std::string, size_t>> reserved_;
  size_t sizes_[3] = {0, 0, 0};
};

// The memory of a plan. The constructor gives the plan's tensors their addresses, so a plan has one arena at a time.
class Arena {
 public:
  Arena() = default;
  // The communicator, if there is one, allocates the symmetric segment; then all ranks must call this.
  Arena(Device& device, MemoryPlan& plan, Communicator* communicator = nullptr);

  std::byte* base(Segment segment) const;

 private:
  DeviceMemory device_, symmetric_;
  PinnedMemory pinned_;
};
