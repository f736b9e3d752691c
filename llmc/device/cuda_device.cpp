// The device of the CUDA backend. Its streams, events and memory are CUDA's own.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "llmc/device/addresses.h"
#include "llmc/device/cuda_device_state.h"
#include "llmc/device/cuda_error.h"
#include "llmc/device/cuda_stream.h"
#include "llmc/device/gpu_choice.h"
#include "llmc/device/known_devices.h"
#include "llmc/device/numa.h"
#include "llmc/device/versions.h"

int Device::count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // clears the error: the caller reports that there is no GPU
    return 0;
  }
  CUDA_CHECK(status);
  return count;
}

std::string Device::unused_gpu() { return ""; }

std::string device_library() {
  int version = 0;
  CUDA_CHECK(cudaRuntimeGetVersion(&version));  // 13000 means 13.0
  return format("CUDA %d.%d", version / 1000, version % 1000 / 10);
}

std::string driver_version() {
  std::string version;
  std::getline(std::ifstream("/sys/module/nvidia/version"), version);
  return version;
}

CpuBackend CpuBackend::from_environment(int) { return {}; }

Device::Device(int local_rank, CpuBackend) : state_(new State) {
  const int count = Device::count();
  if (count == 0)
    fail_as(ExitCode::unexpected,
            "this build of train_llama needs an NVIDIA GPU, and none is usable here\n"
            "  check nvidia-smi and the driver, or build for the CPU: make DEVICE=cpu");
  const int index = choose_gpu(count, local_rank);
  CUDA_CHECK(cudaSetDevice(index));
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  DeviceInfo& info = state_->info;
  info.name = properties.name;
  info.uuid = gpu_uuid_text(properties.uuid.bytes);
  info.gpu = info.wide_rows = true;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.memory_bytes = properties.totalGlobalMem;
  size_t total_bytes;
  CUDA_CHECK(cudaMemGetInfo(&info.free_bytes, &total_bytes));
  info.shared_bytes_per_block = properties.sharedMemPerBlockOptin;
  const int node = numa_node_of(format("%04x:%02x:%02x.0", unsigned(properties.pciDomainID),
                                       unsigned(properties.pciBusID), unsigned(properties.pciDeviceID)));
  if (bind_to_numa_node(node)) info.numa_node = node;  // before any memory is pinned, or a thread begins
  set_known_rates(info);
}

Device::Device(const DeviceInfo& modelled, bool) : state_(new State) {
  state_->info = modelled;
  state_->executes = false;
}

void Device::record_to(Record* record) {
  if (state_->record && state_->executes) {
    synchronize();
    for (const State::Timed& t : state_->timed) {
      float begin = 0, end = 0;
      CUDA_CHECK(cudaEventElapsedTime(&begin, state_->timed[0].begin, t.begin));
      CUDA_CHECK(cudaEventElapsedTime(&end, state_->timed[0].begin, t.end));
      state_->record->spans.push_back({t.entry, begin * 1e-3, end * 1e-3});
    }
    for (const State::Timed& t : state_->timed) cudaEventDestroy(t.begin), cudaEventDestroy(t.end);
    state_->timed.clear();
  }
  state_->record = record;
  if (record) record->streams = state_->stream_names;
}

RecordedWork::RecordedWork(const Work& work) : range_(work.name), work_(work) {
  Device::State& device = work.stream.device().state();
  if (!device.record || device.record->full()) return;
  device.record->entries.push_back(entry_of(work, work.stream.state().number));
  if (!device.executes || work.traffic.joins) return;  // the first of a launch has the time of all
  is_timed_ = true;
  Device::State::Timed timed{int(device.record->entries.size()) - 1, nullptr, nullptr};
  CUDA_CHECK(cudaEventCreate(&timed.begin));
  CUDA_CHECK(cudaEventCreate(&timed.end));
  CUDA_CHECK(cudaEventRecord(timed.begin, cuda_stream(work.stream)));
  device.timed.push_back(timed);
}
RecordedWork::~RecordedWork() {
  if (is_timed_) cudaEventRecord(work_.stream.device().state().timed.back().end, cuda_stream(work_.stream));
}
bool RecordedWork::executes() const { return work_.stream.device().executes(); }

Device::~Device() = default;
const DeviceInfo& Device::info() const { return state_->info; }
size_t Device::taken_bytes() const {
  size_t free_bytes = state_->info.free_bytes, total_bytes = 0;
  if (state_->executes) CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return state_->info.free_bytes - std::min(free_bytes, state_->info.free_bytes);
}
bool Device::executes() const { return state_->executes; }
bool Device::records() const { return state_->record; }
void Device::synchronize() {
  count_wait(step_);
  if (state_->executes) CUDA_CHECK(cudaDeviceSynchronize());
}

// ---------------------------------------------------------------------------------------------- streams and events

Stream::Stream(Device& device, const char* name, StreamPriority priority)
    : device_(&device), name_(name), state_(new State) {
  if (device.state().executes) {
    int lowest = 0, highest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&state_->stream, cudaStreamNonBlocking,
                                            priority == StreamPriority::highest ? highest : lowest));
  }
  state_->number = int(device.state().stream_names.size());
  device.state().stream_names.push_back(name);
}
Stream::Stream(Stream&&) noexcept = default;
Stream::~Stream() {
  if (state_ && state_->stream) cudaStreamDestroy(state_->stream);
}
void Stream::wait(const Event& event) {
  const Device::State& device = device_->state();
  const bool captured = device.capture && event.state().end == device.capture;
  if (device.capture && !captured) return;  // the stream that launches the graph must wait for it
  const Event::State& recorded = captured ? event.state() : event.state().outside();
  if (!recorded.recorded) return;
  if (recorded.event) CUDA_CHECK(cudaStreamWaitEvent(state_->stream, recorded.event, 0));
  if (device.record) device.record->entries.push_back({Record::Entry::Kind::wait, state_->number, recorded.point});
}
void Stream::synchronize() {
  device_->count_wait(device_->step());
  if (state_->stream) CUDA_CHECK(cudaStreamSynchronize(state_->stream));
}

cudaStream_t cuda_stream(Stream& stream) { return stream.state().stream; }

Event::Event(Device& device, bool timed) : state_(new State{&device}) {
  if (!device.state().executes) return;
  CUDA_CHECK(cudaEventCreateWithFlags(&state_->event, timed ? cudaEventDefault : cudaEventDisableTiming));
}
Event::Event(Event&&) noexcept = default;
Event::~Event() {
  if (state_ && state_->event) cudaEventDestroy(state_->event);
}
void Event::record(Stream& stream) {
  if (state_->event) CUDA_CHECK(cudaEventRecord(state_->event, stream.state().stream));
  Device::State& device = stream.device().state();
  state_->recorded = true;
  state_->step = stream.device().step();
  if (device.capture && state_->end != device.capture) device.captured.push_back(state_);
  state_->end = device.capture;
  state_->point = device.points++;
  if (device.record)
    device.record->entries.push_back({Record::Entry::Kind::record, stream.state().number, state_->point});
}
void Event::synchronize() {
  const State& recorded = state_->outside();
  if (!recorded.recorded) return;
  recorded.device->count_wait(recorded.step);
  if (recorded.event) CUDA_CHECK(cudaEventSynchronize(recorded.event));
}
cudaEvent_t cuda_event(Event& event) { return event.state().outside().event; }
float Event::milliseconds_since(const Event& earlier) const {
  float milliseconds = 0;
  if (!state_->event) return milliseconds;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.state_->event, state_->event));
  return milliseconds;
}

// ---------------------------------------------------------------------------------------------- memory and copies

DeviceMemory::DeviceMemory(Device& device, size_t bytes) : device_(&device), size_(bytes) {
  device.count_allocation();
  if (bytes == 0) return;
  if (!device.state().executes) {
    data_ = reserve_addresses(bytes, false);
    take_back_ = [data = data_, bytes] { release_addresses(data, bytes); };
    return;
  }
  size_t free_bytes = 0, total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const cudaError_t status = cudaMalloc(reinterpret_cast<void**>(&data_), bytes);
  if (status != cudaSuccess)
    fail_as(status == cudaErrorMemoryAllocation ? ExitCode::does_not_fit : ExitCode::lost,
            "cudaMalloc of %zu bytes on %s: %s\n  %zu of its %zu bytes are free\n"
            "  use a smaller --micro-batch or --seq-len, or end what else runs on this GPU",
            bytes, device.info().name.c_str(), cudaGetErrorString(status), free_bytes, total_bytes);
}
// While an error is under way, nothing is freed: CUDA would wait for all work, also for collectives that this rank will
// never come to, and the process ends soon.
DeviceMemory::~DeviceMemory() {
  if (take_back_) take_back_();
  else if (std::uncaught_exceptions() == 0) cudaFree(data_);
}

PinnedMemory::PinnedMemory(Device& device, size_t bytes) : device_(&device), size_(bytes) {
  device.count_allocation();
  if (bytes == 0) return;
  if (device.state().executes) {
    const cudaError_t status = cudaMallocHost(reinterpret_cast<void**>(&data_), bytes);
    if (status != cudaSuccess)
      fail_to_pin(bytes, std::string("cudaMallocHost: ") + cudaGetErrorString(status), exit_code_of(status));
  } else {
    data_ = reserve_addresses(bytes, true);
  }
  device.set_pinned(data_, size_, true);
}
PinnedMemory::~PinnedMemory() {
  if (!data_) return;
  device_->set_pinned(data_, size_, false);
  if (!device_->state().executes) release_addresses(data_, size_);
  else if (std::uncaught_exceptions() == 0) cudaFreeHost(data_);
}

namespace {

// Copies from host to host memory. cudaMemcpyAsync would block the calling thread until the copy is done.
void copy_on_host(cudaStream_t stream, void* to, const void* from, size_t bytes) {
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  const auto run = [](void* data) {
    const std::unique_ptr<Copy> c(static_cast<Copy*>(data));
    memcpy(c->to, c->from, c->bytes);
  };
  CUDA_CHECK(cudaLaunchHostFunc(stream, run, new Copy{to, from, bytes}));
}

}  // namespace

void copy_bytes(Stream& stream, void* to, const void* from, size_t bytes, CallSite site) {
  if (bytes == 0) return;
  const auto *source = static_cast<const std::byte*>(from), *target = static_cast<std::byte*>(to);
  Work work(stream, "copy", {reads(source, bytes), writes(target, bytes)}, 0, site);
  const Device& device = stream.device();
  const bool to_host = device.is_pinned(to), from_host = device.is_pinned(from);
  if (to_host != from_host) work.crossed = bytes, work.to_host = to_host;
  const RecordedWork recorded(work);
  if (!recorded.executes()) return;
  REQUIRE(!to_host || !from_host || !stream.device().state().capture,
          "a copy from host to host (%s:%d) is captured: it frees its arguments, and would have none the second time",
          site.file, site.line);
  if (to_host && from_host) copy_on_host(cuda_stream(stream), to, from, bytes);
  else CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_stream(stream)));
}
void fill_bytes(Stream& stream, void* data, unsigned char value, size_t bytes, CallSite site) {
  if (bytes == 0) return;
  const RecordedWork recorded(Work(stream, "fill", {writes(static_cast<std::byte*>(data), bytes)}, 0, site));
  if (recorded.executes()) CUDA_CHECK(cudaMemsetAsync(data, value, bytes, cuda_stream(stream)));
}
void host_accesses(Device&, const char*, std::initializer_list<Access>) {}
