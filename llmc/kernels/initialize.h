// First values of weights, and copies in another precision.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llmc/device/device.h"
#include "llmc/kernels/tensor_window.h"

// data (n) = normal numbers of mean 0 and standard deviation `std`: element i is element place[i] of the tensor whose
// key this is. Counter-based (Philox4x32-10, Salmon et al. 2011; Box & Muller 1958): the bits of an element depend on
// the key and its place in the unsharded tensor alone, so any piece can be made anywhere; and they are the same bits on
// every GPU and CPU, as only correctly rounded fp32 operations make them. The largest number is 6.66 std.
void initialize_normal(Stream& stream, float* data, size_t n, uint64_t key, TensorWindow place, float std);

void initialize_constant(Stream& stream, float* data, size_t n, float value);

// out (n) = in (n), rounded to T.
template <class T>
void cast(Stream& stream, T* out, const float* in, size_t n);
