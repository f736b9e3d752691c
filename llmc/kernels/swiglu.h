// SwiGLU (Shazeer 2020) on the fused product's output gate_up[N,2*FF], whose rows hold FF gates, then FF ups:
//
//   out[N,FF] = silu(gate) * up        silu(x) = x * sigmoid(x) = x / (1 + e^-x)
//
// All tensors are contiguous, and all fp32 or all bf16; arithmetic is fp32, rounded once. Elements do not depend on
// each other: deterministic. Buffers are 16-byte aligned if FF is a multiple of 8. Both functions throw on invalid
// shapes, types, alignment or overlaps.
#pragma once

#include "llmc/device/tensor.h"

// Writes out (N, FF) from gate_up (N, 2 FF), which out does not overlap.
void swiglu_forward(Stream& stream, const Tensor& out, const Tensor& gate_up);

// Writes dgate_up (N, 2 FF) from dout (N, FF) and forward's gate_up. dgate_up may be gate_up.
void swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up);
