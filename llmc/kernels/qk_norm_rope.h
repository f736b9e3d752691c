// The work between the qkv projection and attention in models that have more there than RoPE: biases (Qwen2), or an
// RMSNorm of queries and keys (Qwen3, OLMo 2: Dehghani et al. 2023). For each head of a row of qkv (N, (NH + 2 NKV)
// HD), in fp32, rounded once:
//
//   x = qkv + bias                                           if there are biases
//   y = x * rstd * w,  rstd = 1 / sqrt(mean(x^2) + eps)      queries and keys, if they have a norm
//   out = RoPE of y (rope.h)                                 queries and keys
//
// A norm of heads has one weight of HD numbers for all query heads, one for all key heads, and a mean over each head. A
// norm of the whole has a weight of its own for each column, and means over all query heads and over all key heads of
// the row. Tensor-parallel ranks have only some of these heads: they add their sums of qk_dots() first. If several
// ranks have the same key heads, each counts them, in the sum as in the number of columns.
//
// qkv and its gradient are all fp32 or all bf16; HD is a multiple of 8; all tensors are contiguous and 16-byte aligned.
// Deterministic: the order of additions depends on the shape alone. All functions throw on invalid shapes, types,
// alignment or overlaps.
#pragma once

#include "llmc/kernels/rope.h"

// The vectors of a layer. With their gradients instead, all are fp32. Absent: the model has none.
struct QkvVectors {
  Tensor q_bias = {}, k_bias = {}, v_bias = {};  // (NH HD), (NKV HD), (NKV HD), of qkv's type
  Tensor q_norm = {}, k_norm = {};               // (HD) each or, of the whole, (NH HD) and (NKV HD)
};

// For a norm of the whole: sums of a row's columns over all ranks that share its heads, (N, 2) fp32: of queries, of
// keys.
struct WholeNorm {
  Tensor squares = {};  // of qkv * qkv. Absent: the norm is one of heads, or there is none.
  Tensor dots =
      {};  // in backward: of dqkv * out. RoPE is a rotation, so it leaves the dot product of y and its gradient.
  int ranks = 1;
};

// Writes out (N, (NH + 2 NKV) HD); it may be qkv. The angles' `heads` is NH + NKV. For a position outside of the table
// the row's queries and keys become NaN.
void qk_norm_rope_forward(Stream& stream, const Tensor& out, const Tensor& qkv, const QkvVectors& vectors,
                          const RopeAngles& angles, float eps, const WholeNorm& whole = {});

// Replaces dqkv, the gradient of forward's out, by that of forward's qkv, and adds the gradients of the vectors (+=).
// With a norm it needs forward's qkv, which is absent without. If `amax` is not null (bf16 only), *amax is raised to
// the largest number of the result. scratch (qk_norm_rope_scratch() elements or more) is overwritten.
void qk_norm_rope_backward(Stream& stream, const Tensor& dqkv, const QkvVectors& gradients, const Tensor& scratch,
                           const Tensor& qkv, const QkvVectors& vectors, const RopeAngles& angles, float eps,
                           const WholeNorm& whole = {}, float* amax = nullptr);
// `columns` are those that have vectors: (NH + 2 NKV) HD with biases, (NH + NKV) HD with norms.
int64_t qk_norm_rope_scratch(int64_t N, int64_t columns);

// sums (N, 2) fp32 = the sums of a * b over the columns of the query heads and over those of the key heads of each row;
// a, b (N, (NH + 2 NKV) HD) of one type.
void qk_dots(Stream& stream, const Tensor& sums, const Tensor& a, const Tensor& b, int NH, int NKV);
