// NCCL's functions. What waits for other ranks waits on the host for a blocking communicator; for any other the call
// returns ncclInProgress, and a helper thread completes it, as the documentation of ncclConfig_t::blocking says.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "dev/softgpu/nccl/collective.h"
#include "dev/softgpu/nccl/messages.h"
#include "dev/softgpu/runtime/api.h"
#include "dev/softgpu/runtime/graph.h"
#include "dev/softgpu/runtime/memory.h"

using namespace softgpu;

namespace {

// What a communicator takes of the GPU's memory for buffers and channels.
constexpr size_t kBytesPerCommunicator = 32 << 20;
constexpr int kMostCtas = 32;

thread_local std::string last_error;
ncclResult_t fail(ncclResult_t result, const std::string& why) {
  last_error = why;
  return result;
}

// Runs the calls of a communicator that does not block, in their order.
void run_calls(ncclComm_t comm) {
  std::unique_lock lock(comm->mutex);
  for (;;) {
    comm->changed.wait(lock, [&] { return !comm->calls.empty(); });
    const auto call = std::move(comm->calls.front());
    lock.unlock();
    call();
    lock.lock();
    comm->calls.pop_front();
    comm->changed.notify_all();
  }
}

// A call before the one before it is complete is refused. Collectives of a group are enqueued together.
ncclResult_t ready(ncclComm_t comm) {
  const std::lock_guard lock(comm->mutex);
  if (comm->calls.empty()) return ncclSuccess;
  return fail(ncclInvalidArgument, "the call before has not been completed: see ncclCommGetAsyncError");
}

ncclResult_t complete(ncclComm_t comm, std::function<void()> call) {
  if (comm->blocking) {
    call();
    return ncclSuccess;
  }
  const std::lock_guard lock(comm->mutex);
  if (!comm->calling) std::thread(run_calls, comm).detach();
  comm->calling = true;
  comm->calls.push_back(std::move(call));
  comm->changed.notify_all();
  return ncclInProgress;
}

// The host waits for the other ranks: for ever, if one does not come.
template <class Come>
void wait_for_ranks(ncclComm_t comm, const Come& come) {
  while (!comm->aborted && !come()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

ncclComm_t new_communicator(const ncclConfig_t* config) {
  auto* const comm = new ncclComm;
  comm->blocking = !config || config->blocking != 0;
  comm->ctas = config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT ? config->maxCTAs : kMostCtas;
  return comm;
}
// Its name and place are known: it joins the others.
void join(ncclComm_t comm) {
  comm->segment = std::make_unique<Segment>(comm->name, comm->rank, comm->size);
  take_bytes(kBytesPerCommunicator);
  wait_for_ranks(comm, [&] { return comm->segment->all_joined(); });
}

bool captures(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &status);
  return status == cudaStreamCaptureStatusActive;
}

// A call between ncclGroupStart and ncclGroupEnd waits for the latter. A call outside of a group is a group of one. If
// one of a group fails, none is launched.
thread_local int group_depth = 0;
thread_local ncclResult_t group_error = ncclSuccess;
struct Grouped {
  CollectiveCall call;
  ncclComm_t comm;
  cudaStream_t stream;
};
thread_local std::vector<Grouped> grouped;

// Collectives of one communicator and group are one kernel, in which none waits for another one.
bool touch_each_other(const Grouped& a, const Grouped& b) {
  const auto overlap = [](const void* x, size_t n, const void* y, size_t m) {
    const auto *p = static_cast<const char*>(x), *q = static_cast<const char*>(y);
    return n && m && p < q + m && q < p + n;
  };
  const auto writes_what = [&](const Grouped& writer, const Grouped& other) {
    const size_t written = writer.call.received_bytes(writer.comm->size);
    return overlap(writer.call.out, written, other.call.in, other.call.sent_bytes(other.comm->size)) ||
           overlap(writer.call.out, written, other.call.out, other.call.received_bytes(other.comm->size));
  };
  return a.comm == b.comm && (writes_what(a, b) || writes_what(b, a));
}

bool in_window(ncclComm_t comm, const void* p) {
  const auto* const byte = static_cast<const std::byte*>(p);
  const auto after = comm->windows.upper_bound(byte);
  return after != comm->windows.begin() && byte < std::prev(after)->first + std::prev(after)->second;
}

// Checks a call, and adds it to the group.
ncclResult_t add(const CollectiveCall& call, ncclComm_t comm, cudaStream_t stream) {
  if (const ncclResult_t r = ready(comm); r != ncclSuccess) return r;
  if (call.count == 0 && !call.is_message()) return ncclSuccess;
  static constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                           "broadcast",  "send",       "receive"};
  lose(captures(stream) ? "capture" : kNames[int(call.kind)]);
  const bool reduces = call.kind == CollectiveKind::all_reduce || call.kind == CollectiveKind::reduce_scatter;
  if (reduces && call.detail != ncclSum && call.detail != ncclMax)
    return fail(ncclInvalidArgument, "reductions other than sum and max are not executed");
  if (call.is_message() && (call.detail < 0 || call.detail >= comm->size))
    return fail(ncclInvalidArgument, "a message to or from a rank that the communicator has not");
  if (const std::string wrong = wrong_buffers(call, *comm); !wrong.empty()) {
    warn("NCCL: %s", wrong.c_str());
    return fail(ncclInvalidArgument, wrong);
  }
  if (captures(stream) && stream->priority != kHighestPriority)
    warn("NCCL: %s of a step is captured in a stream of priority %d: its blocks wait until products have started",
         kNames[int(call.kind)], stream->priority);
  // NCCL 2.28: such a collective goes through NCCL's own buffers. Messages do so wherever their ends lie.
  const bool message = call.kind == CollectiveKind::send || call.kind == CollectiveKind::receive;
  if (captures(stream) && !message && call.kind != CollectiveKind::all_reduce && !comm->windows.empty() &&
      !(in_window(comm, call.in) && in_window(comm, call.out)))
    warn("NCCL: %s of a step has an end that lies in no window of its communicator", kNames[int(call.kind)]);
  const Grouped added{call, comm, stream};
  for (const Grouped& before : grouped)
    if (touch_each_other(before, added)) {
      warn("NCCL: collectives of a group, one of which writes what another one touches");
      return fail(ncclInvalidUsage, "collectives of a group touch each other");
    }
  grouped.push_back(added);
  return ncclSuccess;
}

ncclResult_t enqueue(const CollectiveCall& call, ncclComm_t comm, cudaStream_t stream) {
  ncclGroupStart();
  const ncclResult_t added = add(call, comm, stream);
  if (added != ncclSuccess) group_error = added;
  const ncclResult_t ended = ncclGroupEnd();
  return added != ncclSuccess ? added : ended;
}

ncclResult_t launch(ncclComm_t comm, cudaStream_t stream, const Task& kernel) {
  return complete(comm, [=] {
    const bool captured = captures(stream);
    if (!comm->last) cudaEventCreateWithFlags(&comm->last, cudaEventDisableTiming);
    if (comm->last_stream && comm->last_stream != stream && comm->last_captured == captured)
      cudaStreamWaitEvent(stream, comm->last, 0);
    submit(stream, kernel);
    cudaEventRecord(comm->last, stream);
    comm->last_stream = stream, comm->last_captured = captured;
  });
}

// `messages` are those of one communicator.
ncclResult_t launch_messages(const std::vector<Grouped>& messages) {
  const auto [call, comm, stream] = messages[0];
  std::vector<CollectiveCall> calls;
  for (const Grouped& m : messages) {
    if (m.stream != stream) return fail(ncclInvalidUsage, "messages of a group in several streams are not executed");
    calls.push_back(m.call);
  }
  if (const std::string wrong = wrong_messages_to_self(calls, comm->rank); !wrong.empty())
    return fail(ncclInvalidUsage, wrong);
  return launch(comm, stream, messages_task(calls, comm));
}

// As NCCL does, first the collectives, then the messages of each communicator.
ncclResult_t launch_group(const std::vector<Grouped>& calls) {
  ncclResult_t result = ncclSuccess;
  const auto note = [&](ncclResult_t r) { result = r != ncclSuccess ? r : result; };
  std::vector<std::vector<Grouped>> messages;
  for (const Grouped& g : calls) {
    if (!g.call.is_message()) {
      note(launch(g.comm, g.stream, collective_task(g.call, g.comm)));
      continue;
    }
    const auto same = std::find_if(messages.begin(), messages.end(), [&](auto& of) { return of[0].comm == g.comm; });
    if (same == messages.end()) messages.push_back({g});
    else same->push_back(g);
  }
  for (const std::vector<Grouped>& of_comm : messages) note(launch_messages(of_comm));
  return result;
}

}  // namespace

SOFTGPU_API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
SOFTGPU_API const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "internal error";
  }
}
SOFTGPU_API const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

// ---------------------------------------------------------------------------------------------- communicators

SOFTGPU_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "/softgpu-%d-%08x", int(getpid()), std::random_device{}());
  return ncclSuccess;
}
SOFTGPU_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* to, int size, ncclUniqueId id, int rank,
                                                ncclConfig_t* config) {
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size)
    return fail(ncclInvalidArgument, "1 to 64 ranks are executed");
  ncclComm_t const comm = *to = new_communicator(config);
  comm->name = id.internal, comm->rank = rank, comm->size = size;
  return complete(comm, [=] { join(comm); });
}
SOFTGPU_API ncclResult_t ncclCommInitRank(ncclComm_t* to, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(to, size, id, rank, nullptr);
}

// The new communicator's ranks are those of one color, by their keys and then by their old ranks.
SOFTGPU_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* to, ncclConfig_t* config) {
  if (const ncclResult_t r = ready(comm); r != ncclSuccess) return r;
  ncclComm_t const group = color == NCCL_SPLIT_NOCOLOR ? nullptr : new_communicator(config);
  if (group) group->blocking = group->blocking && comm->blocking;
  *to = group;
  return complete(comm, [=] {
    const uint64_t meeting = ++comm->meetings;
    // All ranks of a group limit it alike: they must come to the same channels.
    const int64_t own_ctas = group ? group->ctas : 0;
    const int64_t words = own_ctas << 32 | key;
    comm->segment->meet(2 * meeting - 1, color, words);
    wait_for_ranks(comm, [&] { return comm->segment->all_met(2 * meeting - 1); });
    std::vector<std::pair<int64_t, int>> members;  // key, old rank
    for (int r = 0; r < comm->size; ++r)
      if (const auto [its_color, its_words] = comm->segment->words_of(r); its_color == color) {
        members.push_back({its_words & 0xffffffff, r});
        if (its_words >> 32 != own_ctas)
          warn("NCCL: a group of %lld CTAs on rank %d has %lld on rank %d", (long long)own_ctas, comm->rank,
               (long long)(its_words >> 32), r);
      }
    comm->segment->meet(2 * meeting, color, words);  // the words may be overwritten after this
    wait_for_ranks(comm, [&] { return comm->segment->all_met(2 * meeting); });
    if (!group) return;
    std::sort(members.begin(), members.end());
    group->name = comm->name + "-" + std::to_string(meeting) + "-" + std::to_string(color);
    group->size = int(members.size());
    for (int r = 0; r < group->size; ++r)
      if (members[size_t(r)].second == comm->rank) group->rank = r;
    join(group);
  });
}

SOFTGPU_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(comm->mutex);
  *result = comm->calls.empty() ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}
// Waits for the communicator's collectives.
SOFTGPU_API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t r = ready(comm); r != ncclSuccess) return r;
  return complete(comm, [=] {
    if (comm->last && !comm->last_captured) cudaEventSynchronize(comm->last);
  });
}
SOFTGPU_API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->last && !comm->last_captured && cudaEventSynchronize(comm->last) != cudaSuccess)
    return ncclUnhandledCudaError;
  if (comm->segment) give_back_bytes(kBytesPerCommunicator);
  comm->segment = nullptr;  // the object stays: its helper thread may look at it
  return ncclSuccess;
}
// Ends the communicator's kernels, and then waits, as NCCL does when it frees its memory, until the GPU is idle: also
// for kernels of other communicators.
SOFTGPU_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  return cudaDeviceSynchronize() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// ---------------------------------------------------------------------------------------------- memory

SOFTGPU_API ncclResult_t ncclMemAlloc(void** p, size_t bytes) {
  return cudaMalloc(p, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
SOFTGPU_API ncclResult_t ncclMemFree(void* p) {
  return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
// All ranks register together. The window is there when the call is complete, not when it returns.
SOFTGPU_API ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* p, size_t bytes, ncclWindow_t* to, int) {
  if (const ncclResult_t r = ready(comm); r != ncclSuccess) return r;
  if (is_pageable(p) || !accessible(p, bytes))
    return fail(ncclInvalidArgument, "the window is not the device's memory");
  return complete(comm, [=] {
    const uint64_t meeting = ++comm->meetings;
    comm->segment->meet(2 * meeting - 1, int64_t(bytes), 0);
    wait_for_ranks(comm, [&] { return comm->segment->all_met(2 * meeting - 1); });
    for (int r = 0; r < comm->size; ++r)
      if (comm->segment->words_of(r).first != int64_t(bytes))
        warn("NCCL: rank %d registers a window of %lld bytes, rank %d one of %zu", r,
             (long long)comm->segment->words_of(r).first, comm->rank, bytes);
    comm->segment->meet(2 * meeting, int64_t(bytes), 0);
    wait_for_ranks(comm, [&] { return comm->segment->all_met(2 * meeting); });
    comm->windows[static_cast<const std::byte*>(p)] = bytes;
    *to = reinterpret_cast<ncclWindow_t>(p);
  });
}
SOFTGPU_API ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  comm->windows.erase(reinterpret_cast<const std::byte*>(window));
  return ncclSuccess;
}

// ---------------------------------------------------------------------------------------------- collectives

SOFTGPU_API ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
SOFTGPU_API ncclResult_t ncclGroupEnd() {
  if (--group_depth) return ncclSuccess;
  const std::vector<Grouped> calls = std::exchange(grouped, {});
  const ncclResult_t error = std::exchange(group_error, ncclSuccess);
  return error != ncclSuccess ? error : launch_group(calls);
}
SOFTGPU_API ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                                       ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return enqueue({CollectiveKind::all_reduce, in, out, count, type, operation}, comm, stream);
}
SOFTGPU_API ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                                       ncclComm_t comm, cudaStream_t stream) {
  return enqueue({CollectiveKind::broadcast, in, out, count, type, root}, comm, stream);
}
SOFTGPU_API ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                                       cudaStream_t stream) {
  return enqueue({CollectiveKind::all_gather, in, out, count, type, 0}, comm, stream);
}
SOFTGPU_API ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return enqueue({CollectiveKind::reduce_scatter, in, out, count, type, operation}, comm, stream);
}
SOFTGPU_API ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                  cudaStream_t stream) {
  return enqueue({CollectiveKind::send, in, const_cast<void*>(in), count, type, peer}, comm, stream);
}
SOFTGPU_API ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                  cudaStream_t stream) {
  return enqueue({CollectiveKind::receive, out, out, count, type, peer}, comm, stream);
}
