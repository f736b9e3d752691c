#include "llmc/base/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "llmc/base/error.h"

namespace {

// Reads a number of the format, which is little-endian.
template <class T>
uint64_t read(const unsigned char* bytes) {
  static_assert(std::endian::native == std::endian::little);
  T number;
  memcpy(&number, bytes, sizeof number);
  return number;
}

}  // namespace

uint64_t Checksum::round(uint64_t lane, uint64_t input) { return std::rotl(lane + input * kPrime2, 31) * kPrime1; }

void Checksum::add_stripe(const unsigned char* stripe) {
  for (int i = 0; i < 4; ++i) lanes_[i] = round(lanes_[i], read<uint64_t>(stripe + 8 * i));
}

void Checksum::add(const void* data, size_t bytes) {
  if (!bytes) return;  // The data of an empty file may be null, and memcpy accepts no null pointer even for 0 bytes.
  auto* next = static_cast<const unsigned char*>(data);
  const auto* end = next + bytes;
  const size_t waiting = bytes_ % sizeof waiting_;
  bytes_ += bytes;
  if (waiting) {
    const size_t taken = std::min(bytes, sizeof waiting_ - waiting);
    memcpy(waiting_ + waiting, next, taken);
    next += taken;
    if (waiting + taken < sizeof waiting_) return;
    add_stripe(waiting_);
  }
  for (; size_t(end - next) >= sizeof waiting_; next += sizeof waiting_) add_stripe(next);
  memcpy(waiting_, next, size_t(end - next));
}

uint64_t Checksum::value() const {
  uint64_t hash = kPrime5;
  if (bytes_ >= sizeof waiting_) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += bytes_;
  const unsigned char *next = waiting_, *end = waiting_ + bytes_ % sizeof waiting_;
  for (; end - next >= 8; next += 8) hash = std::rotl(hash ^ round(0, read<uint64_t>(next)), 27) * kPrime1 + kPrime4;
  for (; end - next >= 4; next += 4) hash = std::rotl(hash ^ read<uint32_t>(next) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; next < end; ++next) hash = std::rotl(hash ^ *next * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

std::string Checksum::text() const { return format("%016llx", (unsigned long long)value()); }
