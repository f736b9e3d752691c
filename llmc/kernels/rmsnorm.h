// Root-mean-square norm over the last axis (Zhang & Sennrich 2019):
//
//   y[N,C] = x * rstd * w        rstd[N] = 1 / sqrt(mean(x^2) + eps), fp32
//
// T is float or bf16; arithmetic and sums are fp32. All of it is deterministic, in an order of additions that depends
// on N and C alone. Buffers of T and `scratch` are 16-byte aligned if C is a multiple of 8.
#pragma once

#include <cstddef>

#include "llmc/device/device.h"

// y[N,C] =, rstd[N] =, from x[N,C] and w[C]. Without y (null) only rstd; with `amax` the largest |y|, as rounded to T,
// goes into it if it is larger than what is there: for those who quantize y from x, rstd and w.
template <class T>
void rmsnorm_forward(Stream& stream, T* y, float* rstd, const T* x, const T* w, int N, int C, float eps,
                     float* amax = nullptr);

// The same of the residual stream: sum[N,C] = a + b, rounded to T; y and rstd are the norm of the rounded sum.
// `sum` may be `a`.
template <class T>
void add_rmsnorm_forward(Stream& stream, T* sum, T* y, float* rstd, const T* a, const T* b, const T* w, int N, int C,
                         float eps, float* amax = nullptr);

// dx[N,C] +=, dw[C] +=, from dy[N,C] and forward's x, w and rstd. dx overlaps neither dy nor x. With `amax` (of
// bf16 alone) the largest |dx|, as it is then, goes into it if it is larger than what is there.
// `scratch` holds rmsnorm_backward_scratch(N, C) floats, overwritten: sums of dw over a few rows each, which a second
// kernel adds up in their order.
template <class T>
void rmsnorm_backward(Stream& stream, T* dx, float* dw, float* scratch, const T* dy, const T* x, const T* w,
                      const float* rstd, int N, int C, float* amax = nullptr);
size_t rmsnorm_backward_scratch(int N, int C);
