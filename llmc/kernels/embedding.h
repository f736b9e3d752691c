// Embedding: a row of the table weight[V,C] for each token.
//
// T is float or bf16. Deterministic: backward has no atomics, and its order of additions depends on the tokens alone.
// Buffers of T and dweight are 16-byte aligned if C is a multiple of 8.
#pragma once

#include "llmc/device/device.h"

// What of the table is here: rows first .. first+V-1 of `whole`.
struct EmbeddingRows {
  int first, V, whole;
  EmbeddingRows(int V) : first(0), V(V), whole(V) {}
  EmbeddingRows(int first, int V, int whole) : first(first), V(V), whole(whole) {}
};

// out[N,C] = weight[tokens[n] - first]; zeros where another rank has the row. A token outside of the whole table (the
// host refuses it before) is no read outside of it: its row becomes NaN.
template <class T>
void embedding_forward(Stream& stream, T* out, const int* tokens, const T* weight, int N, int C, EmbeddingRows rows);

// dweight[V,C] += the rows of dout[N,C], each to the row of its token; tokens whose row is not here are left out.
// order[N]: the positions 0 to N-1 sorted by their token, equal tokens by their position (sort_positions_by_token).
template <class T>
void embedding_backward(Stream& stream, float* dweight, const T* dout, const int* tokens, const int* order, int N,
                        int C, EmbeddingRows rows);
