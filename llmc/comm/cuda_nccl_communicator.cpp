// Collectives of the CUDA backend, over NCCL. Each GPU has a process of its own.
#if LLMC_NCCL

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/comm/backends.h"
#include "llmc/comm/rendezvous.h"
#include "llmc/device/cuda_error.h"
#include "llmc/device/cuda_stream.h"
#include "llmc/device/gpu_choice.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0), "NCCL 2.18 or later is needed");

namespace {

std::string nccl_error_text(ncclResult_t result, ncclComm_t comm) {
  const char* details = ncclGetLastError(comm);
  return std::string(ncclGetErrorString(result)) + (details && *details ? std::string("\n  ") + details : "");
}

#define NCCL_CHECK(comm, call)                                                                                  \
  do {                                                                                                          \
    const ncclResult_t result_ = (call);                                                                        \
    REQUIRE(result_ == ncclSuccess, "%s:%d: %s\n  %s\n  NCCL_DEBUG=INFO tells more", __FILE__, __LINE__, #call, \
            nccl_error_text(result_, comm).c_str());                                                            \
  } while (0)

// Runs before NCCL starts. Each rank receives NCCL's unique id from rank 0, and learns which GPU every rank took. If
// two ranks took the same GPU, all ranks throw.
ncclUniqueId meet(const Device& device, const Ranks& ranks, const std::string& rendezvous_file,
                  double timeout_seconds) {
  REQUIRE(ranks.mpi || !rendezvous_file.empty(),
          "%d ranks, %s: they need a way to find each other\n"
          "  name a file that all of them can reach: --rendezvous FILE, or start them with mpirun in a build with MPI",
          ranks.size, ranks.how.c_str());
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  if (ranks.rank == 0) NCCL_CHECK(nullptr, ncclGetUniqueId(&id));
  const std::string own =
      std::string(reinterpret_cast<const char*>(&id), sizeof id) + host_of_this_rank() + "\n" + device.info().uuid;
  const std::vector<std::string> words =
      ranks.mpi ? ranks.all_gather(own) : rendezvous(rendezvous_file, ranks.rank, ranks.size, own, timeout_seconds);
  std::vector<GpuPlace> places;
  for (const std::string& said : words) {
    const size_t end = said.rfind('\n');
    REQUIRE(end != std::string::npos && end >= sizeof id,
            "rank %zu said %zu bytes of itself\n  all ranks must run the same build", places.size(), said.size());
    places.push_back({said.substr(sizeof id, end - sizeof id), said.substr(end + 1)});
  }
  const std::string shared = shared_gpus(places);
  REQUIRE(shared.empty(), "%s", shared.c_str());
  memcpy(&id, words[0].data(), sizeof id);
  return id;
}

ncclDataType_t nccl_type(Collective::Number number) {
  switch (number) {
    case Collective::Number::bfloat16:
      return ncclBfloat16;
    case Collective::Number::float32:
      return ncclFloat32;
    case Collective::Number::float64:
      return ncclFloat64;
    case Collective::Number::int64:
      return ncclInt64;
    case Collective::Number::byte:
      break;
  }
  return ncclUint8;
}

// A communicator and the groups split from it. A lost rank may show in any of them, and then all of them are aborted.
struct Family {
  std::string whose;  // "rank 2 of 4"
  std::vector<ncclComm_t> comms;
  const char* name = "none";  // of the collective that was started last
  CallSite site;

  void leave(ncclComm_t comm) { std::erase(comms, comm); }
  // Called after an error. Aborts the collectives that wait for a lost rank, because freeing their buffers would wait
  // for them. If an abort hangs, the process ends with that error after kAbortSeconds.
  void abandon(const std::string& error) {
    if (comms.empty()) return;
    end_within(kAbortSeconds,
               "error on " + whose + ": " + error + "\n  and the process did not end within 20 s after it");
    for (ncclComm_t comm : comms) ncclCommAbort(comm);
    comms.clear();
  }
  static constexpr double kAbortSeconds = 20;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(const Ranks& ranks, const ncclUniqueId& id, double timeout_seconds, std::string order)
      : Communicator(ranks.rank, first_ranks(ranks.size)),
        timeout_seconds_(timeout_seconds),
        order_of_sums_(std::move(order)),
        family_(std::make_shared<Family>()) {
    family_->whose = ranks.name();
    ncclConfig_t config = polled();
    const ncclResult_t begun = ncclCommInitRankConfig(&comm_, ranks.size, id, ranks.rank, &config);
    family_->comms.push_back(comm_);
    or_abandon([&] { settle(comm_, begun, "the start of NCCL"); });
  }
  // Takes ownership of `comm`, which is initialized and belongs to the family.
  NcclCommunicator(ncclComm_t comm, int rank, const std::vector<int>& world_ranks, double timeout_seconds,
                   std::string order, std::shared_ptr<Family> family)
      : Communicator(rank, world_ranks),
        timeout_seconds_(timeout_seconds),
        order_of_sums_(std::move(order)),
        family_(std::move(family)),
        comm_(comm) {}
  ~NcclCommunicator() override {
    // After an error, the other ranks may never reach this point.
    if (std::uncaught_exceptions() > 0) family_->abandon("an error is under way");
    if (family_->comms.empty()) return;
    try {
      settle(comm_, ncclCommFinalize(comm_), "the end of NCCL");
      family_->leave(comm_);
      ncclCommDestroy(comm_);
    } catch (const Error& error) {
      family_->abandon(error.what());
    }
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
    REQUIRE(result == ncclSuccess, "ncclMemAlloc of %zu bytes: %s\n%s", bytes, nccl_error_text(result, nullptr).c_str(),
            kWithoutWindows);
    REQUIRE(failed == 0, "ncclMemAlloc of %zu bytes failed on %lld of %d ranks\n%s", bytes, (long long)failed, size(),
            kWithoutWindows);
    return data;
  }

  DeviceMemory register_windows(Device& device, void* data, size_t bytes) {
    // The vector is shared and never resized, because a thread of NCCL writes the windows.
    const auto windows = std::make_shared<std::vector<std::pair<ncclComm_t, ncclWindow_t>>>();
    for (ncclComm_t comm : family_->comms) windows->push_back({comm, nullptr});
    or_abandon([&] {
      for (auto& [comm, window] : *windows) {
        const ncclResult_t begun = ncclCommWindowRegister(comm, data, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
        // NCCL 2.28 returns success here although the registration is still in progress.
        settle(comm, begun == ncclSuccess ? ncclInProgress : begun,
               format("ncclCommWindowRegister of %zu bytes", bytes).c_str(), kWithoutWindows);
      }
    });
    return DeviceMemory(device, static_cast<std::byte*>(data), bytes, [family = family_, data, windows] {
      for (const auto& [comm, window] : *windows)
        if (window && std::count(family->comms.begin(), family->comms.end(), comm))
          ncclCommWindowDeregister(comm, window);
      ncclMemFree(data);
    });
  }
  static constexpr const char* kWithoutWindows =
      "  NCCL_WIN_ENABLE=0 on all ranks goes round it: collectives then copy through NCCL's buffers\n"
      "  NCCL_DEBUG=INFO tells more";
#endif

  std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks, int rank) override {
    ncclComm_t group = nullptr;
    ncclConfig_t config = polled();
    or_abandon([&] {
      settle(comm_, ncclCommSplit(comm_, ranks[0], rank, &group, &config), "a split of NCCL's communicator");
      REQUIRE(group, "NCCL split the communicator of rank %d of %d, and gave none", this->rank(), size());
      family_->comms.push_back(group);
      settle(group, ncclInProgress, "the start of a group of NCCL's ranks");
    });
    return std::make_unique<NcclCommunicator>(group, rank, ranks, timeout_seconds_, order_of_sums_, family_);
  }

  // NCCL's calls return at once and are polled, so that a rank that never joins causes an error instead of a hang.
  static ncclConfig_t polled() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
  }

  void watch(Event& event) override {
    or_abandon([&] { poll(event); });
  }

  void enqueue(const Work& work, const Collective& c) override {
    family_->name = work.name, family_->site = work.site;
    // settle() below returns when the collective is in the stream, so that later work is enqueued after it.
    const RecordedWork recorded(work);
    or_abandon([&] {
      settle(comm_, launch(c, cuda_stream(work.stream)),
             format("%s (%s:%d) of %zu bytes", work.name, work.site.file, work.site.line, c.bytes()).c_str());
    });
  }

  template <class Call>
  void or_abandon(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      family_->abandon(error.what());
      throw;
    }
  }

  // Waits until a nonblocking call of NCCL is complete.
  void settle(ncclComm_t comm, ncclResult_t result, const char* what,
              const char* remedy = "  NCCL_DEBUG=INFO tells more") {
    const double start = seconds();
    while (result == ncclInProgress) {
      REQUIRE(seconds() - start < timeout_seconds_,
              "%s on rank %d of %d was not done within %g s: some rank did not come to it\n%s", what, rank(), size(),
              timeout_seconds_, remedy);
      std::this_thread::yield();  // usually done within microseconds
      NCCL_CHECK(comm, ncclCommGetAsyncError(comm, &result));
    }
    REQUIRE(result == ncclSuccess, "%s on rank %d of %d: %s\n%s", what, rank(), size(),
            nccl_error_text(result, comm).c_str(), remedy);
  }

  ncclResult_t launch(const Collective& c, cudaStream_t stream) {
    const ncclDataType_t type = nccl_type(c.number);
    const ncclRedOp_t operation = c.operation == Collective::Operation::max ? ncclMax : ncclSum;
    switch (c.kind) {
      case Collective::Kind::all_reduce:
        return ncclAllReduce(c.in, c.out, c.count, type, operation, comm_, stream);
      case Collective::Kind::broadcast:
        return ncclBroadcast(c.in, c.out, c.count, type, c.root, comm_, stream);
      case Collective::Kind::all_gather:
        return ncclAllGather(c.in, c.out, c.count, type, comm_, stream);
      case Collective::Kind::reduce_scatter:
        break;
    }
    return ncclReduceScatter(c.in, c.out, c.count, type, operation, comm_, stream);
  }

  void poll(Event& event) {
    const double start = seconds();
    for (;;) {
      const cudaError_t status = cudaEventQuery(cuda_event(event));
      // The error must be cleared, or the next launch could report cudaErrorNotReady as its own.
      if (status == cudaErrorNotReady) cudaGetLastError();
      else CUDA_CHECK(status);
      for (ncclComm_t comm : family_->comms) {
        ncclResult_t state = ncclSuccess;
        NCCL_CHECK(comm, ncclCommGetAsyncError(comm, &state));
        REQUIRE(state == ncclSuccess || state == ncclInProgress,
                "NCCL failed, perhaps because another rank was lost; the last collective begun was %s (%s:%d): %s",
                family_->name, family_->site.file, family_->site.line, nccl_error_text(state, comm).c_str());
      }
      if (status == cudaSuccess) return;
      REQUIRE(seconds() - start < timeout_seconds_,
              "the work enqueued was not done within %g s\n"
              "  the last collective begun was %s (%s:%d): some rank did not come to it, or a kernel hangs",
              timeout_seconds_, family_->name, family_->site.file, family_->site.line);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  const double timeout_seconds_;
  const std::string order_of_sums_;
  const std::shared_ptr<Family> family_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Device& device, const Ranks& ranks,
                                                     const std::string& rendezvous_file, double timeout_seconds) {
  std::string order = settle_order_of_sums();
  return std::make_unique<NcclCommunicator>(ranks, meet(device, ranks, rendezvous_file, timeout_seconds),
                                            timeout_seconds, std::move(order));
}

#endif
