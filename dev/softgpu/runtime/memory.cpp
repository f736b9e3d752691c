#include "dev/softgpu/runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "dev/softgpu/memory.h"
#include "dev/softgpu/runtime/api.h"
#include "dev/softgpu/runtime/device.h"
#include "dev/softgpu/runtime/engine.h"
#include "llmc/device/cpu_block.h"

namespace softgpu {
namespace {

constexpr size_t kGranule = size_t(1) << kGranuleBits;
constexpr size_t kAlignment = 256;  // of every allocation, as CUDA promises

struct Allocation {
  size_t bytes, mapped;
  MemoryKind kind;
};

// Maps memory at exactly this address, or ends the process.
void map_at(u64 address, size_t bytes, int flags, int file = -1) {
  void* const p = mmap(
      reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
      flags | MAP_FIXED_NOREPLACE | (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED), file, 0);
  if (p == reinterpret_cast<void*>(address)) return;
  fprintf(stderr, "software GPU: no %zu bytes at %llx of the process\n", bytes,
          static_cast<unsigned long long>(address));
  abort();
}
void unmap_at(u64 address, size_t bytes) { munmap(reinterpret_cast<void*>(address), bytes); }

class Memory {
 public:
  static Memory& get() {
    static Memory* const memory = new Memory;
    return *memory;
  }

  cudaError_t allocate(void** p, size_t bytes, MemoryKind kind) {
    *p = nullptr;
    if (const cudaError_t e = Engine::get().error()) return e;
    const std::lock_guard lock(mutex_);
    if (bytes == 0) return cudaSuccess;
    const size_t mapped = (bytes + kGranule - 1) / kGranule * kGranule;
    if (kind == MemoryKind::device &&
        mapped > device_properties().totalGlobalMem - std::min(used_, device_properties().totalGlobalMem))
      return cudaErrorMemoryAllocation;
    if (next_ + mapped + kGranule > kArenaBegin + kArenaBytes) return cudaErrorMemoryAllocation;
    const u64 begin = next_;
    next_ += mapped + kGranule;  // what lies between two allocations is never allocated
    if (kind == MemoryKind::pinned) {
      const int file = memfd_create("pinned", 0);
      if (file < 0 || ftruncate(file, off_t(mapped))) return cudaErrorMemoryAllocation;
      map_at(begin, mapped, 0, file);
      map_at(begin + kMemory, mapped, 0, file);
      close(file);
    } else {
      map_at(begin + kMemory, mapped, 0);
      memset(bytes_at(begin), 0xff, mapped);  // NaN, should a copy take it to the host
      used_ += mapped;
    }
    // The end of the memory is the end of a granule, as nearly as the alignment allows.
    const u64 address = begin + (mapped - bytes) / kAlignment * kAlignment;
    allocations_[address] = {bytes, mapped, kind};
    if (kind == MemoryKind::pinned) memset(reinterpret_cast<u8*>(address + kWritten), kIsWritten, bytes);
    for (u64 g = begin; g < begin + mapped; g += kGranule)
      granule(g) = g >= address && g + kGranule <= address + bytes ? Granule::whole : Granule::part;
    *p = reinterpret_cast<void*>(address);
    return cudaSuccess;
  }

  cudaError_t release(void* p, MemoryKind kind) {
    const std::lock_guard lock(mutex_);
    const auto at = allocations_.find(reinterpret_cast<u64>(p));
    if (at == allocations_.end() || at->second.kind != kind) return cudaErrorInvalidValue;
    const size_t mapped = at->second.mapped;
    const u64 begin = at->first / kGranule * kGranule;
    unmap_at(begin + kMemory, mapped);
    madvise(reinterpret_cast<void*>(begin + kWritten), mapped, MADV_DONTNEED);
    if (kind == MemoryKind::pinned) unmap_at(begin, mapped);
    else used_ -= mapped;
    for (u64 g = begin; g < begin + mapped; g += kGranule) granule(g) = Granule::free;
    allocations_.erase(at);
    return cudaSuccess;
  }

  // Whether the bytes all lie in one allocation.
  bool allocated(u64 address, size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto at = allocations_.upper_bound(address);
    if (at == allocations_.begin()) return false;
    --at;
    return address - at->first <= at->second.bytes && bytes <= at->second.bytes - (address - at->first);
  }

  void take(ptrdiff_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ += size_t(bytes);
  }
  size_t used() {
    const std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  // Address space alone, but for what is touched.
  Memory() {
    map_at(kGranules, (kArenaBegin + kArenaBytes) >> kGranuleBits, 0);
    map_at(kArenaBegin + kWritten, kArenaBytes, 0);
  }
  static Granule& granule(u64 address) { return *reinterpret_cast<Granule*>(kGranules + (address >> kGranuleBits)); }

  std::mutex mutex_;
  u64 next_ = kArenaBegin;
  size_t used_ = 0;
  std::map<u64, Allocation> allocations_;  // by address
};

bool in_arena(const void* p) { return softgpu::in_arena(reinterpret_cast<u64>(p), 0); }
u8* marks_of(const void* p) { return reinterpret_cast<u8*>(reinterpret_cast<u64>(p) + kWritten); }

}  // namespace

cudaError_t allocate(void** p, size_t bytes, MemoryKind kind) { return Memory::get().allocate(p, bytes, kind); }
cudaError_t release(void* p, MemoryKind kind) { return Memory::get().release(p, kind); }
void take_bytes(size_t bytes) { Memory::get().take(ptrdiff_t(bytes)); }
void give_back_bytes(size_t bytes) { Memory::get().take(-ptrdiff_t(bytes)); }
size_t used_bytes() { return Memory::get().used(); }
bool is_pageable(const void* p) { return !in_arena(p); }

void* accessible(const void* p, size_t bytes) {
  if (!in_arena(p)) return const_cast<void*>(p);
  if (!Memory::get().allocated(reinterpret_cast<u64>(p), bytes)) return nullptr;
  return bytes_at(reinterpret_cast<u64>(p));
}
void mark_written(const void* p, size_t bytes) {
  if (in_arena(p)) memset(marks_of(p), kIsWritten, bytes);
}
void copy_marks(const void* to, const void* from, size_t bytes) {
  if (in_arena(to) && in_arena(from)) memmove(marks_of(to), marks_of(from), bytes);
  else mark_written(to, bytes);
}
void require_written(const void* p, size_t bytes, const char* reader) {
  if (!in_arena(p) || bytes == 0) return;
  const u8* const marks = marks_of(p);
  if (marks[0] == kIsWritten && memcmp(marks, marks + 1, bytes - 1) == 0) return;
  fprintf(
      stderr,
      "software GPU: error in %s: a read of %zu bytes of global memory at %p, of which byte %td was never written\n",
      reader, bytes, p, std::find_if(marks, marks + bytes, [](u8 mark) { return mark != kIsWritten; }) - marks);
  Engine::get().end(cudaErrorLaunchFailure);
  for (;;) pause();
}

void explain_global(Access access, u64 address, u32 bytes, const char* file, int line) {
  if (!in_arena(address, bytes) || address & (std::min(bytes, 16u) - 1) || !Memory::get().allocated(address, bytes))
    bad_access("global", access, address, bytes, file, line);
  if (access == Access::write) return;
  const u8* const marks = reinterpret_cast<const u8*>(address + kWritten);
  for (u32 i = 0; i < bytes; ++i)
    if (marks[i] != kIsWritten)
      cpu_backend::stop_kernel("%s:%d: a read of %u bytes of global memory at %llx, of which byte %u was never written",
                               file, line, bytes, static_cast<unsigned long long>(address), i);
}

}  // namespace softgpu

// ---------------------------------------------------------------------------------------------- CUDA's functions

using namespace softgpu;

SOFTGPU_API cudaError_t cudaMalloc(void** p, size_t bytes) {
  if (const cudaError_t e = unsafe_during_capture("cudaMalloc")) return e;
  return give(allocate(p, bytes, MemoryKind::device));
}
SOFTGPU_API cudaError_t cudaMallocHost(void** p, size_t bytes) {
  if (const cudaError_t e = unsafe_during_capture("cudaMallocHost")) return e;
  return give(allocate(p, bytes, MemoryKind::pinned));
}
namespace {
// Both wait until the GPU is idle.
cudaError_t free_after_all_work(void* p, MemoryKind kind, const char* who) {
  if (const cudaError_t e = unsafe_during_capture(who)) return e;
  if (!p) return cudaSuccess;
  if (const cudaError_t e = Engine::get().synchronize()) return give(e);
  return give(release(p, kind));
}
}  // namespace
SOFTGPU_API cudaError_t cudaFree(void* p) { return free_after_all_work(p, MemoryKind::device, "cudaFree"); }
SOFTGPU_API cudaError_t cudaFreeHost(void* p) { return free_after_all_work(p, MemoryKind::pinned, "cudaFreeHost"); }
SOFTGPU_API cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = device_properties().totalGlobalMem;
  *free_bytes = *total_bytes - std::min(used_bytes(), *total_bytes);
  return give(Engine::get().error());
}
