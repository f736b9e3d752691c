// Initial values of weights, and casts to another precision.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llmc/device/device.h"
#include "llmc/kernels/shard_window.h"

// Writes data (n): normal values with mean 0 and standard deviation `std`. Element i is element place[i] of the tensor
// with this key. The generator is counter-based (Philox4x32-10, Salmon et al. 2011; Box & Muller 1958). The bits of an
// element depend on the key and its index in the unsharded tensor alone, so any rank can make any piece. They are the
// same on every GPU and CPU, because only correctly rounded fp32 operations make them. The largest magnitude is 6.76
// std. Throws unless n > 0 and std >= 0.
void initialize_normal(Stream& stream, float* data, size_t n, uint64_t key, ShardWindow place, float std);

void initialize_constant(Stream& stream, float* data, size_t n, float value);

// Writes out (n) = in (n), rounded to T.
template <class T>
void cast(Stream& stream, T* out, const float* in, size_t n);
