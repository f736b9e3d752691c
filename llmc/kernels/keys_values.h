// Moves keys and values between two layouts: by row, as a product writes them, and by head, because heads are sent
// one by one:
//
//   rows      k (NKV, HD), then v (NKV, HD), of each of N tokens, `stride` elements apart: columns of packed rows
//   by head   (NKV, N, 2, HD): for each head and token the key, then the value
//
// HD and the stride are multiples of 8; both buffers are 16-byte aligned and do not overlap. Throws otherwise.
// Deterministic.
#pragma once

#include <cstdint>

#include "llmc/device/device.h"

// Writes by_head from rows.
template <class T>
void keys_values_by_head(Stream& stream, T* by_head, const T* rows, int64_t stride, int N, int NKV, int HD);
// Writes rows from by_head.
template <class T>
void keys_values_by_row(Stream& stream, T* rows, const T* by_head, int64_t stride, int N, int NKV, int HD);
