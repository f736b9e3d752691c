// Embedding: one row of the table weight[V,C] per token.
//
// out, dout and weight are all fp32 or all bf16; tokens and order are int32; dweight is fp32. All tensors are
// contiguous. Deterministic: backward uses no atomics, and its order of additions depends on the tokens alone. out,
// dout, weight and dweight are 16-byte aligned if C is a multiple of 8. Both functions throw on invalid shapes, types
// or alignment.
#pragma once

#include "llmc/device/tensor.h"

// The V rows of weight or dweight are rows first .. first+V-1 of a table of `whole` rows: those that this rank holds.
struct EmbeddingRows {
  int first, whole;
  int pad = -1;  // the row of the whole table that gets no gradient, as with PyTorch's padding_idx; -1: none
};

// Writes out (N, C) = weight[tokens[n] - first], and zeros if another rank holds the row; tokens (N), weight (V, C).
// The host rejects tokens outside of the whole table beforehand. If one arrives all the same, the kernel reads nothing
// outside of the table, and the token's row becomes NaN.
void embedding_forward(Stream& stream, const Tensor& out, const Tensor& tokens, const Tensor& weight,
                       EmbeddingRows rows);

// Adds each row of dout (N, C) to its token's row of dweight (V, C); tokens (N) whose row another rank holds, and the
// token `pad`, are skipped. order (N): the indices 0 to N-1 sorted by their token (sort_indices_by_token).
void embedding_backward(Stream& stream, const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                        const Tensor& order, EmbeddingRows rows);
