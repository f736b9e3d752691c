// launch<kernel>(work, grid, block, shared_bytes, arguments…): enqueues a kernel in the stream of `work`.
//
// The kernel is a template argument, so that the CPU backend can inline it into its loop over the threads of a block.
// A shape that no GPU accepts is an error in both backends: an empty grid, more than 1024 threads, or more shared
// memory than the device gives a block (227 KiB on Hopper).
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <type_traits>

#include "llmc/base/error.h"
#include "llmc/device/bounded_wait.cuh"
#include "llmc/device/device.h"
#include "llmc/device/kernel.cuh"

#if LLMC_CUDA
#include "llmc/device/cuda_error.h"
#include "llmc/device/cuda_stream.h"
#else
#include "llmc/device/cpu_stream.h"
#endif

inline void require_launchable(const Work& work, dim3 grid, dim3 block, size_t shared_bytes) {
  const size_t blocks = size_t(grid.x) * grid.y * grid.z, threads = size_t(block.x) * block.y * block.z;
  REQUIRE(blocks > 0 && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 && threads > 0 && threads <= 1024 &&
              block.z <= 64 && shared_bytes <= work.stream.device().info().shared_bytes_per_block,
          "%s (%s:%d): cannot launch a grid of %u x %u x %u blocks of %u x %u x %u threads with %zu bytes of shared "
          "memory\n"
          "  limits: 2^31-1 x 65535 x 65535 blocks, none empty; 1024 threads; %zu bytes",
          work.name, work.site.file, work.site.line, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
          work.stream.device().info().shared_bytes_per_block);
}

template <auto kernel>
const char* kernel_name() {
  return __PRETTY_FUNCTION__;
}

#if LLMC_CUDA
// Allows blocks of this kernel so much dynamic shared memory. `allowed` is what an earlier launch, of any thread,
// allowed; the attribute must not become smaller.
inline void allow_shared_bytes(const void* kernel, size_t bytes, std::atomic<size_t>& allowed) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (bytes <= allowed) return;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
  // Gives shared memory the largest part of the L1 cache, so that as many blocks fit on a multiprocessor as intended.
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
  allowed = bytes;
}
#endif

#if LLMC_CUDA && LLMC_BOUNDED_WAITS
namespace {
// Waits for the kernel, and throws if a thread of it waited in vain. Work that is captured is not looked at.
[[maybe_unused]] void require_no_vain_wait(const Work& work) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(cuda_stream(work.stream), &capture));
  if (capture != cudaStreamCaptureStatusNone) return;
  CUDA_CHECK(cudaStreamSynchronize(cuda_stream(work.stream)));
  VainWait wait;
  CUDA_CHECK(cudaMemcpyFromSymbol(&wait, vain_wait, sizeof wait));
  if (!wait.any) return;
  const VainWait nothing{};
  CUDA_CHECK(cudaMemcpyToSymbol(vain_wait, &nothing, sizeof nothing));
  fail("%s (%s:%d): thread %u of block %u waited in vain for parity %u of the mbarrier at %u of shared memory",
       work.name, work.site.file, work.site.line, wait.thread, wait.block, wait.parity, wait.address);
}
}  // namespace
#endif

template <auto kernel, class... Arguments>
void launch(Work work, dim3 grid, dim3 block, size_t shared_bytes, Arguments... arguments) {
  require_launchable(work, grid, block, shared_bytes);
  work.shape = {kernel_name<kernel>(), {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes};
#if LLMC_CUDA
  const RecordedWork recorded(work);
  if (!recorded.executes()) return;
  static std::atomic<size_t> allowed{48 * 1024};  // by this kernel's attribute, in this process, which uses one GPU
  if (shared_bytes > allowed) allow_shared_bytes(reinterpret_cast<const void*>(kernel), shared_bytes, allowed);
  kernel<<<grid, block, shared_bytes, cuda_stream(work.stream)>>>(arguments...);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    fail_as(exit_code_of(status), "%s (%s:%d): %s", work.name, work.site.file, work.site.line,
            cudaGetErrorString(status));
#if LLMC_BOUNDED_WAITS
  require_no_vain_wait(work);
#endif
#else
  using Kernel = cpu_backend::Signature<kernel>;
  auto values = Kernel::pack(arguments...);
  cpu_backend::KernelLaunch shape{
      work.name, work.site, grid, block, shared_bytes, nullptr, &Kernel::run_threads, &Kernel::enter_block};
  Device& device = work.stream.device();
  cpu_backend::enqueue(work, [values, shape, &device]() mutable {
    shape.arguments = &values;
    cpu_backend::run_grid(device, shape);
  });
#endif
}

// Calls body(std::bool_constant<value>{}), so that a value of the run becomes a template argument of a kernel.
template <class Body>
void with_constant(bool value, const Body& body) {
  if (value) body(std::true_type{});
  else body(std::false_type{});
}

// Returns the number of blocks of `per_block` elements that cover `count` elements.
inline unsigned blocks_for(size_t count, size_t per_block) { return unsigned((count + per_block - 1) / per_block); }
