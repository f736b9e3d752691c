// Declares the part of CUDA's header that llmc/comm/cuda_nccl_communicator.cpp needs. dev/test/nccl.cpp defines the
// functions.
#pragma once

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorNotReady = 600 };
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;

cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaGetLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
