// The same kernels once more, with the threads of a block and the work of a stream executed in other orders, and copies
// landing at other moments: what a kernel computes must have the same bits in all of them. On a GPU, which has an order
// of its own, the same run again.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "dev/kernels/check.h"

class OtherOrders {
 public:
  // LLMC_ONE_ORDER=1 leaves the others out: where a sanitizer looks, which the order matters little to, and is slow.
  static bool wanted() { return !getenv("LLMC_ONE_ORDER"); }

  explicit OtherOrders(CpuWorld world = CpuWorld::from_environment()) : world_(world) {
    if (!wanted()) return;
    using Order = CpuWorld::ThreadOrder;
    using Schedule = CpuWorld::Schedule;
    using Landing = CpuWorld::Landing;
    add("again", Order::forward, Schedule::eager, Landing::late);
    add("reverse threads, lazy streams, early copies", Order::reverse, Schedule::lazy, Landing::early);
    add("random threads, streams and copies", Order::random, Schedule::random, Landing::random);
  }

  // Calls f(name, stream) in each order.
  template <class F>
  void each(const F& f) {
    for (World& world : worlds_) f(std::string(world.name), *world.stream);
  }

  // `run(Stream&)` gives a tuple of vectors; those of each order have the bits of `expected`.
  template <class Outputs, class Run>
  void same_bits(Checker& checker, const std::string& name, const Outputs& expected, const Run& run) {
    for (World& world : worlds_) {
      const Outputs outputs = run(*world.stream);
      compare(checker, name + ", " + world.name, expected, outputs,
              std::make_index_sequence<std::tuple_size_v<Outputs>>());
    }
  }

 private:
  struct World {
    std::string name;
    std::unique_ptr<Device> device;
    std::unique_ptr<Stream> stream;  // goes before its device
  };
  void add(const char* name, CpuWorld::ThreadOrder order, CpuWorld::Schedule schedule, CpuWorld::Landing landing) {
    CpuWorld cpu = world_;
    cpu.order = order;
    cpu.schedule = schedule;
    cpu.landing = landing;
    World world{name, std::make_unique<Device>(0, cpu), nullptr};
    world.stream = std::make_unique<Stream>(*world.device, "compute");
    worlds_.push_back(std::move(world));
  }
  template <class Outputs, size_t... I>
  static void compare(Checker& checker, const std::string& name, const Outputs& expected, const Outputs& outputs,
                      std::index_sequence<I...>) {
    (checker.same_bits(format("%s: output %zu", name.c_str(), I), std::get<I>(outputs), std::get<I>(expected)), ...);
  }

  CpuWorld world_;
  std::vector<World> worlds_;
};

// All checks once more, with the threads of a block in other orders, copies landing at other moments and other numbers
// of resident blocks (on a GPU: just again).
inline void check_in_other_worlds(Checker& checker, void (*check_everything)(Checker&)) {
  if (!OtherOrders::wanted()) return;
  struct World {
    const char* name;
    CpuWorld::ThreadOrder order;
    CpuWorld::Landing landing;
    unsigned long seed;
    int residents;
  };
  using Order = CpuWorld::ThreadOrder;
  using Landing = CpuWorld::Landing;
  for (const World& world :
       {World{"reverse order, early copies, 1 resident block", Order::reverse, Landing::early, 1, 1},
        World{"random order and copies, seed 1, 2 resident blocks", Order::random, Landing::random, 1, 2},
        World{"random order and copies, seed 2, 3 resident blocks", Order::random, Landing::random, 2, 3},
        World{"random order and copies, seed 3, 7 resident blocks", Order::random, Landing::random, 3, 7}}) {
    CpuWorld cpu = CpuWorld::from_environment();
    cpu.order = world.order;
    cpu.landing = world.landing;
    cpu.seed = world.seed;
    cpu.threads = world.residents;
    Device device(0, cpu);
    Checker other(device);
    check_everything(other);
    checker.all_of(world.name, other);
  }
}
