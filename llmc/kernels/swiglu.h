// SwiGLU (Shazeer 2020) on the fused product's output gate_up[N,2*FF], whose rows hold FF gates, then FF ups:
//
//   out[N,FF] = silu(gate) * up        silu(x) = x * sigmoid(x) = x / (1 + e^-x)
//
// T is float or bf16; arithmetic is fp32, rounded once. Each element by itself: deterministic. Buffers are 16-byte
// aligned if FF is a multiple of 8.
#pragma once

#include "llmc/device/device.h"

// out[N,FF] =.
template <class T>
void swiglu_forward(Stream& stream, T* out, const T* gate_up, int N, int FF);

// dgate_up[N,2*FF] =, from dout[N,FF] and forward's gate_up. dgate_up may be gate_up.
template <class T>
void swiglu_backward(Stream& stream, T* dgate_up, const T* dout, const T* gate_up, int N, int FF);
