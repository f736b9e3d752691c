// Sums over the rows of fp32 matrices: the last step of the gradients of vectors, such as norms' weights and biases,
// whose kernels leave one row of sums for each of their blocks.
#pragma once

#include "llmc/device/tensor.h"

// Adds to sum (G C) the sums over the second axis of part (G, P, C): fp32, contiguous, 16-byte aligned if C is a
// multiple of 8. Deterministic: the order of additions depends on P alone. `who` names the work. Throws on invalid
// shapes, types or alignment.
void add_column_sums(Stream& stream, const char* who, const Tensor& sum, const Tensor& part);
