// SwiGLU.  out[N,FF] = silu(gate) * up of gate_up[N,2*FF], gates first.
// forward: out =.  backward: dgate_up =, in place if wanted.  Deterministic.
//
// What should limit it on a GPU: device memory, 6 bytes an element forward and 10 backward in bf16. At 4.3 TB/s over
// 132 multiprocessors that is 3 elements a cycle forward, of about 20 instructions each, half of what a multiprocessor
// issues.
#include "llmc/kernels/swiglu.h"

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr int kThreads = 256;

template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    swiglu_forward_kernel(T* __restrict__ out, const T* __restrict__ gate_up, int N, int FF) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= N) return;
  const T *gates = gate_up + size_t(row) * 2 * FF, *ups = gates + FF;
  for (int f = threadIdx.x * width; f < FF; f += blockDim.x * width) {
    float gate[width], up[width];
    load_vector(gate, gates + f);
    load_vector(up, ups + f);
#pragma unroll
    for (int j = 0; j < width; ++j) up[j] = swiglu(gate[j], up[j]);
    store_vector(out + size_t(row) * FF + f, up);
  }
}

template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(T* dgate_up, const T* __restrict__ dout, const T* gate_up, int N, int FF) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= N) return;
  const size_t offset = size_t(row) * 2 * FF;
  for (int f = threadIdx.x * width; f < FF; f += blockDim.x * width) {
    float gate[width], up[width], d[width];
    load_vector(gate, gate_up + offset + f);
    load_vector(up, gate_up + offset + FF + f);
    load_vector(d, dout + size_t(row) * FF + f);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      const SwigluGradient gradient = swiglu_gradient(d[j], gate[j], up[j]);
      gate[j] = gradient.gate;
      up[j] = gradient.up;
    }
    store_vector(dgate_up + offset + f, gate);
    store_vector(dgate_up + offset + FF + f, up);
  }
}

// ---------------------------------------------------------------------------------------------- launchers

void require_sizes(const char* who, int N, int FF) {
  REQUIRE(N >= 1 && FF >= 1 && FF <= (1 << 29), "%s: N = %d rows of FF = %d: expected at least one of each, FF <= 2^29",
          who, N, FF);
}

dim3 block_of(int FF) {
  const int threads = threads_for_row(FF / vector_width(FF), 8, 128);
  return dim3(threads, kThreads / threads);
}

}  // namespace

template <class T>
void swiglu_forward(Stream& stream, T* out, const T* gate_up, int N, int FF) {
  require_sizes("swiglu_forward", N, FF);
  const size_t size = size_t(N) * FF;
  REQUIRE(!overlap(out, size * sizeof(T), gate_up, 2 * size * sizeof(T)),
          "swiglu_forward: out overlaps gate_up: half of its rows would be overwritten before they are read");
  const dim3 block = block_of(FF);
  with_vector_width("swiglu_forward", FF, {out, gate_up}, [&](auto width) {
    launch<swiglu_forward_kernel<T, decltype(width)::value>>(
        {stream, "swiglu_forward", {writes(out, size), reads(gate_up, 2 * size)}}, blocks_for(size_t(N), block.y),
        block, 0, out, gate_up, N, FF);
  });
}

template <class T>
void swiglu_backward(Stream& stream, T* dgate_up, const T* dout, const T* gate_up, int N, int FF) {
  require_sizes("swiglu_backward", N, FF);
  const size_t size = size_t(N) * FF, bytes = size * sizeof(T);
  REQUIRE(!overlap(dgate_up, 2 * bytes, dout, bytes), "swiglu_backward: dgate_up overlaps dout");
  REQUIRE(dgate_up == gate_up || !overlap(dgate_up, 2 * bytes, gate_up, 2 * bytes),
          "swiglu_backward: dgate_up overlaps gate_up without being it");
  const dim3 block = block_of(FF);
  with_vector_width("swiglu_backward", FF, {dgate_up, dout, gate_up}, [&](auto width) {
    launch<swiglu_backward_kernel<T, decltype(width)::value>>(
        {stream, "swiglu_backward", {writes(dgate_up, 2 * size), reads(dout, size), reads(gate_up, 2 * size)}},
        blocks_for(size_t(N), block.y), block, 0, dgate_up, dout, gate_up, N, FF);
  });
}

#define INSTANTIATE(T)                                           \
  template void swiglu_forward(Stream&, T*, const T*, int, int); \
  template void swiglu_backward(Stream&, T*, const T*, const T*, int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
