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

// Raises `largest`, each by itself, to the magnitudes of the numbers as T has them, as the bits of fp32 numbers: these
// order as the numbers do, and NaN above infinity.
template <class T, int width>
__device__ __forceinline__ void raise_to_magnitudes(uint32_t (&largest)[width], const float (&x)[width]) {
  VECTOR_LOOP
  for (int j = 0; j < width; ++j) {
    const uint32_t bits = float_to_bits(to_float(from_float<T>(x[j]))) & 0x7fffffffu;
    largest[j] = bits > largest[j] ? bits : largest[j];
  }
}
template <int width>
__device__ __forceinline__ uint32_t largest_of(const uint32_t (&x)[width]) {
  uint32_t largest = x[0];
#pragma unroll
  for (int j = 1; j < width; ++j) largest = x[j] > largest ? x[j] : largest;
  return largest;
}
