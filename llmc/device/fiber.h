// Fibers for the threads of a block: a stack each, switched by Boost.Context. A fiber never leaves its OS thread.
#pragma once

#include <boost/context/fiber.hpp>
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

#if LLMC_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cpu_world {

struct Fiber {
  boost::context::fiber context;  // where it goes on; empty while it runs
  char* stack = nullptr;
  size_t stack_bytes = 0;
#if LLMC_ASAN
  void* fake_stack = nullptr;
#endif
};

// The stacks' owner and the switch. `Main` is the OS thread's own stack.
class FiberSwitch {
 public:
  Fiber* running() const { return running_; }
  Fiber* main() { return &main_; }

  // Leaves the running fiber; returns when somebody switches back to it.
  void to(Fiber* next) {
    Fiber* self = running_;
    leaving_ = self;
    running_ = next;
#if LLMC_ASAN
    __sanitizer_start_switch_fiber(&self->fake_stack, next->stack, next->stack_bytes);
#endif
    boost::context::fiber previous = std::move(next->context).resume();
#if LLMC_ASAN
    __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
#endif
    leaving_->context = std::move(previous);
  }

  // First thing in a new fiber: stores where its starter goes on.
  void arrived(boost::context::fiber&& previous) {
#if LLMC_ASAN
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (leaving_ == &main_) main_.stack = (char*)bottom, main_.stack_bytes = bytes;
#endif
    leaving_->context = std::move(previous);
  }

  // Last thing in a fiber: what its function returns, so that the OS thread goes on.
  boost::context::fiber end() {
    running_ = &main_;
#if LLMC_ASAN
    __sanitizer_start_switch_fiber(nullptr, main_.stack, main_.stack_bytes);
#endif
    return std::move(main_.context);
  }

 private:
  Fiber main_;
  Fiber* running_ = &main_;
  Fiber* leaving_ = nullptr;
};

}  // namespace cpu_world
