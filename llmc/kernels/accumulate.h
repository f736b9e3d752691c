// Sums of flat buffers.
#pragma once

#include <cstddef>

#include "llmc/device/device.h"

// sum (n) = or, with `add`, += x (n): fp32 sums of fp32 or bf16 numbers. Both 16-byte aligned.
template <class T>
void accumulate(Stream& stream, float* sum, const T* x, size_t n, bool add = true);
