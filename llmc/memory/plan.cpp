#include "llmc/memory/plan.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>

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

// Returns the name with * for a number between other words: "block 3 q" and "block 4 q" are "block * q".
std::string without_number(const std::string& name) {
  std::string text;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && isdigit((unsigned char)name[end])) ++end;
    const bool is_number = end > i && i > 0 && name[i - 1] == ' ' && end < name.size() && name[end] == ' ';
    text += is_number ? "*" : name.substr(i, std::max<size_t>(end - i, 1));
    i = std::max(end, i + 1);
  }
  return text;
}

// Returns a line for each tensor, or for equal ones of several blocks or slots, that with the most bytes first.
std::vector<std::string> lines_of(const std::vector<MemoryPlan::Buffer>& buffers, bool with_pinned) {
  std::map<std::tuple<bool, std::string, size_t>, size_t> counts;  // pinned, what, bytes of each
  for (const auto& b : buffers)
    if (b.bytes > 0 && (with_pinned || b.segment != Segment::pinned))
      ++counts[{b.segment == Segment::pinned, b.category + ", " + without_number(b.name), b.bytes}];
  std::multimap<size_t, std::string, std::greater<>> sorted;
  for (const auto& [tensor, count] : counts) {
    const auto& [pinned, what, bytes] = tensor;
    const std::string each = count > 1 ? format(" = %zu x %s", count, human_bytes(bytes).c_str()) : "";
    sorted.emplace(count * bytes, format("%10s%-17s  %s  %s", human_bytes(count * bytes).c_str(), each.c_str(),
                                         pinned ? "host  " : "device", what.c_str()));
  }
  std::vector<std::string> lines;
  for (const auto& [bytes, line] : sorted) lines.push_back(line);
  return lines;
}

std::string joined(const std::vector<std::string>& lines, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(most, lines.size()); ++i) text += (i ? "\n" : "") + lines[i];
  return text;
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

std::string MemoryPlan::tensors() const { return joined(lines_of(buffers_, true), SIZE_MAX); }

std::string MemoryPlan::largest_on_device(size_t lines) const { return joined(lines_of(buffers_, false), lines); }

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
