// Collectives of the CUDA backend, over NCCL. Each GPU has a process of its own.
#if LLMC_NCCL

#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/backends.h"
#include "llmc/comm/rendezvous.h"
#include "llmc/comm/watchdog.h"
#include "llmc/device/cuda_error.h"
#include "llmc/device/cuda_stream.h"
#include "llmc/device/gpu_choice.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0), "NCCL 2.18 or later is needed");

namespace {

std::string nccl_error_text(ncclResult_t result, ncclComm_t comm) {
  const char* details = ncclGetLastError(comm);
  return std::string(ncclGetErrorString(result)) + (details && *details ? std::string("\n  ") + details : "");
}

// Throws that `what` failed and how. The same start would meet a wrong call again; all else is a rank, a GPU or a
// network that failed.
[[noreturn]] void fail_of_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what) {
  const bool again = result == ncclInvalidArgument || result == ncclInvalidUsage;
  throw Error(what + nccl_error_text(result, comm) + "\n  NCCL_DEBUG=INFO tells more",
              again ? ExitCode::unexpected : ExitCode::lost);
}

#define NCCL_CHECK(comm, call)                                                                                   \
  do {                                                                                                           \
    const ncclResult_t result_ = (call);                                                                         \
    if (result_ != ncclSuccess) fail_of_nccl(result_, comm, format("%s:%d: %s\n  ", __FILE__, __LINE__, #call)); \
  } while (0)

// Runs before NCCL starts. Each rank receives NCCL's unique id from rank 0 and the address of its heartbeat, and learns
// which GPU every rank took (`places`). If two ranks took the same GPU, all ranks throw.
ncclUniqueId meet(const Device& device, const Ranks& ranks, const std::string& rendezvous_file, double timeout_seconds,
                  Watchdog& watchdog, std::vector<GpuPlace>& places) {
  REQUIRE(ranks.mpi || !rendezvous_file.empty(),
          "%d ranks, %s: they need a way to find each other\n"
          "  --gpus %d starts those of one machine; for several machines name a file that all ranks can reach,\n"
          "  --rendezvous FILE, or start them with mpirun in a build with MPI",
          ranks.size, ranks.how.c_str(), ranks.size);
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  if (ranks.rank == 0) NCCL_CHECK(nullptr, ncclGetUniqueId(&id));
  const std::string own = std::string(reinterpret_cast<const char*>(&id), sizeof id) + host_of_this_rank() + "\n" +
                          device.info().uuid + "\n" + watchdog.address();
  std::vector<std::string> words;
  if (ranks.mpi) {
    const Watchdog::Call call(watchdog, "the start of NCCL");
    // First the address of the heartbeat, so that whoever is missing in what follows has a name.
    watchdog.connect(ranks.from_rank_0(watchdog.address()));
    words = ranks.all_gather(own);
  } else {
    words = rendezvous(rendezvous_file, ranks.rank, ranks.size, own, timeout_seconds);  // names the missing itself
  }
  for (const std::string& said : words) {
    const size_t host = sizeof id, uuid = said.find('\n', host) + 1, address = said.find('\n', uuid) + 1;
    REQUIRE(said.size() > host && uuid > host && address > uuid,
            "rank %zu said %zu bytes of itself\n  all ranks must run the same build", places.size(), said.size());
    places.push_back({said.substr(host, uuid - 1 - host), said.substr(uuid, address - 1 - uuid)});
    if (!ranks.mpi && places.size() == 1) watchdog.connect(said.substr(address));
  }
  const std::string shared = shared_gpus(places);
  REQUIRE(shared.empty(), "%s", shared.c_str());
  memcpy(&id, words[0].data(), sizeof id);
  return id;
}

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::bf16:
      return ncclBfloat16;
    case DType::fp32:
      return ncclFloat32;
    case DType::fp64:
      return ncclFloat64;
    case DType::int64:
      return ncclInt64;
    default:
      return ncclUint8;
  }
}

// What a communicator and the groups split from it share.
struct Connection {
  Connection(const Ranks& ranks, Timeouts timeouts) : watchdog(std::in_place, ranks, timeouts) {
    CUDA_CHECK(cudaGetDevice(&device));
  }
  ~Connection() {
    watchdog.reset();  // its thread uses the other members
    for (cudaEvent_t event : free_events) cudaEventDestroy(event);
  }

  // Tells the watchdog of a collective, or of a graph with some, that was just enqueued.
  void enqueued(const char* name, CallSite site, cudaStream_t stream) {
    cudaEvent_t event = nullptr;
    {
      const std::lock_guard lock(mutex);
      if (!free_events.empty()) event = free_events.back(), free_events.pop_back();
    }
    if (!event) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventRecord(event, stream));
    watchdog->begun(name, site, stream, [this, event] { return is_reached(event); });
  }
  // For the watchdog's thread. An error of the GPU is the calling thread's to report.
  bool is_reached(cudaEvent_t event) {
    // A thread that has chosen no GPU takes memory of the first one.
    thread_local const cudaError_t chosen = cudaSetDevice(device);
    const cudaError_t status = cudaEventQuery(event);
    if (chosen != cudaSuccess || status != cudaSuccess) cudaGetLastError();
    if (status == cudaErrorNotReady) return false;
    const std::lock_guard lock(mutex);
    free_events.push_back(event);
    return true;
  }
  // For the watchdog's thread. A lost rank may show in any communicator.
  std::string error() {
    const std::lock_guard lock(mutex);
    for (ncclComm_t comm : comms) {
      ncclResult_t state = ncclSuccess;
      if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) continue;
      if (state != ncclSuccess && state != ncclInProgress)
        return "NCCL failed, perhaps because another rank was lost: " + nccl_error_text(state, comm);
    }
    return "";
  }
  void add(ncclComm_t comm) {
    const std::lock_guard lock(mutex);
    comms.push_back(comm);
  }
  void remove(ncclComm_t comm) {
    const std::lock_guard lock(mutex);
    std::erase(comms, comm);
  }

  bool within_node(const std::vector<int>& world_ranks) const {
    return std::all_of(world_ranks.begin(), world_ranks.end(),
                       [&](int rank) { return places[size_t(rank)].host == places[size_t(world_ranks[0])].host; });
  }

  int device = 0;
  std::vector<GpuPlace> places;  // of all ranks
  std::mutex mutex;              // guards the next two, which the watchdog's thread uses, too
  std::vector<ncclComm_t> comms;
  std::vector<cudaEvent_t> free_events;
  std::optional<Watchdog> watchdog;
};

// The most blocks (CTAs) of a collective within a node. Each takes one of the multiprocessors that products want, 132
// on an H100; NCCL's default is 32. Its kernels for windows take fewer than 16: its model of them (NCCL 2.28,
// src/sym_kernels.cc) has 44 GB/s for a block and 320 GB/s for NVLink before Blackwell, so 9 blocks come within 2.5% of
// the most. Its kernels that copy through its own buffers need 20 GB/s from each of 16 for as much. The number decides
// in which chunks and order NCCL adds, so it is a constant, the same in each run. NCCL_MAX_CTAS overrides it.
constexpr int kCtasInNode = 16;

// Its calls block until all ranks have come, under the eyes of the watchdog. NCCL would otherwise make a thread for
// each call.
class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(const Ranks& ranks, const std::string& rendezvous_file, const Device& device, Timeouts timeouts,
                   std::string order)
      : Communicator(ranks.rank, first_ranks(ranks.size)),
        order_of_sums_(std::move(order)),
        connection_(std::make_shared<Connection>(ranks, timeouts)) {
    const ncclUniqueId id =
        meet(device, ranks, rendezvous_file, timeouts.comm, *connection_->watchdog, connection_->places);
    const Watchdog::Call call(*connection_->watchdog, "the start of NCCL");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    NCCL_CHECK(nullptr, ncclCommInitRankConfig(&comm_, ranks.size, id, ranks.rank, &config));
    connection_->add(comm_);
    connection_->watchdog->look_at([connection = connection_.get()] { return connection->error(); });
  }
  // Takes ownership of `comm`.
  NcclCommunicator(ncclComm_t comm, int rank, const std::vector<int>& world_ranks, std::string order,
                   std::shared_ptr<Connection> connection)
      : Communicator(rank, world_ranks),
        order_of_sums_(std::move(order)),
        connection_(std::move(connection)),
        comm_(comm) {
    connection_->add(comm_);
  }
  ~NcclCommunicator() override {
    // After an error the other ranks may never reach this point. The watchdog stays, should the end of this one hang.
    if (std::uncaught_exceptions() > 0) {
      new auto(connection_);
      return;
    }
    const Watchdog::Call call(*connection_->watchdog, "the end of NCCL");
    connection_->remove(comm_);
    ncclCommFinalize(comm_);
    ncclCommDestroy(comm_);
  }

  // Allocates windows of NCCL's own memory at equal offsets on all ranks. If windows are not available (an older NCCL,
  // NCCL_WIN_ENABLE=0, ranks that cannot map each other's memory), collectives copy through NCCL's buffers.
  DeviceMemory allocate(Device& device, size_t bytes) override {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    if (bytes == 0) return DeviceMemory(device, bytes);
    Stream stream(device, "buffers");
    if (wants_windows(stream)) return register_windows(device, allocate_window(stream, bytes), bytes);
#endif
    return DeviceMemory(device, bytes);
  }

  std::string description() const override {
    int version = 0;
    ncclGetVersion(&version);
    return format("NCCL %d.%d.%d, %s", version / 10000, version / 100 % 100, version % 100, order_of_sums_.c_str());
  }

  void graph_launched(Stream& stream, CallSite site) override {
    connection_->enqueued("a graph", site, cuda_stream(stream));
  }

 private:
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  // A registration waits for all ranks. All ranks must therefore decide alike, and a failure on one rank before it must
  // end all.
  bool wants_windows(Stream& stream) {
    const char* enabled = getenv("NCCL_WIN_ENABLE");
    const int64_t wanting = sum_number(*this, stream, !enabled || strcmp(enabled, "0") != 0);
    REQUIRE(wanting == 0 || wanting == size(),
            "NCCL_WIN_ENABLE=0 is set on %lld of %d ranks\n  set it on all of them, or on none",
            (long long)(size() - wanting), size());
    return wanting > 0;
  }

  void* allocate_window(Stream& stream, size_t bytes) {
    void* data = nullptr;
    const ncclResult_t result = ncclMemAlloc(&data, bytes);
    if (result != ncclSuccess) cudaGetLastError();  // clears CUDA's error, because ours reports the cause
    const int64_t failed = sum_number(*this, stream, result != ncclSuccess);
    if (result != ncclSuccess)
      fail_as(ExitCode::unexpected, "ncclMemAlloc of %zu bytes: %s\n%s", bytes,
              nccl_error_text(result, nullptr).c_str(), kWithoutWindows);
    if (failed > 0)
      fail_as(ExitCode::unexpected, "ncclMemAlloc of %zu bytes failed on %lld of %d ranks\n%s", bytes,
              (long long)failed, size(), kWithoutWindows);
    return data;
  }

  DeviceMemory register_windows(Device& device, void* data, size_t bytes) {
    std::vector<std::pair<ncclComm_t, ncclWindow_t>> windows;
    {
      const Watchdog::Call call(*connection_->watchdog, format("ncclCommWindowRegister of %zu bytes", bytes));
      for (ncclComm_t comm : connection_->comms) {
        ncclWindow_t window = nullptr;
        const ncclResult_t result = ncclCommWindowRegister(comm, data, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
        if (result != ncclSuccess)
          fail_as(ExitCode::unexpected, "ncclCommWindowRegister of %zu bytes on rank %d of %d: %s\n%s", bytes, rank(),
                  size(), nccl_error_text(result, comm).c_str(), kWithoutWindows);
        windows.push_back({comm, window});
      }
    }
    return DeviceMemory(device, static_cast<std::byte*>(data), bytes, [connection = connection_, data, windows] {
      if (std::uncaught_exceptions() > 0) return;
      const std::vector<ncclComm_t>& open = connection->comms;
      for (const auto& [comm, window] : windows)
        if (window && std::count(open.begin(), open.end(), comm)) ncclCommWindowDeregister(comm, window);
      ncclMemFree(data);
    });
  }
  static constexpr const char* kWithoutWindows =
      "  NCCL_WIN_ENABLE=0 on all ranks goes round it: collectives then copy through NCCL's buffers\n"
      "  NCCL_DEBUG=INFO tells more";
#endif

  std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks, int rank) override {
    const Watchdog::Call call(*connection_->watchdog, "a split of NCCL's communicator");
    ncclComm_t group = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (connection_->within_node(ranks)) config.maxCTAs = kCtasInNode;
    NCCL_CHECK(comm_, ncclCommSplit(comm_, ranks[0], rank, &group, &config));
    if (!group)
      fail_as(ExitCode::lost, "NCCL split the communicator of rank %d of %d, and gave none", this->rank(), size());
    return std::make_unique<NcclCommunicator>(group, rank, ranks, order_of_sums_, connection_);
  }

  // A wait for work without collectives is in time, too, or ends the process.
  void wait(Event& event) override {
    const Watchdog::Call call(*connection_->watchdog, "the work enqueued");
    event.synchronize();
  }

  void enqueue(const Work& work, const Collective& c) override { enqueue_group({{work, c}}); }

  // The watchdog counts a group as one collective, which has the name of the first.
  void enqueue_group(const std::vector<CollectiveWork>& works) override {
    const Work& work = works[0].work;
    const Collective& c = works[0].collective;
    const RecordedWork recorded(work);
    for (size_t i = 1; i < works.size(); ++i) const RecordedWork joined(works[i].work);
    const cudaStream_t stream = cuda_stream(work.stream);
    // The first collective of a kind connects the ranks, which takes all of them.
    const ncclResult_t result = [&] {
      const Watchdog::Call call(*connection_->watchdog, work.name);
      if (works.size() == 1) return launch(c, stream);
      ncclResult_t first_error = ncclGroupStart();
      for (size_t i = 0; i < works.size() && first_error == ncclSuccess; ++i)
        first_error = launch(works[i].collective, stream);
      const ncclResult_t ended = ncclGroupEnd();
      return first_error == ncclSuccess ? ended : first_error;
    }();
    if (result != ncclSuccess)
      fail_of_nccl(
          result, comm_,
          format("%s (%s:%d) of %zu bytes%s on rank %d of %d: ", work.name, work.site.file, work.site.line, c.bytes(),
                 works.size() > 1 ? format(", the first of a group of %zu,", works.size()).c_str() : "", rank(),
                 size()));
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
    if (capture == cudaStreamCaptureStatusNone) connection_->enqueued(work.name, work.site, stream);
  }

  // One launch. The block to this rank itself is a copy by the same kernel.
  ncclResult_t launch_all_to_all(const Collective& c, cudaStream_t stream) {
    ncclResult_t first_error = ncclGroupStart();
    const auto call = [&](ncclResult_t result) { first_error = first_error == ncclSuccess ? result : first_error; };
    for (int peer = 0; peer < size(); ++peer) {
      const ByteRange &out = c.sends[size_t(peer)], &in = c.receives[size_t(peer)];
      if (out.bytes)
        call(ncclSend(static_cast<const std::byte*>(c.in) + out.offset, out.bytes, ncclUint8, peer, comm_, stream));
      if (in.bytes)
        call(ncclRecv(static_cast<std::byte*>(c.out) + in.offset, in.bytes, ncclUint8, peer, comm_, stream));
    }
    call(ncclGroupEnd());
    return first_error;
  }

  ncclResult_t launch(const Collective& c, cudaStream_t stream) {
    const ncclDataType_t type = nccl_type(c.type);
    const ncclRedOp_t operation = c.operation == Collective::Operation::max ? ncclMax : ncclSum;
    switch (c.kind) {
      case Collective::Kind::all_reduce:
        return ncclAllReduce(c.in, c.out, c.count, type, operation, comm_, stream);
      case Collective::Kind::broadcast:
        return ncclBroadcast(c.in, c.out, c.count, type, c.root, comm_, stream);
      case Collective::Kind::all_gather:
        return ncclAllGather(c.in, c.out, c.count, type, comm_, stream);
      case Collective::Kind::all_to_all:
        return launch_all_to_all(c, stream);
      case Collective::Kind::reduce_scatter:
        break;
    }
    return ncclReduceScatter(c.in, c.out, c.count, type, operation, comm_, stream);
  }

  const std::string order_of_sums_;
  const std::shared_ptr<Connection> connection_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Device& device, const Ranks& ranks,
                                                     const std::string& rendezvous_file, Timeouts timeouts) {
  std::string order = settle_order_of_sums();
  return std::make_unique<NcclCommunicator>(ranks, rendezvous_file, device, timeouts, std::move(order));
}

#endif
