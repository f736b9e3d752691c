// Graphs in the CUDA backend: CUDA's own graphs, made by stream capture.
#include "llmc/base/error.h"
#include "llmc/device/cuda_device_state.h"
#include "llmc/device/cuda_error.h"
#include "llmc/device/cuda_stream.h"
#include "llmc/device/graph.h"

struct Graph::State {
  cudaGraphExec_t graph = nullptr;
  size_t operations = 0;
  std::vector<std::weak_ptr<Event::State>> recorded;  // the events that each launch records
  std::shared_ptr<Event> end;                         // the end of the last launch

  State() = default;
  State(const State&) = delete;
  ~State() {
    if (graph) cudaGraphExecDestroy(graph);
  }
};

Graph::Graph(Device& device) : device_(&device) {
  REQUIRE(device.executes(), "a graph of a device that executes nothing");
}
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
bool Graph::empty() const { return !state_; }
size_t Graph::pieces() const { return empty() ? 0 : state_->operations; }

void Graph::capture(Stream& stream, const std::function<void()>& work) {
  Device::State& device = device_->state();
  REQUIRE(!device.capture && !device.record, "stream '%s' is captured while another is, or while the device records",
          stream.name());
  auto captured = std::make_unique<State>();
  captured->end = std::make_shared<Event>(*device_);
  // In this mode other threads, such as NCCL's, may call CUDA during the capture.
  CUDA_CHECK(cudaStreamBeginCapture(cuda_stream(stream), cudaStreamCaptureModeThreadLocal));
  device.capture = captured->end;
  device.captured.clear();
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    device.capture = nullptr;
    for (const auto& recorded : device.captured)
      if (const auto event = recorded.lock()) event->end = nullptr;
    cudaStreamEndCapture(cuda_stream(stream), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  device.capture = nullptr;
  CUDA_CHECK(cudaStreamEndCapture(cuda_stream(stream), &graph));
  CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &captured->operations));
  const cudaError_t status = cudaGraphInstantiate(&captured->graph, graph, 0);
  cudaGraphDestroy(graph);
  CUDA_CHECK(status);
  CUDA_CHECK(cudaGraphUpload(captured->graph, cuda_stream(stream)));
  device_->count_allocation();
  captured->recorded = std::move(device.captured);
  captured->end->record(stream);
  state_ = std::move(captured);
}

void Graph::launch(Stream& stream) {
  REQUIRE(state_, "a graph is launched in stream '%s', and nothing was captured", stream.name());
  CUDA_CHECK(cudaGraphLaunch(state_->graph, cuda_stream(stream)));
  state_->end->record(stream);
  for (const auto& recorded : state_->recorded)
    if (const auto event = recorded.lock()) event->end = state_->end;
  device_->count_graph_launch();
}
