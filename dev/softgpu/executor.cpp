#include "dev/softgpu/executor.h"

#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/cpu_block_state.h"
#include "llmc/device/thread_pool.h"

namespace softgpu {
namespace {

// The threads that execute blocks. They live as long as the process: after an error some of them never return.
struct Machine {
  const CpuBackend backend = CpuBackend::from_environment();
  ThreadPool pool{backend.threads};
  std::vector<std::unique_ptr<cpu_backend::BlockRunner>> runners;
  Random random{backend.seed};

  Machine() {
    for (int i = 0; i < pool.size(); ++i) runners.push_back(std::make_unique<cpu_backend::BlockRunner>(backend, i));
  }
};
Machine& machine() {
  static Machine* const machine = new Machine;
  return *machine;
}

std::atomic<Failed> on_failure{nullptr};
thread_local KernelError error_here = KernelError::launch_failure;

thread_local CpuIndex thread_index, block_index;
thread_local CpuExtent block_extent, grid_extent;

CpuIndex* enter_block(CpuIndex block, CpuExtent block_dim, CpuExtent grid_dim) {
  block_index = block, block_extent = block_dim, grid_extent = grid_dim;
  return &thread_index;
}

// As the CPU backend's own (cpu_kernel.h). The loop's variable is on the stack of the fiber that a thread becomes.
void run_threads(const void* data, int first, int last, const bool& in_loop) {
  const Launch& launch = *static_cast<const Launch*>(data);
  Thread thread{.ntid = {block_extent.x, block_extent.y, block_extent.z},
                .ctaid = {block_index.x, block_index.y, block_index.z},
                .nctaid = {grid_extent.x, grid_extent.y, grid_extent.z},
                .shared = reinterpret_cast<u8*>(cpu_backend::shared_bytes()),
                .shared_bytes = shared_bytes(launch),
                .parameters = launch.parameters,
                .parameter_bytes = launch.kernel->parameter_bytes};
  for (int t = first;;) {
    thread.tid[0] = thread_index.x, thread.tid[1] = thread_index.y, thread.tid[2] = thread_index.z;
    launch.kernel->run(thread);
    if (!in_loop || ++t == last) return;
    if (++thread_index.x < block_extent.x) continue;
    thread_index.x = 0;
    if (++thread_index.y < block_extent.y) continue;
    thread_index.y = 0;
    ++thread_index.z;
  }
}

}  // namespace

u32 shared_bytes(const Launch& launch) {
  if (launch.dynamic_shared_bytes == 0) return launch.kernel->static_shared;
  return launch.kernel->dynamic_shared_begin + launch.dynamic_shared_bytes;
}

void execute(const Launch& launch, Failed failed) {
  Machine& m = machine();
  on_failure = failed;
  const cpu_backend::KernelLaunch shape{.name = launch.kernel->name,
                                        .site = {"PTX", 0},
                                        .grid = CpuExtent(launch.grid[0], launch.grid[1], launch.grid[2]),
                                        .block = CpuExtent(launch.block[0], launch.block[1], launch.block[2]),
                                        .shared_bytes = shared_bytes(launch),
                                        .arguments = &launch,
                                        .run_threads = &run_threads,
                                        .enter_block = &enter_block};
  using Order = CpuBackend::ThreadOrder;
  const size_t blocks = shape.grid.count();
  const size_t offset = m.backend.order == Order::random ? m.random.below(blocks) : 0;
  m.pool.run(blocks, [&](size_t i, int worker) {
    m.runners[size_t(worker)]->run(shape, m.backend.order == Order::reverse ? blocks - 1 - i : (i + offset) % blocks);
  });
}

// ---------------------------------------------------------------------------------------------- errors

void bad_access(const char* space, Access access, u64 address, u32 bytes, const char* file, int line) {
  const bool misaligned = address & (std::min(bytes, 16u) - 1);
  error_here = misaligned ? KernelError::misaligned_address : KernelError::illegal_address;
  cpu_backend::stop_kernel("%s:%d: %s of %u bytes of %s memory at %llx: %s", file, line,
                           access == Access::read ? "a read" : "a write", bytes, space,
                           static_cast<unsigned long long>(address),
                           misaligned ? "not aligned to its size" : "there is no such memory");
}

void trap(const Place& place) { cpu_backend::stop_kernel("%s:%d: trap", place.file, place.line); }

}  // namespace softgpu

namespace cpu_backend {

// In the place of llmc/device/cpu_stop.cpp: the process lives on, the kernel does not.
void stop_kernel(const char* pattern, ...) {
  using softgpu::KernelError;
  static std::atomic<bool> reported{false};
  if (!reported.exchange(true)) {
    va_list args;
    va_start(args, pattern);
    fprintf(stderr, "software GPU: error in a kernel: %s\n", format_list(pattern, args).c_str());
    va_end(args);
    describe_block();
    fflush(stderr);
    const bool hang = !strncmp(pattern, "hang", 4);
    const softgpu::Failed failed = softgpu::on_failure;
    if (failed && !(hang && getenv("LLMC_SOFTGPU_HANG"))) failed(hang ? KernelError::timeout : softgpu::error_here);
  }
  for (;;) pause();
}

}  // namespace cpu_backend
