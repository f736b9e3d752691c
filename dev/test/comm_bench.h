// The numbers that the ranks of comm.cpp hold, and memory whose edges are guarded.
#pragma once

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/communicator.h"
#include "llmc/device/device.h"

struct Bench {
  const Ranks& ranks;
  Device device;
  std::unique_ptr<Communicator> communicator;
  Stream compute, communication;
  int checks = 0;

  Bench(const Ranks& ranks, double timeout_seconds = 60)
      : ranks(ranks),
        device(ranks.local_rank, backend(ranks)),
        communicator(make_communicator(device, ranks, rendezvous_file(), {.comm = timeout_seconds})),
        compute(device, "compute"),
        communication(device, "communication") {}

  void check(bool ok, const std::string& what) {
    REQUIRE(ok, "check failed: %s", what.c_str());
    ++checks;
  }

  void says(const std::string& message, const char* part) {
    check(message.find(part) != std::string::npos, format("\"%s\" says \"%s\"", message.c_str(), part));
  }

  // Each rank executes its streams in another random order, if in a random one.
  static CpuBackend backend(const Ranks& ranks) {
    CpuBackend cpu = CpuBackend::from_environment(ranks.local_size);
    cpu.seed += (unsigned long)ranks.rank;
    return cpu;
  }
  static std::string rendezvous_file() {
    const char* file = getenv("LLMC_TEST_RENDEZVOUS");
    return file ? file : "";
  }
};

// The number that rank r holds at i: signs and magnitudes such that the order of a sum shows in its bits.
inline uint64_t hash(int rank, size_t i) {
  uint64_t x = (uint64_t(rank) + 1) * 0x9E3779B97F4A7C15ull + uint64_t(i) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 31, x *= 0x94D049BB133111EBull, x ^= x >> 29;
  return x;
}
template <class T>
T value(int rank, size_t i) {
  const uint64_t h = hash(rank, i);
  if constexpr (std::is_same_v<T, bf16>) return from_float<bf16>(value<float>(rank, i));
  else if constexpr (std::is_integral_v<T>) return T(h >> 8);
  else
    return T(std::bit_cast<double>((h & 1) << 63 | (1023 - 8 + (h >> 3 & 15)) << 52 | h >> 12));  // +-[1, 2) 2^[-8, 7]
}

template <class T>
std::vector<T> values(int rank, size_t count, size_t first = 0) {
  std::vector<T> v(count);
  for (size_t i = 0; i < count; ++i) v[i] = value<T>(rank, first + i);
  return v;
}

// ((x0 + x1) + x2) + ..., elements first .. first+count-1; of bf16 in fp32, rounded once.
template <class T>
std::vector<T> sum_of_ranks(int size, size_t count, size_t first = 0, bool reverse = false) {
  if constexpr (std::is_same_v<T, bf16>) {
    std::vector<bf16> sum(count);
    for (size_t i = 0; i < count; ++i) {
      float x = 0;
      for (int r = 0; r < size; ++r) x += to_float(value<bf16>(r, first + i));
      sum[i] = from_float<bf16>(x);
    }
    return sum;
  } else {
    std::vector<T> sum = values<T>(reverse ? size - 1 : 0, count, first);
    for (int r = 1; r < size; ++r)
      for (size_t i = 0; i < count; ++i) sum[i] = T(sum[i] + value<T>(reverse ? size - 1 - r : r, first + i));
    return sum;
  }
}

inline double as_double(bf16 x) { return to_float(x); }
template <class T>
double as_double(T x) {
  return double(x);
}

// Device memory between two guards.
template <class T>
class Buffer {
 public:
  Buffer(Bench& b, size_t count) : b_(b), count_(count), memory_(b.device, (count + 2 * kGuard) * sizeof(T)) {
    fill_bytes(b.compute, memory_.data(), 0xff, memory_.size());
    b.compute.synchronize();
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()) + kGuard; }
  size_t size() const { return count_; }
  Tensor tensor() const { return Tensor(data(), {count_}); }
  Tensor part(size_t first, size_t count) const { return tensor().elements(first, count); }
  void put(const std::vector<T>& v, size_t at = 0) {
    copy(b_.compute, data() + at, v.data(), v.size());
    b_.compute.synchronize();
  }
  std::vector<T> get() const {
    std::vector<T> all(count_ + 2 * kGuard);
    copy(b_.compute, all.data(), reinterpret_cast<const T*>(memory_.data()), all.size());
    b_.compute.synchronize();
    const auto* bytes = reinterpret_cast<const unsigned char*>(all.data());
    for (size_t i = 0; i < kGuard * sizeof(T); ++i)
      REQUIRE(bytes[i] == 0xff && bytes[(kGuard + count_) * sizeof(T) + i] == 0xff, "written outside of the buffer");
    return std::vector<T>(all.begin() + kGuard, all.end() - kGuard);
  }

 private:
  static constexpr size_t kGuard = 32;
  Bench& b_;
  size_t count_;
  DeviceMemory memory_;
};

// The same bits; on a GPU, whose sums are in another order, to the rounding of as many additions as there are ranks of
// numbers below 2^8.
template <class T>
bool agree(const Bench& b, const std::vector<T>& got, const std::vector<T>& want) {
  if (got.size() != want.size()) return false;
  if (!b.device.info().gpu || std::is_integral_v<T>)
    return got.empty() || memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0;
  const double epsilon = sizeof(T) == 2 ? 0x1p-7 : sizeof(T) == 4 ? 0x1p-23 : 0x1p-52;
  const double limit = b.ranks.size * b.ranks.size * 256.0 * epsilon;
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::fabs(as_double(got[i]) - as_double(want[i])) <= limit)) return false;
  return true;
}
