// The CPU backend's device. Memory is poisoned, the host executes the streams, and the order of every access is
// checked.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <thread>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/device/addresses.h"
#include "llmc/device/cpu_device_state.h"
#include "llmc/device/versions.h"

// ---------------------------------------------------------------------------------------------- schedules

void Device::State::execute_front(Stream::State& stream) {
  const std::shared_ptr<Task> task = stream.queue.front();
  stream.queue.pop_front();
  const std::function<void()> function = std::move(task->function);
  task->function = nullptr;
  task->after = nullptr;
  task->done = true;  // set before the call: nothing may wait forever for a function that throws
  if (function) function();
  task->time = seconds();
}

// Executes one task: the first of a random stream among those whose first task need not wait for another.
void Device::State::execute_random() {
  std::vector<Stream::State*> able;
  for (Stream::State* s : streams)
    if (!s->queue.empty() && (!s->queue.front()->after || s->queue.front()->after->done)) able.push_back(s);
  if (!able.empty()) execute_front(*able[random.below(able.size())]);
}

void Device::State::drop_work() {
  for (Stream::State* s : streams) {
    for (const auto& task : s->queue) task->done = true;
    s->queue.clear();
  }
}

// Executes `task`. The eager and lazy schedules execute before it only the tasks on which it depends; the random
// schedule executes tasks of random streams until it is done.
void Device::State::need(const std::shared_ptr<Task>& task) {
  while (task && !task->done) {
    if (backend.schedule == CpuBackend::Schedule::random) {
      execute_random();
      continue;
    }
    const std::shared_ptr<Task> front = task->stream->queue.front();
    need(front->after);
    execute_front(*task->stream);
  }
}

std::shared_ptr<cpu_backend::Task> Device::State::enqueue(Stream::State& stream, std::function<void()> function,
                                                          std::shared_ptr<Task> after) {
  auto task = std::make_shared<Task>(Task{std::move(function), std::move(after), &stream});
  stream.queue.push_back(task);
  stream.last = task;
  if (backend.schedule == CpuBackend::Schedule::eager) need(task);
  if (backend.schedule == CpuBackend::Schedule::random)
    for (size_t n = random.below(3); n; --n) execute_random();
  return task;
}

std::function<void()> Device::State::recorded(std::function<void()> function) {
  if (!executes) return nullptr;
  if (!record || record->full()) return function;
  return [this, to = record, entry = int(record->entries.size()) - 1, function = std::move(function)] {
    const double begin = seconds();
    function();
    to->spans.push_back({entry, begin - record_begin, seconds() - record_begin});
  };
}

namespace cpu_backend {

namespace {

Device::State& declare(const Work& work) {
  Stream::State& stream = work.stream.state();
  Device::State& device = stream.device->state();
  if (device.checks_order) device.order.access(stream.timeline, work.name, work.site, work.accesses, work.access_count);
  if (device.record && !device.record->full()) device.record->entries.push_back(entry_of(work, stream.number));
  return device;
}

}  // namespace

void enqueue(const Work& work, std::function<void()> task) {
  using Kind = Graph::State::Node::Kind;
  if (Graph::State* capture = work.stream.device().state().capture)
    return capture->add(Kind::work, work, std::move(task));
  Device::State& device = declare(work);
  device.enqueue(work.stream.state(), device.recorded(device.writes.watched(work, std::move(task))), nullptr);
}

void enqueue_collective(const Work& work, std::function<void()> task) {
  using Kind = Graph::State::Node::Kind;
  if (Graph::State* capture = work.stream.device().state().capture)
    return capture->add(Kind::collective, work, std::move(task));
  Device::State& device = declare(work);
  device.last_collective =
      device.enqueue(work.stream.state(), device.recorded(std::move(task)), device.last_collective);
}

void run_grid(Device& device, KernelLaunch launch) {
  Device::State& state = device.state();
  const size_t blocks = launch.grid.count();
  size_t offset = 0;
  if (state.backend.order == CpuBackend::ThreadOrder::random) offset = state.random.below(blocks);
  const bool reverse = state.backend.order == CpuBackend::ThreadOrder::reverse;
  state.pool.run(blocks, [&](size_t i, int worker) {
    state.runners[size_t(worker)]->run(launch, reverse ? blocks - 1 - i : (i + offset) % blocks);
  });
}

const CpuBackend& backend_of(Device& device) { return device.state().backend; }

void parallel_for(Device& device, size_t count, const std::function<void(size_t)>& body) {
  device.state().pool.run(count, [&](size_t i, int) { body(i); });
}

}  // namespace cpu_backend

// ---------------------------------------------------------------------------------------------- device

Device::Device(int, CpuBackend backend) {
  if (backend.threads == 0) backend.threads = std::max(1, int(std::thread::hardware_concurrency()));
  state_ = std::make_unique<State>(backend);
  DeviceInfo& info = state_->info;
  info.name = format("CPU (%d thread%s)", backend.threads, backend.threads == 1 ? "" : "s");
  info.memory_bytes = info.free_bytes = host_memory_bytes() / size_t(backend.processes);
  info.multiprocessors = backend.threads;
  info.wide_rows = backend.wide_rows;
  info.shared_bytes_per_block = std::min(backend.shared_bytes, cpu_backend::kMaxSharedBytes);
}

Device::Device(const DeviceInfo& modelled, bool checks_order) : Device(0, CpuBackend{.threads = 1}) {
  state_->checks_order = checks_order;
  state_->info = modelled;
  state_->executes = false;
}

void Device::record_to(Record* record) {
  if (state_->record && state_->executes) synchronize();
  state_->record = record;
  state_->record_begin = seconds();
  if (record) record->streams = state_->stream_names;
}

bool Device::records() const { return state_->record; }

Device::~Device() = default;
const DeviceInfo& Device::info() const { return state_->info; }
size_t Device::taken_bytes() const { return state_->device_bytes; }
bool Device::executes() const { return state_->executes; }

void Device::State::require_no_capture(const char* what) const {
  REQUIRE(!capture, "%s while the work of stream '%s' is captured: it would be done once, not with each launch", what,
          capture->captured[0]->name());
}

void Device::synchronize() {
  state_->require_no_capture("the host waits for the device");
  count_wait(step_);
  for (Stream::State* s : state_->streams) {
    state_->need(s->last);
    state_->order.join(OrderCheck::kHost, state_->order.now(s->timeline));
  }
}

int Device::count() { return 1; }

std::string device_library() { return ""; }
std::string driver_version() { return ""; }

std::string Device::unused_gpu() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error))
    return "NVIDIA GPU " + entry.path().filename().string();
  return "";
}

// ---------------------------------------------------------------------------------------------- streams and events

Stream::Stream(Device& device, const char* name, StreamPriority) : device_(&device), name_(name), state_(new State) {
  state_->device = &device;
  state_->timeline = device.state().order.add_timeline(name);
  device.state().streams.push_back(state_.get());
  state_->number = int(device.state().stream_names.size());
  device.state().stream_names.push_back(name);
}

Stream::Stream(Stream&&) noexcept = default;

Stream::~Stream() {
  if (!state_) return;
  Device::State& device = device_->state();
  if (std::uncaught_exceptions() > 0) device.drop_work();
  device.need(state_->last);
  device.order.join(OrderCheck::kHost, device.order.now(state_->timeline));
  std::erase(device_->state().streams, state_.get());
}

void Stream::wait(const Event& event) {
  Device::State& device = device_->state();
  if (device.capture) device.capture->wait(*this, event.state());
  else device.wait(*state_, event.state());
}

void Device::State::wait(Stream::State& stream, const Event::State& event) {
  const Event::State& recorded = event.outside();
  if (!recorded.task) return;
  order.join(stream.timeline, recorded.clock);
  if (record) record->entries.push_back({Record::Entry::Kind::wait, stream.number, recorded.point});
  enqueue(stream, nullptr, recorded.task);
}

void Stream::synchronize() {
  Device::State& device = device_->state();
  device.require_no_capture("the host waits for a stream");
  device_->count_wait(device_->step());
  device.need(state_->last);
  device.order.join(OrderCheck::kHost, device.order.now(state_->timeline));
}

Event::Event(Device& device, bool) : state_(new State{&device}) {}
Event::Event(Event&&) noexcept = default;
Event::~Event() = default;

void Event::record(Stream& stream) {
  if (Graph::State* capture = state_->device->state().capture) capture->record(stream, state_);
  else state_->record(stream);
}

void Event::State::record(Stream& stream) {
  Device::State& of_device = device->state();
  clock = of_device.order.now(stream.state().timeline);
  point = of_device.points++;
  step = device->step();
  end.reset();
  if (of_device.record)
    of_device.record->entries.push_back({Record::Entry::Kind::record, stream.state().number, point});
  task = of_device.enqueue(stream.state(), nullptr, nullptr);
}

void Event::synchronize() {
  Device::State& device = state_->device->state();
  device.require_no_capture("the host waits for an event");
  const State& recorded = state_->outside();
  if (!recorded.task) return;
  recorded.device->count_wait(recorded.step);
  device.need(recorded.task);
  device.order.join(OrderCheck::kHost, recorded.clock);
}

float Event::milliseconds_since(const Event& earlier) const {
  const State &end = *state_, &begin = *earlier.state_;
  REQUIRE(!end.end && !begin.end && end.task && begin.task && end.task->done && begin.task->done,
          "the time between two events was asked for before both were recorded and reached, or of a graph's");
  return float((end.task->time - begin.task->time) * 1e3);
}

// ---------------------------------------------------------------------------------------------- memory and copies

namespace {

std::byte* allocate(Device& device, size_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  device.state().require_no_capture("memory is allocated");
  if (!device.state().executes) return reserve_addresses(bytes, strcmp(what, "device") != 0);
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, bytes) != 0)
    fail_as(ExitCode::does_not_fit, "no memory for %zu bytes of %s memory", bytes, what);
  memset(memory, 0xff, bytes);  // NaN in fp32, bf16 and e4m3: exposes reads of unwritten memory
  device.state().writes.add(static_cast<std::byte*>(memory), bytes);
  return static_cast<std::byte*>(memory);
}

void release(Device* device, std::byte* data, size_t bytes) {
  if (!data) return;
  if (std::uncaught_exceptions() > 0) device->state().drop_work();
  else device->synchronize();
  device->state().order.forget(data, bytes);
  device->state().writes.forget(data);
  if (!device->state().executes) release_addresses(data, bytes);
  else free(data);
}

}  // namespace

DeviceMemory::DeviceMemory(Device& device, size_t bytes)
    : device_(&device), data_(allocate(device, bytes, "device")), size_(bytes) {
  device.count_allocation();
  device.state().device_bytes += bytes;
}
DeviceMemory::~DeviceMemory() {
  if (data_ && !take_back_) device_->state().device_bytes -= size_;
  if (take_back_) take_back_();
  else release(device_, data_, size_);
}
PinnedMemory::PinnedMemory(Device& device, size_t bytes) : device_(&device), size_(bytes) {
  const size_t limit = device.state().backend.pinned_bytes;
  if (bytes > limit - std::min(limit, device.pinned_bytes())) fail_to_pin(bytes, format("LLMC_CPU_PINNED=%zu", limit));
  data_ = allocate(device, bytes, "pinned host");
  device.count_allocation();
  device.set_pinned(data_, size_, true);
}
PinnedMemory::~PinnedMemory() {
  if (device_) device_->set_pinned(data_, size_, false);
  release(device_, data_, size_);
}

void copy_bytes(Stream& stream, void* to, const void* from, size_t bytes, CallSite site) {
  if (bytes == 0) return;
  const auto *source = static_cast<const std::byte*>(from), *target = static_cast<std::byte*>(to);
  Work work(stream, "copy", {reads(source, bytes), writes(target, bytes)}, 0, site);
  Device& device = stream.device();
  const bool to_host = device.is_pinned(to);
  if (to_host != device.is_pinned(from)) work.crossed = bytes, work.to_host = to_host;
  else if (to_host) device.state().require_no_capture("a copy from host to host");
  cpu_backend::enqueue(work, [=] { memmove(to, from, bytes); });
}

void fill_bytes(Stream& stream, void* data, unsigned char value, size_t bytes, CallSite site) {
  if (bytes == 0) return;
  cpu_backend::enqueue(Work(stream, "fill", {writes(static_cast<std::byte*>(data), bytes)}, 0, site),
                       [=] { memset(data, value, bytes); });
}

void host_accesses(Device& device, const char* name, std::initializer_list<Access> accesses) {
  device.state().require_no_capture(name);
  device.state().order.access(OrderCheck::kHost, name, {"the host", 0}, accesses.begin(), accesses.size());
}
