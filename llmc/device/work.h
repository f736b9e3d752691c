// An asynchronous operation is described before it is enqueued: its stream, its name, the byte ranges that it reads
// and writes, and its floating-point operations. The CPU backend checks that every access is ordered after those that
// conflict with it (order_check.h). Benchmarks use the ranges and FLOPs too.
//
//   launch<rope_kernel<T>>({stream, "rope_forward", {updates(qkv), reads(table), reads(positions)}},
//                          grid, block, 0, …);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/call_site.h"

class Stream;

struct Access {
  const void* data;
  size_t bytes;
  bool write;
  bool updated = false;  // both read and written
};

// `count` elements from `data`; a null pointer (an absent optional buffer) declares nothing.
template <class T>
Access reads(const T* data, size_t count) {
  return {data, data ? count * sizeof(T) : 0, false};
}
template <class T>
Access writes(const T* data, size_t count) {
  return {data, data ? count * sizeof(T) : 0, true};
}
// Read and written: `+=`, in place.
template <class T>
Access updates(const T* data, size_t count) {
  Access access = writes(data, count);
  access.updated = true;
  return access;
}

// The bytes that two ranks send to each other at once.
struct Exchange {
  int other;  // rank in the world
  size_t sent, received;
};

// The traffic of a collective: the bytes that this rank sends around a ring, in which each rank passes on what it
// received, and the ranks that the collective spans, by their numbers in the world. `tree`: every rank gets the same
// result (all_reduce, broadcast), so that a short message can go along a tree instead. A result that differs from rank
// to rank goes through all of them.
//
// `joins`: it is launched as one with the collective before it (Communicator::group).
//
// `exchanges`: all_to_all has no ring. This rank, `own` in the world, sends to each other rank at once.
struct Traffic {
  size_t sent = 0;
  const std::vector<int>* ranks = nullptr;
  bool tree = false;
  bool joins = false;
  int own = 0;
  std::vector<Exchange> exchanges = {};
};

// The kind of operations. A device has a rate for each kind (rates.h).
enum class RateClass : uint8_t {
  product_bf16,
  product_tf32,
  product_fp32,
  product_fp8_tensor,  // FP8 products; one scale factor per tensor, per row or per block of 128
  product_fp8_row,
  product_fp8_block,
  attention_hopper_forward,  // attention, by kernel (attention.h)
  attention_hopper_backward,
  attention_mma_forward,
  attention_mma_backward,
  attention_plain_forward,
  attention_plain_backward
};

// The shape of a kernel launch.
struct LaunchShape {
  const char* kernel = nullptr;  // as the compiler spells it, with its template arguments; null: no kernel
  unsigned grid[3] = {}, block[3] = {};
  size_t shared_bytes = 0;
};

struct Work {
  static constexpr size_t kMaxAccesses = 16;

  Stream& stream;
  const char* name;
  Access accesses[kMaxAccesses];
  size_t access_count;
  double flops;
  CallSite site;
  Traffic traffic = {};
  RateClass rate = RateClass::product_bf16;
  int head_size = 0;     // for attention
  double imbalance = 1;  // for attention: the work of the block with the most, divided by the mean
  size_t crossed = 0;    // bytes that a copy moves between the device and pinned memory of the host
  bool to_host = false;  // which way they go
  LaunchShape shape = {};

  Work(Stream& stream, const char* name, std::initializer_list<Access> accesses, double flops = 0,
       CallSite site = CallSite::here())
      : stream(stream), name(name), access_count(accesses.size()), flops(flops), site(site) {
    REQUIRE(access_count <= kMaxAccesses, "%s declares %zu accesses, at most %zu", name, access_count, kMaxAccesses);
    std::copy(accesses.begin(), accesses.end(), this->accesses);
  }
  // The same work in another stream.
  Work(Stream& stream, const Work& other)
      : stream(stream),
        name(other.name),
        access_count(other.access_count),
        flops(other.flops),
        site(other.site),
        traffic(other.traffic),
        rate(other.rate),
        head_size(other.head_size),
        imbalance(other.imbalance),
        crossed(other.crossed),
        to_host(other.to_host),
        shape(other.shape) {
    std::copy(other.accesses, other.accesses + access_count, accesses);
  }
};

// Returns true if the two ranges share a byte.
inline bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}
