// One device and what is asked of it from the host: memory, streams, events, copies. The same names in both worlds:
// on a GPU they are CUDA's, in the CPU world streams are queues executed by the host (cpu_stream.h).
//
// All work is asynchronous and ordered by its stream alone; between streams only an event orders. Nothing here
// allocates memory of the device or pinned memory but the constructors.
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
  std::string uuid;            // of the GPU, "GPU-8a6e…"; "" where it is not known
  bool gpu = false;            // false: the CPU world
  int compute_capability = 0;  // 90 for Hopper; 0 in the CPU world
  int multiprocessors = 1;
  size_t memory_bytes = 0;            // of the device, or of the host in the CPU world
  size_t free_bytes = 0;              // of it, when the device was opened
  size_t shared_bytes_per_block = 0;  // what a kernel may ask for
  // A whole block should share a long row: on a GPU, where loads in flight count; on a CPU it is waiting that costs.
  bool wide_rows = false;
  double bf16_flops = 0;  // dense peak a second where it is known, else 0
  double memory_bytes_per_second = 0;
};

// How the CPU world executes: any choice but exact_products gives the same bits, so tests try them all. From the
// environment: LLMC_THREADS, LLMC_CPU_ORDER, LLMC_CPU_STREAMS, LLMC_CPU_COPIES (late|early|random), LLMC_CPU_SEED,
// LLMC_CPU_PINNED.
struct CpuWorld {
  // Of the threads of a block, and of the blocks. forward: all warps in step; reverse: the last warp first, as far as
  // it can go; random: in some blocks a warp runs ahead, in others they change places at random.
  enum class ThreadOrder { forward, reverse, random };
  enum class Schedule { eager, lazy, random };  // when work that was enqueued is executed
  enum class Landing { late, early, random };   // when an asynchronous copy inside a kernel lands
  int threads = 0;                              // 0: all cores
  ThreadOrder order = ThreadOrder::forward;
  Schedule schedule = Schedule::eager;
  Landing landing = Landing::late;
  unsigned long seed = 1;
  int processes = 1;                // that share the machine's memory
  size_t shared_bytes = 227 << 10;  // that a block may ask for: Hopper's, or less, as other GPUs have
  bool wide_rows = false;           // launch shapes of a GPU, to try its kernels
  size_t pinned_bytes = SIZE_MAX;   // that a process can pin; where GPUs are, the system says
  // Products are summed in double, in the order of k, and rounded once: the same bits on every machine, however a
  // product is cut, and partial products that differ from the whole by the roundings of the parts alone. Many times
  // slower.
  bool exact_products = false;

  // Throws on a value that it does not know. `local_ranks` processes of this run share the machine's cores.
  static CpuWorld from_environment(int local_ranks = 1);
};

// How often the host waited for work, by the step that it belongs to (Device::begin_step): the one that was begun last,
// the one before it, earlier ones.
struct HostWaits {
  size_t running = 0, before = 0, earlier = 0;
};

class Device {
 public:
  // On a GPU: the one that this rank of the machine takes (gpu_choice.h). In the CPU world every process has the CPU.
  explicit Device(int local_rank = 0, CpuWorld cpu = CpuWorld::from_environment());
  // A device of such a kind that is not here: it executes nothing and its memory cannot be touched; what is asked of it
  // can be recorded. In the CPU world the order of its work is checked, unless the caller has no time for that.
  explicit Device(const DeviceInfo& modelled, bool checks_order = true);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const;
  bool executes() const;  // false: it is modelled
  void synchronize();     // the host waits for all streams
  // What is asked of the device from here on is added to `record`; null: no more, and the host waits until all of it
  // was executed.
  void record_to(Record* record);
  bool records() const;
  // How often device or pinned memory was allocated: a run allocates at its start only.
  size_t allocations() const { return allocations_; }
  void count_allocation() { ++allocations_; }
  // Bytes of its memory that were taken since it was opened. On a GPU the driver says so: it counts what it and the
  // libraries took, and what other processes did. In the CPU world it is what DeviceMemory holds.
  size_t taken_bytes() const;
  // What is asked of the device from here on belongs to the next step.
  void begin_step() { ++step_; }
  int64_t step() const { return step_; }
  // Since the start. A wait for all of a stream, or of the device, is one for the running step.
  const HostWaits& host_waits() const { return host_waits_; }
  void count_wait(int64_t step) {
    ++(step == step_ ? host_waits_.running : step + 1 == step_ ? host_waits_.before : host_waits_.earlier);
  }
  size_t graph_launches() const { return graph_launches_; }
  void count_graph_launch() { ++graph_launches_; }
  // Of this device's PinnedMemory, which says so itself.
  bool is_pinned(const void* data) const;
  size_t pinned_bytes() const;
  void set_pinned(const std::byte* data, size_t bytes, bool pinned);

  struct State;
  State& state() { return *state_; }

  // GPUs usable here; 1 in the CPU world.
  static int count();
  // A GPU that this build cannot use but a CUDA build could ("" if none): the CPU world's banner gives the remedy.
  static std::string unused_gpu();

 private:
  std::unique_ptr<State> state_;
  size_t allocations_ = 0, graph_launches_ = 0;
  int64_t step_ = 0;
  HostWaits host_waits_;
  std::vector<std::pair<const std::byte*, size_t>> pinned_;
};

class Stream {
 public:
  Stream(Device& device, const char* name);
  ~Stream();
  Stream(Stream&&) noexcept;

  // Work enqueued from here on starts after what `event` recorded. An event that was never recorded orders nothing.
  void wait(const Event& event, const char* file = __builtin_FILE(), int line = __builtin_LINE());
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

// A point in a stream that others can wait for.
class Event {
 public:
  explicit Event(Device& device, bool timed = false);
  ~Event();
  Event(Event&&) noexcept;

  void record(Stream& stream, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // The host waits until the recorded point is reached; at once if never recorded.
  void synchronize(const char* file = __builtin_FILE(), int line = __builtin_LINE());
  // Milliseconds between two recorded and reached points; both events must be `timed`.
  float milliseconds_since(const Event& earlier) const;

  struct State;
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

// Memory of the device; poisoned (0xff: NaN in every type) in the CPU world. 256-byte aligned. Its end waits for all
// work of the device, as cudaFree does, so the device must live on.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Device& device, size_t bytes);
  // Of somebody else, who takes it back at the end.
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

// What the machine has, or the least of the control groups that this process is in: a container's, a job's.
// `root`: where /proc and /sys are looked for.
size_t host_memory_bytes(const std::string& root = "");

// Page-locked memory of the host, which copies can reach while the host goes on. Its end waits too.
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

// Copies between any two memories, asynchronous when the host's side is pinned.
void copy_bytes(Stream& stream, void* to, const void* from, size_t bytes, const char* file = __builtin_FILE(),
                int line = __builtin_LINE());
void fill_bytes(Stream& stream, void* data, unsigned char value, size_t bytes, const char* file = __builtin_FILE(),
                int line = __builtin_LINE());

template <class T>
void copy(Stream& stream, T* to, const T* from, size_t count, const char* file = __builtin_FILE(),
          int line = __builtin_LINE()) {
  copy_bytes(stream, to, from, count * sizeof(T), file, line);
}
template <class T>
void clear(Stream& stream, T* data, size_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  fill_bytes(stream, data, 0, count * sizeof(T), file, line);
}

// The host itself reads or writes memory that streams use too (pinned memory, above all): checked like any other access
// in the CPU world. Say it before the access.
void host_accesses(Device& device, const char* name, std::initializer_list<Access> accesses);
