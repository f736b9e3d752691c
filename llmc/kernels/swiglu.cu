// SwiGLU: see swiglu.h. A thread takes kPacks packs of 16 bytes of one row; rows that are not whole packs go element by
// element.
#include "llmc/kernels/swiglu.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

__device__ __forceinline__ float forward_one(float gate, float up) { return gate * sigmoid(gate) * up; }

// d silu(g)/dg = s (1 + g (1 - s)) with s = sigmoid(g).
__device__ __forceinline__ void backward_one(float& dgate, float& dup, float dout, float gate, float up) {
  const float s = sigmoid(gate);
  dgate = dout * up * s * (1.0f + gate * (1.0f - s));
  dup = dout * gate * s;
}

// Rows are blockIdx.y, y + gridDim.y, …; `FF` is a multiple of the pack's size.
template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_packs(T* __restrict__ out, const T* __restrict__ gate_up, int N, int FF) {
  const int column = int(blockIdx.x * blockDim.x + threadIdx.x) * Pack<T>::size;
  if (column >= FF) return;
  for (int row = int(blockIdx.y); row < N; row += int(gridDim.y)) {
    const T* in = gate_up + size_t(row) * 2 * FF + column;
    const Pack<T> gate = load_pack(in), up = load_pack(in + FF);
    Pack<T> result;
    for (int i = 0; i < Pack<T>::size; ++i)
      result.v[i] = from_float<T>(forward_one(to_float(gate.v[i]), to_float(up.v[i])));
    store_pack(out + size_t(row) * FF + column, result);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) forward_elements(T* out, const T* gate_up, int N, int FF) {
  const int column = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= FF) return;
  for (int row = int(blockIdx.y); row < N; row += int(gridDim.y)) {
    const T* in = gate_up + size_t(row) * 2 * FF + column;
    out[size_t(row) * FF + column] = from_float<T>(forward_one(to_float(in[0]), to_float(in[FF])));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_packs(T* dgate_up, const T* __restrict__ dout, const T* gate_up, int N, int FF) {
  const int column = int(blockIdx.x * blockDim.x + threadIdx.x) * Pack<T>::size;
  if (column >= FF) return;
  for (int row = int(blockIdx.y); row < N; row += int(gridDim.y)) {
    const size_t at = size_t(row) * 2 * FF + column;
    const Pack<T> gate = load_pack(gate_up + at), up = load_pack(gate_up + at + FF);
    const Pack<T> d = load_pack(dout + size_t(row) * FF + column);
    float dgate[Pack<T>::size], dup[Pack<T>::size];
    for (int i = 0; i < Pack<T>::size; ++i)
      backward_one(dgate[i], dup[i], to_float(d.v[i]), to_float(gate.v[i]), to_float(up.v[i]));
    Pack<T> first, second;
    for (int i = 0; i < Pack<T>::size; ++i) first.v[i] = from_float<T>(dgate[i]);
    for (int i = 0; i < Pack<T>::size; ++i) second.v[i] = from_float<T>(dup[i]);
    store_pack(dgate_up + at, first);
    store_pack(dgate_up + at + FF, second);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_elements(T* dgate_up, const T* __restrict__ dout, const T* gate_up, int N, int FF) {
  const int column = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= FF) return;
  for (int row = int(blockIdx.y); row < N; row += int(gridDim.y)) {
    const size_t at = size_t(row) * 2 * FF + column;
    float dgate, dup;
    backward_one(dgate, dup, to_float(dout[size_t(row) * FF + column]), to_float(gate_up[at]),
                 to_float(gate_up[at + FF]));
    dgate_up[at] = from_float<T>(dgate);
    dgate_up[at + FF] = from_float<T>(dup);
  }
}

// ---------------------------------------------------------------------------------------------- launchers

dim3 grid_for(int N, int columns) {
  return dim3(blocks_for(size_t(columns), kThreads), unsigned(N < 65535 ? N : 65535));
}

void require_sizes(const char* name, int N, int FF) {
  REQUIRE(N > 0 && FF > 0, "%s: N=%d rows of FF=%d: both must be positive", name, N, FF);
}

}  // namespace

template <class T>
void swiglu_forward(Stream& stream, T* out, const T* gate_up, int N, int FF) {
  require_sizes("swiglu_forward", N, FF);
  const size_t n = size_t(N) * size_t(FF);
  const Work work(stream, "swiglu_forward", {reads(gate_up, 2 * n), writes(out, n)});
  if (FF % Pack<T>::size == 0)
    launch<forward_packs<T>>(work, grid_for(N, FF / Pack<T>::size), kThreads, 0, out, gate_up, N, FF);
  else launch<forward_elements<T>>(work, grid_for(N, FF), kThreads, 0, out, gate_up, N, FF);
}

template <class T>
void swiglu_backward(Stream& stream, T* dgate_up, const T* dout, const T* gate_up, int N, int FF) {
  require_sizes("swiglu_backward", N, FF);
  const size_t n = size_t(N) * size_t(FF);
  const Work work(stream, "swiglu_backward", {reads(dout, n), reads(gate_up, 2 * n), writes(dgate_up, 2 * n)});
  if (FF % Pack<T>::size == 0)
    launch<backward_packs<T>>(work, grid_for(N, FF / Pack<T>::size), kThreads, 0, dgate_up, dout, gate_up, N, FF);
  else launch<backward_elements<T>>(work, grid_for(N, FF), kThreads, 0, dgate_up, dout, gate_up, N, FF);
}

#define INSTANTIATE(T)                                           \
  template void swiglu_forward(Stream&, T*, const T*, int, int); \
  template void swiglu_backward(Stream&, T*, const T*, const T*, int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
