// Times kernels, and in the same run the two rates that limit them on this device: a large copy and a large product.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dev/kernels/array.h"
#include "dev/kernels/sizes.h"
#include "llmc/config/config.h"
#include "llmc/kernels/matmul.h"

// Standard normal numbers, 65536 different ones over and over: drawing each by itself would take longer than what is
// measured.
template <class T>
std::vector<T> repeated_normal(size_t count) {
  Generator generator(1);
  std::vector<T> values = random_normal<T>(generator, std::min(count, size_t(1) << 16));
  for (size_t filled = values.size(); filled < count; filled = values.size()) {
    values.resize(std::min(count, 2 * filled));
    std::copy_n(values.begin(), values.size() - filled, values.begin() + std::ptrdiff_t(filled));
  }
  return values;
}

class Bencher {
 public:
  explicit Bencher(Device& device) : stream(device, "compute") {}
  Stream stream;

  bool gpu() const { return stream.device().info().gpu; }
  bool gpu_sizes() const { return gpu() && !few_sizes(); }  // the sizes are those of a GPU

  // The models whose shapes are timed, each with as many tokens as this device takes in a reasonable time.
  struct Workload {
    ModelConfig model;
    int N;  // tokens
  };
  std::vector<Workload> workloads() const {
    ModelConfig small = ModelConfig::preset("llama3.2-1b");
    const ModelConfig large = ModelConfig::preset("llama3-8b");
    if (few_sizes()) {
      small.C = 256, small.NH = 4, small.NKV = 1, small.FF = 512, small.V = 4096;
      return {{small, 128}};
    }
    if (gpu()) return {{small, 8192}, {large, 8192}};
    return {{ModelConfig::preset("tiny"), 2048}, {small, 128}, {large, 64}};
  }

  // Times `enqueue` (median of several rounds, each of enough calls to last some milliseconds) and prints one line:
  // microseconds, GB/s of `bytes` (read plus written), GFLOP/s of `flops`, and the fraction of the rate that limits it:
  // the time that this device's copy needs for the bytes, or its product of Ts for the FLOPs, whichever is longer. More
  // than 100% of the copy means that the data stay in a cache.
  template <class T = float>
  void time(const std::string& name, double bytes, double flops, const std::function<void()>& enqueue) {
    const double copy = bytes > 0 ? bytes / copy_rate() : 0, product = flops > 0 ? flops / product_rate<T>() : 0;
    const double seconds = seconds_of(enqueue);
    printf("%-56s %10.1f us", name.c_str(), seconds * 1e6);
    if (bytes > 0) printf("  %8.2f GB/s", bytes / seconds * 1e-9);
    if (flops > 0) printf("  %9.2f GFLOP/s", flops / seconds * 1e-9);
    if (bytes > 0 || flops > 0)
      printf("  %5.1f%% of the %s", 100 * std::max(copy, product) / seconds, copy > product ? "copy" : "product");
    printf("\n");
    fflush(stdout);
  }

 private:
  double seconds_of(const std::function<void()>& enqueue) {
    const double first = seconds_of(1, enqueue);  // a kernel's first call may load it
    if (few_sizes()) return first;
    const int calls = first > 0.1 ? 1 : std::max(1, int(5e-3 / std::max(1e-7, seconds_of(1, enqueue))));
    std::vector<double> rounds;
    for (int r = 0; r < (first > 0.1 ? 3 : 7); ++r) rounds.push_back(seconds_of(calls, enqueue) / calls);
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
  }
  double seconds_of(int calls, const std::function<void()>& enqueue) {
    stream.synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) enqueue();
    stream.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // Bytes a second of a copy within the device, read plus written; far beyond the caches.
  double copy_rate() {
    double& rate = rates_["copy"];
    if (rate > 0) return rate;
    const size_t bytes = gpu_sizes() ? size_t(2) << 30 : size_t(1) << 27;
    const DeviceMemory from(stream.device(), bytes), to(stream.device(), bytes);
    rate = 2 * double(bytes) / seconds_of([&] { copy(stream, to.data(), from.data(), bytes); });
    const double sheet = stream.device().info().memory_bytes_per_second;
    printf("measured: a copy of %zu MiB runs at %.1f GB/s%s\n", bytes >> 20, rate * 1e-9,
           sheet > 0 ? format(", %.0f%% of the data sheet's", 100 * rate / sheet).c_str() : "");
    return rate;
  }

  // FLOPs a second of a large product of Ts, of random numbers: zeros would run faster.
  template <class T>
  double product_rate() {
    double& rate = rates_[dtype_name(kDType<T>)];
    if (rate > 0) return rate;
    const int n = gpu_sizes() ? 8192 : 2048, k = gpu_sizes() ? 8192 : 256;
    const DeviceMemory workspace(stream.device(), Matmul::workspace_bytes(stream.device().info()));
    Matmul matmul(stream, workspace.data(), {});
    const size_t size = size_t(n) * size_t(k);
    DeviceMemory x(stream.device(), size * sizeof(T)), w(stream.device(), size * sizeof(T)),
        y(stream.device(), size_t(n) * size_t(n) * sizeof(T));
    const auto typed = [](DeviceMemory& memory) { return reinterpret_cast<T*>(memory.data()); };
    const std::vector<T> values = repeated_normal<T>(size);
    copy(stream, typed(x), values.data(), size);
    copy(stream, typed(w), values.data(), size);
    const Tensor in(typed(x), {n, k}), weight(typed(w), {n, k}), out(typed(y), {n, n});
    rate = 2 * double(n) * n * k / seconds_of([&] { matmul.forward(out, in, weight); });
    const double sheet = sizeof(T) == 2 ? stream.device().info().bf16_flops : 0;
    printf("measured: a product of %d x %d x %d in %s runs at %.1f GFLOP/s%s\n", n, n, k, dtype_name(kDType<T>),
           rate * 1e-9, sheet > 0 ? format(", %.0f%% of the data sheet's", 100 * rate / sheet).c_str() : "");
    return rate;
  }

  std::map<std::string, double> rates_;
};
