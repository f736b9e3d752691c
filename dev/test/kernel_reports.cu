// Broken kernels, one a run: `kernel_reports NAME` must end with a report of the CPU world, `kernel_reports` lists the
// names. Driven by kernel_reports.sh.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "llmc/device/async_copy.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/device/tensor_core.cuh"

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
__global__ void beyond_memory(float* out) {
  if (threadIdx.x == 77) out[1024] = 1;
}
__global__ void integer_overflow(float* out) { out[threadIdx.x] = float(int(threadIdx.x) * 30000000); }

template <auto kernel>
void run(Stream& stream, float* data, unsigned threads, size_t shared_bytes) {
  launch<kernel>({stream, "broken", {updates(data, 1024)}}, 3, threads, shared_bytes, data);
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
      make<shared_overrun>("shared_overrun", 128, 128 * sizeof(float)),
      make<large_frame>("large_frame"),
      make<null_pointer>("null_pointer"),
      make<race_in_shared>("race_in_shared"),
      make<race_in_warp>("race_in_warp"),
      make<race_in_global>("race_in_global"),
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
