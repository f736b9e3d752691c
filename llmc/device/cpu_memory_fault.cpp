#include "llmc/device/cpu_memory_fault.h"

#include <signal.h>

#include <memory>

#include "llmc/device/cpu_block.h"
#include "llmc/device/fiber.h"

namespace cpu_backend {

#if LLMC_ASAN

void report_memory_faults() {}

#else

namespace {

// The signal handler needs a stack of its own, because the thread's stack may just have overflowed.
class SignalStack {
 public:
  SignalStack() {
    stack_t stack{};
    stack.ss_sp = memory_.get();
    stack.ss_size = kBytes;
    sigaltstack(&stack, &before_);
  }
  ~SignalStack() { sigaltstack(&before_, nullptr); }
  SignalStack(const SignalStack&) = delete;

 private:
  static constexpr size_t kBytes = 256 << 10;
  std::unique_ptr<char[]> memory_{new char[kBytes]};
  stack_t before_{};
};

// Signal handlers belong to the process, so one object installs them for all threads.
class Handlers {
 public:
  Handlers() {
    struct sigaction action = {};
    action.sa_sigaction = &Handlers::on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before(SIGSEGV));
    sigaction(SIGBUS, &action, &before(SIGBUS));
  }

 private:
  static struct sigaction& before(int signal) {
    static struct sigaction actions[2];
    return actions[signal == SIGBUS];
  }
  static void on_fault(int signal, siginfo_t* info, void*) {
    thread_local bool reporting = false;
    if (!reporting) {
      reporting = true;
      stop_if_kernel_faulted(info->si_addr);
    }
    // The fault is not a kernel's, or the report itself faulted. The access repeats, and the earlier handler gets it.
    sigaction(signal, &before(signal), nullptr);
  }
};

}  // namespace

void report_memory_faults() {
  static const Handlers handlers;
  thread_local const SignalStack stack;
  (void)handlers;
  (void)stack;
}

#endif

}  // namespace cpu_backend
