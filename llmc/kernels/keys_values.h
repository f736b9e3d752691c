// Keys and values on their way between rows, as a product leaves them, and heads, which travel one by one:
//
//   rows      k (NKV, HD), then v (NKV, HD), of each of N tokens, `stride` numbers apart: columns of packed rows
//   by head   (NKV, N, 2, HD): of a head each token's key and value side by side
//
// HD is a multiple of 8, and so is the stride; both buffers are 16-byte aligned and do not overlap. Deterministic.
#pragma once

#include <cstdint>

#include "llmc/device/device.h"

// by_head =
template <class T>
void keys_values_by_head(Stream& stream, T* by_head, const T* rows, int64_t stride, int N, int NKV, int HD);
// rows =
template <class T>
void keys_values_by_row(Stream& stream, T* rows, const T* by_head, int64_t stride, int N, int NKV, int HD);
