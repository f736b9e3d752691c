// Initial values of weights, and casts to another precision.
#pragma once

#include <cstdint>

#include "llmc/device/tensor.h"
#include "llmc/kernels/shard_window.h"

// The tensors of these functions are contiguous, have at least one element and are fp32, unless stated otherwise. Their
// shapes do not matter. The functions throw otherwise.

// Fills `data` with normal values with mean 0 and standard deviation `std`. Element i is element place[i] of the tensor
// with this key. The generator is counter-based (Philox4x32-10, Salmon et al. 2011; Box & Muller 1958). The bits of an
// element depend on the key and its index in the unsharded tensor alone, so any rank can make any slice. They are the
// same on every GPU and CPU, because only correctly rounded fp32 operations make them. The largest magnitude is 6.76
// std. Throws unless std >= 0.
void initialize_normal(Stream& stream, const Tensor& data, uint64_t key, ShardWindow place, float std);

void initialize_constant(Stream& stream, const Tensor& data, float value);

// Writes out = in, rounded to the type of `out`, which is fp32 or bf16 and has as many elements as `in`.
void cast(Stream& stream, const Tensor& out, const Tensor& in);
