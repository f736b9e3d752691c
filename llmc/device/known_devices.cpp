#include "llmc/device/known_devices.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace {

// Dense bf16 tensor-core peaks with fp32 sums (operations per second), memory bandwidths, and those of PCIe in each
// direction (bytes per second), from the vendor's data sheets. A GPU without the last has NVLink to its host, or its
// bus is not known.
constexpr double kPcie4 = 31.5e9, kPcie5 = 63e9;  // 16 lanes of generation 4 (or 8 of generation 5); 16 of 5
struct KnownRate {
  // A part of the device's name; the first row that matches counts. A name with RTX must be the end of the device's,
  // because RTX 4080 SUPER and RTX 4090 Laptop GPU are others.
  const char* name;
  double bf16_flops, memory_bytes_per_second, bus_bytes_per_second = 0;
};
constexpr KnownRate kKnownRates[] = {
    {"GH200", 989e12, 4.0e12},
    {"H200 NVL", 835e12, 4.8e12, kPcie5},
    {"H200", 989e12, 4.8e12, kPcie5},
    {"H100 PCIe", 756e12, 2.0e12, kPcie5},
    {"H100 NVL", 835e12, 3.9e12, kPcie5},
    {"H100", 989e12, 3.35e12, kPcie5},
    {"H800", 989e12, 3.35e12, kPcie5},
    {"GB200", 2500e12, 8.0e12},
    {"B200", 2250e12, 8.0e12, kPcie5},
    {"A100-SXM4-80GB", 312e12, 2.04e12, kPcie4},
    {"A100 80GB PCIe", 312e12, 1.94e12, kPcie4},
    {"A100", 312e12, 1.55e12, kPcie4},
    {"A10G", 70e12, 0.6e12, kPcie4},
    {"RTX A6000", 154.8e12, 0.768e12, kPcie4},
    {"L40S", 362e12, 0.864e12, kPcie4},
    {"RTX 3090", 71e12, 0.936e12, kPcie4},
    {"RTX 4080", 97.5e12, 0.717e12, kPcie4},
    {"RTX 4090", 165e12, 1.008e12, kPcie4},
    {"RTX 5060 Ti", 47.4e12, 0.448e12, kPcie4},
    {"RTX 5070 Ti", 87.9e12, 0.896e12, kPcie5},
    {"RTX 5080", 112.6e12, 0.96e12, kPcie5},
    {"RTX 5090", 209.5e12, 1.792e12, kPcie5},
    {"RTX PRO 6000 Blackwell Workstation Edition", 503.8e12, 1.792e12, kPcie5},
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
    {"A10G", "NVIDIA A10G", 86, 80, 22.0, 99 << 10},
    {"A6000", "NVIDIA RTX A6000", 86, 84, 47.4, 99 << 10},
    {"L40S", "NVIDIA L40S", 89, 142, 44.4, 99 << 10},
    {"RTX3090", "NVIDIA GeForce RTX 3090", 86, 82, 23.6, 99 << 10},
    {"RTX4080", "NVIDIA GeForce RTX 4080", 89, 76, 15.6, 99 << 10},
    {"RTX4090", "NVIDIA GeForce RTX 4090", 89, 128, 23.5, 99 << 10},
    {"RTX5060Ti", "NVIDIA GeForce RTX 5060 Ti", 120, 36, 15.4, 99 << 10},
    {"RTX5070Ti", "NVIDIA GeForce RTX 5070 Ti", 120, 70, 15.4, 99 << 10},
    {"RTX5080", "NVIDIA GeForce RTX 5080", 120, 84, 15.4, 99 << 10},
    {"RTX5090", "NVIDIA GeForce RTX 5090", 120, 170, 31.3, 99 << 10},
    {"RTXPRO6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 120, 188, 94.9, 99 << 10},
};

// "NVIDIA GeForce RTX 5060 Ti" → "rtx5060ti".
std::string plain_name(const std::string& name) {
  std::string plain;
  for (const char c : lower_case(name))
    if (c != ' ' && c != '-' && c != '_') plain += c;
  for (const char* const brand : {"nvidia", "geforce"})
    if (plain.starts_with(brand)) plain.erase(0, std::string_view(brand).size());
  return plain;
}

}  // namespace

void set_known_rates(DeviceInfo& info) {
  for (const KnownRate& rate : kKnownRates) {
    const bool at_end = std::string_view(rate.name).starts_with("RTX");
    if (at_end ? !info.name.ends_with(rate.name) : info.name.find(rate.name) == std::string::npos) continue;
    info.bf16_flops = rate.bf16_flops;
    info.memory_bytes_per_second = rate.memory_bytes_per_second;
    info.bus_bytes_per_second = rate.bus_bytes_per_second;
    return;
  }
}

DeviceInfo modelled_device(const std::string& name) {
  if (name == "auto") return modelled_device("H100");
  const std::string wanted = plain_name(name);
  std::vector<std::string> names;  // plain ones
  for (const Modelled& m : kModelled) {
    names.push_back(plain_name(m.name));
    if (wanted != names.back() && wanted != plain_name(m.whole_name)) continue;
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
  std::string known, near = nearest(wanted, names);
  for (const Modelled& m : kModelled) {
    known += std::string(" ") + m.name;
    if (near == plain_name(m.name)) near = m.name;
  }
  fail(
      "--gpu %s: no GPU of this name is known%s\n  choose one of:%s; for one with another memory its kind and "
      "--memory-limit, such as --gpu A100 --memory-limit 39GiB",
      name.c_str(), near.empty() ? "" : (": did you mean " + near + "?").c_str(), known.c_str());
}
