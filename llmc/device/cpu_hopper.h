// Hopper's own instructions in the CPU backend, checked as strictly as the hardware requires. The wrappers of
// mbarrier.cuh, tma.cuh and wgmma.cuh call these functions. cpu_kernel.h includes this file.
#pragma once

#include <array>
#include <cstdint>

#include "llmc/device/cpu_block.h"
#include "llmc/device/matrix_descriptor.h"

struct TensorMap;

namespace cpu_backend {

// Returns the shared-window address of a pointer into the block's shared memory: its byte offset plus 1024, as on a
// GPU. Stops the kernel if the pointer lies elsewhere.
uint32_t smem_address(const void* pointer);

void mbarrier_init(uint64_t* barrier, int arrivals, const Place& place);
void fence_mbarrier_init(const Place& place);
void mbarrier_arrive(uint64_t* barrier, int expected_bytes, const Place& place);
void mbarrier_wait(uint64_t* barrier, int parity, const Place& place);
void arrive_named(int barrier, int threads, const Place& place);
void change_registers(int registers, bool more, const Place& place);

// Stops the kernel unless tensor_map() made the map.
void require_tensor_map(const TensorMap& map, const Place& place);
// Coordinates of a box in elements, dimension 0 (the contiguous one) first.
using BoxPlace = std::array<int, 4>;
void tma_load(void* to, const TensorMap& map, uint64_t* barrier, const BoxPlace& from, const Place& place);
void tma_store(const TensorMap& map, const void* from, const BoxPlace& to, const Place& place);
void tma_store_commit_group(const Place& place);
void tma_store_wait_group_read(const Place& place);
void fence_async_proxy(const Place& place);
void store_for_async_proxy(void* to, const void* value, int bytes, const Place& place);

// The arguments with which one thread takes part in a product of its warpgroup.
struct ProductArguments {
  float* d;
  int columns;
  const uint32_t* fragments;  // A in 4 registers; null: `a` is the descriptor of A
  uint64_t a, b;
  Major major_a, major_b;
  bool accumulate;
};
void wgmma_fence(const Place& place);
void multiply(const ProductArguments& arguments, const Place& place);
void wgmma_commit_group(const Place& place);
void wgmma_wait_group(int under_way, const Place& place);

}  // namespace cpu_backend
