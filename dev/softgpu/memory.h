// The address spaces of the software GPU, as a translated kernel sees them, and the checks of each access.
//
// The addresses of the device's memory that the program holds are not mapped: the host that follows one faults. The
// bytes lie kMemory above. Behind them, kWritten above, lies one byte for each byte that says whether anything was
// written there: what a kernel reads must have been written, by a kernel, a copy or a fill. Pinned memory is mapped at
// both places, and counts as written. No address is used twice, so what was freed stays unmapped.
//
//   0x1000000000   what the program sees     0x3000000000   the bytes     0x5000000000   which of them were written
//   0x7300000000   a byte for each granule of 64 KiB, which says whether it is allocated
//
// All of it is below 2^39, where ThreadSanitizer lets a program have memory.
#pragma once

#include "dev/softgpu/arithmetic.h"

#pragma GCC visibility push(default)
namespace softgpu {

inline constexpr u64 kArenaBegin = 0x1000000000, kArenaBytes = 0x2000000000;
inline constexpr u64 kMemory = 0x2000000000, kWritten = 0x4000000000;
inline constexpr u8 kIsWritten = 0xff;
inline constexpr u64 kGranules = 0x7300000000;
inline constexpr u32 kGranuleBits = 16;
enum class Granule : u8 { free, whole, part };  // of it, a part or the whole is allocated

// A thread's other spaces have windows in the generic space. In its own space an address counts from the space's begin;
// that of shared memory counts from the window's reserved bytes, which are the system's on compute capability 9.0.
inline constexpr u64 kSharedWindow = 0x7000000000, kLocalWindow = 0x7100000000, kParameterWindow = 0x7200000000;
inline constexpr u32 kReservedShared = 1024;

// One thread knows this of itself. The kernel's own code sets `local`.
struct Thread {
  u32 tid[3], ntid[3], ctaid[3], nctaid[3];
  u8* shared;
  u32 shared_bytes;
  const u8* parameters;
  u32 parameter_bytes;
  u8* local;
  u32 local_bytes;

  u32 linear() const { return tid[0] + ntid[0] * (tid[1] + ntid[1] * tid[2]); }
};

enum class Access { read, write };

#define SOFTGPU_WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// Ends the kernel with the error that CUDA reports for such an access, and a report of the place and the thread.
[[noreturn]] void bad_access(const char* space, Access access, u64 address, u32 bytes, const char* file, int line);
// Finds out what is wrong with an access to global memory. Returns if nothing is.
void explain_global(Access access, u64 address, u32 bytes, const char* file, int line);

// Accesses are aligned to their size; what is larger than a register (a tensor map) has its own rule.
template <u32 bytes>
inline constexpr u64 kUnaligned = (bytes < 16 ? bytes : 16) - 1;

SOFTGPU_INLINE u8* bytes_at(u64 address) { return reinterpret_cast<u8*>(address + kMemory); }

SOFTGPU_INLINE bool in_arena(u64 address, u64 bytes) {
  return address - kArenaBegin < kArenaBytes && bytes <= kArenaBegin + kArenaBytes - address;
}
SOFTGPU_INLINE Granule granule_of(u64 address) {
  return *reinterpret_cast<const Granule*>(kGranules + (address >> kGranuleBits));
}

// The marks of `bytes` bytes, 8 at most. They are read and written atomically: threads that are ordered by the memory
// itself, as a flag's are, read and write its marks at the same time.
template <u32 bytes>
using Marks =
    std::conditional_t<bytes == 1, u8, std::conditional_t<bytes == 2, u16, std::conditional_t<bytes == 4, u32, u64>>>;
template <u32 bytes>
SOFTGPU_INLINE Marks<bytes>* marks(u64 address) {
  return reinterpret_cast<Marks<bytes>*>(address + kWritten);
}
template <u32 bytes>
SOFTGPU_INLINE bool was_written(u64 address) {
  if constexpr (bytes > 8) return was_written<bytes / 2>(address) && was_written<bytes / 2>(address + bytes / 2);
  else return __atomic_load_n(marks<bytes>(address), __ATOMIC_RELAXED) == Marks<bytes>(~0ull);
}
template <u32 bytes>
SOFTGPU_INLINE void note_written(u64 address) {
  if constexpr (bytes > 8) note_written<bytes / 2>(address), note_written<bytes / 2>(address + bytes / 2);
  else __atomic_store_n(marks<bytes>(address), Marks<bytes>(~0ull), __ATOMIC_RELAXED);
}

// Returns where `bytes` bytes of global memory lie.
template <Access access, u32 bytes>
SOFTGPU_INLINE u8* global_memory(u64 address, SOFTGPU_WHERE) {
  const bool inside = in_arena(address, bytes) && (address & kUnaligned<bytes>) == 0;
  if constexpr (access == Access::read) {
    if (__builtin_expect(!inside || !was_written<bytes>(address), 0))
      explain_global(access, address, bytes, file, line);
  } else {
    if (__builtin_expect(!inside || granule_of(address) != Granule::whole, 0))
      explain_global(access, address, bytes, file, line);
    note_written<bytes>(address);
  }
  return bytes_at(address);
}

template <Access access, u32 bytes>
SOFTGPU_INLINE u8* shared_memory(const Thread& thread, u64 address, SOFTGPU_WHERE) {
  const u64 offset = address - kReservedShared;
  if (__builtin_expect(
          offset >= thread.shared_bytes || offset + bytes > thread.shared_bytes || offset & kUnaligned<bytes>, 0))
    bad_access("shared", access, address, bytes, file, line);
  return thread.shared + offset;
}

template <Access access, u32 bytes>
SOFTGPU_INLINE u8* local_memory(const Thread& thread, u64 address, SOFTGPU_WHERE) {
  if (__builtin_expect(
          address >= thread.local_bytes || address + bytes > thread.local_bytes || address & kUnaligned<bytes>, 0))
    bad_access("local", access, address, bytes, file, line);
  return thread.local + address;
}

template <Access access, u32 bytes>
SOFTGPU_INLINE u8* parameter_memory(const Thread& thread, u64 address, SOFTGPU_WHERE) {
  if (__builtin_expect(
          access == Access::write || address + bytes > thread.parameter_bytes || address & kUnaligned<bytes>, 0))
    bad_access("parameter", access, address, bytes, file, line);
  return const_cast<u8*>(thread.parameters) + address;
}

template <Access access, u32 bytes>
SOFTGPU_INLINE u8* generic_memory(const Thread& thread, u64 address, SOFTGPU_WHERE) {
  if (address >= kParameterWindow)
    return parameter_memory<access, bytes>(thread, address - kParameterWindow, file, line);
  if (address >= kLocalWindow) return local_memory<access, bytes>(thread, address - kLocalWindow, file, line);
  if (address >= kSharedWindow) return shared_memory<access, bytes>(thread, address - kSharedWindow, file, line);
  return global_memory<access, bytes>(address, file, line);
}

}  // namespace softgpu
#pragma GCC visibility pop
