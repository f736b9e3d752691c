// How the CPU world executes one block of a kernel.
//
// One OS thread executes a block at a time. Its CUDA threads are called one after the other in a plain loop; only when
// a thread has to wait (a barrier, a warp collective) does it become a fiber of its own, and the loop goes on in
// another fiber. A thread that never waits costs a function call, one that waits some 10 ns a switch.
//
// A warp collective is one rendezvous: each lane posts 8 bytes (its value, or the address of its arguments), and the
// last to arrive computes for all. Errors of a kernel (divergence, a hang, a misaligned copy) end the process with the
// kernel, block, thread, file and line, since a GPU could not go on either.
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

namespace cpu_world {

inline constexpr int kMaxThreads = 1024;
inline constexpr size_t kMaxSharedBytes = 227 << 10;

// The last lane to arrive runs it: posted[l] is what lane l posted, for the lanes in `lanes`, and what it leaves there
// is returned to lane l.
using WarpOperation = void (*)(uint64_t* posted, uint32_t lanes);
using BlockOperation = void (*)(uint64_t* posted, int threads);

// A value of up to 8 bytes, or a pointer, as what is posted and back.
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

class ResidentBlocks;

// A kernel, its arguments and its shape. The functions are made by launch<kernel>() in the kernel's own file, where its
// threadIdx lives.
struct KernelLaunch {
  const char* name;
  const char* file;
  int line;
  CpuExtent grid, block;
  size_t shared_bytes;
  const void* arguments;
  // Calls the kernel for the threads first .. last-1 in turn; `in_loop` turns false when one of them had to wait: it is
  // a thread of its own then, and the loop ends with it.
  void (*run_threads)(const void* arguments, int first, int last, const bool& in_loop);
  // Sets blockIdx, blockDim and gridDim of the kernel's file; returns the address of its threadIdx.
  CpuIndex* (*enter_block)(CpuIndex block, CpuExtent block_dim, CpuExtent grid_dim);
  ResidentBlocks* residents = nullptr;  // of the grid while it is executed
};

class Block;

// Executes blocks on one OS thread; keeps the fibers' stacks.
class BlockRunner {
 public:
  BlockRunner(const CpuWorld& world, int number);
  ~BlockRunner();
  void run(const KernelLaunch& launch, size_t block_number);

 private:
  std::unique_ptr<Block> block_;
};

// ---- what kernels call, through the wrappers of kernel.cuh

std::byte* shared_bytes();

// `place` lives until the call returns.
void sync_block(const Place& place);  // all threads that have not returned
void sync_named(int barrier, int threads, const Place& place);
uint64_t sync_warp(uint32_t mask, WarpOperation operation, uint64_t posted, const Place& place);
uint64_t sync_block_operation(BlockOperation operation, uint64_t posted, const Place& place);
int lane_number();

void flag_set(uint32_t* flag, uint32_t value, const Place& place);
void flag_wait(const uint32_t* flag, uint32_t value, const Place& place);

void async_copy(void* to, const void* from, int bytes, const Place& place);
void async_copy_commit();
void async_copy_wait(int groups_in_flight);

// Ends the process: the message, then the kernel, block, thread, and who waits where.
[[noreturn, gnu::format(printf, 1, 2)]] void stop_kernel(const char* pattern, ...);
// Ends the process if this OS thread executes a kernel: it touched `address`, where it has no memory.
void stop_if_kernel_faulted(const void* address);

}  // namespace cpu_world
