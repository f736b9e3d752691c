// The same kernels once more, with the threads of a block and the work of a stream executed in other orders, and copies
// landing at other moments: what a kernel computes must have the same bits in all of them. On a GPU, which has an order
// of its own, the same run again.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "dev/kernels/check.h"

class OtherSchedules {
 public:
  // LLMC_ONE_ORDER=1 leaves the others out: where a sanitizer looks, which the order matters little to, and is slow.
  static bool wanted() { return !getenv("LLMC_ONE_ORDER"); }

  explicit OtherSchedules(CpuBackend cpu = CpuBackend::from_environment()) : cpu_(cpu) {
    if (!wanted()) return;
    using Order = CpuBackend::ThreadOrder;
    using Schedule = CpuBackend::Schedule;
    using CopyTiming = CpuBackend::CopyTiming;
    add("again", Order::forward, Schedule::eager, CopyTiming::late);
    add("reverse threads, lazy streams, early copies", Order::reverse, Schedule::lazy, CopyTiming::early);
    add("random threads, streams and copies", Order::random, Schedule::random, CopyTiming::random);
  }

  // Calls f(name, stream) in each order.
  template <class F>
  void each(const F& f) {
    for (Execution& execution : executions_) f(std::string(execution.name), *execution.stream);
  }

  // `run(Stream&)` gives a tuple of vectors; those of each order have the bits of `expected`.
  template <class Outputs, class Run>
  void same_bits(Checker& checker, const std::string& name, const Outputs& expected, const Run& run) {
    for (Execution& execution : executions_) {
      const Outputs outputs = run(*execution.stream);
      compare(checker, name + ", " + execution.name, expected, outputs,
              std::make_index_sequence<std::tuple_size_v<Outputs>>());
    }
  }

 private:
  struct Execution {
    std::string name;
    std::unique_ptr<Device> device;
    std::unique_ptr<Stream> stream;  // goes before its device
  };
  void add(const char* name, CpuBackend::ThreadOrder order, CpuBackend::Schedule schedule,
           CpuBackend::CopyTiming copy_timing) {
    CpuBackend cpu = cpu_;
    cpu.order = order;
    cpu.schedule = schedule;
    cpu.copy_timing = copy_timing;
    Execution execution{name, std::make_unique<Device>(0, cpu), nullptr};
    execution.stream = std::make_unique<Stream>(*execution.device, "compute");
    executions_.push_back(std::move(execution));
  }
  template <class Outputs, size_t... I>
  static void compare(Checker& checker, const std::string& name, const Outputs& expected, const Outputs& outputs,
                      std::index_sequence<I...>) {
    (checker.same_bits(format("%s: output %zu", name.c_str(), I), std::get<I>(outputs), std::get<I>(expected)), ...);
  }

  CpuBackend cpu_;
  std::vector<Execution> executions_;
};

// All checks once more, with the threads of a block in other orders, copies landing at other moments and other numbers
// of blocks executed together (on a GPU: just again).
inline void check_in_other_schedules(Checker& checker, void (*check_everything)(Checker&)) {
  if (!OtherSchedules::wanted()) return;
  struct Execution {
    const char* name;
    CpuBackend::ThreadOrder order;
    CpuBackend::CopyTiming copy_timing;
    unsigned long seed;
    int threads;
  };
  using Order = CpuBackend::ThreadOrder;
  using CopyTiming = CpuBackend::CopyTiming;
  for (const Execution& execution :
       {Execution{"reverse order, early copies, one block at a time", Order::reverse, CopyTiming::early, 1, 1},
        Execution{"random order and copies, seed 1, two blocks", Order::random, CopyTiming::random, 1, 2},
        Execution{"random order and copies, seed 2, three blocks", Order::random, CopyTiming::random, 2, 3},
        Execution{"random order and copies, seed 3, seven blocks", Order::random, CopyTiming::random, 3, 7}}) {
    CpuBackend cpu = CpuBackend::from_environment();
    cpu.order = execution.order;
    cpu.copy_timing = execution.copy_timing;
    cpu.seed = execution.seed;
    cpu.threads = execution.threads;
    Device device(0, cpu);
    Checker other(device);
    check_everything(other);
    checker.all_of(execution.name, other);
  }
}
