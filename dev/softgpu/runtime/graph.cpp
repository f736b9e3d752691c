#include "dev/softgpu/runtime/graph.h"

#include <algorithm>
#include <mutex>

#include "dev/softgpu/runtime/api.h"

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<CUgraph_st::Node>> nodes;
};

CUgraph_st::Branch& CUgraph_st::branch(cudaStream_t stream) {
  for (Branch& branch : branches)
    if (branch.stream == stream) return branch;
  branches.push_back({stream, {}});
  stream->capture = this;
  return branches.back();
}

namespace softgpu {
namespace {

std::mutex mutex;  // guards all captures
std::vector<CUgraph_st*> captures;
std::vector<cudaEvent_t> captured_events;

void end_capture(CUgraph_st* graph) {
  for (const auto& branch : graph->branches) branch.stream->capture = nullptr;
  for (cudaEvent_t event : captured_events)
    if (event->capture == graph) event->capture = nullptr, event->point = nullptr;
  std::erase_if(captured_events, [](cudaEvent_t event) { return !event->capture; });
  std::erase(captures, graph);
}

// All nodes must come before what the first stream does next: else part of the capture was never joined.
bool joined(const CUgraph_st& graph) {
  std::set<size_t> reached, ahead = graph.branches[0].last;
  while (!ahead.empty()) {
    const size_t node = *ahead.begin();
    ahead.erase(ahead.begin());
    if (reached.insert(node).second) ahead.insert(graph.nodes[node].after.begin(), graph.nodes[node].after.end());
  }
  return reached.size() == graph.nodes.size();
}

// One launch of a graph: executes a node whose predecessors are done, any of them, with each call.
class Run {
 public:
  explicit Run(std::shared_ptr<const std::vector<CUgraph_st::Node>> nodes)
      : nodes_(std::move(nodes)), state_(nodes_->size(), State::ahead), polls_(nodes_->size()) {}

  Progress go_on() {
    if (finished_ == nodes_->size()) return Progress::done;
    bool moved = false;
    for (size_t i = 0; i < nodes_->size(); ++i)
      if (state_[i] == State::begun) moved |= poll(i);
    std::vector<size_t> ready;
    for (size_t i = first_; i < nodes_->size(); ++i)
      if (state_[i] == State::ahead && is_ready(i)) ready.push_back(i);
    if (!ready.empty()) {
      const size_t i = ready[Engine::get().random(unsigned(ready.size()))];
      polls_[i] = (*nodes_)[i].work();
      state_[i] = State::begun;
      poll(i);
      moved = true;
    }
    while (first_ < nodes_->size() && state_[first_] == State::done) ++first_;
    return finished_ == nodes_->size() ? Progress::done : moved ? Progress::moved : Progress::waits;
  }

 private:
  enum class State : char { ahead, begun, done };

  bool is_ready(size_t i) const {
    const std::set<size_t>& after = (*nodes_)[i].after;
    return std::all_of(after.begin(), after.end(), [&](size_t node) { return state_[node] == State::done; });
  }
  bool poll(size_t i) {  // returns whether something was done
    const Progress progress = polls_[i] ? polls_[i]() : Progress::done;
    if (progress == Progress::done) state_[i] = State::done, ++finished_;
    return progress != Progress::waits;
  }

  const std::shared_ptr<const std::vector<CUgraph_st::Node>> nodes_;
  std::vector<State> state_;
  std::vector<Poll> polls_;
  size_t first_ = 0, finished_ = 0;  // all before first_ are done
};

}  // namespace

cudaStream_t stream_of(cudaStream_t stream) {
  static const cudaStream_t ordinary = [] {
    const cudaStream_t made = new CUstream_st;
    Engine::get().add(made);
    return made;
  }();
  return stream ? stream : ordinary;
}

cudaError_t submit(cudaStream_t given, Task work) {
  const cudaStream_t stream = stream_of(given);
  {
    const std::lock_guard lock(mutex);
    if (CUgraph_st* graph = stream->capture) {
      if (!graph->spoiled.empty()) return give(cudaErrorStreamCaptureInvalidated);
      CUgraph_st::Branch& branch = graph->branch(stream);
      graph->nodes.push_back({std::move(work), branch.last});
      branch.last = {graph->nodes.size() - 1};
      return cudaSuccess;
    }
  }
  return give(Engine::get().enqueue(stream, std::move(work)));
}

cudaError_t unsafe_during_capture(const char* call) {
  const std::lock_guard lock(mutex);
  for (CUgraph_st* graph : captures)
    if (graph->thread == std::this_thread::get_id()) {
      graph->spoiled = call;
      return give(cudaErrorStreamCaptureUnsupported);
    }
  return cudaSuccess;
}

bool record_in_capture(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  if (!stream->capture) return false;
  event->capture = stream->capture;
  event->last = stream->capture->branch(stream).last;
  captured_events.push_back(event);
  return true;
}

bool wait_in_capture(cudaStream_t stream, cudaEvent_t event, cudaError_t& error) {
  const std::lock_guard lock(mutex);
  if (!stream->capture && !event->capture) return false;
  error = cudaSuccess;
  if (!event->capture) {
    if (event->point) error = cudaErrorStreamCaptureIsolation, stream->capture->spoiled = "cudaStreamWaitEvent";
  } else if (stream->capture && stream->capture != event->capture) {
    error = cudaErrorStreamCaptureMerge;
  } else {
    event->capture->branch(stream).last.insert(event->last.begin(), event->last.end());
  }
  return true;
}

void forget_capture(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  event->capture = nullptr;
  std::erase(captured_events, event);
}

}  // namespace softgpu

using namespace softgpu;

SOFTGPU_API cudaError_t cudaStreamBeginCapture(cudaStream_t given, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(mutex);
  const cudaStream_t stream = stream_of(given);
  if (!given || mode != cudaStreamCaptureModeThreadLocal) {
    warn("a capture of the default stream, or in another mode than ThreadLocal, is not executed");
    return give(cudaErrorStreamCaptureUnsupported);
  }
  if (stream->capture) return give(cudaErrorStreamCaptureUnsupported);
  auto* graph = new CUgraph_st;
  graph->thread = std::this_thread::get_id();
  graph->branch(stream);
  captures.push_back(graph);
  return cudaSuccess;
}

SOFTGPU_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* to) {
  const std::lock_guard lock(mutex);
  *to = nullptr;
  CUgraph_st* const graph = stream->capture;
  if (!graph) return give(cudaErrorInvalidValue);
  if (graph->thread != std::this_thread::get_id()) return give(cudaErrorStreamCaptureWrongThread);
  if (graph->branches[0].stream != stream) return give(cudaErrorStreamCaptureUnmatched);
  const cudaError_t error = !graph->spoiled.empty() ? cudaErrorStreamCaptureInvalidated
                            : joined(*graph)        ? cudaSuccess
                                                    : cudaErrorStreamCaptureUnjoined;
  end_capture(graph);
  if (error == cudaSuccess) *to = graph;
  else delete graph;
  return give(error);
}

SOFTGPU_API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->nodes.size();
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long) {
  *to = new CUgraphExec_st{std::make_shared<const std::vector<CUgraph_st::Node>>(graph->nodes)};
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return give(Engine::get().error()); }
SOFTGPU_API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return submit(stream, [nodes = graph->nodes]() -> Poll {
    return [run = std::make_shared<Run>(nodes)] { return run->go_on(); };
  });
}
