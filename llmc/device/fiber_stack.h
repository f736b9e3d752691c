// The memory of a fiber's stack, with a guard region below it: an overflow faults instead of writing into the memory
// below.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "llmc/base/error.h"
#include "llmc/device/fiber.h"

namespace cpu_backend {

inline constexpr size_t kFiberStackBytes = LLMC_ASAN ? 512 << 10 : 128 << 10;

// Unmaps memory. The poison of AddressSanitizer is removed first; otherwise it would apply to whatever is mapped there
// next.
inline void unmap(void* memory, size_t bytes) {
#if LLMC_ASAN
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
#endif
  munmap(memory, bytes);
}

class FiberStack {
 public:
  FiberStack() {
    base_ = static_cast<char*>(mmap(nullptr, kFiberStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    REQUIRE(base_ != MAP_FAILED, "no memory for a fiber's stack of %zu bytes", kFiberStackBytes);
    mprotect(base_, kGuardBytes, PROT_NONE);
  }
  ~FiberStack() { unmap(base_, kFiberStackBytes + kGuardBytes); }
  FiberStack(const FiberStack&) = delete;
  char* bottom() const { return base_ + kGuardBytes; }
  bool guards(const void* address) const { return address >= base_ && address < bottom(); }

 private:
  // A GPU thread can have at most 512 KiB of local memory, so no frame reaches beyond the guard region.
  static constexpr size_t kGuardBytes = 512 << 10;
  char* base_;
};

}  // namespace cpu_backend
