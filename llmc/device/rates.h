// The speed that work has, or is assumed to have, on a GPU that is not here. One table of rates serves everything that
// replays a record (replay.h): --dry-run --nodes, --plan auto and the benchmarks. Each rate belongs to a class of
// kernels and, for attention, to a head size. It states its source, and whether a GPU that ran this program has
// confirmed it.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "llmc/device/device.h"
#include "llmc/device/record.h"

struct Rate {
  RateClass of;
  int head_size;  // for attention; 0: any
  double flops;   // per second
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

inline constexpr double kFp8Peak = 2;  // of data sheets, as a multiple of bf16's

bool is_one_of(RateClass rate, std::initializer_list<RateClass> classes);

// Returns the FLOPs that a rate counts. A backward of attention counts, as is usual, as 5 products of the size of
// forward's 2, although its two kernels compute 7.
double counted_flops(const Record::Entry& work);

struct ReplayRates {
  std::string name;
  std::vector<Rate> compute;     // the first that matches an operation counts
  double memory_bytes;           // per second, read plus written
  double kernel_seconds = 2e-6;  // the shortest time of a kernel
  int multiprocessors = 1;       // attention with fewer blocks than these has a part of its rate
  int ranks_per_node = 8;
  double node_bytes = 360e9;          // per second that a rank sends within a node
  bool node_by_host = false;          // through the host, over the bus
  double network_bytes = 40e9;        // per second that a rank sends to other nodes
  double node_hop_seconds = 1.5e-6;   // from a rank to the next
  double network_hop_seconds = 6e-6;  // from a node to the next
  double host_bytes = 55e9;           // per second between the device and pinned memory, in each direction
  bool network_given = false;         // network_bytes is the user's
  bool host_given = false;            // so is host_bytes
  const char* bytes_source = "";      // source of the rates of memory and links
  bool memory_confirmed = false, links_confirmed = false;

  // Returns the table's rates for this device; the name is "predicted". Throws if the device's data sheet is not known.
  static ReplayRates of(const DeviceInfo& device);
  // Returns the peaks of the device's data sheet, which no kernel exceeds. Throws if the data sheet is not known.
  static ReplayRates data_sheet(const DeviceInfo& device);

  // Sets one rate for all operations and another for FP8 products, both in FLOPs per second.
  void set_all(double flops, double fp8_flops, const char* source);
  // Sets the bytes per second that a rank sends to other nodes, which the user knows.
  void set_network(double bytes) { network_bytes = bytes, network_given = true; }
  // Sets the bytes per second of copies to the host and back, which the user knows, and of ranks that send through it.
  void set_host(double bytes);
  // Sets another rate for these classes, for every head size.
  void set(std::initializer_list<RateClass> classes, double flops, const char* source);
  // Returns the rate of such work. Throws if there is none.
  const Rate& rate(RateClass of, int head_size) const;
  double flops(RateClass of, int head_size = 0) const { return rate(of, head_size).flops; }

  // Returns the rates that apply to the record's work, in the order of the table.
  std::vector<Rate> used_by(const Record& record) const;
  // Returns lines "products in bf16: 690 TFLOP/s (measured: …)", then one line for memory and links.
  std::string table(const std::vector<Rate>& rates) const;
  // Returns "rates that no GPU has confirmed: products in bf16; …; memory; links", or "" if all are confirmed.
  std::string unconfirmed(const std::vector<Rate>& rates) const;
  // Returns both texts, with all rates, for the head of a benchmark.
  std::string text() const;
};
