// What Hopper's own instructions do in the CPU world, as strict as the hardware: the wrappers of
// transaction_barrier.cuh, tensor_copy.cuh and wgmma.cuh call these. Included through cpu_kernel.h.
#pragma once

#include <array>
#include <cstdint>

#include "llmc/device/cpu_block.h"
#include "llmc/device/matrix_descriptor.h"

struct TensorMap;

namespace cpu_world {

// Of a pointer into the block's shared memory: its distance from the beginning, plus 1024 as on a GPU.
uint32_t shared_window(const void* pointer);

void barrier_initialize(uint64_t* barrier, int arrivals, const Place& place);
void barriers_publish(const Place& place);
void barrier_arrive(uint64_t* barrier, int expected_bytes, const Place& place);
void barrier_wait(uint64_t* barrier, int parity, const Place& place);
void arrive_named(int barrier, int threads, const Place& place);
void change_registers(int registers, bool more, const Place& place);

using BoxPlace = std::array<int, 4>;
void load_box(void* to, const TensorMap& map, uint64_t* barrier, const BoxPlace& from, const Place& place);
void store_box(const TensorMap& map, const void* from, const BoxPlace& to, const Place& place);
void stores_commit(const Place& place);
void stores_wait_read(const Place& place);
void fence_async_proxy(const Place& place);
void stage_shared(void* to, const void* value, int bytes, const Place& place);

// One thread's part of a product of its warpgroup.
struct ProductArguments {
  float* d;
  int columns;
  const uint32_t* fragments;  // A in registers; null: `a` is its descriptor
  uint64_t a, b;
  Major major_a, major_b;
  bool accumulate;
};
void products_begin(const Place& place);
void multiply(const ProductArguments& arguments, const Place& place);
void products_commit(const Place& place);
void products_wait(int under_way, const Place& place);

}  // namespace cpu_world
