// A linear layer of a block, y = x Wᵀ, and its two gradients, dx = dy W and dW = dyᵀ x. A product's operands are
// prepared first (gathered, quantized, saved) and then multiplied.
//
// FP8 (fp8.h). Forward quantizes x rowwise for its own product and columnwise for the weight gradient, and saves only
// the columnwise copy, unless the rows of x are gathered as bytes (see below). Attention's output is the exception:
// attention's backward needs it in bf16, so it is saved in bf16, and backward quantizes it columnwise with the same
// scales. Backward quantizes dy rowwise and columnwise. The weights are already quantized. With rowwise-hp-wgrad, the
// weight gradient takes x and dy in bf16.
//
// Tensor parallelism (tensor_parallel.h). A column-parallel layer gathers the rows of x from all ranks and computes
// this rank's columns of y. Its backward reduce-scatters dx, and gathers x again for the weight gradient. A
// row-parallel layer has its columns of x already. It reduce-scatters y, and gathers the rows of dy.
//
// FP8 with tensor parallelism. If a tensor has one scale, each rank quantizes its own rows with a scale that all ranks
// share, and FP8 bytes are gathered. They are the bytes that a single rank would have. A column-parallel layer then
// saves this rank's own rows, rowwise; backward gathers them again and transposes them for the weight gradient. With
// other scales, rows are gathered in bf16, and each rank quantizes all of them. With current scaling, each rank
// computes its own scale for a tensor that is not gathered. With delayed scaling, all ranks use one scale.
#pragma once

#include "llmc/memory/fp8_weights.h"
#include "llmc/model/pass.h"

// A weight, and where its gradient goes: fp32, with the same shape; absent in forward.
struct Parameter {
  Tensor value, grad = {};
};

// The matrix that a product takes besides the weight: x in forward, dy in backward. If `source` is a Tensor, the matrix
// lies in memory; otherwise the kernel that quantizes the matrix computes it.
struct ProductSource {
  QuantizeSource source;
  const float* amax = nullptr;  // wanted_amax(), if the kernel that produced the matrix has written it; else null
};

enum class ProductKind { forward, dgrad, wgrad };

// A product, of a layer that runs in FP8, that was enqueued; for checks that examine each. A wgrad of rowwise-hp-wgrad
// has bf16 operands.
struct ObservedProduct {
  const LayerProjection& projection;
  ProductKind kind;
  QuantizedTensor a, b;                       // empty where the operands are bf16
  Tensor high_precision_a, high_precision_b;  // absent where the operands are FP8
  Tensor out;                                 // bf16; fp32 for wgrad
  bool accumulated;
  int N;
  const QuantizeSource* source;  // of x in forward, of dy in dgrad and wgrad
};

// Returns the address to which the producing kernel of a tensor writes its largest absolute value, so that quantization
// needs no extra pass (quantize.h). Null: neither the product nor the recipe needs it.
float* wanted_amax(const Fp8Settings& settings, const Fp8ScaleRefs& scales, const LayerProjection& projection,
                   Role role);

class Linear {
 public:
  // `weight` (OC, IC) may be absent if the product is in FP8; `fp8` is empty if it is not. `saved` is memory for x in
  // FP8, which the weight gradient needs; empty if x is not saved in FP8. Forward writes it or, if x is `recomputed`,
  // only a pass that is recomputing does.
  Linear(const LayerProjection& projection, const Parameter& weight, const QuantizedWeight& fp8, OperandMemory saved,
         bool recomputed)
      : projection_(projection), weight_(weight), fp8_(fp8), saved_(saved), recomputed_(recomputed) {}

  // wanted_amax() of this layer's x or dy. It is also null for an x that is recomputed, since its amax is known.
  float* wanted_amax(const Pass& pass, Role role) const;
  // True if the weight gradient takes its operands in the model's type. Then dy must lie in memory; otherwise it may be
  // quantized as it is computed.
  bool wgrad_in_model_type(const Pass& pass) const { return !quantized(pass) || pass.fp8->settings.bf16_wgrad(); }

  // out (N, OC) = x Wᵀ. A column-parallel layer takes R rows of x instead of N, a row-parallel one writes R rows of
  // out; so do their gradients.
  void forward(const Pass& pass, const Tensor& out, const ProductSource& x) const;
  // Saves x as forward would, without the product. The pass must be recomputing.
  void save_input(const Pass& pass, const ProductSource& x) const;
  // In a column-parallel layer, starts the all-gather of the input that backward needs. `x` is this rank's rows.
  // backward() waits for it and is the next call that uses the gather buffer.
  void prefetch_input(const Pass& pass, const Tensor& x) const;
  // dx (N, IC) = dy W;  weight.grad (OC, IC) = or += dyᵀ x. `x` is forward's input, if that was kept.
  void backward(const Pass& pass, const Tensor& dx, const ProductSource& dy, const Tensor& x) const;

 private:
  // An operand of a product, in the model's type or in FP8.
  struct Operand {
    Tensor high_precision;
    QuantizedTensor fp8;
    Operand() = default;
    Operand(const Tensor& tensor) : high_precision(tensor) {}
    Operand(const QuantizedTensor& tensor) : fp8(tensor) {}
    explicit operator bool() const { return high_precision || fp8; }
    // True if some of its rows are an operand, too. The scale_inv of an operand with several scales cannot be cut.
    bool can_be_cut() const { return high_precision || fp8.scaling == Scaling::tensor; }
    Operand rows(int first, int count) const;
  };
  // x or dy: rowwise for forward or dgrad, columnwise for wgrad.
  struct Operands {
    Operand rowwise, columnwise;
  };
  struct Memory {
    OperandMemory rowwise = {}, columnwise = {};  // null data: this orientation is not wanted
  };

  bool quantized(const Pass& pass) const { return pass.fp8 && pass.fp8->settings.quantizes(projection_); }
  // True if this rank has R rows of x, or of dy, and gathers all N. A layer that gathers x scatters dx, and one that
  // gathers dy scatters y.
  bool gathers(const Pass& pass, Role role) const {
    return pass.tensor_parallel && (projection_.row().parallel == Parallel::column) == (role == Role::input);
  }
  bool gathers_bytes(const Pass& pass, Role role) const {
    return gathers(pass, role) && quantized(pass) && pass.fp8->settings.per_tensor_scale();
  }
  int width(Role role) const { return role == Role::input ? projection_.IC : projection_.OC; }

  // Preparing operands.
  Operands prepare(const Pass& pass, Role role, const ProductSource& x) const;
  Operands prepare_local(const Pass& pass, Role role, const ProductSource& x) const;
  Operand input_for_wgrad(const Pass& pass, const Tensor& x) const;
  Operand local_input_for_wgrad(const Pass& pass, const Tensor& x) const;
  Operand weight_for(const Pass& pass, ProductKind kind) const;
  OperandMemory memory_for_input(const Pass& pass) const {
    return recomputed_ && !pass.recomputing ? OperandMemory{} : saved_;
  }

  Operands quantize(const Pass& pass, Role role, const ProductSource& x, const Memory& memory) const;
  Operands quantize_again(const Pass& pass, const QuantizeSource& x, const Memory& memory) const;
  Quantization quantization(const Pass& pass, Role role, int rows, const Memory& memory) const;
  QuantizedTensor in_fp8(const Pass& pass, Role role, bool columnwise, int rows, OperandMemory memory) const;
  Operand transposed(const Pass& pass, Role role, const QuantizedTensor& rowwise, OperandMemory memory) const;

  // Multiplying.
  void multiply_by_weight(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a) const;
  void multiply(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a, const Operand& b) const;
  void observe(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a, const Operand& b,
               const ProductSource& x) const;

  // Tensor parallelism.
  Tensor gather_rows(const Pass& pass, Role role, const Tensor& own) const;
  QuantizedTensor gather_bytes(const Pass& pass, const QuantizedTensor& own) const;
  void multiply_gathered(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a) const;
  void multiply_scattered(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a) const;

  const LayerProjection& projection_;
  Parameter weight_;
  QuantizedWeight fp8_;
  OperandMemory saved_;
  bool recomputed_;
};
