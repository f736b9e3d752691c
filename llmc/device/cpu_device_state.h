// What is behind a Device, a Stream and an Event in the CPU world: for cpu_device.cpp and cpu_graph.cpp.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/device/cpu_stream.h"
#include "llmc/device/device.h"
#include "llmc/device/graph.h"
#include "llmc/device/order_check.h"
#include "llmc/device/random.h"
#include "llmc/device/record.h"
#include "llmc/device/thread_pool.h"

namespace cpu_world {

// One piece of enqueued work; an event's record and a wait are pieces of work without a function.
struct Task {
  std::function<void()> function;
  std::shared_ptr<Task> after;  // of another stream: what a wait waits for
  Stream::State* stream;
  bool done = false;
  double time = 0;  // seconds, when it was done
};

}  // namespace cpu_world

struct Stream::State {
  Device* device;
  int timeline, number;  // of the order check, of the record
  std::deque<std::shared_ptr<cpu_world::Task>> queue;
  std::shared_ptr<cpu_world::Task> last;
};

struct Event::State {
  Device* device;
  std::shared_ptr<cpu_world::Task> task = {};  // null: never recorded
  OrderCheck::Clock clock = {};
  int point = -1;    // of the record
  int64_t step = 0;  // of the device, when it was recorded
  // Recorded in a capture: what it stands for outside, the graph's end, and which of the graph's points it is.
  std::shared_ptr<Event> end = {};
  int captured_point = -1;

  void record(Stream& stream);
  const State& outside() const { return end ? end->state() : *this; }
};

struct Device::State {
  using Task = cpu_world::Task;
  explicit State(const CpuWorld& world) : world(world), random(world.seed), pool(world.threads) {
    for (int i = 0; i < pool.size(); ++i) runners.push_back(std::make_unique<cpu_world::BlockRunner>(world, i));
  }
  CpuWorld world;
  DeviceInfo info;
  size_t device_bytes = 0;  // of DeviceMemory
  Random random;
  ThreadPool pool;
  std::vector<std::unique_ptr<cpu_world::BlockRunner>> runners;
  OrderCheck order;
  std::vector<Stream::State*> streams;
  std::shared_ptr<Task> last_collective;
  bool executes = true, checks_order = true;
  Graph::State* capture = nullptr;  // what is asked for goes there
  Record* record = nullptr;
  double record_begin = 0;
  std::vector<std::string> stream_names;
  int points = 0;

  std::shared_ptr<Task> enqueue(Stream::State& stream, std::function<void()> function, std::shared_ptr<Task> after);
  // The function of the entry recorded last: with a note of when it ran, or nothing where nothing is executed.
  std::function<void()> recorded(std::function<void()> function);
  void wait(Stream::State& stream, const Event::State& event);
  void execute_front(Stream::State& stream);
  void execute_random();
  void need(const std::shared_ptr<Task>& task);
  // After an error nothing more is executed: what is left may need what is gone, or other ranks.
  void drop_work();
  // The host must not wait, nor touch memory, while work is captured.
  void require_no_capture(const char* what) const;
};

struct Graph::State {
  struct Node {
    enum class Kind { work, collective, record, wait } kind;
    size_t stream;  // in the order in which they came in
    std::optional<Work> work = {};
    std::function<void()> function = {};
    int point = -1;  // of record and wait
  };
  explicit State(Device& device) : device(device), end(std::make_shared<Event>(device)) {}

  void add(Node::Kind kind, const Work& work, std::function<void()> function);
  void record(Stream& stream, const std::shared_ptr<Event::State>& event);
  void wait(Stream& stream, const Event::State& event);
  void finish();

  Device& device;
  std::vector<Stream*> captured;  // while it is
  OrderCheck::Clock begin;        // of the first stream
  // Of each stream, and of each point: how much work of each stream comes before it.
  using Seen = std::vector<size_t>;
  std::vector<Seen> streams_seen, points_seen;
  std::vector<Node> nodes;
  std::vector<Stream> branches;  // of a launch, for each stream but the first
  std::vector<Event> points;
  std::vector<std::weak_ptr<Event::State>> recorded;  // the events that each launch records
  std::shared_ptr<Event> end;                         // of the last launch

 private:
  size_t index_of(const Stream& stream) const;  // captured.size(): it is not there
};
