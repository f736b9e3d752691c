// The device's memory and pinned memory (see ../memory.h for where they lie).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#pragma GCC visibility push(default)
namespace softgpu {

enum class MemoryKind { device, pinned };

// Both may be called from any thread. An allocation of device memory fails when the GPU has no more.
cudaError_t allocate(void** p, size_t bytes, MemoryKind kind);
cudaError_t release(void* p, MemoryKind kind);

// Device memory that a library or a communicator takes for itself.
void take_bytes(size_t bytes);
void give_back_bytes(size_t bytes);
size_t used_bytes();

bool is_pageable(const void* p);  // memory of the host that CUDA does not know

// Returns where the bytes lie that a copy, a fill or a library reads or writes; null if they are not all in one
// allocation. A pageable pointer is returned as it is.
void* accessible(const void* p, size_t bytes);
// Notes that they were written. Pageable memory is of no interest.
void mark_written(const void* p, size_t bytes);
void copy_marks(const void* to, const void* from, size_t bytes);  // a copy of unwritten memory is unwritten
// Called by the engine's thread. If one of the bytes was never written, the GPU ends with an error as by a kernel that
// reads it, and the call does not return.
void require_written(const void* p, size_t bytes, const char* reader);

}  // namespace softgpu
#pragma GCC visibility pop
