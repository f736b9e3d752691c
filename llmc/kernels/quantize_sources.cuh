// How kernels read the sources of quantize.h and compute x. load_source returns `width` neighbours of a row in bf16.
// They have the same bits as the output of the kernel that would write x. Where only magnitudes are wanted,
// load_magnitudes returns the largest ones of the elements of x that one element of the inputs gives; a row has
// magnitude_columns() of them.
#pragma once

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/quantize.h"

// The pointers of each source. x is (rows, columns).
struct PlainSource {
  const bf16* x;
};
struct RmsnormSource {
  const bf16* x;
  const float* rstd;
  const bf16* weight;
};
struct SwigluSource {
  const bf16* gate_up;  // (rows, 2 columns)
};
struct SwigluBackwardSource {
  const bf16* dout;     // (rows, columns / 2)
  const bf16* gate_up;  // (rows, columns)
};
struct RopeBackwardSource {
  const bf16* dqkv;      // (rows, columns)
  const float* table;    // (table_positions, HD / 2, 2)
  const int* positions;  // (rows)
  int heads;             // NH + NKV: the heads that are rotated
  int HD, table_positions;
};

template <int width>
__device__ __forceinline__ Vector<bf16, width> load_source(const PlainSource& s, int row, int column, int columns) {
  return *reinterpret_cast<const Vector<bf16, width>*>(s.x + size_t(row) * columns + column);
}

template <int width>
__device__ __forceinline__ Vector<bf16, width> load_source(const RmsnormSource& s, int row, int column, int columns) {
  float v[width], weight[width];
  load_vector(v, s.x + size_t(row) * columns + column);
  load_vector(weight, s.weight + column);
  const float rstd = s.rstd[row];
#pragma unroll
  for (int j = 0; j < width; ++j) v[j] = rmsnormed(v[j], rstd, weight[j]);
  return rounded<bf16>(v);
}

template <int width>
__device__ __forceinline__ Vector<bf16, width> load_source(const SwigluSource& s, int row, int column, int columns) {
  const bf16* gates = s.gate_up + size_t(row) * 2 * columns + column;
  float v[width], gate[width];
  load_vector(gate, gates);
  load_vector(v, gates + columns);
#pragma unroll
  for (int j = 0; j < width; ++j) v[j] = swiglu(gate[j], v[j]);
  return rounded<bf16>(v);
}

template <int width>
struct SwigluBackwardInputs {
  float dout[width], gate[width], up[width];

  __device__ __forceinline__ SwigluBackwardInputs(const SwigluBackwardSource& s, int row, int column, int FF) {
    const bf16* gates = s.gate_up + size_t(row) * 2 * FF + column;
    load_vector(dout, s.dout + size_t(row) * FF + column);
    load_vector(gate, gates);
    load_vector(up, gates + FF);
  }
  __device__ __forceinline__ SwigluGradient gradient(int j) const { return swiglu_gradient(dout[j], gate[j], up[j]); }
};

template <int width>
__device__ __forceinline__ Vector<bf16, width> load_source(const SwigluBackwardSource& s, int row, int column,
                                                           int columns) {
  const int FF = columns / 2;
  const SwigluBackwardInputs<width> inputs(s, row, column < FF ? column : column - FF, FF);
  float v[width];
#pragma unroll
  for (int j = 0; j < width; ++j) {
    const SwigluGradient gradient = inputs.gradient(j);
    v[j] = column < FF ? gradient.gate : gradient.up;
  }
  return rounded<bf16>(v);
}

template <class Source>
int magnitude_columns(const Source&, int columns) {
  return columns;
}
template <int width, class Source>
__device__ __forceinline__ Vector<bf16, width> load_magnitudes(const Source& s, int row, int column, int columns) {
  return load_source<width>(s, row, column, columns);
}

// A gate and an up give two elements of x.
inline int magnitude_columns(const SwigluBackwardSource&, int columns) { return columns / 2; }
template <int width>
__device__ __forceinline__ Vector<bf16, width> load_magnitudes(const SwigluBackwardSource& s, int row, int column,
                                                               int FF) {
  const SwigluBackwardInputs<width> inputs(s, row, column, FF);
  float gates[width], ups[width];
#pragma unroll
  for (int j = 0; j < width; ++j) {
    const SwigluGradient gradient = inputs.gradient(j);
    gates[j] = gradient.gate, ups[j] = gradient.up;
  }
  Vector<bf16, width> largest = {};
  max_abs_into(largest, rounded<bf16>(gates));
  max_abs_into(largest, rounded<bf16>(ups));
  return largest;
}

// The neighbours lie in one half of a head.
template <int width>
__device__ __forceinline__ Vector<bf16, width> load_source(const RopeBackwardSource& s, int row, int column,
                                                           int columns) {
  const bf16* x = s.dqkv + size_t(row) * columns + column;
  if (column >= s.heads * s.HD) return *reinterpret_cast<const Vector<bf16, width>*>(x);
  const int half = s.HD / 2, in_head = column % s.HD;
  const bool first = in_head < half;
  const int i = first ? in_head : in_head - half, position = s.positions[row];
  const bool known = position >= 0 && position < s.table_positions;
  const float nan_if_unknown = known ? 0.0f : NAN;
  float v[width], pairs[2 * width], partner[width];
  load_vector(v, x);
  load_vector(pairs, s.table + (size_t(known ? position : 0) * half + i) * 2);
  load_vector(partner, first ? x + half : x - half);
#pragma unroll
  for (int j = 0; j < width; ++j) {
    const float a = first ? v[j] : partner[j], b = first ? partner[j] : v[j];
    const RotatedPair pair = rotate_pair(a, b, pairs[2 * j] + nan_if_unknown, -pairs[2 * j + 1] + nan_if_unknown);
    v[j] = first ? pair.a : pair.b;
  }
  return rounded<bf16>(v);
}
