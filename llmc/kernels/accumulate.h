// Addition of tensors.
#pragma once

#include "llmc/device/tensor.h"

// Writes sum = x, or sum += x with `add`. `sum` is fp32, x is fp32 or bf16 with as many elements; their shapes do not
// matter. Throws if they have no elements, are not contiguous or are not 16-byte aligned. Deterministic.
void accumulate(Stream& stream, const Tensor& sum, const Tensor& x, bool add = true);
