// Elementwise functions in fp32, shared by the kernels that write these values and the kernels that quantize them on
// the fly. Because the source is the same, so are the bits.
#pragma once

#include "llmc/device/kernel.cuh"

// Correct for every x: beyond the range of fp32 e^-x becomes 0 or infinity, and the result becomes 1 or 0.
__device__ __forceinline__ float sigmoid(float x) { return reciprocal_f32(1.0f + exp_f32(-x)); }

__device__ __forceinline__ float swiglu(float gate, float up) { return up * (gate * sigmoid(gate)); }

struct SwigluGradient {
  float gate, up;
};
// With s = sigmoid(gate): silu' = s * (1 + gate * (1 - s)).
__device__ __forceinline__ SwigluGradient swiglu_gradient(float d, float gate, float up) {
  const float s = sigmoid(gate), silu = gate * s;
  return {d * up * fma_f32(silu, 1.0f - s, s), d * silu};
}

// Two elements of a head, rotated by the angle with this cosine and sine.
struct RotatedPair {
  float a, b;
};
__device__ __forceinline__ RotatedPair rotate_pair(float a, float b, float cosine, float sine) {
  return {fma_f32(a, cosine, -(b * sine)), fma_f32(b, cosine, a * sine)};
}

__device__ __forceinline__ float rmsnormed(float x, float rstd, float weight) { return x * rstd * weight; }
