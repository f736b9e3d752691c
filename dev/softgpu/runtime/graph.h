// Captures and graphs. Whatever a stream is given goes through submit(): to the engine, or into the graph that the
// stream is captured into.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dev/softgpu/runtime/engine.h"

struct CUgraph_st {
  struct Node {
    softgpu::Task work;
    std::set<size_t> after;  // the nodes that must be done before
  };
  std::vector<Node> nodes;

  // While it is captured:
  struct Branch {
    cudaStream_t stream;
    std::set<size_t> last;  // what the stream's next node comes after
  };
  std::vector<Branch> branches;  // the first is the stream in which the capture began
  std::thread::id thread;
  std::string spoiled;  // by which call; empty: by none

  Branch& branch(cudaStream_t stream);
};

// An event is a point in a stream, or in a capture.
struct CUevent_st {
  std::shared_ptr<softgpu::Point> point;  // null: never recorded
  CUgraph_st* capture = nullptr;
  std::set<size_t> last;  // in the capture
  bool timed = true;
};

namespace softgpu {

cudaStream_t stream_of(cudaStream_t stream);  // that of a null pointer, too
[[gnu::visibility("default")]] cudaError_t submit(cudaStream_t stream, Task work);

// In a capture: what cudaEventRecord and cudaStreamWaitEvent do. They return false if neither stream nor event is
// captured.
bool record_in_capture(cudaEvent_t event, cudaStream_t stream);
bool wait_in_capture(cudaStream_t stream, cudaEvent_t event, cudaError_t& error);
void forget_capture(cudaEvent_t event);

}  // namespace softgpu
