// Declares the part of NCCL's header that llmc/comm/cuda_nccl_communicator.cpp needs. dev/test/nccl.cpp defines the
// functions.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclUint8, ncclInt64, ncclFloat32, ncclFloat64, ncclBfloat16 };
enum ncclRedOp_t { ncclSum, ncclMax };
using ncclComm_t = struct ncclComm*;
using ncclWindow_t = struct ncclWindow*;
struct ncclUniqueId {
  char internal[128];
};
struct ncclConfig_t {
  int blocking, maxCTAs;
};
#define NCCL_CONFIG_UNDEF_INT (-0x7fffffff - 1)
#define NCCL_CONFIG_INITIALIZER \
  { 1, NCCL_CONFIG_UNDEF_INT }
#define NCCL_WIN_COLL_SYMMETRIC 1

const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* group, ncclConfig_t* config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result);
ncclResult_t ncclMemAlloc(void** data, size_t bytes);
ncclResult_t ncclMemFree(void* data);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, size_t bytes, ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                               ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
