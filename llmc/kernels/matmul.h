// The three products of a linear layer y = x Wᵀ, with W[OC,IC] as Hugging Face stores it, rows contiguous:
//
//   forward   out[N,OC]     =  in[N,IC] · Wᵀ
//   dgrad     din[N,IC]     =  dout[N,OC] · W
//   wgrad     dweight[OC,IC] = or += doutᵀ · in
//
// The operands are both fp32 or both bf16. out and din have their type or are fp32; dweight is fp32. Sums are fp32
// and are rounded once, to the output's type. Deterministic. On a GPU cuBLASLt computes a product, with an algorithm
// that is chosen once per shape, from the shape alone (operands are 256-byte aligned, so that the arena's offsets
// cannot change the choice). On the CPU OpenBLAS computes parts that depend on the shape alone, not on the number
// of threads. Timing (tuning.h) may find another choice. It adds in another order, so its bits differ from the
// default's, but they are reproducible too.
//
// FP8 operands have K along the columns of both, so that all three products have one form, and one function.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "llmc/device/device.h"
#include "llmc/device/tensor.h"
#include "llmc/kernels/quantized_tensor.h"

class Tuning;
struct TunedFor;

class Matmul {
 public:
  struct Options {
    bool tf32 = false;  // compute fp32 products on tensor cores, with 10 bits of mantissa
  };
  static constexpr size_t kAlignment = 256;
  static constexpr size_t kWorkspaceBytes = size_t(32) << 20;  // on a GPU

  // `workspace` is device memory of workspace_bytes() for the products of this stream. It must live as long as this
  // object. On a GPU it must be 256-byte aligned; throws otherwise.
  Matmul(Stream& stream, std::byte* workspace, Options options);
  ~Matmul();
  Matmul(Matmul&&) noexcept;

  static size_t workspace_bytes(const DeviceInfo& device);
  // Returns what computes the products, for the banner: "cuBLASLt 13.0.2", "OpenBLAS 0.3.21", or that there are only
  // plain loops.
  static std::string description();

  // From now on, products of the tuning's shapes use its choices, and all others use the default. The first product of
  // a shape throws if the library does not have the choice; see Tuning::require_fits.
  void use(const Tuning& tuning);
  // Returns the number of shapes of the tuning in use that no product has had yet.
  size_t unused_choices() const;
  // Between these two calls, the first product of each shape is computed repeatedly by each candidate: at least 16, if
  // the library has so many. It is then computed by the fastest, as are all that follow. `wait` returns when the device
  // has finished everything that the host enqueued. Repeating a product that adds to its output spoils that output, so
  // results that are computed meanwhile must not be used.
  void begin_timing(std::function<void()> wait);
  Tuning end_timing();
  // Returns what a tuning's choices depend on besides the shapes.
  static TunedFor tuned_for(const DeviceInfo& device);

  // The rows of out and dout may lie further apart than OC elements, as columns of wider rows. All other tensors are
  // contiguous. On a GPU all are 256-byte aligned. Throws on other types, shapes or strides.
  void forward(const Tensor& out, const Tensor& in, const Tensor& weight);
  void dgrad(const Tensor& din, const Tensor& dout, const Tensor& weight);
  void wgrad(const Tensor& dweight, const Tensor& dout, const Tensor& in, bool accumulate);

  // out (M, N) = alpha op(a) op(b) + beta addend, where op(a) is (M, K) and op(b) is (K, N): the matrix itself, or its
  // transpose. The addend has out's shape and type. It may be `out`, or absent if beta is 0. alpha and beta are no part
  // of a product's shape. The types are those of forward(); throws on others, and on shapes that do not fit.
  struct Factor {
    const Tensor& matrix;  // (rows, columns)
    bool transposed = false;
    int64_t rows() const { return transposed ? matrix.columns() : matrix.rows(); }
    int64_t columns() const { return transposed ? matrix.rows() : matrix.columns(); }
  };
  void gemm(const Tensor& out, const Factor& a, const Factor& b, float alpha = 1, float beta = 0,
            const Tensor& addend = {});

  // Multiplies FP8 operands: out (a.rows, b.rows) = or += a bᵀ with the scale_inv of both, rounded once. out is fp32 or
  // bf16, and contiguous; `accumulate` is for fp32 only. b.rows is a multiple of b.padding(), and a.rows of 128 if `a`
  // has blocks of 128; throws otherwise. fp8_matmul.h takes any size. `fast`: a GPU may keep the sum over K in its
  // tensor cores, with about 14 bits; the CPU backend always uses fp32.
  void multiply(const char* name, const Tensor& out, const QuantizedTensor& a, const QuantizedTensor& b,
                bool accumulate, bool fast);
  // Returns why this device cannot multiply operands of such a kind in this way; "" if it can. In the CPU backend it
  // returns what is known of a GPU that is modelled.
  std::string unsupported_reason(const QuantizedTensor& a, const QuantizedTensor& b, DType result = DType::bf16,
                                 bool accumulate = false, bool fast = false);

  struct State;

 private:
  std::unique_ptr<State> state_;
};
