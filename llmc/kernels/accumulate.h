// Addition of flat buffers.
#pragma once

#include <cstddef>

#include "llmc/device/device.h"

// Writes sum (n) = x (n), or sum += x with `add`. `sum` is fp32, x is fp32 or bf16. Throws if n is 0 or a buffer is not
// 16-byte aligned. Deterministic.
template <class T>
void accumulate(Stream& stream, float* sum, const T* x, size_t n, bool add = true);
