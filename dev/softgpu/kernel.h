// A translated kernel includes this file: arithmetic, memory, and the calls by which its threads do things together.
// The calls are implemented by the executor (executor.cpp, units.cpp), with the CPU backend's fibers, barriers and
// Hopper units.
//
// Translated code has #line directives, so file and line in every report are those of the .cu file or its headers.
#pragma once

#include "dev/softgpu/arithmetic.h"
#include "dev/softgpu/memory.h"

#pragma GCC visibility push(default)
namespace softgpu {

struct Parameter {
  u32 offset, bytes;
};

// A variable of the module, in global memory. Whoever loads the kernel writes where it lies.
struct Variable {
  const char* name;
  u64* address;
  u32 bytes;
};

// What `translate` writes in addition to the code: the symbol softgpu_kernel of a translated kernel.
struct KernelInfo {
  const char* name;
  void (*run)(Thread& thread);
  const Parameter* parameters;
  u32 parameter_count, parameter_bytes;
  const Variable* variables;
  u32 variable_count;
  u32 static_shared, dynamic_shared_begin;  // bytes of static shared memory; where the dynamic part begins
  u32 max_threads;                          // of a block: __launch_bounds__
  // With LLMC_SOFTGPU_EXECUTED: each instruction's name and place in the source, and whether a thread has executed it.
  u32 instruction_count;
  const char* const* instructions;
  const u8* executed;
};

// An instruction in the source, as cpu_backend::Place. It must live until the call returns.
struct Place {
  const char* what;
  const char* file;
  int line;
};

#define SOFTGPU_STATIC_PLACE(what)                      \
  []() -> const Place& {                                \
    static const Place place{what, __FILE__, __LINE__}; \
    return place;                                       \
  }()
#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not see into the executor. As long as a call of it takes, the call's place is on the stack of
// what ThreadSanitizer reports.
extern "C" void __tsan_func_entry(void* caller);
extern "C" void __tsan_func_exit();
class Call {
 public:
  [[gnu::noinline]] explicit Call(const Place& place) : place_(place) {
    __tsan_func_entry(__builtin_return_address(0));
  }
  ~Call() { __tsan_func_exit(); }
  operator const Place&() const { return place_; }

 private:
  const Place& place_;
};
#define SOFTGPU_PLACE(what) Call(SOFTGPU_STATIC_PLACE(what))
#else
#define SOFTGPU_PLACE(what) SOFTGPU_STATIC_PLACE(what)
#endif

[[noreturn]] void trap(const Place& place);

// The threads of a block call these. A barrier's number is 0 to 15.
void bar_sync(u32 barrier, const Place& place);
void bar_sync(u32 barrier, u32 threads, const Place& place);
void bar_arrive(u32 barrier, u32 threads, const Place& place);
u64 clock64();                   // in cycles of an H100 at 1.755 GHz
void yield(const Place& place);  // lets other threads and blocks go on: called by one that waits

// The threads of a warp call these.
enum class Shuffle { up, down, bfly, idx };
void bar_warp_sync(u32 mask, const Place& place);
u32 shfl(Shuffle how, u32 value, u32 lane, u32 clamp_and_segment, u32 mask, bool& in_range, const Place& place);
u32 vote_ballot(u32 mask, bool predicate, const Place& place);
enum class Redux { add, max, min };
u32 redux(Redux how, u32 value, u32 mask, const Place& place);
void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const f32 (&c)[4], const Place& place);
void ldmatrix_x4(u32 (&r)[4], const u8* row, bool transposed, const Place& place);

// Copies of one thread that land later.
void cp_async(u8* to, u64 from, u32 bytes, u32 source_bytes, const Place& place);
void cp_async_commit_group();
void cp_async_wait_group(u32 under_way);

// Hopper.
void mbarrier_init(u8* barrier, u32 arrivals, const Place& place);
void mbarrier_arrive(u8* barrier, u32 expected_bytes, const Place& place);
bool mbarrier_try_wait(u8* barrier, u32 parity, const Place& place);
bool mbarrier_test_wait(u8* barrier, u32 parity, const Place& place);  // in a kernel that may give up: nobody sleeps
void fence_mbarrier_init(const Place& place);
void fence_proxy_async(const Place& place);
// An ordinary store to shared memory, which TMA and wgmma see only after the thread's fence.
void store_shared(u8* to, const void* value, u32 bytes, const Place& place);
struct BoxPlace {
  s32 at[4];  // in elements, the contiguous dimension first
};
void tma_load(u8* to, u8* barrier, const u8* map, BoxPlace from, const Place& place);
void tma_store(const u8* from, const u8* map, BoxPlace to, const Place& place);
void tma_commit_group(const Place& place);
void tma_wait_group_read(const Place& place);
void wgmma_fence(const Place& place);
struct Wgmma {
  f32* d;  // 64 rows of `columns`, in the registers of 128 threads
  u32 columns;
  const u32* fragments;  // A in registers; null: `a` describes it in shared memory
  u64 a, b;
  bool accumulate;
  u32 major_a, major_b;  // 0: k is the contiguous dimension, 1: m or n
};
void wgmma(const Wgmma& product, const Place& place);
void wgmma_commit_group(const Place& place);
void wgmma_wait_group(u32 under_way, const Place& place);
void setmaxnreg(u32 registers, bool more, const Place& place);

}  // namespace softgpu
#pragma GCC visibility pop
