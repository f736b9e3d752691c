// The inputs of checks and benchmarks: random numbers, and arrays in device memory that the host can read and write.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/device.h"
#include "llmc/device/number.h"
#include "llmc/device/tensor.h"

// Random numbers with the same bits on every machine (the standard's distributions are not portable).
class Generator {
 public:
  explicit Generator(uint64_t seed) : engine_(seed) {}
  double uniform() { return double(engine_() >> 11) * 0x1p-53; }
  int integer(int low, int high) { return low + int(uniform() * (high - low + 1)); }  // both included
  double normal() {
    const double u = 1 - uniform(), v = uniform();
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
  }

 private:
  std::mt19937_64 engine_;
};

// Device memory with a host's view. Values enter rounded to T; the references use those rounded values. 64 poisoned
// elements before and after are checked to be untouched.
template <class T>
class Array {
 public:
  // Poisoned: NaN until somebody writes.
  Array(Stream& stream, size_t count)
      : stream_(&stream), count_(count), memory_(stream.device(), (count + 2 * kGuard) * sizeof(T)) {
    std::vector<std::byte> poison(memory_.size(), std::byte{0xff});
    copy(stream, memory_.data(), poison.data(), poison.size());
    stream.synchronize();
  }
  Array(Stream& stream, const std::vector<T>& values) : Array(stream, values.size()) { upload(values); }

  T* data() const { return reinterpret_cast<T*>(memory_.data()) + kGuard; }
  size_t size() const { return count_; }
  Tensor tensor() const { return Tensor(data(), {int64_t(count_)}); }
  // Some or all of it, from the start, in this shape.
  Tensor tensor(TensorShape shape) const { return tensor().first(shape); }
  void upload(const std::vector<T>& values) {
    REQUIRE(values.size() == count_, "%zu values for an array of %zu", values.size(), count_);
    copy(*stream_, data(), values.data(), count_);
    stream_->synchronize();
  }
  // Throws if a guard element was written.
  std::vector<T> download() const {
    std::vector<T> all(count_ + 2 * kGuard);
    copy(*stream_, all.data(), reinterpret_cast<const T*>(memory_.data()), all.size());
    stream_->synchronize();
    const auto* bytes = reinterpret_cast<const unsigned char*>(all.data());
    for (size_t i = 0; i < kGuard * sizeof(T); ++i)
      REQUIRE(bytes[i] == 0xff && bytes[(kGuard + count_) * sizeof(T) + i] == 0xff,
              "written outside of an array of %zu elements of %zu bytes", count_, sizeof(T));
    return std::vector<T>(all.begin() + kGuard, all.end() - kGuard);
  }

 private:
  static constexpr size_t kGuard = 64;
  Stream* stream_;
  size_t count_;
  DeviceMemory memory_;
};

inline double to_double(float x) { return double(x); }
inline double to_double(double x) { return x; }
inline double to_double(int x) { return x; }
inline double to_double(bf16 x) { return double(to_float(x)); }

// The numbers rounded to T, and those of any type as fp32.
template <class T>
std::vector<T> as(const std::vector<float>& values) {
  std::vector<T> result;
  for (const float x : values) result.push_back(from_float<T>(x));
  return result;
}
template <class T>
std::vector<float> as_floats(const std::vector<T>& values) {
  std::vector<float> result;
  for (const T x : values) result.push_back(to_float(x));
  return result;
}

template <class T>
std::vector<double> to_doubles(const std::vector<T>& values) {
  std::vector<double> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = to_double(values[i]);
  return result;
}

template <class T>
std::vector<T> random_normal(Generator& generator, size_t count, double scale = 1, double mean = 0) {
  std::vector<T> values(count);
  for (T& value : values) value = from_float<T>(float(mean + scale * generator.normal()));
  return values;
}

// The spacing of T's numbers around 1: half of it is the largest relative error of one rounding.
template <class T>
constexpr double epsilon_of() {
  return sizeof(T) == 2 ? 0x1p-7 : 0x1p-23;
}
