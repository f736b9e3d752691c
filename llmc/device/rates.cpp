#include "llmc/device/rates.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace {

// FLOPs per second of kernels as a fraction of the device's bf16 peak in its data sheet, so that one row serves all
// GPUs of an architecture: what an H200 showed is assumed of an H100, too. The first row that matches counts. A figure
// that was measured with this program has a row for the GPU's compute capability before the general one, or replaces
// it, with source "measured: …" and confirmed = true.
struct Row {
  int compute_capability;  // 0: any
  RateClass of;
  int head_size;  // 0: any
  double part;
  const char* source;
  bool confirmed = false;
};
constexpr double kHopper = 989, kBlackwell = 2250;  // TFLOP/s in bf16: H100 and H200 (SXM); B200
// These follow from LLMQ's 7B on an RTX 5060 Ti and its 14B on an RTX 4090, which compute the blocks' forward twice.
constexpr const char* kOfCards =
    "assumption: bf16 85% of the data sheet and FP8 80%; published steps imply more in bf16 on an RTX 4090 and an RTX "
    "5060 Ti, which clock higher";
using enum RateClass;
constexpr Row kRows[] = {
    {90, product_bf16, 0, 690 / kHopper, "measured: 675 to 705 in steps of 1B and 8B on an H200", true},
    {89, product_bf16, 0, 0.85, kOfCards},
    {120, product_bf16, 0, 0.85, kOfCards},
    {0, product_bf16, 0, 0.70, "assumption: 70% of the data sheet, as on an H200"},
    {0, product_tf32, 0, 0.35, "assumption: half of bf16's, as on the data sheet"},
    {0, product_fp32, 0, 53.6 / kHopper,
     "assumption: 80% of the data sheet's fp32 without tensor cores, 67 on an H100"},
    {90, product_fp8_tensor, 0, 1315 / kHopper, "measured: 1290 to 1361 in steps of 1B and 8B on an H200", true},
    {89, product_fp8_tensor, 0, 1.6, kOfCards},
    {120, product_fp8_tensor, 0, 1.6, kOfCards},
    {0, product_fp8_tensor, 0, 1.33, "assumption: 66% of the data sheet, as on an H200"},
    {0, product_fp8_row, 0, 0.70 * 1.75,
     "published: cuBLAS 12.9 on Hopper, scales of rows or blocks, up to 1.75 times bf16's (here: of 70%)"},
    {0, product_fp8_block, 0, 0.70 * 1.5,
     "assumption: 1.5 times bf16's; published: cuBLAS 12.9 on Hopper 1.25 to 1.75 times, with rows or blocks"},
    {0, attention_hopper_forward, 128, 555 / kHopper,
     "measured: with backward 460 on the whole in steps of 8B on an H200, T = 8192; alone 690", true},
    {0, attention_hopper_backward, 128, 430 / kHopper,
     "measured: with forward 460 on the whole in steps of 8B on an H200, T = 8192; alone 533", true},
    {0, attention_hopper_forward, 64, 350 / kHopper,
     "measured: with backward 305 on the whole in steps of 1B on an H200, T = 4096; alone 439", true},
    {0, attention_hopper_backward, 64, 290 / kHopper,
     "measured: with forward 305 on the whole in steps of 1B on an H200, T = 4096; alone 355", true},
    {90, attention_mma_forward, 0, 280 / kHopper, "assumption: 5/6 of FlashAttention-2's published 335 on an H100"},
    {90, attention_mma_backward, 0, 220 / kHopper,
     "assumption: 69% of FlashAttention-2's published 320 on an H100 without a mask, since S and dP are computed "
     "twice"},
    {100, attention_mma_forward, 0, 280 / kBlackwell, "assumption: mma.sync is as fast as on an H100"},
    {100, attention_mma_backward, 0, 220 / kBlackwell, "assumption: mma.sync is as fast as on an H100"},
    {0, attention_mma_forward, 0, 0.50, "assumption: half of the data sheet"},
    {0, attention_mma_backward, 0, 0.35, "assumption: 70% of forward's, since S and dP are computed twice"},
    {0, attention_plain_forward, 0, 13.4 / kHopper, "assumption: a fifth of the data sheet's fp32, 67 on an H100"},
    {0, attention_plain_backward, 0, 9.4 / kHopper, "assumption: 70% of forward's, since S and dP are computed twice"},
};

// `memory_part` is a fraction of the data sheet's bandwidth. Links have bytes per second in each direction: 80% of
// NVLink's data sheet, and 87% of PCIe's, which is what an H100 and an H200 reached. GPUs without NVLink
// (node_bytes 0) are assumed to send to each other through the host. `host_bytes` is for GPUs whose bus is not
// known.
struct Bytes {
  int compute_capability;
  double memory_part, node_bytes, network_bytes, host_bytes;
  const char* source;
  bool memory_confirmed = false;
};
constexpr const char* kAssumed =
    "assumption: 80% of the data sheet's memory, as on an H200; 80% of NVLink and of a network card of 400 Gb/s a GPU";
constexpr double kGeForceNetwork = 1e9;
constexpr Bytes kBytes[] = {
    {80, 0.80, 240e9, 20e9, 27e9,
     "assumption: 80% of the data sheet's memory, as on an H200; 80% of NVLink and of a network "
     "card of 200 Gb/s a GPU"},
    {90, 0.80, 360e9, 40e9, 55e9,
     "measured: memory 77% to 83% of the data sheet in steps of 1B and 8B in bf16 on an H200, "
     "and the host; assumption: 80% of NVLink and of a network card of 400 Gb/s a GPU",
     true},
    {100, 0.80, 720e9, 40e9, 55e9, kAssumed},
    {0, 0.80, 0, 10e9, 27e9,
     "assumption: 80% of the data sheet's memory, as on an H200; 87% of PCIe's, as on an H200, half of it between "
     "GPUs, through the host; 80% of a network card of 100 Gb/s a GPU, of 10 Gb/s for a GeForce"}};
constexpr double kPartOfPcie = 55e9 / 63e9;  // 55 GB/s on an H100 and an H200

// Returns the rates of memory and links, which every kind of device has. Throws if the device's data sheet is not
// known.
ReplayRates rates_of_bytes(const DeviceInfo& device, const char* name) {
  REQUIRE(device.bf16_flops > 0 && device.memory_bytes_per_second > 0, "the rates of %s are not known",
          device.name.c_str());
  ReplayRates rates{};
  rates.name = name;
  const Bytes& bytes = *std::find_if(std::begin(kBytes), std::end(kBytes), [&](const Bytes& b) {
    return b.compute_capability == device.compute_capability || b.compute_capability == 0;
  });
  rates.memory_bytes = bytes.memory_part * device.memory_bytes_per_second;
  rates.host_bytes = device.bus_bytes_per_second > 0 ? kPartOfPcie * device.bus_bytes_per_second : bytes.host_bytes;
  rates.node_by_host = bytes.node_bytes == 0;
  rates.node_bytes = rates.node_by_host ? rates.host_bytes / 2 : bytes.node_bytes;
  const bool desktop = device.name.find("GeForce") != std::string::npos;
  rates.network_bytes = desktop ? kGeForceNetwork : bytes.network_bytes;
  rates.bytes_source = bytes.source, rates.memory_confirmed = bytes.memory_confirmed;
  rates.multiprocessors = device.multiprocessors;
  return rates;
}

constexpr const char* kNames[] = {"products in bf16",
                                  "products in tf32",
                                  "products in fp32",
                                  "FP8 products, one factor a tensor",
                                  "FP8 products, one factor a row",
                                  "FP8 products, one factor a block",
                                  "attention (hopper) forward",
                                  "attention (hopper) backward",
                                  "attention (mma) forward",
                                  "attention (mma) backward",
                                  "attention (plain) forward",
                                  "attention (plain) backward"};

}  // namespace

std::string Rate::name() const {
  return kNames[size_t(of)] + (head_size ? format(", head size %d", head_size) : std::string());
}

bool is_one_of(RateClass rate, std::initializer_list<RateClass> classes) {
  return std::find(classes.begin(), classes.end(), rate) != classes.end();
}

double counted_flops(const Record::Entry& work) {
  return is_one_of(work.rate, kAttentionBackward) ? work.flops * 5 / 7 : work.flops;
}

ReplayRates ReplayRates::of(const DeviceInfo& device) {
  ReplayRates rates = rates_of_bytes(device, "predicted");
  const auto is_there = [&](const Row& row) {
    return std::any_of(rates.compute.begin(), rates.compute.end(),
                       [&](const Rate& rate) { return rate.of == row.of && rate.head_size == row.head_size; });
  };
  for (const Row& row : kRows)
    if ((row.compute_capability == 0 || row.compute_capability == device.compute_capability) && !is_there(row))
      rates.compute.push_back({row.of, row.head_size, row.part * device.bf16_flops, row.source, row.confirmed});
  return rates;
}

ReplayRates ReplayRates::data_sheet(const DeviceInfo& device) {
  ReplayRates rates = rates_of_bytes(device, "data sheet");
  rates.set_all(device.bf16_flops, kFp8Peak * device.bf16_flops, "published: data sheet");
  rates.memory_bytes = device.memory_bytes_per_second;
  rates.bytes_source = "published: data sheet's memory; links are assumed to reach 80%";
  rates.memory_confirmed = false;
  rates.kernel_seconds = 0;
  return rates;
}

void ReplayRates::set_all(double flops, double fp8_flops, const char* source) {
  compute.clear();
  for (size_t of = 0; of < std::size(kNames); ++of)
    compute.push_back({RateClass(of), 0, is_one_of(RateClass(of), kFp8Products) ? fp8_flops : flops, source});
}

void ReplayRates::set_host(double bytes) {
  if (node_by_host) node_bytes *= bytes / host_bytes;
  host_bytes = bytes, host_given = true;
}

void ReplayRates::set(std::initializer_list<RateClass> classes, double flops, const char* source) {
  std::erase_if(compute, [&](const Rate& rate) { return is_one_of(rate.of, classes); });
  for (const RateClass of : classes) compute.push_back({of, 0, flops, source});
}

const Rate& ReplayRates::rate(RateClass of, int head_size) const {
  for (const Rate& rate : compute)
    if (rate.of == of && (rate.head_size == 0 || rate.head_size == head_size)) return rate;
  fail("no rate is known for %s: the table of llmc/device/rates.cpp needs a row",
       Rate{of, head_size, 0, ""}.name().c_str());
}

std::vector<Rate> ReplayRates::used_by(const Record& record) const {
  std::vector<bool> used(compute.size());
  for (const Record::Entry& work : record.entries)
    if (work.flops > 0) used[size_t(&rate(work.rate, work.head_size) - compute.data())] = true;
  std::vector<Rate> rates;
  for (size_t i = 0; i < used.size(); ++i)
    if (used[i]) rates.push_back(compute[i]);
  return rates;
}

std::string ReplayRates::table(const std::vector<Rate>& rates) const {
  std::string text;
  for (const Rate& rate : rates)
    text += format("%s: %.4g TFLOP/s (%s)\n", rate.name().c_str(), rate.flops * 1e-12, rate.source);
  return text + format(
                    "memory %.2f TB/s, a kernel at least %.1f us; a rank sends %.0f GB/s in its node of %d and %.4g "
                    "GB/s to others%s, a hop takes %.1f and %.1f us; %.4g GB/s to the host and back%s (%s)",
                    memory_bytes * 1e-12, kernel_seconds * 1e6, node_bytes * 1e-9, ranks_per_node, network_bytes * 1e-9,
                    network_given ? " (as given)" : "", node_hop_seconds * 1e6, network_hop_seconds * 1e6,
                    host_bytes * 1e-9, host_given ? " (as given)" : "", bytes_source);
}

std::string ReplayRates::unconfirmed(const std::vector<Rate>& rates) const {
  std::string text;
  for (const Rate& rate : rates)
    if (!rate.confirmed) text += (text.empty() ? "" : "; ") + rate.name();
  if (!memory_confirmed) text += text.empty() ? "memory" : "; memory";
  if (!links_confirmed) text += text.empty() ? "links" : "; links";
  return text.empty() ? "" : "rates that no GPU has confirmed: " + text;
}

std::string ReplayRates::text() const {
  const std::string open = unconfirmed(compute);
  return table(compute) + (open.empty() ? "" : "\n(" + open + ")");
}
