// CUDA's functions for streams, events, copies, fills and functions of the host.
#include <algorithm>
#include <cstring>
#include <vector>

#include "dev/softgpu/runtime/api.h"
#include "dev/softgpu/runtime/graph.h"
#include "dev/softgpu/runtime/memory.h"

using namespace softgpu;

// A number outside the range is taken for the nearest in it.
SOFTGPU_API cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0, *highest = kHighestPriority;
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  *stream = new CUstream_st;
  (*stream)->priority = std::clamp(priority, kHighestPriority, 0);
  Engine::get().add(*stream);
  return give(Engine::get().error());
}
SOFTGPU_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
SOFTGPU_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream->capture) return give(cudaErrorStreamCaptureUnsupported);
  return give(Engine::get().remove(stream));
}
SOFTGPU_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t e = unsafe_during_capture("cudaStreamSynchronize")) return e;
  if (stream_of(stream)->capture) return give(cudaErrorStreamCaptureUnsupported);
  return give(Engine::get().synchronize(stream_of(stream)));
}

SOFTGPU_API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream_of(stream)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------- events

SOFTGPU_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->timed = !(flags & cudaEventDisableTiming);
  return give(Engine::get().error());
}
SOFTGPU_API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
SOFTGPU_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  forget_capture(event);
  delete event;
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t given) {
  const cudaStream_t stream = stream_of(given);
  if (record_in_capture(event, stream)) return cudaSuccess;
  forget_capture(event);
  return give(Engine::get().record(stream, event->point));
}
SOFTGPU_API cudaError_t cudaStreamWaitEvent(cudaStream_t given, cudaEvent_t event, unsigned) {
  const cudaStream_t stream = stream_of(given);
  cudaError_t error;
  if (wait_in_capture(stream, event, error)) return give(error);
  return event->point ? give(Engine::get().wait_for(stream, event->point)) : cudaSuccess;
}
SOFTGPU_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t e = unsafe_during_capture("cudaEventSynchronize")) return e;
  if (event->capture) return give(cudaErrorCapturedEvent);
  return give(event->point ? Engine::get().synchronize(event->point) : Engine::get().error());
}
SOFTGPU_API cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t e = unsafe_during_capture("cudaEventQuery")) return e;
  if (event->capture) return give(cudaErrorCapturedEvent);
  return give(event->point ? Engine::get().query(event->point) : Engine::get().error());
}
SOFTGPU_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin->point || !end->point || !begin->timed || !end->timed) return give(cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {begin, end})
    if (const cudaError_t e = Engine::get().query(event->point)) return give(e);
  *milliseconds = float((end->point->seconds - begin->point->seconds) * 1e3);
  return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------- copies

namespace {

Task copying(void* to, const void* from, size_t bytes, void* target, const void* source) {
  return [=]() -> Poll {
    memmove(target, source, bytes);
    copy_marks(to, from, bytes);
    return nullptr;
  };
}

// What a driver copies at once from pageable memory to a buffer of its own; the host need not wait then.
constexpr size_t kStaged = 64 << 10;

}  // namespace

SOFTGPU_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t given) {
  const cudaStream_t stream = stream_of(given);
  void* const target = accessible(to, bytes);
  const void* const source = accessible(from, bytes);
  if (!target || !source) return give(cudaErrorInvalidValue);
  const bool pageable = is_pageable(to) || is_pageable(from);
  if (pageable && stream->capture) {
    warn("a copy from or to pageable memory is captured: the graph reads or writes that memory with each launch");
    return submit(stream, copying(to, from, bytes, target, source));
  }
  if (!is_pageable(to) && pageable && bytes <= kStaged) {
    const auto staged =
        std::make_shared<std::vector<char>>(static_cast<const char*>(source), static_cast<const char*>(source) + bytes);
    return submit(stream, [=]() -> Poll {
      memcpy(target, staged->data(), bytes);
      mark_written(to, bytes);
      return nullptr;
    });
  }
  if (const cudaError_t e = submit(stream, copying(to, from, bytes, target, source))) return e;
  return pageable ? give(Engine::get().synchronize(stream)) : cudaSuccess;
}

SOFTGPU_API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  void* const target = accessible(to, bytes);
  if (!target || is_pageable(to)) return give(cudaErrorInvalidValue);
  return submit(stream, [=]() -> Poll {
    memset(target, value, bytes);
    mark_written(to, bytes);
    return nullptr;
  });
}

SOFTGPU_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return submit(stream, [=]() -> Poll {
    function(data);
    return nullptr;
  });
}
