#include "llmc/memory/plan.h"

#include <algorithm>
#include <map>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace {

// Of a segment: beyond every machine, and the sum of all segments fits in 64 bits.
constexpr size_t kMostBytes = size_t(1) << 60;

// Returns the bytes of each category, largest first: of the host's memory if `pinned`, else of the device's segments.
std::vector<std::pair<size_t, std::string>> by_category(const std::vector<MemoryPlan::Buffer>& buffers, bool pinned) {
  std::map<std::string, size_t> sums;
  for (const auto& b : buffers)
    if ((b.segment == Segment::pinned) == pinned) sums[b.category] += b.bytes;
  std::vector<std::pair<size_t, std::string>> sorted;
  for (const auto& [category, bytes] : sums) sorted.push_back({bytes, category});
  std::sort(sorted.rbegin(), sorted.rend());
  return sorted;
}

}  // namespace

PlannedTensor MemoryPlan::add(Segment segment, const std::string& category, const std::string& name, DType type,
                              TensorShape shape) {
  return add(segment, category, name, type, shape, bytes_of(type));
}

PlannedTensor MemoryPlan::add(Segment segment, const std::string& category, const std::string& name, DType type,
                              TensorShape shape, size_t element_bytes) {
  const Tensor& tensor = tensors_.emplace_back(nullptr, type, shape);
  const size_t bytes = tensor.span_bytes();
  size_t& size = sizes_[size_t(segment)];
  if (bytes > kMostBytes - size)
    fail_as(ExitCode::does_not_fit,
            "the plan has more than %s: %s of %s are one buffer of it\n  make the model, --seq-len or "
            "--micro-batch smaller",
            human_bytes(kMostBytes).c_str(), human_bytes(bytes).c_str(), name.c_str());
  buffers_.push_back({segment, category, name, bytes, size, element_bytes});
  size += aligned(bytes);
  return PlannedTensor(&tensor);
}

PlannedTensor MemoryPlan::add_within(const PlannedTensor& room, size_t offset, const std::string& name, DType type,
                                     TensorShape shape) {
  size_t of_room = 0;
  while (of_room < tensors_.size() && &tensors_[of_room] != &*room) ++of_room;
  REQUIRE(of_room < tensors_.size(), "%s lies in a tensor that this plan did not add", name.c_str());
  const Buffer& buffer = buffers_[of_room];
  const Tensor& tensor = tensors_within_.emplace_back(nullptr, type, shape);
  const size_t bytes = tensor.span_bytes();
  REQUIRE(offset % kAlignment == 0 && offset <= buffer.bytes && bytes <= buffer.bytes - offset,
          "%s: %zu bytes at byte %zu of %zu of %s", name.c_str(), bytes, offset, buffer.bytes, buffer.name.c_str());
  parts_.push_back({buffer.segment, buffer.category, name, bytes, buffer.offset + offset, bytes_of(type)});
  return PlannedTensor(&tensor);
}

size_t MemoryPlan::reserved_bytes() const {
  size_t sum = 0;
  for (const auto& [what, bytes] : reserved_) sum += bytes;
  return sum;
}

std::string MemoryPlan::table() const {
  constexpr size_t kWorthALine = 1 << 20;  // for a category of the host
  size_t width = 17;
  for (const Buffer& b : buffers_) width = std::max(width, b.category.size());
  for (const auto& [what, bytes] : reserved_) width = std::max(width, what.size());
  std::string text;
  const auto line = [&](const std::string& name, size_t bytes) {
    text += format("%s%-*s %10s", text.empty() ? "" : "\n", int(width), name.c_str(), human_bytes(bytes).c_str());
  };
  for (const auto& [bytes, category] : by_category(buffers_, false))
    if (bytes > 0) line(category, bytes);
  line("device, total", device_bytes());
  for (const auto& [what, bytes] : reserved_) line(what, bytes);
  if (!reserved_.empty()) line("device and reserve", needed_device_bytes());
  for (const auto& [bytes, category] : by_category(buffers_, true))
    if (bytes >= kWorthALine) line("host " + category, bytes);
  line("host, total", bytes(Segment::pinned));
  return text;
}

Arena::Arena(Device& device, MemoryPlan& plan, Communicator* communicator)
    : device_(device, plan.bytes(Segment::device)),
      symmetric_(communicator ? communicator->allocate(device, plan.bytes(Segment::symmetric))
                              : DeviceMemory(device, plan.bytes(Segment::symmetric))),
      pinned_(device, plan.bytes(Segment::pinned)) {
  for (size_t i = 0; i < plan.buffers_.size(); ++i)
    plan.tensors_[i].data = base(plan.buffers_[i].segment) + plan.buffers_[i].offset;
  for (size_t i = 0; i < plan.parts_.size(); ++i)
    plan.tensors_within_[i].data = base(plan.parts_[i].segment) + plan.parts_[i].offset;
}

std::byte* Arena::base(Segment segment) const {
  return segment == Segment::device      ? device_.data()
         : segment == Segment::symmetric ? symmetric_.data()
                                         : pinned_.data();
}
