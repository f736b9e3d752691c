// What several kernels compute of single elements, in fp32: the same text, and so the same bits, in the kernels that
// write these values and in those that quantize them as they come.
#pragma once

#include "llmc/device/kernel.cuh"

// Right for every x: e^-x is 0 or infinity where it leaves fp32.
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

// A pair of numbers turned by the angle.
struct Turned {
  float a, b;
};
__device__ __forceinline__ Turned turned(float a, float b, float cosine, float sine) {
  return {fma_f32(a, cosine, -(b * sine)), fma_f32(b, cosine, a * sine)};
}

__device__ __forceinline__ float rmsnormed(float x, float rstd, float weight) { return x * rstd * weight; }
