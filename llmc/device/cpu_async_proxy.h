// Shared memory as the copy engine and wgmma see it, of one block in the CPU world: a second copy of its bytes, the
// async view, which ordinary writes reach only through stage_shared and a fence. And the boxes that are under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "llmc/device/cpu_hopper.h"
#include "llmc/device/cpu_tensor_map.h"
#include "llmc/device/cpu_transaction_barriers.h"

namespace cpu_world {

class AsyncProxy {
 public:
  AsyncProxy(Block& block, TransactionBarriers& barriers) : block_(block), barriers_(barriers) {}
  ~AsyncProxy();
  void begin();  // of a block
  void end();
  void thread_returns(int thread) const;

  // The async view; poison where nothing has come.
  std::byte* view() {
    if (!poisoned_) poison();
    return view_;
  }
  uint64_t view_version() const { return version_; }  // another one whenever its bytes may have changed
  void stage(void* to, const void* value, int bytes, const Place& place);
  void fence();

  void load(void* to, const TensorMap& map, uint64_t* barrier, const BoxPlace& from, const Place& place);
  void store(const TensorMap& map, const void* from, const BoxPlace& to, const Place& place);
  void commit_stores();
  void wait_for_stores();

  // One load lands: false if none is under way.
  enum class Which { oldest, newest, any };
  bool land_one(Which which);
  // One that is under way lands while threads go on, or not: some come as late as they can.
  void land_early();
  // One store is read that was not yet: false if there is none.
  bool read_one();
  void describe() const;

 private:
  struct Box {
    CpuTensorMap map;
    BoxPlace place;
    size_t offset;  // in shared memory
    int thread;
    int bytes;
    int barrier;  // of a load
    int group;    // of a store
    bool read;    // a store that was read from shared memory
    bool late;    // a load that lands only when nobody can go on
    Place call;
  };
  struct Staged {
    uint32_t offset, bytes;
  };
  // What a thread has done.
  struct Actor {
    std::vector<Staged> staged;
    int stores = 0, group = 0;  // stores that it has not waited for; the group that its next ones belong to
  };

  void poison();
  Box make_box(const TensorMap& map, const void* shared, const BoxPlace& place, const Place& call) const;
  template <class F>
  void each_chunk(const Box& box, F&& f) const;
  void land(const Box& box);
  void land_number(size_t i);  // of loads_
  void read(Box& box);
  bool randomly_now();

  Block& block_;
  TransactionBarriers& barriers_;
  std::byte* view_ = nullptr;
  bool poisoned_ = false;  // since the block began
  uint64_t version_ = 0;
  std::vector<Box> loads_, stores_;
  std::vector<Actor> actors_;
};

}  // namespace cpu_world
