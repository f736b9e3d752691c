// Sums of flat buffers.
#pragma once

#include <cstddef>

#include "llmc/device/device.h"

// sum (n) += x (n), fp32, both 16-byte aligned.
void accumulate(Stream& stream, float* sum, const float* x, size_t n);
