// What the 128 threads of a warpgroup do together, in the CPU world: products (wgmma) and changes of their registers.
//
// Each such call is a step that all threads must take, in the same order and with the same arguments. Only the threads
// of a warp wait for one another, in products_wait, since wgmma keeps no more together: each warp multiplies its own 16
// rows, in its own time. These are issued when the last thread of the warp has taken the step, and executed at once
// (early copies), in products_wait (late) or at any moment in between (random). From a thread's call on its
// accumulators are poison, until they are written back with the last product that has them.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "llmc/device/cpu_async_proxy.h"
#include "llmc/device/cpu_block_state.h"
#include "llmc/device/cpu_product.h"

namespace cpu_world {

class Warpgroups {
 public:
  Warpgroups(Block& block, AsyncProxy& proxy) : block_(block), proxy_(proxy) {}
  void begin();  // of a block
  void thread_returns(int thread) const;

  void begin_products(const Place& place);
  void multiply(const ProductArguments& arguments, const Place& place);
  void commit_products(const Place& place);
  void wait_for_products(int under_way, const Place& place);
  void change_registers(int registers, bool more, const Place& place);

  bool execute_one();  // a product that is under way: false if there is none
  void describe_waiting(const DescribeThread& add) const;

 private:
  static constexpr int kWarps = kWarpgroupSize / kWarpSize;

  // Accumulators of a warp that products under way share: their numbers, and where each thread has its own.
  struct Accumulators {
    int columns;
    int products;  // that have them and were not executed
    float* target[kWarpSize];
    alignas(64) float d[kWarpRows * kMostProductColumns];
  };
  struct Step {
    enum Kind { begin, multiply, commit, wait, change } kind;
    Place place;
    int value = 0;  // of a wait: the groups that may stay under way; of a change: registers
    ProductArguments product = {};
    int first = 0;          // the thread of the warpgroup that came first
    int count = 0;          // threads that have come
    int came[kWarps] = {};  // and of each warp
    int batch = 0;          // of a product; of a wait: all before this one are waited for
    Accumulators* accumulators[kWarps] = {};
    std::vector<const uint32_t*> fragments = {};  // A of each thread
  };
  struct WarpProducts {
    std::deque<std::shared_ptr<Step>> issued;  // not executed
    std::vector<std::unique_ptr<Accumulators>> used, unused;
    std::vector<uint16_t> waiters;
    OrderToken met;
  };
  struct Group {
    Group() = default;
    Group(Group&&) = default;
    int number = 0;
    std::deque<std::shared_ptr<Step>> steps;  // not yet taken by all; before them `taken` were
    int taken;
    int position[kWarpgroupSize];  // steps that the thread has taken
    WarpProducts warps[kWarps];
    bool begun;                     // products_begin was called for this batch
    int uncommitted;                // products of this batch
    int batches, waited_batches;    // committed, and of these waited for
    Place last;                     // product or commit
    std::vector<uint16_t> waiters;  // for registers
    int registers, wanted;          // of each thread; 0 or more than that
  };

  Group& group_of_caller(const Place& place);
  std::shared_ptr<Step> take_step(Group& group, Step&& step);
  void require_same(const Group& group, const Step& first, const Step& mine, int member) const;
  [[noreturn]] void stop_for_returned(const Group& group, const Step& step, int member) const;
  void require_operands(const ProductArguments& product, const Place& place);
  Accumulators* new_accumulators(WarpProducts& warp, int columns);
  void hold(Group& group, Step& step, int member, const ProductArguments& product);
  void execute(Group& group, int warp);
  void tell_reads(const WarpProducts& warp, int batch);
  void give_back(Group& group, int warp, Accumulators* accumulators, const Place& place);
  void hand_out_registers();
  bool randomly_now();

  Block& block_;
  AsyncProxy& proxy_;
  ProductUnit unit_;
  std::vector<Group> groups_;
  int free_registers_ = 0;  // given up and not taken
};

}  // namespace cpu_world
