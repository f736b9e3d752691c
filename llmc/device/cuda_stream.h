// The CUDA objects behind a Stream and its Device, for launches, cuBLASLt and NCCL.
#pragma once

#include <cuda_runtime.h>

#include "llmc/device/device.h"

cudaStream_t cuda_stream(Stream& stream);
