// Broken kernels, one a run: `kernel_reports NAME` must end with a report of the CPU backend, `kernel_reports` lists
// the names. Driven by kernel_reports.sh.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "llmc/device/async_copy.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/device/tensor_core.cuh"
#include "llmc/device/tma.cuh"
#include "llmc/device/wgmma.cuh"

namespace {

struct Tile {
  float values[256];
};

struct alignas(1024) Hopper {
  WgmmaTile<64, 64> a, b;
  Mbarrier barrier, other;
};

template <auto kernel>
void run(Stream& stream, float* data, unsigned threads, size_t shared_bytes) {
  launch<kernel>({stream, "broken", {updates(data, 1024)}}, 3, threads, shared_bytes, data);
}

// `data` as 16 rows of 64 bf16, or of the first 60 of them; boxes of 64 rows.
template <auto kernel, int columns>
void run_with_map(Stream& stream, float* data, unsigned threads, size_t shared_bytes) {
  TmaTensor view;
  view.data = data;
  view.sizes[0] = columns, view.sizes[1] = 16;
  for (int64_t& stride : view.strides) stride = 128;
  view.box[0] = 64, view.box[1] = 64;
  launch<kernel>({stream, "broken", {updates(data, 1024)}}, 3, threads, shared_bytes, data,
                 tensor_map(stream.device(), view, "broken"));
}

struct Case {
  const char* name;
  void (*run)(Stream&, float*, unsigned threads, size_t shared_bytes);
  unsigned threads;
  size_t shared_bytes;
};
std::vector<Case> cases;

template <auto kernel>
bool add(const char* name, unsigned threads, size_t shared_bytes) {
  cases.push_back({name, &run<kernel>, threads, shared_bytes});
  return true;
}
template <auto kernel, int columns = 64>
bool add_with_map(const char* name) {
  cases.push_back({name, &run_with_map<kernel, columns>, 128, sizeof(Hopper)});
  return true;
}

// A kernel, with the threads of a block and the shared memory of its launch; one that takes a map has 128 and Hopper's.
#define BROKEN(name, threads, shared_bytes)                                               \
  __global__ void name(float* out);                                                       \
  [[maybe_unused]] const bool name##_is_a_case = add<name>(#name, threads, shared_bytes); \
  __global__ void name([[maybe_unused]] float* out)
#define BROKEN_WITH_MAP(name)                                               \
  __global__ void name(float* out, const __grid_constant__ TensorMap map);  \
  [[maybe_unused]] const bool name##_is_a_case = add_with_map<name>(#name); \
  __global__ void name(float*, const __grid_constant__ TensorMap map)

BROKEN(whole, 128, sizeof(Tile)) {  // nothing is wrong with it
  shared_memory<Tile>().values[threadIdx.x] = warp_sum(1.0f);
  __syncthreads();
  out[blockIdx.x * 128 + threadIdx.x] = shared_memory<Tile>().values[127 - threadIdx.x] + block_sum(1.0f);
}

BROKEN(two_barriers, 128, sizeof(Tile)) {
  if (threadIdx.x < 40) __syncthreads();
  else __syncthreads();
  out[threadIdx.x] = 1;
}
BROKEN(barrier_against_sum, 128, sizeof(Tile)) {
  if (threadIdx.x < 40) __syncthreads();
  else out[threadIdx.x] = block_sum(1.0f);
}
BROKEN(two_collectives, 128, sizeof(Tile)) {
  if (threadIdx.x % 32 < 7) out[threadIdx.x] = warp_sum(1.0f);
  else out[threadIdx.x] = warp_max(1.0f);
}
BROKEN(two_masks, 128, sizeof(Tile)) {
  const uint32_t mask = threadIdx.x % 32 < 7 ? ~0u : 0xffffff80u;
  out[threadIdx.x] = __shfl_sync(mask, 1.0f, 7);
  __syncthreads();
}
BROKEN(not_in_mask, 128, sizeof(Tile)) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0); }
// Half of each warp waits for the other half, which waits for the whole block.
BROKEN(warp_against_barrier, 128, sizeof(Tile)) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
  __syncthreads();
}
BROKEN(sum_of_half_warps, 48, sizeof(Tile)) { out[threadIdx.x] = warp_sum(1.0f); }
BROKEN(sum_of_some, 128, sizeof(Tile)) {
  if (threadIdx.x < 32) return;
  out[threadIdx.x] = block_sum(1.0f);
}
BROKEN(returned_during_sum, 128, sizeof(Tile)) {
  if (threadIdx.x == 127) return;
  out[threadIdx.x] = block_sum(1.0f);
}
// Each barrier's number and threads must fit those who wait there, and who waits must be met.
BROKEN(named_of_two_sizes, 128, sizeof(Tile)) {
  named_barrier_sync(3, threadIdx.x < 32 ? 64 : 128);
  out[threadIdx.x] = 1;
}
BROKEN(named_not_met, 128, sizeof(Tile)) {
  if (threadIdx.x < 96) named_barrier_sync(3, 128);
  out[threadIdx.x] = 1;
}
BROKEN(named_of_half_warps, 128, sizeof(Tile)) {
  named_barrier_sync(3, 48);
  out[threadIdx.x] = 1;
}
BROKEN(copy_misaligned, 128, sizeof(Tile)) {
  cp_async16(&shared_memory<Tile>().values[threadIdx.x], out + 4 * threadIdx.x);
  cp_async_commit_group();
}
BROKEN(copy_to_global, 128, sizeof(Tile)) { cp_async16(out, out + 4); }
BROKEN(matrix_misaligned, 32, sizeof(Tile)) {
  uint32_t r[4];
  ldmatrix_x4<false>(r, &shared_memory<Tile>().values[threadIdx.x]);
  out[threadIdx.x] = bits_to_float(r[0]);
}
struct alignas(64) MisplacedTile {
  float before[16];
  bf16 tile[16 * 64];
};
BROKEN(tile_misaligned, 32, sizeof(MisplacedTile)) {
  out[threadIdx.x] = float(swizzled_address<64>(shared_memory<MisplacedTile>().tile, int(threadIdx.x % 16), 0));
}
BROKEN(shared_overrun, 128, 128 * sizeof(float)) {
  shared_memory<Tile>().values[threadIdx.x + 1] = 1;
  __syncthreads();
  out[threadIdx.x] = shared_memory<Tile>().values[threadIdx.x];
}
BROKEN(large_frame, 128, sizeof(Tile)) {
  volatile float values[150000];
  for (int i = 0; i < 150000; ++i) values[i] = out[0];
  out[threadIdx.x] = values[threadIdx.x];
}
BROKEN(null_pointer, 128, sizeof(Tile)) {
  if (threadIdx.x == 77) *reinterpret_cast<volatile float*>(size_t(out) & 64) = 1;
}

// ---- Hopper's instructions

// The cases below begin with this: a barrier for one arrival.
__device__ __forceinline__ Hopper& with_barrier() {
  Hopper& shared = shared_memory<Hopper>();
  if (threadIdx.x == 0) {
    mbarrier_init(shared.barrier, 1);
    mbarrier_init(shared.other, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  return shared;
}

BROKEN(barrier_not_initialised, 128, sizeof(Hopper)) { mbarrier_arrive(shared_memory<Hopper>().barrier); }
BROKEN(barrier_not_published, 128, sizeof(Hopper)) {
  if (threadIdx.x == 0) mbarrier_init(shared_memory<Hopper>().barrier, 128);
  __syncthreads();
  mbarrier_arrive(shared_memory<Hopper>().barrier);
}
BROKEN(barrier_published_by_another, 128, sizeof(Hopper)) {
  if (threadIdx.x == 0) mbarrier_init(shared_memory<Hopper>().barrier, 128);
  __syncthreads();
  if (threadIdx.x == 1) fence_mbarrier_init();
  mbarrier_wait(shared_memory<Hopper>().barrier, 1);
}
BROKEN(barrier_initialised_twice, 128, sizeof(Hopper)) {
  if (threadIdx.x < 2) mbarrier_init(shared_memory<Hopper>().barrier, 1);
}
BROKEN(barrier_overwritten, 128, sizeof(Hopper)) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 5) shared.barrier.bits = 1;
  __syncthreads();
  mbarrier_wait(shared.barrier, 0);
}
BROKEN(barrier_in_device_memory, 128, sizeof(Hopper)) {
  if (threadIdx.x == 9) mbarrier_init(*reinterpret_cast<Mbarrier*>(out), 1);
}
BROKEN(barrier_misaligned, 128, sizeof(Hopper)) {
  if (threadIdx.x == 9) mbarrier_init(*reinterpret_cast<Mbarrier*>(shared_memory<Tile>().values + 3), 1);
}
BROKEN(barrier_arrived_too_often, 128, sizeof(Hopper)) {
  Hopper& shared = with_barrier();
  if (threadIdx.x < 2) mbarrier_arrive_expect_tx(shared.barrier, 64);
}
BROKEN(barrier_counts_too_much, 128, sizeof(Hopper)) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) mbarrier_arrive_expect_tx(shared.barrier, 1 << 20);
}
BROKEN(barrier_not_completed, 128, sizeof(Hopper)) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) mbarrier_arrive_expect_tx(shared.barrier, 64);
  mbarrier_wait(shared.barrier, 0);
}
BROKEN(barrier_went_on, 128, sizeof(Hopper)) {  // thread 0 does not wait until thread 64 has seen the first phase
  Hopper& shared = with_barrier();
  if (threadIdx.x == 64) mbarrier_arrive(shared.other);
  if (threadIdx.x == 64) mbarrier_wait(shared.barrier, 0);
  if (threadIdx.x != 0) return;
  mbarrier_wait(shared.other, 0);
  for (int i = 0; i < 2; ++i) mbarrier_arrive(shared.barrier);
}

BROKEN_WITH_MAP(box_misaligned) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) tma_load(shared.a.panel[0][1], map, shared.barrier, 0, 0, 0, 0);
}
BROKEN_WITH_MAP(box_between_chunks) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) tma_load(&shared.a, map, shared.barrier, 4, 0, 0, 0);
}
BROKEN_WITH_MAP(store_before_tensor) {
  if (threadIdx.x == 0) tma_store(map, &shared_memory<Hopper>().a, 0, -1, 0, 0);
}
__global__ void store_of_ragged_rows(float*, const __grid_constant__ TensorMap map) {
  if (threadIdx.x == 0) tma_store(map, &shared_memory<Hopper>().a, 0, 0, 0, 0);
}
[[maybe_unused]] const bool store_of_ragged_rows_is_a_case =
    add_with_map<store_of_ragged_rows, 60>("store_of_ragged_rows");
BROKEN_WITH_MAP(box_beyond_shared) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) tma_load(&shared.b + 1, map, shared.barrier, 0, 0, 0, 0);
}
BROKEN(box_without_map, 128, sizeof(Hopper)) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) tma_load(&shared.a, TensorMap(), shared.barrier, 0, 0, 0, 0);
}
BROKEN_WITH_MAP(box_not_waited_for) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) tma_load(&shared.a, map, shared.barrier, 0, 0, 0, 0);
}
BROKEN_WITH_MAP(box_of_unpublished_barrier) {
  if (threadIdx.x != 0) return;
  mbarrier_init(shared_memory<Hopper>().barrier, 1);
  tma_load(&shared_memory<Hopper>().a, map, shared_memory<Hopper>().barrier, 0, 0, 0, 0);
}
BROKEN_WITH_MAP(box_not_expected) {  // its bytes are missing for ever
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) {
    tma_load(&shared.a, map, shared.barrier, 0, 0, 0, 0);
    mbarrier_arrive(shared.barrier);
  }
  mbarrier_wait(shared.barrier, 0);
}
BROKEN_WITH_MAP(box_expected_in_part) {  // one of two
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(shared.barrier, sizeof(shared.a));
    for (int i = 0; i < 2; ++i) tma_load(&shared.a, map, shared.barrier, 0, 0, 0, 0);
  }
  mbarrier_wait(shared.barrier, 0);
}
BROKEN_WITH_MAP(store_not_committed) {
  if (threadIdx.x != 3) return;
  tma_store(map, &shared_memory<Hopper>().a, 0, 0, 0, 0);
  tma_store_wait_group_read();
}
BROKEN_WITH_MAP(store_not_waited_for) {
  if (threadIdx.x != 3) return;
  tma_store(map, &shared_memory<Hopper>().a, 0, 0, 0, 0);
  tma_store_commit_group();
}

BROKEN(product_not_begun, 128, sizeof(Hopper)) {
  float d[32];
  wgmma<64>(d, shared_memory<Hopper>().a.k_major(0, 0), shared_memory<Hopper>().b.k_major(0, 0), false);
  out[threadIdx.x] = d[0];
}
BROKEN(product_begun_once, 128, sizeof(Hopper)) {
  float d[32];
  for (int i = 0; i < 2; ++i) {
    if (i == 0) wgmma_fence();
    wgmma<64>(d, shared_memory<Hopper>().a.k_major(0, 0), shared_memory<Hopper>().b.k_major(0, 0), false);
    wgmma_commit_group();
  }
  wgmma_wait_group<0>();
  out[threadIdx.x] = d[0];
}
template <class Change>
__device__ __forceinline__ void product_with(float* out, Change change) {
  uint64_t a = shared_memory<Hopper>().a.k_major(0, 0), b = shared_memory<Hopper>().b.k_major(0, 0);
  bool accumulate = false;
  change(a, b, accumulate);
  float d[32];
  wgmma_fence();
  wgmma<64>(d, a, b, accumulate);
  wgmma_commit_group();
  wgmma_wait_group<0>();
  out[threadIdx.x] = d[0];
}
BROKEN(product_of_two_operands, 128, sizeof(Hopper)) {
  product_with(out, [](uint64_t&, uint64_t& b, bool&) { b += threadIdx.x >= 64 ? 2 : 0; });
}
BROKEN(product_accumulates_for_some, 128, sizeof(Hopper)) {
  product_with(out, [](uint64_t&, uint64_t&, bool& accumulate) { accumulate = threadIdx.x % 2; });
}
BROKEN(product_of_reserved_bits, 128, sizeof(Hopper)) {
  product_with(out, [](uint64_t& a, uint64_t&, bool&) { a |= 1ull << 53; });
}
BROKEN(product_of_base_offset, 128, sizeof(Hopper)) {
  product_with(out, [](uint64_t& a, uint64_t&, bool&) { a |= 3ull << 49; });
}
BROKEN(product_from_second_row, 128, sizeof(Hopper)) {
  product_with(out, [](uint64_t& a, uint64_t&, bool&) { a += 128 >> 4; });
}
BROKEN(product_across_lines, 128, sizeof(Hopper)) {
  product_with(out, [](uint64_t& a, uint64_t&, bool&) { a += 112 >> 4; });
}
BROKEN(product_beyond_shared, 128, sizeof(Hopper)) {
  product_with(out, [](uint64_t&, uint64_t& b, bool&) { b += 4096 >> 4; });
}
BROKEN(product_without_stride, 128, sizeof(Hopper)) {
  product_with(out, [](uint64_t&, uint64_t& b, bool&) { b &= ~(0x3fffull << 32); });
}
BROKEN(product_of_some, 128, sizeof(Hopper)) {  // thread 77 has returned, or will
  if (threadIdx.x != 77) product_with(out, [](uint64_t&, uint64_t&, bool&) {});
}
BROKEN(product_of_three_warps, 96, sizeof(Hopper)) {
  product_with(out, [](uint64_t&, uint64_t&, bool&) {});
}
BROKEN(product_against_wait, 128, sizeof(Hopper)) {
  wgmma_fence();
  if (threadIdx.x < 32) wgmma_commit_group();
  wgmma_wait_group<0>();
  out[threadIdx.x] = 1;
}
BROKEN(product_not_met, 128, sizeof(Hopper)) {
  wgmma_fence();
  if (threadIdx.x % 32 < 24) wgmma_wait_group<0>();
  __syncthreads();
  out[threadIdx.x] = 1;
}
BROKEN(product_not_committed, 128, sizeof(Hopper)) {
  float d[32];
  wgmma_fence();
  wgmma<64>(d, shared_memory<Hopper>().a.k_major(0, 0), shared_memory<Hopper>().b.k_major(0, 0), false);
  wgmma_wait_group<0>();
  out[threadIdx.x] = 1;
}
BROKEN(product_not_waited_for, 128, sizeof(Hopper)) {
  float d[32];
  wgmma_fence();
  wgmma<64>(d, shared_memory<Hopper>().a.k_major(0, 0), shared_memory<Hopper>().b.k_major(0, 0), false);
  wgmma_commit_group();
  wgmma_wait_group<1>();
  out[threadIdx.x] = 1;
}
BROKEN(product_overwritten, 128, sizeof(Hopper)) {
  float d[32];
  wgmma_fence();
  wgmma<64>(d, shared_memory<Hopper>().a.k_major(0, 0), shared_memory<Hopper>().b.k_major(0, 0), false);
  wgmma_commit_group();
  d[7] = float(threadIdx.x);
  wgmma_wait_group<0>();
  out[threadIdx.x] = d[7];
}
BROKEN(product_of_two_accumulators, 128, sizeof(Hopper)) {
  float d[2][32];
  wgmma_fence();
  for (int i = 0; i < 2; ++i)
    wgmma<64>(d[threadIdx.x % 2 ? 0 : i], shared_memory<Hopper>().a.k_major(0, 0),
              shared_memory<Hopper>().b.k_major(0, 0), false);
  wgmma_commit_group();
  wgmma_wait_group<0>();
  out[threadIdx.x] = d[0][0];
}

BROKEN(registers_not_given_up, 384, sizeof(Hopper)) {  // 168 each at first
  if (threadIdx.x < 128) setmaxnreg_dec<64>();
  else setmaxnreg_inc<232>();
}
BROKEN(registers_given_up_in_vain, 384, sizeof(Hopper)) { setmaxnreg_dec<200>(); }
BROKEN(registers_taken_in_vain, 384, sizeof(Hopper)) { setmaxnreg_inc<128>(); }
BROKEN(registers_of_two_counts, 384, sizeof(Hopper)) {
  if (threadIdx.x < 64) setmaxnreg_dec<64>();
  else setmaxnreg_dec<40>();
}
BROKEN(named_arrived_in_vain, 128, sizeof(Hopper)) {
  if (threadIdx.x < 64) named_barrier_arrive(4, 96);
}
BROKEN(window_of_device_memory, 128, sizeof(Hopper)) { out[threadIdx.x] = float(smem_address(out)); }

// Only a sanitizer sees these.
BROKEN(race_in_shared, 128, sizeof(Tile)) {  // a barrier is missing
  shared_memory<Tile>().values[threadIdx.x] = float(threadIdx.x);
  out[blockIdx.x * 128 + threadIdx.x] = shared_memory<Tile>().values[127 - threadIdx.x];
}
BROKEN(race_in_warp, 128, sizeof(Tile)) {  // the collective orders the lanes of a warp, not the warps
  shared_memory<Tile>().values[threadIdx.x] = warp_sum(1.0f);
  out[blockIdx.x * 128 + threadIdx.x] = shared_memory<Tile>().values[127 - threadIdx.x];
}
BROKEN(race_in_global, 128, sizeof(Tile)) {  // all threads write one number
  if (threadIdx.x % 2) out[0] = float(threadIdx.x);
}
BROKEN(race_with_product, 256, sizeof(Hopper)) {  // an operand is overwritten, and nobody has said that it was read
  float d[32] = {};
  if (threadIdx.x < 128) {
    wgmma_fence();
    wgmma<64>(d, shared_memory<Hopper>().a.k_major(0, 0), shared_memory<Hopper>().b.k_major(0, 0), false);
    wgmma_commit_group();
    wgmma_wait_group<0>();
  } else if (threadIdx.x == 200) {
    *reinterpret_cast<float*>(&shared_memory<Hopper>().a) = 1;
  }
  out[threadIdx.x] = d[0];
}
BROKEN(beyond_memory, 128, sizeof(Tile)) {
  if (threadIdx.x == 77) out[1024] = 1;
}
BROKEN(integer_overflow, 128, sizeof(Tile)) { out[threadIdx.x] = float(int(threadIdx.x) * 30000000); }

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    for (const Case& c : cases) printf("%s\n", c.name);
    return 0;
  }
  const auto found = std::find_if(cases.begin(), cases.end(), [&](const Case& c) { return !strcmp(c.name, argv[1]); });
  REQUIRE(found != cases.end(), "no case %s", argv[1]);
  Device device(0);
  REQUIRE(!device.info().gpu, "these reports are the CPU backend's: nothing to test on a GPU");
  Stream stream(device, "compute");
  const DeviceMemory memory(device, 1024 * sizeof(float));
  found->run(stream, reinterpret_cast<float*>(memory.data()), found->threads, found->shared_bytes);
  stream.synchronize();
  printf("%s ended as if nothing were wrong\n", argv[1]);
  return 0;
} catch (const Error& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
