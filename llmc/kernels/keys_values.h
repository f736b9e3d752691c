// Moves keys and values between two layouts: by row, as a product writes them, and by head, because heads are sent
// one by one. Several neighbouring heads that are sent together count as one large head here:
//
//   rows      (N, 2 NKV HD): of each token k (NKV, HD), then v (NKV, HD); columns of packed rows, whose stride stays
//   by_head   (NKV, N, 2, HD), contiguous: for each head and token the key, then the value
//
// Both are fp32 or both bf16. HD and the stride of the rows are multiples of 8; both tensors are 16-byte aligned and do
// not overlap. Both functions throw otherwise. Deterministic.
#pragma once

#include "llmc/device/tensor.h"

// Writes by_head from rows.
void keys_values_by_head(Stream& stream, const Tensor& by_head, const Tensor& rows);
// Writes rows from by_head.
void keys_values_by_row(Stream& stream, const Tensor& rows, const Tensor& by_head);
