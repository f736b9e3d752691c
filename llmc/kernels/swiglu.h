// The gated activation of the MLP (Shazeer 2020):  out[N,FF] = silu(gate) * up,  silu(x) = x / (1 + exp(-x)).
//
// gate_up[N,2FF] is the output of the fused product: each row holds FF gates, then FF ups. T is float or bf16; the
// arithmetic is fp32, rounded to T once. Deterministic.
#pragma once

#include "llmc/device/device.h"

// out[N,FF] =
template <class T>
void swiglu_forward(Stream& stream, T* out, const T* gate_up, int N, int FF);

// dgate_up[N,2FF] =, from dout[N,FF] and forward's input. dgate_up may be gate_up.
template <class T>
void swiglu_backward(Stream& stream, T* dgate_up, const T* dout, const T* gate_up, int N, int FF);
