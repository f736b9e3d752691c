#include "llmc/device/known_devices.h"

#include "llmc/base/error.h"

namespace {

// Dense bf16 tensor-core peaks (operations per second) and memory bandwidths (bytes per second) from the vendor's data
// sheets.
struct KnownRate {
  const char* name;  // a part of the device's name; the first row that matches counts
  double bf16_flops, memory_bytes_per_second;
};
constexpr KnownRate kKnownRates[] = {
    {"GH200", 989e12, 4.0e12},           {"H200 NVL", 835e12, 4.8e12},        {"H200", 989e12, 4.8e12},
    {"H100 PCIe", 756e12, 2.0e12},       {"H100 NVL", 835e12, 3.9e12},        {"H100", 989e12, 3.35e12},
    {"H800", 989e12, 3.35e12},           {"GB200", 2500e12, 8.0e12},          {"B200", 2250e12, 8.0e12},
    {"A100-SXM4-80GB", 312e12, 2.04e12}, {"A100 80GB PCIe", 312e12, 1.94e12}, {"A100", 312e12, 1.55e12},
    {"L40S", 362e12, 0.864e12},          {"RTX 4090", 165e12, 1.008e12},
};

struct Modelled {
  const char *name, *whole_name;
  int compute_capability, multiprocessors;
  double memory_gib;
  size_t shared_bytes_per_block;
};
constexpr Modelled kModelled[] = {
    {"A100", "NVIDIA A100-SXM4-80GB", 80, 108, 79.2, 163 << 10},
    {"H100", "NVIDIA H100 80GB HBM3", 90, 132, 79.1, 227 << 10},
    {"H200", "NVIDIA H200", 90, 132, 139.8, 227 << 10},
    {"B200", "NVIDIA B200", 100, 148, 178.4, 227 << 10},
};

}  // namespace

void set_known_rates(DeviceInfo& info) {
  for (const KnownRate& rate : kKnownRates) {
    if (info.name.find(rate.name) == std::string::npos) continue;
    info.bf16_flops = rate.bf16_flops;
    info.memory_bytes_per_second = rate.memory_bytes_per_second;
    return;
  }
}

DeviceInfo modelled_device(const std::string& name) {
  if (name == "auto") return modelled_device("H100");
  std::string known;
  for (const Modelled& m : kModelled) {
    known += std::string(" ") + m.name;
    if (name != m.name) continue;
    DeviceInfo info;
    info.name = m.whole_name;
    info.gpu = info.wide_rows = true;
    info.compute_capability = m.compute_capability;
    info.multiprocessors = m.multiprocessors;
    info.memory_bytes = info.free_bytes = size_t(m.memory_gib * (1 << 30));
    info.shared_bytes_per_block = m.shared_bytes_per_block;
    set_known_rates(info);
    return info;
  }
  fail(
      "--gpu %s: no GPU of this name is known\n  choose one of:%s; for one with another memory its kind and "
      "--memory-limit, such as --gpu A100 --memory-limit 39GiB",
      name.c_str(), known.c_str());
}
