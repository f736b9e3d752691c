// The harness of the kernel programs: `build/<world>/kernels/<noun> check` compares kernels with plain references in
// higher precision, `bench` times them with bytes, FLOPs and rates. The same inputs in both worlds.
//
// A file defines `void check(Checker&)` and `void bench(Bencher&)`.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/device.h"
#include "llmc/device/number.h"

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

class Checker {
 public:
  explicit Checker(Device& device) : stream(device, "compute") {}
  Stream stream;

  // Every |got - want| <= relative * |want| + absolute; `shape` names the coordinates of the worst one in the line that
  // is printed. The tolerance's reason stands beside each call.
  template <class T>
  void close(const std::string& name, const std::vector<T>& got, const std::vector<double>& want,
             const std::vector<int>& shape, double relative, double absolute) {
    size_t worst = 0;
    double worst_ratio = -1;
    if (got.size() != want.size()) return failed(name, format("%zu values instead of %zu", got.size(), want.size()));
    for (size_t i = 0; i < got.size(); ++i) {
      const double limit = relative * std::fabs(want[i]) + absolute;
      const double error = std::fabs(to_double(got[i]) - want[i]);
      double ratio = error <= limit ? (limit > 0 ? error / limit : 0) : std::max(error / limit, 1.0000001);
      if (!(error <= limit) && !(ratio > 1)) ratio = INFINITY;  // NaN
      if (ratio > worst_ratio) worst_ratio = ratio, worst = i;
    }
    if (got.empty()) return failed(name, "nothing to compare");
    const double limit = relative * std::fabs(want[worst]) + absolute;
    report(name + coordinates(worst, shape), worst_ratio <= 1,
           format("got %.9g want %.9g (error %.2g, limit %.2g)", to_double(got[worst]), want[worst],
                  std::fabs(to_double(got[worst]) - want[worst]), limit));
  }

  // The same bits.
  template <class T>
  void same_bits(const std::string& name, const std::vector<T>& a, const std::vector<T>& b) {
    size_t different = 0, first = 0;
    const size_t count = std::min(a.size(), b.size());
    for (size_t i = count; i-- > 0;)
      if (std::memcmp(&a[i], &b[i], sizeof(T))) ++different, first = i;
    report(name, a.size() == b.size() && different == 0,
           different ? format("%zu of %zu differ, the first at %zu: %.9g and %.9g", different, count, first,
                              to_double(a[first]), to_double(b[first]))
                     : format("%zu equal bit for bit", count));
  }

  void that(const std::string& name, bool ok, const std::string& details) { report(name, ok, details); }

  // `call` must throw an Error whose text contains `expected`.
  void refused(const std::string& name, const std::string& expected, const std::function<void()>& call) {
    std::string message = "nothing was thrown";
    try {
      call();
      stream.synchronize();
    } catch (const Error& error) {
      message = error.what();
    }
    report(name, message.find(expected) != std::string::npos, message);
  }

  int passed() const { return passed_; }
  int failures() const { return failures_; }

 private:
  void failed(const std::string& name, const std::string& details) { report(name, false, details); }
  void report(const std::string& name, bool ok, const std::string& details) {
    ++(ok ? passed_ : failures_);
    printf("%s %s: %s\n", ok ? "ok  " : "FAIL", name.c_str(), details.c_str());
  }
  static std::string coordinates(size_t index, const std::vector<int>& shape) {
    std::string text;
    for (size_t d = shape.size(); d-- > 0;) {
      text = std::to_string(index % size_t(shape[d])) + (text.empty() ? "" : ",") + text;
      index /= size_t(shape[d]);
    }
    return "[" + text + "]";
  }

  int passed_ = 0, failures_ = 0;
};

class Bencher {
 public:
  explicit Bencher(Device& device) : stream(device, "compute") {}
  Stream stream;

  // Times `enqueue` (median of several rounds, each of enough calls to last some milliseconds) and prints one line:
  // microseconds, GB/s of `bytes` (read plus written), GFLOP/s of `flops`; fractions of the device's peaks if known.
  void time(const std::string& name, double bytes, double flops, const std::function<void()>& enqueue) {
    const int calls = std::max(1, int(5e-3 / std::max(1e-7, seconds_of(1, enqueue))));
    std::vector<double> rounds;
    for (int r = 0; r < 7; ++r) rounds.push_back(seconds_of(calls, enqueue) / calls);
    std::sort(rounds.begin(), rounds.end());
    const double seconds = rounds[rounds.size() / 2];
    const DeviceInfo& info = stream.device().info();
    printf("%-52s %10.1f us", name.c_str(), seconds * 1e6);
    if (bytes > 0) printf("  %8.2f GB/s", bytes / seconds * 1e-9);
    if (bytes > 0 && info.memory_bytes_per_second > 0)
      printf(" (%4.1f%% of the data sheet's)", 100 * bytes / seconds / info.memory_bytes_per_second);
    if (flops > 0) printf("  %9.2f GFLOP/s", flops / seconds * 1e-9);
    if (flops > 0 && info.bf16_flops > 0) printf(" (%4.1f%% of bf16 peak)", 100 * flops / seconds / info.bf16_flops);
    printf("\n");
  }

 private:
  double seconds_of(int calls, const std::function<void()>& enqueue) {
    stream.synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) enqueue();
    stream.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

void check(Checker& checker);
void bench(Bencher& bencher);

int main(int argc, char** argv) try {
  const std::string what = argc > 1 ? argv[1] : "";
  REQUIRE(argc == 2 && (what == "check" || what == "bench"), "usage: %s check|bench", argv[0]);
  Device device(0);
  printf("%s on %s\n", argv[0], device.info().name.c_str());
  if (what == "bench") {
    Bencher bencher(device);
    bench(bencher);
    return 0;
  }
  Checker checker(device);
  check(checker);
  printf("%d passed, %d failed\n", checker.passed(), checker.failures());
  return checker.failures() || !checker.passed();
} catch (const Error& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
