// Broken kernels, one a run: `kernel_reports NAME` must end with a report of the CPU world, `kernel_reports` lists the
// names. Driven by kernel_reports.sh.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "llmc/device/async_copy.cuh"
#include "llmc/device/block_flag.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/device/tensor_copy.cuh"
#include "llmc/device/tensor_core.cuh"
#include "llmc/device/wgmma.cuh"

namespace {

struct Tile {
  float values[256];
};

__global__ void whole(float* out) {  // nothing is wrong with it
  shared_memory<Tile>().values[threadIdx.x] = warp_sum(1.0f);
  __syncthreads();
  out[blockIdx.x * 128 + threadIdx.x] = shared_memory<Tile>().values[127 - threadIdx.x] + block_sum(1.0f);
}

__global__ void two_barriers(float* out) {
  if (threadIdx.x < 40) __syncthreads();
  else __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void barrier_against_sum(float* out) {
  if (threadIdx.x < 40) __syncthreads();
  else out[threadIdx.x] = block_sum(1.0f);
}
__global__ void two_collectives(float* out) {
  if (threadIdx.x % 32 < 7) out[threadIdx.x] = warp_sum(1.0f);
  else out[threadIdx.x] = warp_max(1.0f);
}
__global__ void two_masks(float* out) {
  const uint32_t mask = threadIdx.x % 32 < 7 ? ~0u : 0xffffff80u;
  out[threadIdx.x] = __shfl_sync(mask, 1.0f, 7);
  __syncthreads();
}
__global__ void not_in_mask(float* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0); }
// Half of each warp waits for the other half, which waits for the whole block.
__global__ void warp_against_barrier(float* out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
  __syncthreads();
}
__global__ void sum_of_half_warps(float* out) { out[threadIdx.x] = warp_sum(1.0f); }
__global__ void sum_of_some(float* out) {
  if (threadIdx.x < 32) return;
  out[threadIdx.x] = block_sum(1.0f);
}
__global__ void returned_during_sum(float* out) {
  if (threadIdx.x == 127) return;
  out[threadIdx.x] = block_sum(1.0f);
}
// Each barrier's number and threads must fit those who wait there, and who waits must be met.
__global__ void named_of_two_sizes(float* out) {
  named_barrier_sync(3, threadIdx.x < 32 ? 64 : 128);
  out[threadIdx.x] = 1;
}
__global__ void named_not_met(float* out) {
  if (threadIdx.x < 96) named_barrier_sync(3, 128);
  out[threadIdx.x] = 1;
}
__global__ void named_of_half_warps(float* out) {
  named_barrier_sync(3, 48);
  out[threadIdx.x] = 1;
}
__global__ void copy_misaligned(float* out) {
  cp_async16(&shared_memory<Tile>().values[threadIdx.x], out + 4 * threadIdx.x);
  cp_async_commit();
}
__global__ void copy_to_global(float* out) { cp_async16(out, out + 4); }
__global__ void matrix_misaligned(float* out) {
  uint32_t r[4];
  ldmatrix_x4<false>(r, &shared_memory<Tile>().values[threadIdx.x]);
  out[threadIdx.x] = bits_to_float(r[0]);
}
struct alignas(64) MisplacedTile {
  float before[16];
  bf16 tile[16 * 64];
};
__global__ void tile_misaligned(float* out) {
  out[threadIdx.x] = float(swizzled_address<64>(shared_memory<MisplacedTile>().tile, int(threadIdx.x % 16), 0));
}
__global__ void flag_never_set(float* out) {
  uint32_t& flag = *reinterpret_cast<uint32_t*>(out);
  if (threadIdx.x == 0) flag_set(flag, 3);
  if (threadIdx.x == 5) flag_wait(flag, 4);
  __syncthreads();
}
__global__ void flag_in_shared_memory(float* out) {
  uint32_t* volatile flag = &shared_memory<uint32_t>();  // nvcc crashes where it sees whose address it is
  flag_set(*flag, 1);
  out[threadIdx.x] = 1;
}
__global__ void shared_overrun(float* out) {
  shared_memory<Tile>().values[threadIdx.x + 1] = 1;
  __syncthreads();
  out[threadIdx.x] = shared_memory<Tile>().values[threadIdx.x];
}
__global__ void large_frame(float* out) {
  volatile float values[150000];
  for (int i = 0; i < 150000; ++i) values[i] = out[0];
  out[threadIdx.x] = values[threadIdx.x];
}
__global__ void null_pointer(float* out) {
  if (threadIdx.x == 77) *reinterpret_cast<volatile float*>(size_t(out) & 64) = 1;
}

// ---- Hopper's instructions

struct alignas(1024) Hopper {
  WgmmaTile<64, 64> a, b;
  TransactionBarrier barrier, other;
};

// What the cases below begin with: a barrier for one arrival.
__device__ __forceinline__ Hopper& with_barrier() {
  Hopper& shared = shared_memory<Hopper>();
  if (threadIdx.x == 0) {
    barrier_initialize(shared.barrier, 1);
    barrier_initialize(shared.other, 1);
    barriers_publish();
  }
  __syncthreads();
  return shared;
}

__global__ void barrier_not_initialised(float*) { barrier_arrive(shared_memory<Hopper>().barrier); }
__global__ void barrier_not_published(float*) {
  if (threadIdx.x == 0) barrier_initialize(shared_memory<Hopper>().barrier, 128);
  __syncthreads();
  barrier_arrive(shared_memory<Hopper>().barrier);
}
__global__ void barrier_published_by_another(float*) {
  if (threadIdx.x == 0) barrier_initialize(shared_memory<Hopper>().barrier, 128);
  __syncthreads();
  if (threadIdx.x == 1) barriers_publish();
  barrier_wait(shared_memory<Hopper>().barrier, 1);
}
__global__ void barrier_initialised_twice(float*) {
  if (threadIdx.x < 2) barrier_initialize(shared_memory<Hopper>().barrier, 1);
}
__global__ void barrier_overwritten(float*) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 5) shared.barrier.bits = 1;
  __syncthreads();
  barrier_wait(shared.barrier, 0);
}
__global__ void barrier_in_device_memory(float* out) {
  if (threadIdx.x == 9) barrier_initialize(*reinterpret_cast<TransactionBarrier*>(out), 1);
}
__global__ void barrier_misaligned(float*) {
  if (threadIdx.x == 9) barrier_initialize(*reinterpret_cast<TransactionBarrier*>(shared_memory<Tile>().values + 3), 1);
}
__global__ void barrier_arrived_too_often(float*) {
  Hopper& shared = with_barrier();
  if (threadIdx.x < 2) barrier_expect(shared.barrier, 64);
}
__global__ void barrier_counts_too_much(float*) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) barrier_expect(shared.barrier, 1 << 20);
}
__global__ void barrier_not_completed(float*) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) barrier_expect(shared.barrier, 64);
  barrier_wait(shared.barrier, 0);
}
__global__ void barrier_went_on(float*) {  // thread 0 does not wait until thread 64 has seen the first phase
  Hopper& shared = with_barrier();
  if (threadIdx.x == 64) barrier_arrive(shared.other);
  if (threadIdx.x == 64) barrier_wait(shared.barrier, 0);
  if (threadIdx.x != 0) return;
  barrier_wait(shared.other, 0);
  for (int i = 0; i < 2; ++i) barrier_arrive(shared.barrier);
}

__global__ void box_misaligned(float*, const __grid_constant__ TensorMap map) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) load_box(shared.a.panel[0][1], map, shared.barrier, 0, 0, 0, 0);
}
__global__ void box_beyond_shared(float*, const __grid_constant__ TensorMap map) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) load_box(&shared.b + 1, map, shared.barrier, 0, 0, 0, 0);
}
__global__ void box_without_map(float*) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) load_box(&shared.a, TensorMap(), shared.barrier, 0, 0, 0, 0);
}
__global__ void box_not_waited_for(float*, const __grid_constant__ TensorMap map) {
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) load_box(&shared.a, map, shared.barrier, 0, 0, 0, 0);
}
__global__ void box_of_unpublished_barrier(float*, const __grid_constant__ TensorMap map) {
  if (threadIdx.x != 0) return;
  barrier_initialize(shared_memory<Hopper>().barrier, 1);
  load_box(&shared_memory<Hopper>().a, map, shared_memory<Hopper>().barrier, 0, 0, 0, 0);
}
__global__ void box_not_expected(float*, const __grid_constant__ TensorMap map) {  // its bytes are missing for ever
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) {
    load_box(&shared.a, map, shared.barrier, 0, 0, 0, 0);
    barrier_arrive(shared.barrier);
  }
  barrier_wait(shared.barrier, 0);
}
__global__ void box_expected_in_part(float*, const __grid_constant__ TensorMap map) {  // one of two
  Hopper& shared = with_barrier();
  if (threadIdx.x == 0) {
    barrier_expect(shared.barrier, sizeof(shared.a));
    for (int i = 0; i < 2; ++i) load_box(&shared.a, map, shared.barrier, 0, 0, 0, 0);
  }
  barrier_wait(shared.barrier, 0);
}
__global__ void store_not_committed(float*, const __grid_constant__ TensorMap map) {
  if (threadIdx.x != 3) return;
  store_box(map, &shared_memory<Hopper>().a, 0, 0, 0, 0);
  stores_wait_read();
}
__global__ void store_not_waited_for(float*, const __grid_constant__ TensorMap map) {
  if (threadIdx.x != 3) return;
  store_box(map, &shared_memory<Hopper>().a, 0, 0, 0, 0);
  stores_commit();
}

__global__ void product_not_begun(float* out) {
  float d[32];
  multiply<64>(d, shared_memory<Hopper>().a.by_columns(0, 0), shared_memory<Hopper>().b.by_columns(0, 0), false);
  out[threadIdx.x] = d[0];
}
__global__ void product_begun_once(float* out) {
  float d[32];
  for (int i = 0; i < 2; ++i) {
    if (i == 0) products_begin();
    multiply<64>(d, shared_memory<Hopper>().a.by_columns(0, 0), shared_memory<Hopper>().b.by_columns(0, 0), false);
    products_commit();
  }
  products_wait<0>();
  out[threadIdx.x] = d[0];
}
template <class Change>
__device__ __forceinline__ void product_with(float* out, Change change) {
  uint64_t a = shared_memory<Hopper>().a.by_columns(0, 0), b = shared_memory<Hopper>().b.by_columns(0, 0);
  bool accumulate = false;
  change(a, b, accumulate);
  float d[32];
  products_begin();
  multiply<64>(d, a, b, accumulate);
  products_commit();
  products_wait<0>();
  out[threadIdx.x] = d[0];
}
__global__ void product_of_two_operands(float* out) {
  product_with(out, [](uint64_t&, uint64_t& b, bool&) { b += threadIdx.x >= 64 ? 2 : 0; });
}
__global__ void product_accumulates_for_some(float* out) {
  product_with(out, [](uint64_t&, uint64_t&, bool& accumulate) { accumulate = threadIdx.x % 2; });
}
__global__ void product_of_reserved_bits(float* out) {
  product_with(out, [](uint64_t& a, uint64_t&, bool&) { a |= 1ull << 53; });
}
__global__ void product_of_base_offset(float* out) {
  product_with(out, [](uint64_t& a, uint64_t&, bool&) { a |= 3ull << 49; });
}
__global__ void product_from_second_row(float* out) {
  product_with(out, [](uint64_t& a, uint64_t&, bool&) { a += 128 >> 4; });
}
__global__ void product_across_lines(float* out) {
  product_with(out, [](uint64_t& a, uint64_t&, bool&) { a += 112 >> 4; });
}
__global__ void product_beyond_shared(float* out) {
  product_with(out, [](uint64_t&, uint64_t& b, bool&) { b += 4096 >> 4; });
}
__global__ void product_without_stride(float* out) {
  product_with(out, [](uint64_t&, uint64_t& b, bool&) { b &= ~(0x3fffull << 32); });
}
__global__ void product_of_some(float* out) {  // thread 77 has returned, or will
  if (threadIdx.x != 77) product_with(out, [](uint64_t&, uint64_t&, bool&) {});
}
__global__ void product_of_three_warps(float* out) {
  product_with(out, [](uint64_t&, uint64_t&, bool&) {});
}
__global__ void product_against_wait(float* out) {
  products_begin();
  if (threadIdx.x < 32) products_commit();
  products_wait<0>();
  out[threadIdx.x] = 1;
}
__global__ void product_not_met(float* out) {
  products_begin();
  if (threadIdx.x % 32 < 24) products_wait<0>();
  __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void product_not_committed(float* out) {
  float d[32];
  products_begin();
  multiply<64>(d, shared_memory<Hopper>().a.by_columns(0, 0), shared_memory<Hopper>().b.by_columns(0, 0), false);
  products_wait<0>();
  out[threadIdx.x] = 1;
}
__global__ void product_not_waited_for(float* out) {
  float d[32];
  products_begin();
  multiply<64>(d, shared_memory<Hopper>().a.by_columns(0, 0), shared_memory<Hopper>().b.by_columns(0, 0), false);
  products_commit();
  products_wait<1>();
  out[threadIdx.x] = 1;
}
__global__ void product_overwritten(float* out) {
  float d[32];
  products_begin();
  multiply<64>(d, shared_memory<Hopper>().a.by_columns(0, 0), shared_memory<Hopper>().b.by_columns(0, 0), false);
  products_commit();
  d[7] = float(threadIdx.x);
  products_wait<0>();
  out[threadIdx.x] = d[7];
}
__global__ void product_of_two_accumulators(float* out) {
  float d[2][32];
  products_begin();
  for (int i = 0; i < 2; ++i)
    multiply<64>(d[threadIdx.x % 2 ? 0 : i], shared_memory<Hopper>().a.by_columns(0, 0),
                 shared_memory<Hopper>().b.by_columns(0, 0), false);
  products_commit();
  products_wait<0>();
  out[threadIdx.x] = d[0][0];
}

__global__ void registers_not_given_up(float*) {  // 168 each at first
  if (threadIdx.x < 128) give_up_registers<64>();
  else take_registers<232>();
}
__global__ void registers_given_up_in_vain(float*) { give_up_registers<200>(); }
__global__ void registers_taken_in_vain(float*) { take_registers<128>(); }
__global__ void registers_of_two_counts(float*) {
  if (threadIdx.x < 64) give_up_registers<64>();
  else give_up_registers<40>();
}
__global__ void named_arrived_in_vain(float*) {
  if (threadIdx.x < 64) named_barrier_arrive(4, 96);
}
__global__ void window_of_device_memory(float* out) { out[threadIdx.x] = float(shared_window(out)); }

// What only a sanitizer sees.
__global__ void race_in_shared(float* out) {  // a barrier is missing
  shared_memory<Tile>().values[threadIdx.x] = float(threadIdx.x);
  out[blockIdx.x * 128 + threadIdx.x] = shared_memory<Tile>().values[127 - threadIdx.x];
}
__global__ void race_in_warp(float* out) {  // the collective orders the lanes of a warp, not the warps
  shared_memory<Tile>().values[threadIdx.x] = warp_sum(1.0f);
  out[blockIdx.x * 128 + threadIdx.x] = shared_memory<Tile>().values[127 - threadIdx.x];
}
__global__ void race_in_global(float* out) {  // all threads write one number
  if (threadIdx.x % 2) out[0] = float(threadIdx.x);
}
__global__ void race_with_product(float* out) {  // an operand is overwritten, and nobody has said that it was read
  float d[32] = {};
  if (threadIdx.x < 128) {
    products_begin();
    multiply<64>(d, shared_memory<Hopper>().a.by_columns(0, 0), shared_memory<Hopper>().b.by_columns(0, 0), false);
    products_commit();
    products_wait<0>();
  } else if (threadIdx.x == 200) {
    *reinterpret_cast<float*>(&shared_memory<Hopper>().a) = 1;
  }
  out[threadIdx.x] = d[0];
}
__global__ void beyond_memory(float* out) {
  if (threadIdx.x == 77) out[1024] = 1;
}
__global__ void integer_overflow(float* out) { out[threadIdx.x] = float(int(threadIdx.x) * 30000000); }

template <auto kernel>
void run(Stream& stream, float* data, unsigned threads, size_t shared_bytes) {
  launch<kernel>({stream, "broken", {updates(data, 1024)}}, 3, threads, shared_bytes, data);
}

// `data` as 16 rows of 64 bf16; boxes of 64 rows.
template <auto kernel>
void run_with_map(Stream& stream, float* data, unsigned threads, size_t shared_bytes) {
  TensorView view;
  view.data = data;
  view.sizes[0] = 64, view.sizes[1] = 16;
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
template <auto kernel>
Case make(const char* name, unsigned threads = 128, size_t shared_bytes = sizeof(Tile)) {
  return {name, &run<kernel>, threads, shared_bytes};
}

template <auto kernel>
Case make_with_map(const char* name) {
  return {name, &run_with_map<kernel>, 128, sizeof(Hopper)};
}

std::vector<Case> cases() {
  return {
      make<whole>("whole"),
      make<two_barriers>("two_barriers"),
      make<barrier_against_sum>("barrier_against_sum"),
      make<two_collectives>("two_collectives"),
      make<two_masks>("two_masks"),
      make<not_in_mask>("not_in_mask"),
      make<warp_against_barrier>("warp_against_barrier"),
      make<sum_of_half_warps>("sum_of_half_warps", 48),
      make<sum_of_some>("sum_of_some"),
      make<returned_during_sum>("returned_during_sum"),
      make<named_of_two_sizes>("named_of_two_sizes"),
      make<named_not_met>("named_not_met"),
      make<named_of_half_warps>("named_of_half_warps"),
      make<copy_misaligned>("copy_misaligned"),
      make<copy_to_global>("copy_to_global"),
      make<matrix_misaligned>("matrix_misaligned", 32),
      make<tile_misaligned>("tile_misaligned", 32, sizeof(MisplacedTile)),
      make<flag_never_set>("flag_never_set"),
      make<flag_in_shared_memory>("flag_in_shared_memory"),
      make<shared_overrun>("shared_overrun", 128, 128 * sizeof(float)),
      make<large_frame>("large_frame"),
      make<null_pointer>("null_pointer"),
      make<barrier_not_initialised>("barrier_not_initialised", 128, sizeof(Hopper)),
      make<barrier_not_published>("barrier_not_published", 128, sizeof(Hopper)),
      make<barrier_published_by_another>("barrier_published_by_another", 128, sizeof(Hopper)),
      make<barrier_initialised_twice>("barrier_initialised_twice", 128, sizeof(Hopper)),
      make<barrier_overwritten>("barrier_overwritten", 128, sizeof(Hopper)),
      make<barrier_in_device_memory>("barrier_in_device_memory", 128, sizeof(Hopper)),
      make<barrier_misaligned>("barrier_misaligned", 128, sizeof(Hopper)),
      make<barrier_arrived_too_often>("barrier_arrived_too_often", 128, sizeof(Hopper)),
      make<barrier_counts_too_much>("barrier_counts_too_much", 128, sizeof(Hopper)),
      make<barrier_not_completed>("barrier_not_completed", 128, sizeof(Hopper)),
      make<barrier_went_on>("barrier_went_on", 128, sizeof(Hopper)),
      make_with_map<box_misaligned>("box_misaligned"),
      make_with_map<box_beyond_shared>("box_beyond_shared"),
      make<box_without_map>("box_without_map", 128, sizeof(Hopper)),
      make_with_map<box_not_waited_for>("box_not_waited_for"),
      make_with_map<box_of_unpublished_barrier>("box_of_unpublished_barrier"),
      make_with_map<box_not_expected>("box_not_expected"),
      make_with_map<box_expected_in_part>("box_expected_in_part"),
      make_with_map<store_not_committed>("store_not_committed"),
      make_with_map<store_not_waited_for>("store_not_waited_for"),
      make<product_not_begun>("product_not_begun", 128, sizeof(Hopper)),
      make<product_begun_once>("product_begun_once", 128, sizeof(Hopper)),
      make<product_of_two_operands>("product_of_two_operands", 128, sizeof(Hopper)),
      make<product_accumulates_for_some>("product_accumulates_for_some", 128, sizeof(Hopper)),
      make<product_of_reserved_bits>("product_of_reserved_bits", 128, sizeof(Hopper)),
      make<product_of_base_offset>("product_of_base_offset", 128, sizeof(Hopper)),
      make<product_from_second_row>("product_from_second_row", 128, sizeof(Hopper)),
      make<product_across_lines>("product_across_lines", 128, sizeof(Hopper)),
      make<product_beyond_shared>("product_beyond_shared", 128, sizeof(Hopper)),
      make<product_without_stride>("product_without_stride", 128, sizeof(Hopper)),
      make<product_of_some>("product_of_some", 128, sizeof(Hopper)),
      make<product_of_three_warps>("product_of_three_warps", 96, sizeof(Hopper)),
      make<product_against_wait>("product_against_wait", 128, sizeof(Hopper)),
      make<product_not_met>("product_not_met", 128, sizeof(Hopper)),
      make<product_not_committed>("product_not_committed", 128, sizeof(Hopper)),
      make<product_not_waited_for>("product_not_waited_for", 128, sizeof(Hopper)),
      make<product_overwritten>("product_overwritten", 128, sizeof(Hopper)),
      make<product_of_two_accumulators>("product_of_two_accumulators", 128, sizeof(Hopper)),
      make<registers_not_given_up>("registers_not_given_up", 384, sizeof(Hopper)),
      make<registers_given_up_in_vain>("registers_given_up_in_vain", 384, sizeof(Hopper)),
      make<registers_taken_in_vain>("registers_taken_in_vain", 384, sizeof(Hopper)),
      make<registers_of_two_counts>("registers_of_two_counts", 384, sizeof(Hopper)),
      make<named_arrived_in_vain>("named_arrived_in_vain", 128, sizeof(Hopper)),
      make<window_of_device_memory>("window_of_device_memory", 128, sizeof(Hopper)),
      make<race_in_shared>("race_in_shared"),
      make<race_in_warp>("race_in_warp"),
      make<race_in_global>("race_in_global"),
      make<race_with_product>("race_with_product", 256, sizeof(Hopper)),
      make<beyond_memory>("beyond_memory"),
      make<integer_overflow>("integer_overflow"),
  };
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    for (const Case& c : cases()) printf("%s\n", c.name);
    return 0;
  }
  const std::vector<Case> all = cases();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Case& c) { return !strcmp(c.name, argv[1]); });
  REQUIRE(found != all.end(), "no case %s", argv[1]);
  Device device(0);
  REQUIRE(!device.info().gpu, "these reports are the CPU world's: nothing to test on a GPU");
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
