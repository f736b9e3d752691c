// Covers: NCCL's communicator when a call of NCCL fails on one rank, by a stand-in for NCCL and CUDA; nccl.sh runs this
//
//   nccl SCENARIO [N]    on two ranks of mpirun; rank N is the one that has trouble
//
// The stand-in is only as far NCCL as the host path needs: a communicator is MPI's, and a collective is executed when
// it is called.
#if LLMC_DEVICE_CPU && LLMC_MPI
#define LLMC_NCCL 1
#include "llmc/comm/cuda_nccl_communicator.cpp"

#include <mpi.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "dev/test/ranks_main.h"
#include "llmc/comm/communicator.h"
#include "llmc/device/cpu_device_state.h"

struct ncclComm {};
struct ncclWindow {};

namespace {

std::string scenario;
bool troubled = false;  // this rank is the one
cudaError_t last_error = cudaSuccess;
int memory_calls = 0, windows_made = 0, windows_open = 0;
int ctas_of_group = 0;  // the most that its collectives may take
int group_depth = 0, groups = 0, in_groups = 0, messages_in_groups = 0, events = 0;
std::vector<MPI_Request> messages;  // of the group
ncclResult_t group_error = ncclSuccess;

bool trouble_at(const char* where) { return troubled && scenario == where; }

}  // namespace

const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of CUDA"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
// As some versions of CUDA do, it leaves "not ready" as the last error.
cudaError_t cudaEventQuery(cudaEvent_t) {
  static int looks = 0;
  if (++looks % 3 == 0) return cudaSuccess;
  return last_error = cudaErrorNotReady;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = nullptr, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  ++events;
  return trouble_at("gpu") ? cudaErrorECCUncorrectable : trouble_at("call") ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaStream_t cuda_stream(Stream&) { return nullptr; }
cudaEvent_t cuda_event(Event&) { return nullptr; }
RecordedWork::RecordedWork(const Work& work) : range_(work.name), work_(work) {}
RecordedWork::~RecordedWork() = default;
bool RecordedWork::executes() const { return true; }

const char* ncclGetErrorString(ncclResult_t) { return "an error of NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId*) { return ncclSuccess; }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
  return *comm = new ncclComm, ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t* group, ncclConfig_t* config) {
  ctas_of_group = config->maxCTAs;
  return *group = new ncclComm, ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* result) { return *result = ncclSuccess, ncclSuccess; }
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  ++memory_calls;
  if (trouble_at("memory")) return last_error = cudaErrorMemoryAllocation, ncclUnhandledCudaError;
  return *data = malloc(bytes), ncclSuccess;
}
ncclResult_t ncclMemFree(void* data) { return free(data), ncclSuccess; }
// If one rank has trouble, the others wait for it.
ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t* window, int) {
  if (trouble_at("register")) return ncclInternalError;
  if (scenario == "register") std::this_thread::sleep_for(std::chrono::hours(1));
  ++windows_made, ++windows_open;
  return *window = new ncclWindow, ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t window) {
  return --windows_open, delete window, ncclSuccess;
}
ncclResult_t ncclGroupStart() { return ++group_depth, ncclSuccess; }
// If a call of the group has failed, NCCL launches nothing of it.
ncclResult_t ncclGroupEnd() {
  ++groups, --group_depth;
  if (group_error == ncclSuccess) MPI_Waitall(int(messages.size()), messages.data(), MPI_STATUSES_IGNORE);
  messages.clear();
  return std::exchange(group_error, ncclSuccess);
}
// One of a group is executed at once, too, where NCCL would wait for the group's end.
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t,
                           cudaStream_t) {
  in_groups += group_depth;
  if (in_groups == 2 && trouble_at("group")) return ncclInternalError;
  if (type != ncclInt64) return ncclInternalError;
  const std::vector<int64_t> own(static_cast<const int64_t*>(in), static_cast<const int64_t*>(in) + count);
  MPI_Allreduce(own.data(), out, int(count), MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  return ncclSuccess;
}
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclInternalError;
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return ncclInternalError;
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  return ncclInternalError;
}
// A message that is in no group would wait for one that comes after it.
bool can_send(ncclDataType_t type) {
  messages_in_groups += group_depth;
  if (group_depth != 1 || type != ncclUint8 || (messages_in_groups == 2 && trouble_at("all_to_all")))
    group_error = ncclInternalError;
  return group_error == ncclSuccess;
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t, cudaStream_t) {
  if (!can_send(type)) return ncclInternalError;
  MPI_Isend(in, int(count), MPI_BYTE, peer, 0, MPI_COMM_WORLD, &messages.emplace_back());
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t, cudaStream_t) {
  if (!can_send(type)) return ncclInternalError;
  MPI_Irecv(out, int(count), MPI_BYTE, peer, 0, MPI_COMM_WORLD, &messages.emplace_back());
  return ncclSuccess;
}

namespace {

void check(bool ok, const char* what) { REQUIRE(ok, "check failed: %s", what); }

// Three sums of a group are one launch for NCCL, and one for the watchdog.
void check_group(Communicator& all, Device& device) {
  Stream stream(device, "compute");
  DeviceMemory memory(device, 3 * sizeof(int64_t));
  auto* const numbers = reinterpret_cast<int64_t*>(memory.data());
  const std::vector<int64_t> own = {1 + all.rank(), 10, 100};
  copy(stream, numbers, own.data(), own.size());
  const int events_before = events;
  all.group([&] {
    for (int i = 0; i < 3; ++i) all.all_reduce_sum(stream, {numbers + i, {1}});
  });
  check(groups == 1 && in_groups == 3 && group_depth == 0, "three collectives in one group");
  check(events == events_before + 1, "the watchdog looks at one event");
  std::vector<int64_t> sums(3);
  copy(stream, sums.data(), numbers, sums.size());
  stream.synchronize();
  check(sums == std::vector<int64_t>{3, 20, 200}, "the sums of a group");
}

// The messages of an all_to_all are one launch, too. Rank 0 sends 3 bytes to itself and 5 to rank 1, and rank 1 sends
// none to rank 0 and 4 to itself.
void check_all_to_all(Communicator& all, Device& device) {
  Stream stream(device, "compute");
  DeviceMemory memory(device, 20);
  auto* const in = reinterpret_cast<char*>(memory.data());
  char* const out = in + 10;
  const bool first = all.rank() == 0;
  const std::string own = first ? "abcdefgh.." : "wxyz......", before = "..........",
                    want = first ? ".abc......" : "defgh.wxyz";
  copy(stream, in, own.data(), own.size());
  copy(stream, out, before.data(), before.size());
  using Blocks = std::vector<ByteRange>;
  const Blocks sends = first ? Blocks{{0, 3}, {3, 5}} : Blocks{{0, 0}, {0, 4}},
               receives = first ? Blocks{{1, 3}, {9, 0}} : Blocks{{0, 5}, {6, 4}};
  const int events_before = events, groups_before = groups;
  const auto check_ended = [&] { check(groups == groups_before + 1 && group_depth == 0, "an all_to_all is a group"); };
  try {
    all.all_to_all(stream, out, receives, in, sends);
  } catch (const Error&) {
    check_ended();  // although one of its messages failed
    throw;
  }
  check_ended();
  check(messages_in_groups == 3, "an empty block is no message");
  check(events == events_before + 1, "the watchdog looks at one event of an all_to_all");
  std::string got(want.size(), 0);
  copy(stream, got.data(), out, got.size());
  stream.synchronize();
  check(got == want, "the blocks of an all_to_all");
}

void run(const Ranks& ranks) {
  Device device(ranks.local_rank);
  device.state().info.uuid = scenario == "same-gpu" ? "GPU-1" : format("GPU-%d", ranks.rank);
  if (trouble_at("off-here")) setenv("NCCL_WIN_ENABLE", "0", 1);
  const char* file = getenv("LLMC_TEST_RENDEZVOUS");
  const std::unique_ptr<Communicator> all =
      make_nccl_communicator(device, ranks, file ? file : "", {.comm = 60, .silent = 4});
  if (trouble_at("stopped")) {
    std::this_thread::sleep_for(std::chrono::seconds(2));  // until it was heard
    raise(SIGSTOP);
  }
  const std::unique_ptr<Communicator> group = all->split({0, 1});
  check(ctas_of_group == (getenv("NCCL_HOSTID") ? NCCL_CONFIG_UNDEF_INT : 16), "CTAs of a group within a node");
  {
    const DeviceMemory memory = all->allocate(device, 1000);
    check(memory.size() == 1000 && memory.data(), "memory");
    const bool off = scenario == "off";
    check(memory_calls == (off ? 0 : 1), "NCCL's memory is asked for if windows are wanted");
    check(windows_made == (off ? 0 : 2), "it is registered with both communicators when the call returns");
    Stream stream(device, "compute");
    check(sum_number(*all, stream, ranks.rank) == 1, "a sum");
    check(cudaGetLastError() == cudaSuccess, "a wait leaves no error of CUDA");
  }
  if (scenario == "group" || scenario == "windows") check_group(*all, device);
  if (scenario == "all_to_all" || scenario == "windows") check_all_to_all(*all, device);
  check(windows_open == 0, "the memory's end takes the windows back");
  if (ranks.rank == 0) printf("all checks passed\n");
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(argc, argv, {{"nccl SCENARIO [RANK]", [](const Ranks& ranks, const Words& words) {
                                    REQUIRE(ranks.size == 2, "nccl, on two ranks");
                                    scenario = words[0];
                                    troubled = words.size() > 1 && std::stoi(words[1]) == ranks.rank;
                                    run(ranks);
                                  }}});
}
#else
#include <cstdio>

int main() { return puts("the stand-in for NCCL and CUDA is one of the CPU backend, over MPI"), 1; }
#endif
