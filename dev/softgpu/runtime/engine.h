// The engine executes what streams hold, on one thread of its own: it is the GPU. Enqueued work waits for what is
// before it in its stream and for the events that the stream was told to wait for, and for nothing else.
//
// LLMC_CPU_STREAMS says when work is executed: `eager` (at once, in the order in which it was enqueued), `lazy` (only
// when the host waits for it, or a stream is full) or `random` (any order and delay that streams and events allow).
//
// A stream holds kStreamCapacity operations. The host waits for room, as it does for a GPU's.
#pragma once

#include <cuda_runtime.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "llmc/device/device.h"
#include "llmc/device/random.h"

namespace softgpu {

// An operation is begun when its turn comes. If it is done then, it returns no function; otherwise one that is
// called again and again: `waits` means that nothing could be done now, for something outside of this GPU is missing.
enum class Progress { done, moved, waits };
using Poll = std::function<Progress()>;
using Task = std::function<Poll()>;

// A point in a stream: what an event records.
struct Point {
  cudaStream_t stream;
  uint64_t position;  // in the stream: the number of operations up to it
  bool done = false;
  double seconds = 0;  // when it was done
};

inline constexpr int kHighestPriority = -5;  // of a stream, as on an H100

}  // namespace softgpu

struct CUgraph_st;

struct CUstream_st {
  struct Operation {
    softgpu::Task work;                     // none: only a point, or a wait
    std::shared_ptr<softgpu::Point> after;  // must be done before
    std::shared_ptr<softgpu::Point> point;  // is done with this operation
    uint64_t number = 0;                    // of all that was enqueued
    bool late = false;                      // in random order: it waits until somebody needs it
    bool begun = false;
    softgpu::Poll poll = {};  // once it has begun
  };
  std::deque<Operation> operations;
  uint64_t enqueued = 0, done = 0, wanted = 0;
  CUgraph_st* capture = nullptr;
  bool removed = false;
  int priority = 0;  // the lowest
};

namespace softgpu {

inline constexpr size_t kStreamCapacity = 1024;

class Engine {
 public:
  static Engine& get();

  // All of these return the error that ended the GPU, if one has: then nothing is executed any more.
  cudaError_t enqueue(cudaStream_t stream, Task work);
  cudaError_t wait_for(cudaStream_t stream, std::shared_ptr<Point> point);  // in the stream; the host goes on
  cudaError_t record(cudaStream_t stream, std::shared_ptr<Point>& point);
  cudaError_t synchronize(const std::shared_ptr<Point>& point);  // the host waits
  cudaError_t synchronize(cudaStream_t stream);
  cudaError_t synchronize();
  cudaError_t query(const std::shared_ptr<Point>& point);  // cudaErrorNotReady if it is not done

  void add(cudaStream_t stream);
  cudaError_t remove(cudaStream_t stream);  // once its work is done; the host goes on

  cudaError_t error();          // that ended the GPU, or cudaSuccess
  void end(cudaError_t error);  // a kernel or a stand-in ends the GPU
  unsigned random(unsigned below);

 private:
  Engine();
  using Operation = CUstream_st::Operation;
  void run();
  cudaStream_t choose(bool& waiting);
  bool may_go_on(const CUstream_st& stream) const;
  void forget_if_done(cudaStream_t stream);
  void want(cudaStream_t stream, uint64_t position);
  cudaError_t wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done);
  void push(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Operation operation);

  const CpuBackend settings_ = CpuBackend::from_environment();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<cudaStream_t> streams_;
  uint64_t next_number_ = 0, changes_ = 0;
  cudaError_t error_ = cudaSuccess;
  Random random_{settings_.seed + 17};
};

}  // namespace softgpu
