// Root-mean-square norm over the last axis (Zhang & Sennrich 2019):
//
//   y[N,C] = x * rstd * w        rstd[N] = 1 / sqrt(mean(x^2) + eps), fp32
//
// T is float or bf16; arithmetic and sums are fp32. Deterministic: the order of additions depends on N and C alone.
// Buffers of T and `scratch` are 16-byte aligned if C is a multiple of 8. All functions throw on invalid sizes,
// alignment or overlaps.
#pragma once

#include <cstddef>

#include "llmc/device/device.h"

// Writes y[N,C] and rstd[N] from x[N,C] and w[C]. If y is null, only rstd. If `amax` is not null, *amax is raised to
// the largest |y|, as rounded to T: callers that quantize y from x, rstd and w need it.
template <class T>
void rmsnorm_forward(Stream& stream, T* y, float* rstd, const T* x, const T* w, int N, int C, float eps,
                     float* amax = nullptr);

// The same for the residual stream: sum[N,C] = a + b, rounded to T; y and rstd are the norm of the rounded sum. `sum`
// may be `a`.
template <class T>
void add_rmsnorm_forward(Stream& stream, T* sum, T* y, float* rstd, const T* a, const T* b, const T* w, int N, int C,
                         float eps, float* amax = nullptr);

// Adds the gradients to dx[N,C] and dw[C], from dy[N,C] and forward's x, w and rstd. dx overlaps neither dy nor x. If
// `amax` is not null (bf16 only), *amax is raised to the largest |dx| after the addition.
// `scratch` holds rmsnorm_backward_scratch(N, C) floats, which are overwritten: sums of dw over a few rows each, which
// a second kernel adds up in their order.
template <class T>
void rmsnorm_backward(Stream& stream, T* dx, float* dw, float* scratch, const T* dy, const T* x, const T* w,
                      const float* rstd, int N, int C, float* amax = nullptr);
size_t rmsnorm_backward_scratch(int N, int C);
