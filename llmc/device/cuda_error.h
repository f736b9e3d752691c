// Turns a failed CUDA call into an exception whose message has the place, the call, and CUDA's name and text of the
// error, and whose exit code says whether the same start may do better.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/error.h"

// Returns the exit code of a program that this error ends: a program for another GPU is
// the user's to mend; wrong calls, and what the machine lacks, are unexpected; all else is a GPU or a driver that
// failed.
inline ExitCode exit_code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return ExitCode::does_not_fit;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNotSupported:
    case cudaErrorNotPermitted:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
      return ExitCode::unexpected;
    case cudaErrorNoKernelImageForDevice:
      return ExitCode::wrong_input;
    default:
      return ExitCode::lost;
  }
}

// CUDA keeps its last error until somebody asks, so it is asked here: the next launch, which asks too, must not blame
// its kernel.
[[noreturn]] inline void fail_of_cuda(cudaError_t error, const char* call, const char* file, int line) {
  cudaGetLastError();
  fail_as(exit_code_of(error), "%s:%d: %s\n  %s: %s", file, line, call, cudaGetErrorName(error),
          cudaGetErrorString(error));
}

#define CUDA_CHECK(call)                                                          \
  do {                                                                            \
    const cudaError_t status_ = (call);                                           \
    if (status_ != cudaSuccess) fail_of_cuda(status_, #call, __FILE__, __LINE__); \
  } while (0)
