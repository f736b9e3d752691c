// Graphs in the CPU backend. A capture stores the work that would have been enqueued, with its arguments. A launch
// enqueues that work.
#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/cpu_device_state.h"

// ---------------------------------------------------------------------------------------------- capture

size_t Graph::State::index_of(const Stream& stream) const {
  return size_t(std::find(captured.begin(), captured.end(), &stream) - captured.begin());
}

void Graph::State::add(Node::Kind kind, const Work& work, std::function<void()> function) {
  const size_t stream = index_of(work.stream);
  REQUIRE(stream < captured.size(),
          "%s (%s:%d) in stream '%s' while the work of stream '%s' is captured: it would not be part of the graph\n"
          "  let '%s' first wait for an event of the capture",
          work.name, work.site.file, work.site.line, work.stream.name(), captured[0]->name(), work.stream.name());
  ++streams_seen[stream][stream];
  nodes.push_back({kind, stream, work, std::move(function)});
}

void Graph::State::record(Stream& stream, const std::shared_ptr<Event::State>& event) {
  const size_t index = index_of(stream);
  REQUIRE(index < captured.size(), "an event is recorded in stream '%s', which is not part of the capture of '%s'",
          stream.name(), captured[0]->name());
  if (event->end != end) recorded.push_back(event);
  event->end = end;
  event->captured_point = int(points_seen.size());
  points_seen.push_back(streams_seen[index]);
  nodes.push_back({Node::Kind::record, index, {}, {}, event->captured_point});
}

namespace {

bool is_ordered_before(const OrderCheck::Clock& earlier, const OrderCheck::Clock& later) {
  for (size_t i = 0; i < earlier.size(); ++i)
    if (earlier[i] > later[i]) return false;
  return true;
}

}  // namespace

void Graph::State::wait(Stream& stream, const Event::State& event) {
  if (event.end != end) {
    const Event::State& before = event.outside();
    REQUIRE(!before.task || is_ordered_before(before.clock, begin),
            "stream '%s' waits for an event from before the capture of '%s', which does not come after it\n"
            "  let '%s' wait for it before the capture",
            stream.name(), captured[0]->name(), captured[0]->name());
    return;
  }
  const size_t index = index_of(stream);
  if (index == captured.size()) {
    captured.push_back(&stream);
    streams_seen.emplace_back();
    for (Seen& seen : streams_seen) seen.resize(captured.size(), 0);
  }
  Seen& seen = streams_seen[index];
  const Seen& there = points_seen[size_t(event.captured_point)];
  for (size_t i = 0; i < there.size(); ++i) seen[i] = std::max(seen[i], there[i]);
  nodes.push_back({Node::Kind::wait, index, {}, {}, event.captured_point});
}

void Graph::State::finish() {
  for (size_t i = 1; i < captured.size(); ++i)
    REQUIRE(streams_seen[0][i] == streams_seen[i][i],
            "stream '%s' does not wait for all of '%s' before the end of their capture", captured[0]->name(),
            captured[i]->name());
  for (size_t i = 1; i < captured.size(); ++i) branches.emplace_back(device, captured[i]->name());
  for (size_t i = 0; i < points_seen.size(); ++i) points.emplace_back(device);
  end->state().record(*captured[0]);
  captured.clear();
}

// ---------------------------------------------------------------------------------------------- graph

Graph::Graph(Device& device) : device_(&device) {
  REQUIRE(device.executes(), "a graph of a device that executes nothing");
}
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
bool Graph::empty() const { return !state_; }
size_t Graph::pieces() const {
  if (empty()) return 0;
  return size_t(std::count_if(state_->nodes.begin(), state_->nodes.end(), [](const State::Node& node) {
    return node.kind == State::Node::Kind::work || node.kind == State::Node::Kind::collective;
  }));
}

void Graph::capture(Stream& stream, const std::function<void()>& work) {
  Device::State& device = device_->state();
  device.require_no_capture("a graph is captured");
  REQUIRE(!device.record, "stream '%s' is captured while the device records", stream.name());
  auto captured = std::make_unique<State>(*device_);
  captured->captured = {&stream};
  captured->streams_seen = {{0}};
  captured->begin = device.order.now(stream.state().timeline);
  device.capture = captured.get();
  try {
    work();
  } catch (...) {
    device.capture = nullptr;
    for (const auto& recorded : captured->recorded)
      if (const auto event = recorded.lock()) event->end = nullptr;
    throw;
  }
  device.capture = nullptr;
  captured->finish();
  device_->count_allocation();
  state_ = std::move(captured);
}

void Graph::launch(Stream& stream) {
  REQUIRE(state_, "a graph is launched in stream '%s', and nothing was captured", stream.name());
  Device::State& device = device_->state();
  device.require_no_capture("a graph is launched");
  const auto stream_of = [&](const State::Node& node) -> Stream& {
    return node.stream ? state_->branches[node.stream - 1] : stream;
  };
  for (const State::Node& node : state_->nodes) {
    Stream& in = stream_of(node);
    switch (node.kind) {
      case State::Node::Kind::work:
        cpu_backend::enqueue(Work(in, *node.work), node.function);
        break;
      case State::Node::Kind::collective:
        cpu_backend::enqueue_collective(Work(in, *node.work), node.function);
        break;
      case State::Node::Kind::record:
        state_->points[size_t(node.point)].state().record(in);
        break;
      case State::Node::Kind::wait:
        device.wait(in.state(), state_->points[size_t(node.point)].state());
        break;
    }
  }
  state_->end->state().record(stream);
  for (const auto& recorded : state_->recorded)
    if (const auto event = recorded.lock()) event->end = state_->end;
  device_->count_graph_launch();
}
