// The rates that limit a training on this device, measured: a copy, a product, a product in FP8, a copy to the host,
// and between ranks a gather; and what a GPU says of its clocks and its power.
#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include "dev/kernels/sizes.h"
#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/comm/communicator.h"
#include "llmc/device/device.h"
#include "llmc/device/rates.h"
#include "llmc/kernels/initialize.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/quantize.h"

struct MeasuredRates {
  ReplayRates ceilings;  // attention's are the product's
  std::string text;      // a line each
};

// "1755 MHz, 2619 MHz, 690.1 W, 61": of a GPU its clocks, power and temperature as the driver says; else "".
inline std::string gpu_state(const Device& device) {
  if (!device.info().gpu) return "";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen("nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader 2>/dev/null",
            "r"),
      pclose);
  char line[200] = "";
  if (!pipe || !fgets(line, sizeof line, pipe.get())) return "nvidia-smi says nothing";
  std::string text = line;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Seconds of a call, after as many as last `wanted`: the fastest of five means, each of a fifth of that time. A limit
// is what the device can do, not what it did while it computed something else.
inline double seconds_of(Stream& stream, double wanted, const std::function<void()>& enqueue) {
  const auto time = [&](int calls) {
    stream.synchronize();
    const double begin = seconds();
    for (int i = 0; i < calls; ++i) enqueue();
    stream.synchronize();
    return (seconds() - begin) / calls;
  };
  time(1);
  const int calls = std::clamp(int(wanted / 5 / std::max(time(1), 1e-7)), 1, 2000);
  time(5 * calls);  // soaked
  double fastest = time(calls);
  for (int i = 1; i < 5; ++i) fastest = std::min(fastest, time(calls));
  return fastest;
}

// FLOPs a second of products out (n, n) = x xᵀ, x (n, k) of random numbers: zeros would run faster.
struct ProductRates {
  double high_precision = 0, fp8 = 0;  // in the training's type; in FP8, 0 if it was not asked for
};
inline ProductRates product_rates(Stream& stream, DType dtype, bool tf32, bool fp8, int n, int k, double wanted) {
  Device& device = stream.device();
  const size_t size = size_t(n) * size_t(k);
  const DeviceMemory workspace(device, Matmul::workspace_bytes(device.info())), numbers(device, size * sizeof(float)),
      rounded(device, size * sizeof(bf16)), bytes(device, size), scale(device, 2 * Matmul::kAlignment),
      product(device, size_t(n) * size_t(n) * sizeof(float));
  Matmul matmul(stream, workspace.data(), {tf32});
  float* x = reinterpret_cast<float*>(numbers.data());
  bf16* x16 = reinterpret_cast<bf16*>(rounded.data());
  initialize_normal(stream, Tensor(x, {n, k}), philox_key("product", 1), 0, 1.0f);
  cast(stream, Tensor(x16, {n, k}), Tensor(x, {n, k}));
  ProductRates rates;
  const double flops = 2.0 * n * n * k;
  const Tensor in = dtype == DType::bf16 ? Tensor(x16, {n, k}) : Tensor(x, {n, k});
  const Tensor out(product.data(), in.type, {n, n}), out16(product.data(), DType::bf16, {n, n});
  rates.high_precision = flops / seconds_of(stream, wanted, [&] { matmul.forward(out, in, in); });
  if (!fp8) return rates;
  Quantization wanted_bytes;
  QuantizedTensor& q = wanted_bytes.rowwise;
  q.data = reinterpret_cast<uint8_t*>(bytes.data()), q.scale_inv = reinterpret_cast<float*>(scale.data());
  q.rows = n, q.columns = k;
  wanted_bytes.amax = q.scale_inv + Matmul::kAlignment / sizeof(float);
  clear(stream, wanted_bytes.amax, 1);
  quantize_amax(stream, Tensor(x16, {n, k}), wanted_bytes);
  quantize(stream, Tensor(x16, {n, k}), wanted_bytes);
  rates.fp8 = flops / seconds_of(stream, wanted, [&] { matmul.multiply("product", out16, q, q, false, true); });
  return rates;
}

// Bytes a second: read plus written by a copy within the device; to pinned memory; sent by a gather of all ranks, 0 of
// one.
struct CopyRates {
  double within = 0, to_host = 0, to_ranks = 0;
};
inline CopyRates copy_rates(Stream& stream, Communicator& communicator, size_t bytes, double wanted) {
  Device& device = stream.device();
  const DeviceMemory from(device, bytes), to(device, bytes);
  const size_t pinned = std::min(bytes, size_t(256) << 20);
  const PinnedMemory host(device, pinned);
  fill_bytes(stream, from.data(), 1, bytes);
  const auto copy_to = [&](std::byte* there, size_t count) {
    return double(count) / seconds_of(stream, wanted, [&] { copy(stream, there, from.data(), count); });
  };
  CopyRates rates{2 * copy_to(to.data(), bytes), copy_to(host.data(), pinned), 0};
  const size_t ranks = size_t(communicator.size()), each = bytes / ranks / 256 * 256;
  if (ranks == 1) return rates;
  const auto gather = [&] {
    communicator.all_gather(stream, to.data(), to.data() + size_t(communicator.rank()) * each, each);
  };
  constexpr int kTimes = 5;  // as many on all ranks
  gather();
  communicator.wait_for(stream);
  const double begin = seconds();
  for (int i = 0; i < kTimes; ++i) gather();
  communicator.wait_for(stream);
  rates.to_ranks = double(each * (ranks - 1)) * kTimes / (seconds() - begin);
  return rates;
}

inline MeasuredRates measure_rates(Device& device, Communicator& communicator, DType dtype, bool tf32, bool fp8) {
  const bool large = device.info().gpu && !few_sizes();
  const double wanted = large ? 0.5 : 0.1;
  const size_t copied = size_t(large ? 2048 : 128) << 20;
  const int n = large ? 8192 : 2048, k = large ? 8192 : 256;
  Stream stream(device, "rates");
  const CopyRates copies = copy_rates(stream, communicator, copied, wanted);
  const ProductRates products = product_rates(stream, dtype, tf32, fp8, n, k, wanted);
  ReplayRates c{};
  c.name = "measured";
  c.set_all(products.high_precision, fp8 ? products.fp8 : products.high_precision, "measured: products, now");
  c.memory_bytes = copies.within, c.host_bytes = copies.to_host;
  c.kernel_seconds = c.node_hop_seconds = c.network_hop_seconds = 0;
  if (copies.to_ranks > 0) c.node_bytes = c.network_bytes = copies.to_ranks;
  std::string text = format("measured now: copy of %zu MiB %.1f GB/s read plus written, to the host %.1f GB/s",
                            copied >> 20, copies.within * 1e-9, copies.to_host * 1e-9);
  if (copies.to_ranks > 0) text += format(", gather %.2f GB/s sent by a rank", copies.to_ranks * 1e-9);
  text += format("\nmeasured now: product of %d x %d x %d in %s %.3f TFLOP/s", n, n, k, dtype_name(dtype),
                 products.high_precision * 1e-12);
  if (fp8) text += format(", in FP8 %.3f", products.fp8 * 1e-12);
  const std::string state = gpu_state(device);
  if (!state.empty()) text += "\nGPU, after them: " + state;
  return {c, text};
}
