// The CUDA objects behind a Stream and an Event, for launches, cuBLASLt and NCCL.
#pragma once

#include <cuda_runtime.h>

#include "llmc/device/device.h"

cudaStream_t cuda_stream(Stream& stream);
cudaEvent_t cuda_event(Event& event);

// Alive while work is enqueued: if the device records, the work is an entry of the record, between two events that tell
// when it ran.
class RecordedWork {
 public:
  explicit RecordedWork(const Work& work);
  ~RecordedWork();
  RecordedWork(const RecordedWork&) = delete;
  bool executes() const;  // false: of a device that is modelled

 private:
  const Work work_;
};
