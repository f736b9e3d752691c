// Fibers for the threads of a block: a stack each, switched by Boost.Context's bare jump (its fiber class costs twice
// as much a switch). A fiber never leaves its OS thread and never ends: it is switched away from for good.
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

// The Makefile says it (SANITIZE=thread): what plays the threads of a block is itself compiled without ThreadSanitizer.
#ifndef LLMC_TSAN
#define LLMC_TSAN 0
#endif

#if LLMC_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if LLMC_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {  // not in its header
void __tsan_read_range(const void* data, unsigned long bytes);
void __tsan_write_range(const void* data, unsigned long bytes);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace cpu_world {

// Tells ThreadSanitizer an order that it cannot see: what came before `release` is before what follows `acquire`.
class OrderToken {
 public:
#if LLMC_TSAN
  void release() { __tsan_release(this); }
  void acquire() { __tsan_acquire(this); }
  // At an address that is not a token's.
  static void release(const void* address) { __tsan_release(const_cast<void*>(address)); }
  static void acquire(const void* address) { __tsan_acquire(const_cast<void*>(address)); }

 private:
  char address_;
#else
  void release() {}
  void acquire() {}
  static void release(const void*) {}
  static void acquire(const void*) {}
#endif
};

struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;  // where it goes on; old while it runs
  char* stack = nullptr;
  size_t stack_bytes = 0;
#if LLMC_ASAN
  void* fake_stack = nullptr;
#endif
#if LLMC_TSAN
  void* thread = nullptr;  // what ThreadSanitizer takes the fiber for
  bool watched = true;     // it looks at the fiber's reads and writes
#endif
};

// The switch of one OS thread, whose own stack is `main`.
class FiberSwitch {
 public:
  using Transfer = boost::context::detail::transfer_t;

  Fiber* running() const { return running_; }
  Fiber* main() { return &main_; }

  // Leaves the running fiber; returns when somebody switches back to it.
  void to(Fiber* next) {
    Fiber* self = running_;
    running_ = next;
#if LLMC_ASAN
    __sanitizer_start_switch_fiber(&self->fake_stack, next->stack, next->stack_bytes);
#endif
#if LLMC_TSAN
    __tsan_switch_to_fiber(next->thread, __tsan_switch_to_fiber_no_sync);  // no order but that of barriers
#endif
    const Transfer from = boost::context::detail::jump_fcontext(next->context, self);
#if LLMC_ASAN
    __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
#endif
    static_cast<Fiber*>(from.data)->context = from.fctx;
  }

  // Whether ThreadSanitizer looks at what the running fiber reads and writes from here on, until it is switched back to
  // what is returned. What plays the threads is compiled without it, but what that calls of the C++ library is not.
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
  // Tells ThreadSanitizer that the running fiber's thread reads or writes.
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

  // The calling OS thread's stack is `main` from here on.
  void enter() {
#if LLMC_TSAN
    main_.thread = __tsan_get_current_fiber();
#endif
  }

  // A new fiber begins in `function` with its stack at `top`.
  static void prepare(Fiber& fiber, char* top, void (*function)(Transfer)) {
    fiber.context = boost::context::detail::make_fcontext(top, size_t(top - fiber.stack), function);
#if LLMC_TSAN
    fiber.thread = __tsan_create_fiber(0);
#endif
  }

  // The end of a fiber that will not be switched to again.
  static void retire([[maybe_unused]] Fiber& fiber) {
#if LLMC_TSAN
    __tsan_destroy_fiber(fiber.thread);
#endif
  }

  // First thing in a new fiber: stores where its starter goes on.
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

}  // namespace cpu_world
