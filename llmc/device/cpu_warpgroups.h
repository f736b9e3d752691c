// The operations of the 128 threads of a warpgroup in the CPU backend: products (wgmma) and changes of their register
// counts (setmaxnreg).
//
// Each such call is a step that all threads must take, in the same order and with the same arguments. For products,
// only the threads of one warp wait for each other, in wgmma_wait_group, since wgmma synchronizes no more than that:
// each warp multiplies its own 16 rows at its own pace. A warp's part of a product is issued when the last thread of
// the warp has taken the step. It is executed at once (CopyTiming::early), in wgmma_wait_group (late) or at any moment
// in between (random). A thread's accumulators are poison from its call until the last product that has them is
// executed and writes them back.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "llmc/device/cpu_async_proxy.h"
#include "llmc/device/cpu_block_state.h"
#include "llmc/device/cpu_product.h"

namespace cpu_backend {

class Warpgroups {
 public:
  Warpgroups(Block& block, AsyncProxy& proxy) : block_(block), proxy_(proxy) {}
  void begin();  // a block begins
  // Stops the kernel if the thread missed a step or left products without a commit or a wait.
  void thread_returns(int thread) const;

  void begin_products(const Place& place);
  void multiply(const ProductArguments& arguments, const Place& place);
  void commit_products(const Place& place);
  void wait_for_products(int under_way, const Place& place);
  void change_registers(int registers, bool more, const Place& place);

  bool execute_one();  // executes one warp's part of a product in flight; false: there is none
  void describe_waiting(const DescribeThread& add) const;

 private:
  static constexpr int kWarps = kWarpgroupSize / kWarpSize;

  // Accumulators of a warp that products in flight share: their values, and the address of each thread's registers.
  struct Accumulators {
    int columns;
    int products;  // products that have them and were not executed
    float* target[kWarpSize];
    alignas(64) float d[kWarpRows * kMostProductColumns];
  };
  struct Step {
    enum Kind { begin, multiply, commit, wait, change } kind;
    Place place;
    int value = 0;  // wait: groups that may stay in flight; change: registers per thread
    ProductArguments product = {};
    int first = 0;          // the thread of the warpgroup that took it first
    int count = 0;          // threads that have taken it
    int came[kWarps] = {};  // the same for each warp
    int batch = 0;          // multiply: its batch; wait: all batches before this one are waited for
    Accumulators* accumulators[kWarps] = {};
    std::vector<const uint32_t*> fragments = {};  // each thread's registers of A
  };
  struct WarpProducts {
    std::deque<std::shared_ptr<Step>> issued;  // issued and not executed yet
    std::vector<std::unique_ptr<Accumulators>> used, unused;
    std::vector<uint16_t> waiters;
    OrderToken met;
  };
  struct Group {
    Group() = default;
    Group(Group&&) = default;
    int number = 0;
    std::deque<std::shared_ptr<Step>> steps;  // steps that not all threads have taken; `taken` steps came before them
    int taken;
    int position[kWarpgroupSize];  // the number of steps that each thread has taken
    WarpProducts warps[kWarps];
    bool begun;                     // wgmma_fence was called for this batch
    int uncommitted;                // products of this batch that were not committed
    int batches, waited_batches;    // batches committed; of these, batches waited for
    Place last;                     // the last product or commit
    std::vector<uint16_t> waiters;  // threads that wait for registers
    int registers, wanted;          // registers per thread; registers asked for, 0: none
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
  int free_registers_ = 0;  // released by setmaxnreg_dec and not taken yet
};

}  // namespace cpu_backend
