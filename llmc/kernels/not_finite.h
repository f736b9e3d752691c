// Finds a number that is an infinity or NaN, for the search after a step that was not finite.
#pragma once

#include <cstdint>

#include "llmc/device/tensor.h"

// Lowers *first to the index, row by row, of the first element of x that is an infinity or NaN; leaves it if all are
// finite or an earlier one is known. x is fp32 or bf16; its rows may lie apart. Throws on no elements, and on 2^32 - 1
// or more.
void find_not_finite(Stream& stream, const Tensor& x, uint32_t* first);
