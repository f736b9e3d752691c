// How fast work is taken to be on a GPU that does not run it: one table of rates for everything that replays a record
// (replay.h): --dry-run --nodes, --plan auto and the benchmarks. Each rate belongs to a class of kernels and, of
// attention, to a head size; says where it comes from; and says whether a GPU that ran this program has confirmed it.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "llmc/device/device.h"
#include "llmc/device/record.h"

struct Rate {
  RateClass of;
  int head_size;  // of attention; 0: any
  double flops;   // a second
  const char* source;
  bool confirmed = false;

  std::string name() const;  // "attention (hopper) forward, head size 128"
};

inline constexpr std::initializer_list<RateClass> kFp8Products = {
    RateClass::product_fp8_tensor, RateClass::product_fp8_row, RateClass::product_fp8_block};
inline constexpr std::initializer_list<RateClass> kAttentionForward = {
    RateClass::attention_hopper_forward, RateClass::attention_mma_forward, RateClass::attention_plain_forward};
inline constexpr std::initializer_list<RateClass> kAttentionBackward = {
    RateClass::attention_hopper_backward, RateClass::attention_mma_backward, RateClass::attention_plain_backward};

bool is_one_of(RateClass rate, std::initializer_list<RateClass> classes);

// The FLOPs that a rate counts: a backward of attention counts as 5 products of the size of forward's 2, as is usual,
// where its two kernels compute 7.
double counted_flops(const Record::Entry& work);

struct ReplayRates {
  std::string name;
  std::vector<Rate> compute;     // the first that fits a piece of work counts
  double memory_bytes;           // a second, read plus written
  double kernel_seconds = 2e-6;  // of the shortest kernel
  int ranks_per_node = 8;
  double node_bytes = 360e9;          // a second that a rank sends within a node
  double network_bytes = 40e9;        // a second that a rank sends to other nodes
  double node_hop_seconds = 1.5e-6;   // from a rank to the next
  double network_hop_seconds = 6e-6;  // from a node to the next
  double host_bytes = 55e9;           // a second between the device and pinned memory, in each direction
  const char* bytes_source = "";      // of memory and links
  bool bytes_confirmed = false;

  // The table's for this device: "predicted". Throws if its data sheet is not known here.
  static ReplayRates of(const DeviceInfo& device);
  // The peaks of its data sheet: what no kernel exceeds.
  static ReplayRates data_sheet(const DeviceInfo& device);

  // One rate for all operations, one for those of FP8 products.
  void set_all(double flops, double fp8_flops, const char* source);
  // Another rate for these classes, whatever the head size.
  void set(std::initializer_list<RateClass> classes, double flops, const char* source);
  // The rate of such work. Throws if there is none.
  const Rate& rate(RateClass of, int head_size) const;
  double flops(RateClass of, int head_size = 0) const { return rate(of, head_size).flops; }

  // Those that the work of a record is charged with, in the order of the table.
  std::vector<Rate> used_by(const Record& record) const;
  // Lines "products in bf16: 692 TFLOP/s (assumption: …)", then that of memory and links.
  std::string table(const std::vector<Rate>& rates) const;
  // "rates that no GPU has confirmed: products in bf16, …, memory, links"; "" if all are.
  std::string unconfirmed(const std::vector<Rate>& rates) const;
  // All of it, for the head of a benchmark.
  std::string text() const;
};
