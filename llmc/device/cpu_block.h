// How the CPU backend executes one block of a kernel.
//
// One OS thread executes one block at a time. It calls the block's CUDA threads one after the other in a plain loop. A
// thread that has to wait (at a barrier or in a warp collective) becomes a fiber of its own, and the loop continues in
// another fiber. A thread that never waits costs one function call. A thread that waits costs about 10 ns per switch.
//
// A warp collective is one rendezvous: each lane posts 8 bytes (its value, or the address of its arguments), and the
// last lane to arrive computes the results of all lanes. An error in a kernel (divergence, a hang, a misaligned copy)
// ends the process with a report of the kernel, block, thread, file and line, since a GPU could not continue either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "llmc/device/device.h"

struct CpuIndex {
  unsigned x = 0, y = 0, z = 0;
};

struct CpuExtent {
  unsigned x = 1, y = 1, z = 1;
  CpuExtent() = default;
  CpuExtent(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  size_t count() const { return size_t(x) * y * z; }
};

namespace cpu_backend {

inline constexpr int kMaxThreads = 1024;
inline constexpr size_t kMaxSharedBytes = 227 << 10;

// The last lane to arrive calls the operation. posted[l] holds the value that lane l posted, for each lane in `lanes`.
// The value that the operation stores in posted[l] is returned to lane l.
using WarpOperation = void (*)(uint64_t* posted, uint32_t lanes);
using BlockOperation = void (*)(uint64_t* posted, int threads);

// Convert a value of up to 8 bytes, or a pointer, to the 8 bytes that are posted, and back.
template <class T>
uint64_t to_posted(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t posted = 0;
  memcpy(&posted, &value, sizeof(T));
  return posted;
}
template <class T>
T from_posted(uint64_t posted) {
  T value;
  memcpy(&value, &posted, sizeof(T));
  return value;
}

struct Place {
  const char* what;
  const char* file;
  int line;
};

// A kernel with its arguments and its launch shape. launch<kernel>() instantiates the two functions in the kernel's own
// file, because threadIdx is a variable of that file.
struct KernelLaunch {
  const char* name;
  CallSite site;
  CpuExtent grid, block;
  size_t shared_bytes;
  const void* arguments;
  // Calls the kernel for the threads first .. last-1 in turn. `in_loop` becomes false when a thread had to wait: that
  // thread is then a fiber of its own, and the loop ends when it returns.
  void (*run_threads)(const void* arguments, int first, int last, const bool& in_loop);
  // Sets blockIdx, blockDim and gridDim of the kernel's file; returns the address of its threadIdx.
  CpuIndex* (*enter_block)(CpuIndex block, CpuExtent block_dim, CpuExtent grid_dim);
};

class Block;

// Executes blocks on one OS thread. Keeps the fibers and their stacks from block to block.
class BlockRunner {
 public:
  BlockRunner(const CpuBackend& backend, int number);
  ~BlockRunner();
  void run(const KernelLaunch& launch, size_t block_number);

 private:
  std::unique_ptr<Block> block_;
};

// ---- what kernels call, through the wrappers of kernel.cuh

std::byte* shared_bytes();

// `place` must live until the call returns.
void sync_block(const Place& place);  // waits for all threads that have not returned
void sync_named(int barrier, int threads, const Place& place);
uint64_t sync_warp(uint32_t mask, WarpOperation operation, uint64_t posted, const Place& place);
uint64_t sync_block_operation(BlockOperation operation, uint64_t posted, const Place& place);
int lane_number();

void async_copy(void* to, const void* from, int bytes, const Place& place);
void async_copy_commit();
void async_copy_wait(int groups_in_flight);

// Ends the process. Prints the message, then the kernel, the block, the thread and where the other threads wait.
[[noreturn, gnu::format(printf, 1, 2)]] void stop_kernel(const char* pattern, ...);
// Prints the kernel, block and thread that this OS thread executes, and where the block's other threads wait. Prints
// nothing if it executes none.
void describe_block();
// Called when this OS thread accessed `address`, where no memory is mapped. Ends the process with a report if the OS
// thread executes a kernel; otherwise returns.
void stop_if_kernel_faulted(const void* address);

}  // namespace cpu_backend
