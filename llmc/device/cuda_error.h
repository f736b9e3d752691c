// Turns a failed CUDA call into an exception whose message has the place, the call, and CUDA's name and text of the
// error. A GPU that fails is lost, whatever it is: the run ends with ExitCode::lost.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/error.h"

// Throws on an error. CUDA keeps its last error until somebody asks, so it is asked here: the next launch, which asks
// too, must not blame its kernel.
#define CUDA_CHECK(call)                                                                              \
  do {                                                                                                \
    const cudaError_t status_ = (call);                                                               \
    if (status_ != cudaSuccess) cudaGetLastError();                                                   \
    if (status_ != cudaSuccess)                                                                       \
      throw Error(format("%s:%d: %s\n  %s: %s", __FILE__, __LINE__, #call, cudaGetErrorName(status_), \
                         cudaGetErrorString(status_)),                                                \
                  ExitCode::lost);                                                                    \
  } while (0)
