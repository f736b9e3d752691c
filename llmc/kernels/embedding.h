// The embedding: out[N,C] = weight[token[n], :].
//
// Backward adds without atomics: `order` (N) lists the positions sorted by token, equal tokens in their order, as the
// batch was made with it (sort_positions_by_token). T is float or bf16; sums are fp32. Deterministic.
#pragma once

#include "llmc/device/device.h"

// out[N,C] =, from weight[V,C]; tokens (N) on the device, in [0, V).
template <class T>
void embedding_forward(Stream& stream, T* out, const int* tokens, const T* weight, int N, int C, int V);

// dweight[V,C] += , from dout[N,C]. A token's rows are added in the order of their positions, then to dweight once.
template <class T>
void embedding_backward(Stream& stream, float* dweight, const T* dout, const int* tokens, const int* order, int N,
                        int C, int V);
