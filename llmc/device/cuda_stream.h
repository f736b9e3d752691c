// The CUDA objects behind a Stream and an Event, for launches, cuBLASLt and NCCL.
#pragma once

#include <cuda_runtime.h>

#include "llmc/device/device.h"
#include "llmc/device/range.h"

cudaStream_t cuda_stream(Stream& stream);
cudaEvent_t cuda_event(Event& event);

// Lives while an operation is enqueued, in a Range of its name. If the device records, the constructor adds the work
// to the record. On a device that executes, one CUDA event before the work and one after it measure when it ran.
class RecordedWork {
 public:
  explicit RecordedWork(const Work& work);
  ~RecordedWork();
  RecordedWork(const RecordedWork&) = delete;
  bool executes() const;  // false: the device is modelled, so nothing may be enqueued

 private:
  const Range range_;
  const Work work_;
  bool is_timed_ = false;
};
