// A linear layer of a block, y = x Wᵀ, and its two gradients. Two properties of it compose: its format (the model's
// type or FP8, fp8.h) and its part in tensor parallelism (tensor_parallel.h).
//
// FP8. Forward quantizes x by rows for its own product, and by columns for the weight gradient. Only the second copy is
// kept. Attention's output is the exception: it stays in memory for attention's own backward, and backward quantizes it
// by columns with the same scales. Backward quantizes dy in the same two ways. Weights are already quantized. (With
// rowwise-hp-wgrad, x and dy of the weight gradient stay in bf16.)
//
// Tensor parallelism. A column-parallel layer gathers the inputs of all tokens and computes this rank's columns of the
// output. A row-parallel layer takes these columns as its input and scatters sums. In backward, the first scatters the
// sums of its input gradients, and gathers its inputs again for the weight gradient. The second gathers its output
// gradients.
//
// Both. With one scale per tensor, gathered rows travel as bytes. The ranks agree on their scale, so the bytes are
// those that a single rank would have. A tensor that is not gathered keeps its rank's own scale, if that follows from
// the running pass (as in TransformerEngine). With other scales, rows are gathered in bf16 and each rank quantizes all
// of them.
#pragma once

#include "llmc/model/pass.h"

struct QuantizedWeight {
  QuantizedTensor rowwise, columnwise;  // W (OC, IC), Wᵀ (IC, OC)
};

// A weight, and where its gradient goes: fp32, with the same shape; absent in forward.
struct Parameter {
  Tensor value, grad = {};
};

// The input x of a forward, or the gradient dy of an output. If `x` is a Tensor, it lies in memory; otherwise the
// kernel that quantizes it computes it.
struct LinearInput {
  QuantizeSource x;
  const float* amax = nullptr;  // wanted_amax(), if the kernel that produced x has raised that word; else null
};

// Shoeybi et al. 2019. column: this rank has some rows of the weight. row: it has some columns.
enum class Parallel { none, column, row };

enum class ProductKind { forward, dgrad, wgrad };

// A product, of a layer that runs in FP8, that was enqueued; for checks that examine each. A wgrad of rowwise-hp-wgrad
// has bf16 operands.
struct ObservedProduct {
  int layer;
  Projection projection;
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
float* wanted_amax(const Fp8Settings& settings, const Fp8ScaleRefs& scales, int layer, Projection projection,
                   Role role);

class Linear {
 public:
  // `weight` (OC, IC) may be absent if the product is in FP8; `fp8` is empty if it is not. `saved` is memory for x as
  // the weight gradient takes it in FP8, empty if nothing is saved. `saved_late`: recomputation fills it, not forward.
  Linear(Projection projection, int layer, const Parameter& weight, const QuantizedWeight& fp8, OperandMemory saved,
         bool saved_late)
      : projection_(projection), layer_(layer), weight_(weight), fp8_(fp8), saved_(saved), saved_late_(saved_late) {}

  // wanted_amax() of this layer's x or dy. It is also null for an x that is recomputed, since its amax is known.
  float* wanted_amax(const Pass& pass, Role role) const;
  // True if the weight gradient takes its operands in the model's type. Then dy must lie in memory; otherwise it may be
  // quantized as it is computed.
  bool wgrad_in_model_type(const Pass& pass) const { return !quantized(pass) || pass.fp8->settings.bf16_wgrad(); }

  // out (N, OC) = x Wᵀ. A column-parallel layer takes R rows of x instead of N, a row-parallel one writes R rows of
  // out; so do their gradients.
  void forward(const Pass& pass, const Tensor& out, const LinearInput& x) const;
  // Saves x as forward would, without the product.
  void save_input(const Pass& pass, const LinearInput& x) const;
  // Under tensor parallelism, starts the all-gather of the input that backward needs, of which `x` is this rank's part.
  // backward() waits for it and is the next call that uses the gather buffer.
  void prefetch_input(const Pass& pass, const Tensor& x) const;
  // dx (N, IC) = dy W;  weight.grad (OC, IC) = or += dyᵀ x. `x` is forward's input, if that was kept.
  void backward(const Pass& pass, const Tensor& dx, const LinearInput& dy, const Tensor& x) const;

 private:
  // An operand of a product, in the model's type or in FP8.
  struct Operand {
    Tensor high_precision;
    QuantizedTensor fp8;
    bool can_be_cut() const { return high_precision || fp8.scaling == Scaling::tensor; }  // its rows are operands, too
    Operand rows(int first, int count) const;
  };
  struct Operands {
    Operand rowwise, columnwise;  // of the same numbers: for forward or dgrad, and for wgrad
  };

  bool quantized(const Pass& pass) const { return pass.fp8 && pass.fp8->settings.quantizes(layer_, projection_); }
  bool shares_one_scale(const Pass& pass) const { return quantized(pass) && pass.fp8->settings.per_tensor_scale(); }
  Parallel parallel(const Pass& pass) const {
    return !pass.tensor_parallel ? Parallel::none : gathers_inputs(projection_) ? Parallel::column : Parallel::row;
  }
  int width(const Pass& pass, Role role) const;
  Operand weight_for(const Pass& pass, ProductKind kind) const;

  Operands quantize(const Pass& pass, Role role, const LinearInput& x, OperandMemory rowwise, OperandMemory columnwise,
                    bool travels = false) const;
  Operands local(const Pass& pass, Role role, const LinearInput& x) const;
  Operands gathered(const Pass& pass, Role role, const LinearInput& x) const;
  QuantizedTensor gather_bytes(const Pass& pass, const QuantizedTensor& own) const;
  Operand transposed(const Pass& pass, Role role, const QuantizedTensor& all, OperandMemory memory) const;
  Operand input_for_wgrad(const Pass& pass, const Tensor& x) const;

  void multiply(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a) const;
  void projection_of(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a, const Operand& b) const;
  void observe(const Pass& pass, ProductKind kind, const Tensor& out, const Operand& a, const Operand& b,
               const LinearInput& x) const;

  Projection projection_;
  int layer_;
  Parameter weight_;
  QuantizedWeight fp8_;
  OperandMemory saved_;
  bool saved_late_;
};
