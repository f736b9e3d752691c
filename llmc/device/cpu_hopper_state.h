// The state of a block that uses Hopper's own instructions, in the CPU backend.
#pragma once

#include "llmc/device/cpu_async_proxy.h"
#include "llmc/device/cpu_mbarriers.h"
#include "llmc/device/cpu_warpgroups.h"

namespace cpu_backend {

struct HopperState {
  explicit HopperState(Block& block)
      : block(block), barriers(block), proxy(block, barriers), warpgroups(block, proxy) {}

  void begin() {
    barriers.begin();
    proxy.begin();
    warpgroups.begin();
  }
  void end() {
    proxy.end();
    barriers.end();
  }
  void thread_returns(int thread) {
    proxy.thread_returns(thread);
    warpgroups.thread_returns(thread);
  }
  // Advances one load, store or product in flight, chosen at random. May find none to advance.
  void go_on_somewhere() {
    switch (block.random().below(3)) {
      case 0:
        proxy.land_early();
        break;
      case 1:
        proxy.read_one();
        break;
      default:
        warpgroups.execute_one();
    }
  }
  void describe_waiting(const DescribeThread& add) const {
    barriers.describe_waiting(add);
    warpgroups.describe_waiting(add);
  }

  Block& block;
  TransactionBarriers barriers;
  AsyncProxy proxy;
  Warpgroups warpgroups;
};

}  // namespace cpu_backend
