// The CUDA objects behind a Stream and an Event, for launches, cuBLASLt and NCCL.
#pragma once

#include <cuda_runtime.h>

#include "llmc/device/device.h"

cudaStream_t cuda_stream(Stream& stream);
cudaEvent_t cuda_event(Event& event);
