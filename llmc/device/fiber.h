// Fibers for the threads of a block. Each fiber has its own stack and is switched by jump_fcontext of Boost.Context;
// Boost's fiber class costs twice as much per switch. A fiber never leaves its OS thread and its function never
// returns: at the end, execution switches away from it for good.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define LLMC_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LLMC_ASAN 1
#endif
#endif
#ifndef LLMC_ASAN
#define LLMC_ASAN 0
#endif

// The Makefile defines this (SANITIZE=thread) for the files that implement the threads of a block, because they are
// themselves compiled without ThreadSanitizer.
#ifndef LLMC_TSAN
#define LLMC_TSAN 0
#endif

#if LLMC_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if LLMC_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {  // the header does not declare these
void __tsan_read_range(const void* data, unsigned long bytes);
void __tsan_write_range(const void* data, unsigned long bytes);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace cpu_backend {

// Tells ThreadSanitizer an order that it cannot see: everything before `release` happens before everything after
// `acquire`.
class OrderToken {
 public:
#if LLMC_TSAN
  void release() { __tsan_release(this); }
  void acquire() { __tsan_acquire(this); }

 private:
  char address_;
#else
  void release() {}
  void acquire() {}
#endif
};

struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;  // where it continues; out of date while it runs
  char* stack = nullptr;
  size_t stack_bytes = 0;
#if LLMC_ASAN
  void* fake_stack = nullptr;
#endif
#if LLMC_TSAN
  void* thread = nullptr;  // ThreadSanitizer's handle of the fiber
  bool watched = true;     // ThreadSanitizer checks the fiber's reads and writes
#endif
};

// Switches between the fibers of one OS thread. `main` stands for the OS thread's own stack.
class FiberSwitch {
 public:
  using Transfer = boost::context::detail::transfer_t;

  Fiber* running() const { return running_; }
  Fiber* main() { return &main_; }

  // Suspends the running fiber and continues `next`. Returns when another fiber switches back.
  void to(Fiber* next) {
    Fiber* self = running_;
    running_ = next;
#if LLMC_ASAN
    __sanitizer_start_switch_fiber(&self->fake_stack, next->stack, next->stack_bytes);
#endif
#if LLMC_TSAN
    __tsan_switch_to_fiber(next->thread, __tsan_switch_to_fiber_no_sync);  // the switch orders nothing; barriers do
#endif
    const Transfer from = boost::context::detail::jump_fcontext(next->context, self);
#if LLMC_ASAN
    __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
#endif
    static_cast<Fiber*>(from.data)->context = from.fctx;
  }

  // Turns ThreadSanitizer's checks of the running fiber's reads and writes on or off. Returns the previous setting,
  // with which the caller restores it. The files that implement the threads are compiled without ThreadSanitizer, but
  // the C++ library functions that they call are not.
  bool watch([[maybe_unused]] bool on) {
#if LLMC_TSAN
    const bool before = running_->watched;
    if (before && !on) {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    } else if (!before && on) {
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    }
    running_->watched = on;
    return before;
#else
    return true;
#endif
  }
  // Tell ThreadSanitizer that the running fiber reads or writes `bytes` bytes at `data`.
  void reads([[maybe_unused]] const void* data, [[maybe_unused]] size_t bytes) {
#if LLMC_TSAN
    const bool before = watch(true);
    __tsan_read_range(data, bytes);
    watch(before);
#endif
  }
  void writes([[maybe_unused]] const void* data, [[maybe_unused]] size_t bytes) {
#if LLMC_TSAN
    const bool before = watch(true);
    __tsan_write_range(data, bytes);
    watch(before);
#endif
  }

  // From this call on, `main` stands for the calling OS thread's stack.
  void enter() {
#if LLMC_TSAN
    main_.thread = __tsan_get_current_fiber();
#endif
  }

  // Prepares a new fiber: it will begin in `function`, with `top` as the top of its stack.
  static void prepare(Fiber& fiber, char* top, void (*function)(Transfer)) {
    fiber.context = boost::context::detail::make_fcontext(top, size_t(top - fiber.stack), function);
#if LLMC_TSAN
    fiber.thread = __tsan_create_fiber(0);
#endif
  }

  // Releases a fiber to which nothing will switch again.
  static void retire([[maybe_unused]] Fiber& fiber) {
#if LLMC_TSAN
    __tsan_destroy_fiber(fiber.thread);
#endif
  }

  // A new fiber calls this first. Stores where the fiber that switched to it continues.
  void arrived(Transfer from) {
#if LLMC_ASAN
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (from.data == &main_) main_.stack = (char*)bottom, main_.stack_bytes = bytes;
#endif
    static_cast<Fiber*>(from.data)->context = from.fctx;
  }

 private:
  Fiber main_;
  Fiber* running_ = &main_;
};

}  // namespace cpu_backend
