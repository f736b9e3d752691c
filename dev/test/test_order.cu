// Covers: the device backend: a missing wait is reported in any schedule, right programs pass and agree in all of them
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "dev/test/test.h"
#include "llmc/device/device.h"
#include "llmc/device/launch.cuh"
#include "llmc/device/random.h"

namespace {

using Schedule = CpuBackend::Schedule;

// Mistakes that only the CPU backend finds are tested there alone; a GPU runs the right programs.
bool on_cpu_backend() { return !Device(0).info().gpu; }

struct World {
  Schedule schedule;
  unsigned long seed;
};
const std::vector<World> kWorlds = {{Schedule::eager, 1},  {Schedule::lazy, 1},   {Schedule::random, 1},
                                    {Schedule::random, 2}, {Schedule::random, 3}, {Schedule::random, 4}};

CpuBackend settings(const World& world) {
  CpuBackend cpu = CpuBackend::from_environment();
  cpu.schedule = world.schedule;
  cpu.seed = world.seed;
  return cpu;
}

__global__ void fill_kernel(float* data, float value, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) data[i] = value;
}
__global__ void add_kernel(float* sum, const float* data, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) sum[i] = 2 * sum[i] + data[i];
}

constexpr int kCount = 256;

void fill(Stream& stream, const char* name, float* data, float value, int n = kCount) {
  launch<fill_kernel>({stream, name, {writes(data, size_t(n))}}, blocks_for(size_t(n), 64), 64, 0, data, value, n);
}
void add(Stream& stream, const char* name, float* sum, const float* data, int n = kCount) {
  launch<add_kernel>({stream, name, {updates(sum, size_t(n)), reads(data, size_t(n))}}, blocks_for(size_t(n), 64), 64,
                     0, sum, data, n);
}

// Two streams and two buffers, in a world.
struct Setup {
  Device device;
  Stream one, two, three;
  Event event, other;
  DeviceMemory memory_a, memory_b;
  PinnedMemory memory_host;
  float *a, *b, *host;

  explicit Setup(const World& world)
      : device(0, settings(world)),
        one(device, "one"),
        two(device, "two"),
        three(device, "three"),
        event(device),
        other(device),
        memory_a(device, kCount * sizeof(float)),
        memory_b(device, kCount * sizeof(float)),
        memory_host(device, kCount * sizeof(float)),
        a(reinterpret_cast<float*>(memory_a.data())),
        b(reinterpret_cast<float*>(memory_b.data())),
        host(reinterpret_cast<float*>(memory_host.data())) {}

  float first_of(float* data) {
    device.synchronize();
    copy(one, host, data, kCount);
    one.synchronize();
    return host[0];
  }
};

// Executes steps such as "one fill a 1; one record; two wait; two add b[128,1] a": streams are one, two and three,
// buffers are a, b and host, or so many numbers from a place on; there is an event and an `other` one. The name of a
// kernel is its step.
void execute(Setup& s, const std::string& program) {
  static std::set<std::string> names;  // live as long as any log
  const std::map<std::string, Stream*> streams = {{"one", &s.one}, {"two", &s.two}, {"three", &s.three}};
  const auto range = [&](const std::string& text) {
    int at = 0, n = kCount;
    if (const size_t bracket = text.find('['); bracket != text.npos)
      REQUIRE(sscanf(text.c_str() + bracket, "[%d,%d]", &at, &n) == 2, "no range: %s", text.c_str());
    return std::pair((text[0] == 'a' ? s.a : text[0] == 'b' ? s.b : s.host) + at, n);
  };
  std::istringstream steps(program);
  for (std::string step; std::getline(steps >> std::ws, step, ';');) {
    std::istringstream words(step);
    std::string at, verb, to, from;
    words >> at >> verb >> to >> from;
    Stream& stream = *streams.at(at);
    const char* name = names.insert(step).first->c_str();
    if (verb == "record") (to == "other" ? s.other : s.event).record(stream);
    else if (verb == "wait") stream.wait(to == "other" ? s.other : s.event);
    else if (verb == "synchronize") stream.synchronize();
    else if (verb == "copy") copy(stream, range(to).first, range(from).first, kCount);
    else if (verb == "fill") fill(stream, name, range(to).first, std::stof(from), range(to).second);
    else if (verb == "add") add(stream, name, range(to).first, range(from).first, range(to).second);
    else fail("no step: %s", name);
  }
}

// `program` is reported in every world, and the report contains each of the texts.
template <class Program>
void reported(const Program& program, const std::vector<const char*>& texts) {
  for (const World& world : kWorlds) {
    const std::string message = error_of([&] {
      Setup s(world);
      program(s);
    });
    CAPTURE(int(world.schedule));
    CAPTURE(message);
    for (const char* text : texts) says(message, text);
  }
}

// `program` runs to its end in every world, and gives `expected`.
template <class Program>
void right(const Program& program, float expected) {
  for (const World& world : kWorlds) {
    Setup s(world);
    CAPTURE(int(world.schedule));
    CHECK(program(s) == expected);
  }
}

}  // namespace

TEST_CASE("a missing wait is reported with both names, in any schedule") {
  if (!on_cpu_backend()) return;
  const std::pair<const char*, std::vector<const char*>> programs[] = {
      {"one fill a 1; two add b a",
       {"unordered access", "two add b a reads 1024 bytes", "stream 'two'", "one fill a 1 writes", "stream 'one'",
        "test_order.cu:"}},
      {"one copy b a; two fill a 2", {"two fill a 2 writes", "that copy reads in stream 'one'"}},
      {"one fill a 1; two fill a 2", {"two fill a 2 writes", "one fill a 1 writes"}},
      {"one fill a[0,129] 1; two fill a[128,128] 2", {"two fill a[128,128] 2 writes 4 bytes"}},
      // Later work lies between.
      {"one fill a 1; one fill a[0,1] 2; two add b[128,1] a[128,1]",
       {"a[128,1] reads 4 bytes", "that one fill a 1 writes"}},
      {"one fill b 1; one fill a 1; one add b a; two add host a", {"two add host a reads", "that one fill a 1 writes"}},
      // An event that orders nothing is no excuse: it came before the work, was never recorded, or forgot stream one.
      {"one record; one fill a 1; two wait; two add b a", {"two add b a reads", "one fill a 1 writes"}},
      {"two wait; one fill a 1; one record; two add b a", {"two add b a reads", "one fill a 1 writes"}},
      {"one fill a 1; one record; three record; two wait; two add b a", {"two add b a reads", "one fill a 1 writes"}}};
  for (const auto& [program, texts] : programs) reported([&, p = program](Setup& s) { execute(s, p); }, texts);
}

TEST_CASE("work that an event orders passes") {
  const std::pair<const char*, float> programs[] = {
      {"one fill b 10; one fill a 1; one record; two wait; two add b a", 21},
      // Through a third stream, and back.
      {"one fill b 10; one fill a 1; one record; three wait; three record other; two wait other; two add b a; two "
       "record;"
       "one wait; one fill a 5; one add b a",
       47},
      // Readers need no order between them, nor do neighbours.
      {"one fill b 10; one fill a 1; one record; two wait; one add b[0,128] a; two add b[128,128] a", 21},
      // The host waits, so what it enqueues afterwards is ordered.
      {"one fill b 10; one fill a 1; one synchronize; two add b a", 21}};
  for (const auto& [program, expected] : programs) {
    const auto run = [&, p = program](Setup& s) {
      execute(s, p);
      return s.first_of(s.b);
    };
    right(run, expected);
  }
}

TEST_CASE("the host's own accesses are checked") {
  right(
      [](Setup& s) {
        host_accesses(s.device, "next batch", {writes(s.host, kCount)});
        for (int i = 0; i < kCount; ++i) s.host[i] = 3;
        copy(s.one, s.a, s.host, kCount);
        s.event.record(s.one);
        s.event.synchronize();
        host_accesses(s.device, "next batch", {writes(s.host, kCount)});
        for (int i = 0; i < kCount; ++i) s.host[i] = 4;
        return s.first_of(s.a);
      },
      3);
  if (!on_cpu_backend()) return;
  reported(
      [](Setup& s) {
        copy(s.one, s.a, s.host, kCount);
        host_accesses(s.device, "next batch", {writes(s.host, kCount)});
      },
      {"next batch writes 1024 bytes", "stream 'the host'", "that copy reads in stream 'one'"});
  reported(
      [](Setup& s) {
        fill(s.one, "loss", s.a, 1);
        s.event.record(s.one);
        copy(s.one, s.host, s.a, kCount);  // after the event that the host waits for
        s.event.synchronize();
        host_accesses(s.device, "log line", {reads(s.host, kCount)});
      },
      {"log line reads", "that copy writes in stream 'one'"});
}

namespace {

enum class Forgotten { nothing, gathered, released };

// Six layers' weights pass through two slots: gathered on one stream, used on another.
float two_slots(Setup& s, Forgotten forgotten) {
  constexpr int kLayers = 6;
  DeviceMemory memory(s.device, 2 * kCount * sizeof(float));
  float* slots[2] = {reinterpret_cast<float*>(memory.data()), reinterpret_cast<float*>(memory.data()) + kCount};
  std::vector<Event> gathered, released;
  for (int l = 0; l < kLayers; ++l) gathered.emplace_back(s.device), released.emplace_back(s.device);
  Stream &compute = s.one, &communication = s.two;
  const auto gather = [&](int layer) {
    if (layer >= 2 && forgotten != Forgotten::released) communication.wait(released[size_t(layer - 2)]);
    fill(communication, "gather", slots[layer % 2], float(layer + 1));
    gathered[size_t(layer)].record(communication);
  };
  fill(compute, "begin", s.a, 0);
  gather(0);
  for (int l = 0; l < kLayers; ++l) {
    if (l + 1 < kLayers) gather(l + 1);
    if (forgotten != Forgotten::gathered) compute.wait(gathered[size_t(l)]);
    add(compute, "block", s.a, slots[l % 2]);
    released[size_t(l)].record(compute);
  }
  return s.first_of(s.a);
}

}  // namespace

TEST_CASE("two slots that are gathered, used and released") {
  right([](Setup& s) { return two_slots(s, Forgotten::nothing); }, 120);  // 1·32 + 2·16 + 3·8 + 4·4 + 5·2 + 6
  if (!on_cpu_backend()) return;
  reported([](Setup& s) { two_slots(s, Forgotten::gathered); }, {"block reads", "that gather writes in stream 'two'"});
  reported([](Setup& s) { two_slots(s, Forgotten::released); }, {"gather writes", "that block reads in stream 'one'"});
}

TEST_CASE("what nobody declared is seen by its result in the lazy schedule") {
  if (!on_cpu_backend()) return;
  for (const Schedule schedule : {Schedule::eager, Schedule::lazy}) {
    Setup s({schedule, 1});
    launch<fill_kernel>({s.one, "silent producer", {}}, 1, kCount, 0, s.a, 1.0f, kCount);
    fill(s.two, "sum", s.b, 10);
    launch<add_kernel>({s.two, "silent consumer", {}}, 1, kCount, 0, s.b, s.a, kCount);
    copy(s.two, s.host, s.b, kCount);
    s.two.synchronize();
    if (schedule == Schedule::eager) CHECK(s.host[0] == 21);
    else CHECK(std::isnan(s.host[0]));  // the producer was not asked for: its buffer is still poison
  }
}

namespace {

// A program drawn from a seed: kernels on three streams over five buffers, events recorded and waited for at random.
// Returns what the buffers hold, or the report's first line.
std::string random_program(const World& world, unsigned long seed, bool wait_always) {
  Device device(0, settings(world));
  DeviceMemory memory(device, 5 * 64 * sizeof(float));
  std::vector<float> result(5 * 64);
  std::vector<Stream> streams;
  std::vector<Event> events;
  for (const char* name : {"one", "two", "three"}) streams.emplace_back(device, name);
  for (int e = 0; e < 4; ++e) events.emplace_back(device);
  const auto buffer = [&](size_t i) { return reinterpret_cast<float*>(memory.data()) + 64 * i; };
  for (size_t i = 0; i < 5; ++i) fill(streams[0], "begin", buffer(i), float(i), 64);
  streams[0].synchronize();
  Random random(seed);
  std::vector<std::string> names;  // live as long as the log
  for (int step = 0; step < 40; ++step) names.push_back(format("step %d", step));
  try {
    for (int step = 0; step < 40; ++step) {
      Stream& stream = streams[random.below(3)];
      const size_t to = random.below(5), from = random.below(5), part = random.below(2) * 32, event = random.below(4);
      switch (random.below(wait_always ? 1 : 5)) {
        case 0:
        case 1:
          if (wait_always)
            for (Stream& other : streams) events[0].record(other), stream.wait(events[0]);
          if (to != from) add(stream, names[size_t(step)].c_str(), buffer(to) + part, buffer(from) + part, 32);
          break;
        case 2:
          events[event].record(stream);
          break;
        case 3:
          stream.wait(events[event]);
          break;
        case 4:
          if (random.below(3) == 0) stream.synchronize();
          break;
      }
    }
  } catch (const Error& error) {
    const std::string message = error.what();
    return message.substr(0, message.find(" bytes at"));  // without the address
  }
  device.synchronize();
  copy(streams[0], result.data(), buffer(0), result.size());
  streams[0].synchronize();
  std::string text;
  for (const float x : result) text += format("%a ", double(x));
  return text;
}

}  // namespace

TEST_CASE("random programs: every schedule reports the same, or computes the same") {
  int reports = 0, results = 0;
  for (unsigned long seed = 1; seed <= 400; ++seed) {
    const bool wait_always = seed % 4 == 0;
    if (!wait_always && !on_cpu_backend()) continue;
    const std::string expected = random_program({Schedule::eager, 1}, seed, wait_always);
    const bool reported = expected.find("unordered access") != std::string::npos;
    ++(reported ? reports : results);
    CAPTURE(seed);
    CHECK(!(wait_always && reported));
    for (const World& world :
         {World{Schedule::lazy, 1}, World{Schedule::random, seed}, World{Schedule::random, seed + 1}})
      CHECK(random_program(world, seed, wait_always) == expected);
  }
  CHECK(results >= 100);
  if (on_cpu_backend()) CHECK(reports > 100);
}

TEST_CASE("10^5 ordered launches") {
  Setup s({Schedule::eager, 1});
  fill(s.one, "begin", s.a, 0);
  fill(s.one, "begin", s.b, 1);
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < 50000; ++step) {
    add(s.one, "one", s.a, s.b, 1);
    s.event.record(s.one);
    s.two.wait(s.event);
    fill(s.two, "two", s.a, 7, 1);
    s.other.record(s.two);
    s.one.wait(s.other);
  }
  s.one.synchronize();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  printf("10^5 ordered launches: %.2f s, %.2f us each\n", seconds, seconds * 10);
  CHECK(s.first_of(s.a) == 7);
  CHECK(seconds < 20);
}

namespace {

__global__ void unwritten_kernel(float* out) { out[threadIdx.x] = shared_memory<float[64]>()[threadIdx.x]; }

}  // namespace

TEST_CASE("memory that nobody wrote reads as NaN") {
  if (!on_cpu_backend()) return;
  Setup s({Schedule::eager, 1});
  CHECK(std::isnan(s.a[0]));
  CHECK(std::isnan(s.host[kCount - 1]));
  for (int again = 0; again < 2; ++again) {  // also after a kernel that wrote
    launch<unwritten_kernel>({s.one, "unwritten", {writes(s.b, 64)}}, 1, 64, 64 * sizeof(float), s.b);
    int written = 0;
    for (int i = 0; i < 64; ++i) written += !std::isnan(s.b[i]);
    CHECK(written == 0);
  }
}

TEST_CASE("the end of memory waits for its work, and makes its address new") {
  for (const World& world : kWorlds) {
    Setup s(world);
    fill(s.one, "sum", s.b, 10);
    for (Stream* stream : {&s.one, &s.two, &s.one, &s.three}) {
      const DeviceMemory memory(s.device, 4096);
      float* data = reinterpret_cast<float*>(memory.data());
      fill(*stream, "producer", data, 1);
      add(*stream, "consumer", s.b, data);
    }
    CHECK(s.first_of(s.b) == 175);
  }
}

TEST_CASE("shapes that no GPU takes are refused") {
  Setup s({Schedule::eager, 1});
  const auto message = [&](dim3 grid, dim3 block, size_t bytes) {
    return error_of([&] {
      launch<fill_kernel>({s.one, "large", {}}, grid, block, bytes, s.a, 1.0f, 0);
      s.one.synchronize();
    });
  };
  CHECK(message(1, 64, 0) == "");
  CHECK(message(1, 1024, 0) == "");
  says(message(1, 1025, 0), "1 x 1 x 1 blocks of 1025 x 1 x 1 threads");
  says(message(1, dim3(1, 1, 65), 0), "1 x 1 x 65 threads");
  says(message(0, 64, 0), "0 x 1 x 1 blocks");
  says(message(dim3(1, 65536), 64, 0), "1 x 65536 x 1 blocks");
  const size_t most = s.device.info().shared_bytes_per_block;
  CHECK(message(1, 64, most) == "");
  says(message(1, 64, most + 1), "bytes of shared memory", "test_order.cu:");
}

TEST_CASE("events tell the time between two points") {
  for (const World& world : kWorlds) {
    Setup s(world);
    Event begin(s.device, true), end(s.device, true);
    CHECK(error_of([&] { end.milliseconds_since(begin); }) != "");
    begin.record(s.one);
    fill(s.one, "work", s.a, 1);
    end.record(s.one);
    end.synchronize();
    const float milliseconds = end.milliseconds_since(begin);
    CHECK(milliseconds >= 0);
    CHECK(milliseconds < 10000);
  }
}

TEST_CASE("settings that the CPU backend does not know are refused") {
  if (!on_cpu_backend()) return;
  const auto with = [](const char* name, const char* value) {
    setenv(name, value, 1);
    const std::string message = error_of([] { CpuBackend::from_environment(); });
    unsetenv(name);
    return message;
  };
  CHECK(with("LLMC_CPU_ORDER", "reverse") == "");
  says(with("LLMC_CPU_ORDER", "sideways"), "choose one of: forward random reverse");
  says(with("LLMC_CPU_STREAMS", "lasy"), "LLMC_CPU_STREAMS=lasy");
  says(with("LLMC_CPU_COPIES", "never"), "early late random");
  says(with("LLMC_CPU_SEED", "-1"), "not a whole number");
  says(with("LLMC_THREADS", "0"), "expected 1 to 1024");
}
