// The functions for memory that are the same in both backends.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/addresses.h"
#include "llmc/device/device.h"

size_t host_memory_bytes(const std::string& root) {
  size_t least = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" in version 2, "7:memory:/a/b" in version 1
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const std::string folder = root + (unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    std::string group = line.substr(second + 1);
    for (;; group.erase(group.rfind('/'))) {
      std::ifstream file(folder + group + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
      if (size_t limit; file >> limit) least = std::min(least, limit);
      if (group.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

std::byte* reserve_addresses(size_t bytes, bool touchable) {
  void* memory = mmap(nullptr, bytes, touchable ? PROT_READ | PROT_WRITE : PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail_as(ExitCode::does_not_fit, "no addresses for %zu bytes: %s", bytes, strerror(errno));
  return static_cast<std::byte*>(memory);
}
void release_addresses(std::byte* data, size_t bytes) { munmap(data, bytes); }

void fail_to_pin(size_t bytes, const std::string& why, ExitCode code) {
  fail_as(
      code,
      "the host cannot pin %s of memory: %s\n  let the process lock more (ulimit -l, or the container's limits), or "
      "keep less on the host: --activation-offload, --offload-optimizer, --offload-gradients and --offload-weights "
      "take most",
      human_bytes(bytes).c_str(), why.c_str());
}

DeviceMemory::DeviceMemory(Device& device, std::byte* data, size_t bytes, std::function<void()> take_back)
    : device_(&device), data_(data), size_(bytes), take_back_(std::move(take_back)) {
  device.count_allocation();
}
DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      take_back_(std::exchange(other.take_back_, nullptr)) {}
DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(take_back_, other.take_back_);
  return *this;
}
bool Device::is_pinned(const void* data) const {
  for (const auto& [begin, bytes] : pinned_)
    if (!std::less<const void*>()(data, begin) && std::less<const void*>()(data, begin + bytes)) return true;
  return false;
}
size_t Device::pinned_bytes() const {
  size_t sum = 0;
  for (const auto& [begin, bytes] : pinned_) sum += bytes;
  return sum;
}
void Device::set_pinned(const std::byte* data, size_t bytes, bool pinned) {
  if (pinned) pinned_.push_back({data, bytes});
  else std::erase(pinned_, std::pair(data, bytes));
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}
