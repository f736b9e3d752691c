// The async proxy of one block in the CPU backend: shared memory as TMA and wgmma see it. The class keeps the async
// view, a second copy of the block's shared memory. An ordinary write reaches the view only through
// store_for_async_proxy and fence_async_proxy. The class also keeps the boxes that TMA copies are still moving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "llmc/device/cpu_box.h"
#include "llmc/device/cpu_hopper.h"
#include "llmc/device/cpu_mbarriers.h"
#include "llmc/device/cpu_tensor_map.h"

namespace cpu_backend {

class AsyncProxy {
 public:
  AsyncProxy(Block& block, TransactionBarriers& barriers) : block_(block), barriers_(barriers) {}
  ~AsyncProxy();
  void begin();                           // a block begins
  void end();                             // the block has ended: stops the kernel if a load has not landed
  void thread_returns(int thread) const;  // stops the kernel if a store of the thread was not waited for

  // Returns the async view. Bytes that nothing has written are poison (0xff).
  std::byte* view() {
    if (!poisoned_) poison();
    return view_;
  }
  uint64_t view_version() const { return version_; }  // changes whenever the bytes of the view may have changed
  // Writes `bytes` (4, 8 or 16) to shared memory. The running thread's next fence() copies them to the view.
  void stage(void* to, const void* value, int bytes, const Place& place);
  void fence();

  void load(void* to, const TensorMap& map, uint64_t* barrier, const BoxPlace& from, const Place& place);
  void store(const TensorMap& map, const void* from, const BoxPlace& to, const Place& place);
  void commit_stores();
  void wait_for_stores();

  // Completes one load. Returns false if none is in flight.
  enum class Which { oldest, newest, any };
  bool land_one(Which which);
  // Called while threads still run: picks a load in flight at random and completes it, unless the load is `late`.
  void land_early();
  // Executes one store whose source was not read yet. Returns false if there is none.
  bool read_one();
  void describe() const;

 private:
  struct Box {
    CpuTensorMap map;
    BoxPlace place;
    size_t offset;  // byte offset in shared memory
    int thread;
    int bytes;
    int barrier;  // load: number of the mbarrier that counts its bytes
    int group;    // store: its group
    bool read;    // store: its bytes were read from the view and written to the tensor
    bool late;    // load: lands only when no thread can run
    Place call;
  };
  struct Staged {
    uint32_t offset, bytes;
  };
  // The state of one thread.
  struct Actor {
    std::vector<Staged> staged;
    int stores = 0, group = 0;  // stores that it has not waited for; group of its next stores
  };

  void poison();
  Box make_box(const TensorMap& map, const void* shared, const BoxPlace& place, const Place& call) const;
  const std::vector<BoxChunk>& chunks_of(const Box& box);
  void land(const Box& box);
  void land_number(size_t i);  // lands loads_[i]
  void read(Box& box);
  bool randomly_now();

  Block& block_;
  TransactionBarriers& barriers_;
  std::byte* view_ = nullptr;
  bool poisoned_ = false;  // view_ has been filled with poison since the block began
  uint64_t version_ = 0;
  std::vector<Box> loads_, stores_;
  std::vector<BoxChunk> chunks_;  // of the box in hand
  std::vector<Actor> actors_;
};

}  // namespace cpu_backend
