// The states of Device, Stream, Event and Graph in the CPU backend, for cpu_device.cpp and cpu_graph.cpp.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/device/cpu_stream.h"
#include "llmc/device/cpu_write_check.h"
#include "llmc/device/device.h"
#include "llmc/device/graph.h"
#include "llmc/device/order_check.h"
#include "llmc/device/random.h"
#include "llmc/device/record.h"
#include "llmc/device/thread_pool.h"

namespace cpu_backend {

// One enqueued task. Recording an event and waiting for one are tasks without a function.
struct Task {
  std::function<void()> function;
  std::shared_ptr<Task> after;  // must be done first: the event of a wait, the previous collective; null: none
  Stream::State* stream;
  bool done = false;
  double time = 0;  // when it was done, in seconds
};

}  // namespace cpu_backend

struct Stream::State {
  Device* device;
  int timeline, number;  // its numbers in the order check and in a record
  std::deque<std::shared_ptr<cpu_backend::Task>> queue;
  std::shared_ptr<cpu_backend::Task> last;
};

struct Event::State {
  Device* device;
  std::shared_ptr<cpu_backend::Task> task = {};  // null: never recorded
  OrderCheck::Clock clock = {};
  int point = -1;    // its number in a record, as Record::Entry::point
  int64_t step = 0;  // the device's step when it was recorded
  // For an event recorded in a capture: outside the capture it stands for `end`, the end of the graph's last launch.
  // captured_point is its index among the graph's points.
  std::shared_ptr<Event> end = {};
  int captured_point = -1;

  void record(Stream& stream);
  const State& outside() const { return end ? end->state() : *this; }
};

struct Device::State {
  using Task = cpu_backend::Task;
  explicit State(const CpuBackend& backend) : backend(backend), random(backend.seed), pool(backend.threads) {
    for (int i = 0; i < pool.size(); ++i) runners.push_back(std::make_unique<cpu_backend::BlockRunner>(backend, i));
  }
  CpuBackend backend;
  DeviceInfo info;
  size_t device_bytes = 0;  // bytes that DeviceMemory holds
  Random random;
  ThreadPool pool;
  std::vector<std::unique_ptr<cpu_backend::BlockRunner>> runners;
  OrderCheck order;
  WriteCheck writes;
  std::vector<Stream::State*> streams;
  std::shared_ptr<Task> last_collective;
  bool executes = true, checks_order = true;
  Graph::State* capture = nullptr;  // takes the enqueued work while a capture lasts; else null
  Record* record = nullptr;
  double record_begin = 0;
  std::vector<std::string> stream_names;
  int points = 0;

  std::shared_ptr<Task> enqueue(Stream::State& stream, std::function<void()> function, std::shared_ptr<Task> after);
  // Returns the function to enqueue for the entry recorded last: null if the device executes nothing; with a record,
  // one that also notes when `function` ran; otherwise `function` itself.
  std::function<void()> recorded(std::function<void()> function);
  void wait(Stream::State& stream, const Event::State& event);
  void execute_front(Stream::State& stream);
  void execute_random();
  void need(const std::shared_ptr<Task>& task);
  // Discards all enqueued work after an error: it may need memory that is gone, or other ranks.
  void drop_work();
  // Throws Error while work is captured: the host must not wait, nor touch memory, before the capture ends.
  void require_no_capture(const char* what) const;
};

struct Graph::State {
  struct Node {
    enum class Kind { work, collective, record, wait } kind;
    size_t stream;  // its index in `captured`, the order in which streams joined
    std::optional<Work> work = {};
    std::function<void()> function = {};
    int point = -1;  // record and wait: index in `points`
  };
  explicit State(Device& device) : device(device), end(std::make_shared<Event>(device)) {}

  void add(Node::Kind kind, const Work& work, std::function<void()> function);
  void record(Stream& stream, const std::shared_ptr<Event::State>& event);
  void wait(Stream& stream, const Event::State& event);
  void finish();

  Device& device;
  std::vector<Stream*> captured;  // the capture's streams, until the capture ends
  OrderCheck::Clock begin;        // the first stream's clock when the capture began
  // For each stream and for each point: the number of work nodes of each stream that come before it.
  using Seen = std::vector<size_t>;
  std::vector<Seen> streams_seen, points_seen;
  std::vector<Node> nodes;
  std::vector<Stream> branches;  // the streams of a launch for all captured streams but the first
  std::vector<Event> points;
  std::vector<std::weak_ptr<Event::State>> recorded;  // the events that each launch records
  std::shared_ptr<Event> end;                         // the end of the last launch

 private:
  size_t index_of(const Stream& stream) const;  // captured.size() if the stream is not in the capture
};
