// SwiGLU.  out[N,FF] = silu(gate) * up of gate_up[N,2*FF], gates first.
// forward: out =.  backward: dgate_up =, in place if wanted.  fp32 or bf16, computed in fp32.  Deterministic.
//
// Expected limit on a GPU: device memory.
#include "llmc/kernels/swiglu.h"

#include <climits>

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

dim3 block_of(int FF) {
  const int threads = threads_for_row(FF / vector_width(FF), 8, 128);
  return dim3(threads, kThreads / threads);
}

// Throws unless `out`, which is out or dout, is (N, FF) and gate_up (N, 2 FF). Returns N and FF.
struct Sizes {
  int N, FF;
};
Sizes require_sizes(const char* who, const char* name, const Tensor& out, const Tensor& gate_up) {
  const int64_t N = out.rows(), FF = out.columns();
  REQUIRE(N >= 1 && N <= INT_MAX && FF >= 1 && FF <= (1 << 29),
          "%s: %s is %s\n  expected (N, FF) with at least one row and one column, FF <= 2^29", who, name,
          out.text().c_str());
  require_tensor(who, name, out, out.type, {N, FF});
  require_tensor(who, "gate_up", gate_up, out.type, {N, 2 * FF});
  return {int(N), int(FF)};
}

}  // namespace

void swiglu_forward(Stream& stream, const Tensor& out, const Tensor& gate_up) {
  const char* who = "swiglu_forward";
  const auto [N, FF] = require_sizes(who, "out", out, gate_up);
  require_apart(who, "out", out, "gate_up", gate_up);  // half of its rows would be overwritten before they are read
  const Work work{stream, who, {writes(out), reads(gate_up)}};
  const dim3 block = block_of(FF);
  const unsigned grid = blocks_for(size_t(N), block.y);
  with_type(who, out.type, [&, N = N, FF = FF](auto number) {
    using T = decltype(number);
    with_vector_width(who, FF, {out.data, gate_up.data}, [&](auto width) {
      launch<swiglu_forward_kernel<T, decltype(width)::value>>(work, grid, block, 0, out.as<T>(), gate_up.as<T>(), N,
                                                               FF);
    });
  });
}

void swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up) {
  const char* who = "swiglu_backward";
  const auto [N, FF] = require_sizes(who, "dout", dout, gate_up);
  require_tensor(who, "dgate_up", dgate_up, dout.type, {N, 2 * FF});
  require_apart(who, "dgate_up", dgate_up, "dout", dout);
  if (dgate_up.data != gate_up.data) require_apart(who, "dgate_up", dgate_up, "gate_up", gate_up);
  const Work work{stream, who, {writes(dgate_up), reads(dout), reads(gate_up)}};
  const dim3 block = block_of(FF);
  const unsigned grid = blocks_for(size_t(N), block.y);
  with_type(who, dout.type, [&, N = N, FF = FF](auto number) {
    using T = decltype(number);
    with_vector_width(who, FF, {dgate_up.data, dout.data, gate_up.data}, [&](auto width) {
      launch<swiglu_backward_kernel<T, decltype(width)::value>>(work, grid, block, 0, dgate_up.as<T>(), dout.as<T>(),
                                                                gate_up.as<T>(), N, FF);
    });
  });
}
