// One device and the operations that the host requests of it: memory, streams, events and copies. The names are the
// same in both backends. On a GPU the objects are CUDA's; in the CPU backend a stream is a queue that the host executes
// (cpu_stream.h).
//
// All work is asynchronous. Work is ordered only within its stream; between streams only an event orders. Only the
// constructors here allocate device memory or pinned memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/device/work.h"

class Stream;
class Event;
struct Record;

struct DeviceInfo {
  std::string name;            // "NVIDIA H200", "CPU (2 threads)"
  std::string uuid;            // of the GPU, "GPU-8a6e…"; "" if it is not known
  int numa_node = -1;          // of the GPU, to whose CPUs this process is bound; -1: to none
  bool gpu = false;            // false: the CPU backend
  int compute_capability = 0;  // 90 for Hopper; 0 in the CPU backend
  int multiprocessors = 1;
  size_t memory_bytes = 0;            // of the device, or of the host in the CPU backend
  size_t free_bytes = 0;              // the free part of it when the device was opened
  size_t shared_bytes_per_block = 0;  // the most that a block of a kernel may request
  // True if a whole block should share a long row. A GPU then has more loads in flight. On a CPU this does not pay,
  // since threads that wait for each other cost more.
  bool wide_rows = false;
  double bf16_flops = 0;  // dense peak per second; 0 if it is not known
  double memory_bytes_per_second = 0;
  double bus_bytes_per_second = 0;  // of the bus to the host, in each direction; 0 if it is not known
};

// How the CPU backend executes. The number of threads, the orders and the timings never change the bits of a result, so
// tests try all of them. These environment variables set them: LLMC_THREADS, LLMC_CPU_ORDER (forward|reverse|random),
// LLMC_CPU_STREAMS (eager|lazy|random), LLMC_CPU_COPIES (late|early|random), LLMC_CPU_SEED, LLMC_CPU_PINNED (bytes).
struct CpuBackend {
  // The order of the threads of a block, and of the blocks. forward: all warps advance together; reverse: the last warp
  // runs first, as far as it can; random: in some blocks one warp runs ahead, in others the order is drawn at random.
  enum class ThreadOrder { forward, reverse, random };
  enum class Schedule { eager, lazy, random };    // when enqueued work is executed
  enum class CopyTiming { late, early, random };  // when an asynchronous copy inside a kernel lands
  int threads = 0;                                // 0: all cores
  ThreadOrder order = ThreadOrder::forward;
  Schedule schedule = Schedule::eager;
  CopyTiming copy_timing = CopyTiming::late;
  unsigned long seed = 1;
  int processes = 1;                // processes that share the machine's memory
  size_t shared_bytes = 227 << 10;  // most that a block may request: Hopper's, or less, as other GPUs have
  bool wide_rows = false;           // true: a GPU's launch shapes, to test its kernels
  size_t pinned_bytes = SIZE_MAX;   // most that a process can pin; on a GPU the system decides
  // Sums products in double, in the order of k, and rounds once. The bits are then the same on every machine and
  // however a product is split, and a sum of partial products differs from the whole product only by the rounding of
  // the parts. This is many times slower.
  bool exact_products = false;

  // Reads the environment. Throws on an unknown value. `local_ranks` processes of this run share the machine's cores.
  static CpuBackend from_environment(int local_ranks = 1);
};

// How often the host waited for work, counted by the step to which the work belongs (Device::begin_step): `running` is
// the step that began last, `before` the one before it, `earlier` any older one.
struct HostWaits {
  size_t running = 0, before = 0, earlier = 0;
};

class Device {
 public:
  // On a GPU: opens the GPU that this rank of the machine takes (gpu_choice.h); throws if there is none. In the CPU
  // backend every process has the CPU.
  explicit Device(int local_rank = 0, CpuBackend cpu = CpuBackend::from_environment());
  // A modelled device, which need not be present. It executes nothing and its memory cannot be touched, but the work
  // requested of it can be recorded. The CPU backend checks the order of its work if `checks_order`; a caller that has
  // no time for the check passes false.
  explicit Device(const DeviceInfo& modelled, bool checks_order = true);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const;
  bool executes() const;  // false: the device is modelled
  void synchronize();     // the host waits for all streams
  // Adds all work requested from here on to `record`. A null pointer ends the recording; the host then waits until all
  // recorded work was executed.
  void record_to(Record* record);
  bool records() const;
  // How often device or pinned memory was allocated; the capture of a graph counts too. A run allocates only at its
  // start.
  size_t allocations() const { return allocations_; }
  void count_allocation() { ++allocations_; }
  // Bytes of device memory that were taken since the device was opened. On a GPU the driver reports them, so they
  // include the memory of the driver, of libraries and of other processes. In the CPU backend it is the memory that
  // DeviceMemory holds.
  size_t taken_bytes() const;
  // Work requested from here on belongs to the next step.
  void begin_step() { ++step_; }
  int64_t step() const { return step_; }
  // Counted since the start. A wait for a whole stream, or for the device, counts as a wait for the running step.
  const HostWaits& host_waits() const { return host_waits_; }
  void count_wait(int64_t step) {
    ++(step == step_ ? host_waits_.running : step + 1 == step_ ? host_waits_.before : host_waits_.earlier);
  }
  size_t graph_launches() const { return graph_launches_; }
  void count_graph_launch() { ++graph_launches_; }
  // True if `data` lies in a PinnedMemory of this device. PinnedMemory registers itself through set_pinned.
  bool is_pinned(const void* data) const;
  size_t pinned_bytes() const;
  void set_pinned(const std::byte* data, size_t bytes, bool pinned);

  struct State;
  State& state() { return *state_; }

  // The number of GPUs that this process can use; 1 in the CPU backend.
  static int count();
  // The name of a GPU that a CUDA build could use but this build cannot; "" if there is none. The CPU backend's banner
  // then names the remedy.
  static std::string unused_gpu();

 private:
  std::unique_ptr<State> state_;
  size_t allocations_ = 0, graph_launches_ = 0;
  int64_t step_ = 0;
  HostWaits host_waits_;
  std::vector<std::pair<const std::byte*, size_t>> pinned_;
};

// A GPU gives multiprocessors that become free to the stream of the highest priority that has blocks to start.
enum class StreamPriority { normal, highest };

class Stream {
 public:
  Stream(Device& device, const char* name, StreamPriority priority = StreamPriority::normal);
  ~Stream();
  Stream(Stream&&) noexcept;

  // Work enqueued from here on starts after the point that `event` recorded. An event that was never recorded orders
  // nothing.
  void wait(const Event& event);
  void synchronize();  // the host waits for all work enqueued so far

  Device& device() const { return *device_; }
  const char* name() const { return name_; }

  struct State;
  State& state() { return *state_; }

 private:
  Device* device_;
  const char* name_;
  std::unique_ptr<State> state_;
};

// A point in a stream, for which other streams and the host can wait.
class Event {
 public:
  explicit Event(Device& device, bool timed = false);
  ~Event();
  Event(Event&&) noexcept;

  void record(Stream& stream);
  // The host waits until the recorded point is reached. Returns at once if the event was never recorded.
  void synchronize();
  // Milliseconds between two points that were recorded and reached. Both events must be `timed`.
  float milliseconds_since(const Event& earlier) const;

  struct State;
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

// Memory of the device, 256-byte aligned. The CPU backend fills it with 0xff (NaN in every floating-point type) as
// poison. The destructor waits for all work of the device, as cudaFree does, so the device must outlive the memory. The
// constructor throws if there is too little memory.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Device& device, size_t bytes);
  // Memory that belongs to another owner: the destructor calls `take_back` and frees nothing itself.
  DeviceMemory(Device& device, std::byte* data, size_t bytes, std::function<void()> take_back);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::function<void()> take_back_;
};

// Returns the bytes of memory that this process may use: the machine's memory, or the smallest limit of the control
// groups that the process is in (those of a container or of a job). `root` is a prefix of the paths /proc and /sys.
size_t host_memory_bytes(const std::string& root = "");

// Page-locked memory of the host. A copy between it and the device runs while the host goes on. The destructor waits
// for all work of the device. The constructor throws if the system cannot pin that much.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(Device& device, size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Copies between any two memories. A copy is asynchronous if the host's side is pinned.
void copy_bytes(Stream& stream, void* to, const void* from, size_t bytes, CallSite site = CallSite::here());
void fill_bytes(Stream& stream, void* data, unsigned char value, size_t bytes, CallSite site = CallSite::here());

template <class T>
void copy(Stream& stream, T* to, const T* from, size_t count, CallSite site = CallSite::here()) {
  copy_bytes(stream, to, from, count * sizeof(T), site);
}
template <class T>
void clear(Stream& stream, T* data, size_t count, CallSite site = CallSite::here()) {
  fill_bytes(stream, data, 0, count * sizeof(T), site);
}

// Declares that the host itself reads or writes memory that streams use too, mostly pinned memory. The CPU backend
// checks this like any other access. Call it before the access.
void host_accesses(Device& device, const char* name, std::initializer_list<Access> accesses);
