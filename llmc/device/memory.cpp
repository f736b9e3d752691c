// Memory, as far as it is the same in both worlds.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/device/addresses.h"
#include "llmc/device/device.h"

std::byte* reserve_addresses(size_t bytes, bool touchable) {
  void* memory = mmap(nullptr, bytes, touchable ? PROT_READ | PROT_WRITE : PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED, "no addresses for %zu bytes: %s", bytes, strerror(errno));
  return static_cast<std::byte*>(memory);
}
void release_addresses(std::byte* data, size_t bytes) { munmap(data, bytes); }

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
PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}
