// The GPU that the software GPU is: LLMC_SOFTGPU=h100 (if nothing is said), a100 or rtx4090.
//
// LLMC_SOFTGPU_MEMORY   its bytes of memory (8 GiB: what is allocated is memory of this machine)
// LLMC_SOFTGPU_COUNT    how many GPUs the process sees (8)
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace softgpu {

const cudaDeviceProp& device_properties();

// Whether PTX for `target` ("90a", "80") can be compiled for the GPU: an architecture's own features ("a") for that one
// alone, any other for itself and all later ones.
bool runs_on_device(const std::string& target);

}  // namespace softgpu
