// Root-mean-square norm over the last axis (Zhang & Sennrich 2019):
//
//   y[N,C] = x * rstd * w        rstd[N] = 1 / sqrt(mean(x^2) + eps), fp32
//
// Matrices and w are all fp32 or all bf16; rstd, dw and scratch are fp32, and so are arithmetic and sums. All tensors
// are contiguous. Deterministic: the order of additions depends on N, C and DeviceInfo::wide_rows alone. Matrices, w,
// dw and scratch are 16-byte aligned if C is a multiple of 8. All functions throw on invalid shapes, types, alignment
// or overlaps.
#pragma once

#include <cstdint>

#include "llmc/device/tensor.h"

// Writes y (N, C) and rstd (N) from x (N, C) and w (C). If y is absent, only rstd. If `amax` is not null, *amax is
// raised to the largest |y|, as rounded to y's type: callers that quantize y from x, rstd and w need it. y does not
// overlap x.
void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w, float eps,
                     float* amax = nullptr);

// The same for the residual stream: writes sum = a + b, all (N, C), rounded to their type; y and rstd are the norm of
// the rounded sum. `sum` may be `a`. No other two of sum, y, a and b overlap, except a and b.
void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& rstd, const Tensor& a,
                         const Tensor& b, const Tensor& w, float eps, float* amax = nullptr);

// For models whose norms come after the layers: writes sum = a + the norm of b, all (N, C), rounded once, and the
// norm's rstd. `sum` overlaps neither. amax is that of the sum.
void rmsnorm_add_forward(Stream& stream, const Tensor& sum, const Tensor& rstd, const Tensor& a, const Tensor& b,
                         const Tensor& w, float eps, float* amax = nullptr);

// Adds the gradients to dx (N, C) and dw (C), from dy (N, C) and forward's x, w and rstd. Without `add` dx is set. dx
// overlaps neither dy nor x. If `amax` is not null (bf16 only), *amax is raised to the largest |dx|, after the
// addition. scratch (rmsnorm_backward_scratch(N, C) elements or more) is overwritten with sums of dw over a few rows
// each, which a second kernel adds up in their order.
void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, const Tensor& scratch, const Tensor& dy,
                      const Tensor& x, const Tensor& w, const Tensor& rstd, float* amax = nullptr, bool add = true);
int64_t rmsnorm_backward_scratch(int N, int C);
