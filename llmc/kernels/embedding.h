// Embedding: one row of the table weight[V,C] per token.
//
// T is float or bf16. Deterministic: backward uses no atomics, and its order of additions depends on the tokens alone.
// Buffers of T and dweight are 16-byte aligned if C is a multiple of 8. All functions throw on invalid sizes or
// alignment.
#pragma once

#include "llmc/device/device.h"

// The rows of the table that this rank holds: first .. first+V-1 of `whole`.
struct EmbeddingRows {
  int first, V, whole;
  EmbeddingRows(int V) : first(0), V(V), whole(V) {}
  EmbeddingRows(int first, int V, int whole) : first(first), V(V), whole(whole) {}
};

// Writes out[N,C] = weight[tokens[n] - first], and zeros if another rank holds the row. The host rejects tokens outside
// of the whole table beforehand. If one arrives all the same, the kernel reads nothing outside of the table, and the
// token's row becomes NaN.
template <class T>
void embedding_forward(Stream& stream, T* out, const int* tokens, const T* weight, int N, int C, EmbeddingRows rows);

// Adds each row of dout[N,C] to its token's row of dweight[V,C]; tokens whose row another rank holds are skipped.
// order[N]: the positions 0 to N-1 sorted by their token, equal tokens by their position (sort_positions_by_token).
template <class T>
void embedding_backward(Stream& stream, float* dweight, const T* dout, const int* tokens, const int* order, int N,
                        int C, EmbeddingRows rows);
