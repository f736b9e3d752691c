// A collective as NCCL executes it: a kernel on each GPU of the communicator that waits for the others'.
#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "dev/softgpu/nccl/segment.h"
#include "dev/softgpu/runtime/engine.h"

struct ncclComm {
  std::string name;
  int rank, size;
  bool blocking;
  int ctas;  // blocks of its kernels, at most
  std::unique_ptr<softgpu::Segment> segment;
  uint64_t begun = 0, executed = 0;            // kernels, counted by the engine
  uint64_t collectives = 0;                    // begun: kernels that all ranks have
  uint64_t meetings = 0;                       // of the hosts: splits, windows
  std::map<const std::byte*, size_t> windows;  // bytes from an address on
  std::atomic<bool> aborted{false};
  // NCCL keeps a communicator's collectives in the order of the calls, whatever their streams are.
  cudaEvent_t last = nullptr;  // after the last one
  cudaStream_t last_stream = nullptr;
  bool last_captured = false;
  // The calls of a communicator that does not block are completed by a thread of its own, later.
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> calls;
  bool calling = false;
};

namespace softgpu {

enum class CollectiveKind { all_reduce, all_gather, reduce_scatter, broadcast, send, receive };

// A send or receive has one buffer, which is both `in` and `out`.
struct CollectiveCall {
  CollectiveKind kind;
  const void* in;
  void* out;
  size_t count;
  ncclDataType_t type;
  int detail;  // the ncclRedOp_t of a reduction, the root of a broadcast, the peer of a message

  bool is_message() const { return kind == CollectiveKind::send || kind == CollectiveKind::receive; }
  Request request() const { return {int64_t(kind), int64_t(count), int64_t(type), detail}; }
  size_t sent_bytes(int size) const;
  size_t received_bytes(int size) const;
};

// Returns why NCCL's documentation forbids the call; "" if it does not.
std::string wrong_buffers(const CollectiveCall& call, const ncclComm& comm);

// The kernel of a collective of all ranks.
Task collective_task(const CollectiveCall& call, ncclComm_t comm);

}  // namespace softgpu
