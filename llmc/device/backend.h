// The two backends. LLMC_CUDA is 1 when nvcc compiles this file for a GPU. Otherwise the host's compiler compiles the
// kernels and the CPU executes them. LLMC_ON_GPU is 1 only in the pass of nvcc that generates GPU code.
// No file outside llmc/device, llmc/comm and the matrix product (llmc/kernels/matmul) may ask which backend it is in.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__CUDACC__)
#define LLMC_CUDA 1
#include <cuda_runtime.h>
#define HOST_DEVICE __host__ __device__
#else
#define LLMC_CUDA 0
#define HOST_DEVICE
#endif

#if defined(__CUDA_ARCH__)
#define LLMC_ON_GPU 1
#else
#define LLMC_ON_GPU 0
#endif

HOST_DEVICE inline uint32_t float_to_bits(float x) {
#if LLMC_ON_GPU
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}
HOST_DEVICE inline float bits_to_float(uint32_t u) {
#if LLMC_ON_GPU
  return __uint_as_float(u);
#else
  return std::bit_cast<float>(u);
#endif
}
