// Addition of tensors.
#pragma once

#include "llmc/device/tensor.h"

// Writes sum = x, or sum += x with `add`. `sum` is fp32, x is fp32 or bf16 with as many elements; their shapes do not
// matter. Throws if they have no elements, are not contiguous or are not 16-byte aligned. Deterministic.
void accumulate(Stream& stream, const Tensor& sum, const Tensor& x, bool add = true);

// Writes sum = a + b, rounded once: contiguous tensors of one shape, all fp32 or all bf16. `sum` may be a; no other two
// overlap, except a and b. If `amax` is not null, *amax is raised to the largest |sum|. Throws as
// accumulate() does. Deterministic.
void add(Stream& stream, const Tensor& sum, const Tensor& a, const Tensor& b, float* amax = nullptr);
