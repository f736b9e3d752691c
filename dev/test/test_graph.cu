// Covers: promise 3: a graph repeats the captured work with the captured arguments; what would not be part of it, or
// not be ordered, on a GPU is refused in the CPU backend, with both names
#include <functional>
#include <utility>
#include <vector>

#include "dev/test/arrays.h"
#include "dev/test/test.h"
#include "llmc/device/graph.h"
#include "llmc/device/launch.cuh"

namespace {

// out += in + addend
__global__ void add_kernel(int* out, const int* in, int addend) { out[threadIdx.x] += in[threadIdx.x] + addend; }

constexpr size_t kCount = 32;

struct World {
  explicit World(CpuBackend::Schedule schedule = CpuBackend::Schedule::eager)
      : device(0, CpuBackend{.threads = 1, .schedule = schedule, .seed = 5}),
        one(device, "one"),
        two(device, "two"),
        memory(device, 3 * kCount * sizeof(int)),
        forked(device),
        joined(device),
        graph(device) {
    for (int i = 0; i < 3; ++i) numbers[i] = reinterpret_cast<int*>(memory.data()) + size_t(i) * kCount;
    clear(one, numbers[0], 3 * kCount);
    forked.record(one), two.wait(forked);
  }
  void add(Stream& stream, int* out, const int* in, int addend) {
    launch<add_kernel>({stream, "add", {updates(out, kCount), reads(in, kCount)}}, 1, unsigned(kCount), 0, out, in,
                       addend);
  }
  void fork() { forked.record(one), two.wait(forked); }
  void join() { joined.record(two), one.wait(joined); }
  int result(int i) {
    int values[kCount];
    copy(one, values, numbers[i], kCount);
    one.synchronize();
    return values[kCount - 1];
  }
  Device device;
  Stream one, two;
  DeviceMemory memory;
  int* numbers[3];
  Event forked, joined;
  Graph graph;
};

template <class F>
void fails_with(const std::string& text, F&& f) {
  says(error_of(f), text);
}

}  // namespace

TEST_CASE(
    "a launch repeats the captured work in all its streams, with the captured arguments and what lies in memory") {
  for (const auto schedule : {CpuBackend::Schedule::eager, CpuBackend::Schedule::lazy, CpuBackend::Schedule::random}) {
    World w(schedule);
    int addend = 3;
    w.graph.capture(w.one, [&] {
      w.fork();
      w.add(w.two, w.numbers[1], w.numbers[0], addend);
      w.join();
      w.add(w.one, w.numbers[2], w.numbers[1], 0);
    });
    CHECK(w.graph.pieces() == 2);
    CHECK(w.result(1) == 0);  // nothing was executed
    addend = 100;
    for (int launch = 1; launch <= 3; ++launch) {
      w.add(w.one, w.numbers[0], w.numbers[0], 1);  // 1, 3, 7
      w.graph.launch(w.one);
    }
    CHECK(w.result(1) == 1 + 3 + 7 + 3 * 3);
    CHECK(w.result(2) == 4 + (4 + 6) + (4 + 6 + 10));
    CHECK(w.device.graph_launches() == 3);
  }
}

TEST_CASE("a captured graph can be replaced, and one that was given up is as it was") {
  World w;
  const auto capture = [&](int addend) {
    w.graph.capture(w.one, [&] { w.add(w.one, w.numbers[0], w.numbers[1], addend); });
  };
  CHECK(w.graph.empty());
  capture(1), w.graph.launch(w.one);
  fails_with("enough", [&] {
    w.graph.capture(w.one, [&] {
      w.add(w.one, w.numbers[0], w.numbers[1], 1000);
      fail("enough");
    });
  });
  w.graph.launch(w.one);
  CHECK(w.result(0) == 2);
  capture(10), w.graph.launch(w.one);
  CHECK(w.result(0) == 12);
}

TEST_CASE("what is not ordered in a graph, or between it and what is outside, is an error of its launch") {
  World w;
  if (w.device.info().gpu) return;  // only the CPU backend checks it
  w.graph.capture(w.one, [&] {
    w.fork();
    w.add(w.two, w.numbers[1], w.numbers[0], 1);
    w.add(w.one, w.numbers[2], w.numbers[1], 1);  // before `two` has written
    w.join();
  });
  fails_with("unordered access: add", [&] { w.graph.launch(w.one); });

  // The stream itself is not the graph's branch: nothing orders its own work with that of the launches.
  World other;
  other.graph.capture(other.one, [&] {
    other.fork();
    other.add(other.two, other.numbers[1], other.numbers[0], 1);
    other.join();
  });
  other.graph.launch(other.one);
  other.graph.launch(other.one);
  other.add(other.two, other.numbers[2], other.numbers[2], 1);
  other.graph.launch(other.one);
  fails_with("unordered access: add", [&] { other.add(other.two, other.numbers[0], other.numbers[0], 1); });
}

TEST_CASE("outside, an event of a graph stands for the end of its last launch") {
  World w;
  Event between(w.device);
  w.graph.capture(w.one, [&] {
    between.record(w.one);
    w.add(w.one, w.numbers[1], w.numbers[0], 1);
  });
  w.graph.launch(w.one);
  w.two.wait(between);
  w.add(w.two, w.numbers[2], w.numbers[1], 0);  // in order, though `between` came before what was written
  between.synchronize();
  CHECK(w.device.host_waits().running == 1);
  w.two.synchronize();
  CHECK(w.result(2) == 1);
  // Recorded by the host since, then by another launch.
  w.add(w.one, w.numbers[1], w.numbers[0], 10);
  between.record(w.one);
  w.two.wait(between);
  w.add(w.two, w.numbers[2], w.numbers[1], 0);
  w.forked.record(w.two), w.one.wait(w.forked);
  w.graph.launch(w.one);
  w.two.wait(between);
  w.add(w.two, w.numbers[2], w.numbers[1], 0);
  w.two.synchronize();
  CHECK(w.result(2) == 1 + 11 + 12);
  // Recorded by the host in a later step than that of the last launch, it stands for itself.
  w.device.begin_step();
  const auto running = w.device.host_waits().running;
  between.record(w.one), between.synchronize();
  CHECK(w.device.host_waits().running == running + 1);
}

TEST_CASE("work that would not be part of the graph is refused") {
  World w;
  if (w.device.info().gpu) return;  // only the CPU backend checks it
  const PinnedMemory host(w.device, 512);
  const auto add = [&] { w.add(w.two, w.numbers[1], w.numbers[0], 1); };
  const std::pair<const char*, std::function<void()>> cases[] = {
      {"add (dev/test/test_graph.cu:", add},
      {"an event is recorded in stream 'two', which is not part", [&] { w.joined.record(w.two); }},
      {"stream 'one' does not wait for all of 'two'", [&] { w.fork(), add(); }},
      {"stream 'one' does not wait for all of 'two'", [&] { w.fork(), add(), w.join(), add(); }},
      {"the host waits for a stream while the work of stream 'one' is captured", [&] { w.one.synchronize(); }},
      {"the host waits for an event", [&] { w.forked.record(w.one), w.forked.synchronize(); }},
      {"the next batch while the work of stream 'one' is captured",
       [&] { host_accesses(w.device, "the next batch", {}); }},
      {"memory is allocated", [&] { DeviceMemory(w.device, 256); }},
      {"a copy from host to host", [&] { copy_bytes(w.one, host.data(), host.data() + 256, 256); }},
      {"a graph is launched", [&] { w.graph.launch(w.one); }}};
  for (const auto& [error, work] : cases)
    fails_with(error, [&, &captured = work] { w.graph.capture(w.one, captured); });
  CHECK(w.graph.empty());
  fails_with("nothing was captured", [&] { w.graph.launch(w.one); });
}

TEST_CASE("an event from before the capture must come before it") {
  World w;
  if (w.device.info().gpu) return;  // only the CPU backend checks it
  Event earlier(w.device);
  const auto wait_for_it = [&] {
    w.fork();
    w.two.wait(earlier);
    w.join();
  };
  w.graph.capture(w.one, wait_for_it);  // never recorded
  earlier.record(w.one);
  w.graph.capture(w.one, wait_for_it);
  w.add(w.two, w.numbers[1], w.numbers[0], 1);
  earlier.record(w.two);
  fails_with("stream 'two' waits for an event from before the capture of 'one'",
             [&] { w.graph.capture(w.one, wait_for_it); });
  w.one.wait(earlier);
  w.graph.capture(w.one, wait_for_it);
}

TEST_CASE("waits of the host are counted by the step that they are for") {
  World w;
  std::vector<Event> events;
  for (int step = 0; step < 4; ++step) {
    w.device.begin_step();
    w.add(w.one, w.numbers[0], w.numbers[1], 1);
    events.emplace_back(w.device);
    events.back().record(w.one);
  }
  const HostWaits start = w.device.host_waits();
  events[3].synchronize();
  events[2].synchronize(), events[2].synchronize();
  for (int i = 0; i < 2; ++i) events[0].synchronize(), events[1].synchronize();
  const HostWaits& now = w.device.host_waits();
  CHECK(now.running - start.running == 1);
  CHECK(now.before - start.before == 2);
  CHECK(now.earlier - start.earlier == 4);
  w.one.synchronize();
  w.device.synchronize();
  CHECK(now.running - start.running == 3);
}
