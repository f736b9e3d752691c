// The three products of a linear layer y = x Wᵀ, with W[OC,IC] as Hugging Face stores it, rows contiguous:
//
//   forward   out[N,OC]     =  in[N,IC] · Wᵀ
//   dgrad     din[N,IC]     =  dout[N,OC] · W
//   wgrad     dweight[OC,IC] = or += doutᵀ · in, in fp32 whatever T is
//
// T is float or bf16; sums are fp32 and rounded once, to the output's type. Deterministic: on a GPU cuBLASLt with an
// algorithm that is chosen once a shape, from the shape alone (operands are 256-byte aligned, so that the arena's
// offsets cannot change the choice); on the CPU OpenBLAS on pieces that depend on the shape alone, not on the number of
// threads. Another choice, which timing finds (tuning.h), adds in another order: it has bits of its own, as fixed as
// the default's.
//
// Operands in FP8 have K along the columns of both, so that all three are one form, and one function.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "llmc/device/device.h"
#include "llmc/kernels/quantized_tensor.h"

class Tuning;
struct TunedFor;

class Matmul {
 public:
  struct Options {
    bool tf32 = false;  // fp32 products on tensor cores with 10 bits of mantissa
  };
  static constexpr size_t kAlignment = 256;
  static constexpr size_t kWorkspaceBytes = size_t(32) << 20;  // on a GPU

  // `workspace` is device memory of workspace_bytes() for the products of this stream, alive as long as this object.
  Matmul(Stream& stream, std::byte* workspace, Options options);
  ~Matmul();
  Matmul(Matmul&&) noexcept;

  static size_t workspace_bytes(const DeviceInfo& device);
  // What computes the products, for the banner: "cuBLASLt 13.0", "OpenBLAS 0.3.21", or that there is nothing but loops.
  static std::string description();

  // From now on products of the tuning's shapes are computed by its choices, all others as by default. Throws, at the
  // first product of such a shape, on a choice that the library does not have; see Tuning::require_fits.
  void use(const Tuning& tuning);
  // Shapes of the tuning in use that no product had yet.
  size_t unused_choices() const;
  // Between these two the first product of each shape is computed over and over, by each candidate: at least 16 where
  // the library has so many; then by the fastest, as all that follow. `wait` returns when the host has waited for all
  // that it enqueued on the device. A product that adds to its output spoils it: nothing that is computed meanwhile may
  // count.
  void begin_timing(std::function<void()> wait);
  Tuning end_timing();
  // What a tuning's choices depend on, but for the shapes.
  static TunedFor tuned_for(const DeviceInfo& device);

  // Out is T, or float of bf16 operands. `out_stride`, `dout_stride`: elements from row to row of out and dout where
  // they are wider than OC; 0 = OC.
  template <class T, class Out>
  void forward(Out* out, const T* in, const T* weight, int N, int OC, int IC, int out_stride = 0);
  template <class T, class Out>
  void dgrad(Out* din, const T* dout, const T* weight, int N, int OC, int IC, int dout_stride = 0);
  template <class T>
  void wgrad(float* dweight, const T* dout, const T* in, int N, int OC, int IC, bool accumulate, int dout_stride = 0);

  // A product of FP8 operands: out (a.rows, b.rows) = or += a bᵀ with the factors of both, T float or bf16, rounded
  // once. Rows of `out` are a multiple of what b pads to, and those of 128-blocks' operands too: see
  // quantized_product.h. `fast`: a GPU may keep the sum over K in its tensor cores, with about 14 bits; the CPU world
  // always has fp32.
  template <class T>
  void multiply(const char* name, T* out, const QuantizedTensor& a, const QuantizedTensor& b, bool accumulate,
                bool fast);
  // Why this device cannot multiply operands of such a kind so; "" if it can. In the CPU world what is known of a GPU
  // that is modelled.
  std::string refusal(const QuantizedTensor& a, const QuantizedTensor& b, DType result = DType::bf16,
                      bool accumulate = false, bool fast = false);

  struct State;

 private:
  std::unique_ptr<State> state_;
};
