// The linear layers of a block: y = x Wᵀ and its two gradients, in T or, by a recipe, in FP8 (fp8.h).
//
// Forward quantizes x by rows for its own product, and by columns for the weight gradient. Only the second copy is
// kept. Attention's output is the exception: it stays in memory for attention's own backward, and backward quantizes it
// by columns with the same scales. Backward quantizes dy in the same two ways. Weights are already quantized. (With
// rowwise-hp-wgrad, x and dy of the weight gradient stay in bf16.)
#pragma once

#include <functional>

#include "llmc/kernels/matmul.h"
#include "llmc/kernels/quantize.h"
#include "llmc/model/fp8.h"

// Memory for an operand, large enough for the largest operand that uses it.
struct OperandMemory {
  uint8_t* data = nullptr;
  float* factors = nullptr;
};

struct QuantizedWeight {
  QuantizedTensor by_rows, by_columns;  // W (OC, IC), Wᵀ (IC, OC)
};

// Arrays with one entry for each tensor that is quantized, indexed by fp8_tensor_id().
struct Fp8ScaleRefs {
  float* amax = nullptr;                     // of the running pass; cleared when it begins
  const float* scale = nullptr;              // delayed: the scales of the step; null: they follow from amax
  bool may_lack_scale = false;               // some scale may be 0: that tensor's scale follows from amax
  float* seen = nullptr;                     // delayed: amax over the step so far; null: not recorded
  QuantizeStatistics* statistics = nullptr;  // null: not counted
  bool needs_amax() const { return !scale || may_lack_scale; }
};

struct ObservedProduct;

// The state that a block's FP8 products need in addition to what products in T need.
struct BlockFp8 {
  const Fp8Settings* settings = nullptr;
  int layer = 0;
  QuantizedWeight weights[kProducts];                   // empty where the product is in T
  OperandMemory saved_inputs[kProducts];                // x by columns; empty if nothing is saved
  OperandMemory by_rows, by_columns, input_by_columns;  // scratch
  Tensor row_amax, column_amax;                         // scratch
  std::byte* padded = nullptr;                          // scratch of fp8_matmul()
  Fp8ScaleRefs words;
  // True while backward recomputes a forward. Every amax is known already, and history and statistics have been
  // updated, so neither is done again.
  bool again = false;
  uint32_t* not_finite = nullptr;  // see nonfinite_code()
  // Takes the maximum of the tensor's amax over the ranks. Ranks that share delayed scales need this while a scale is
  // still missing. Null: not needed.
  const std::function<void(int number)>* share_amax = nullptr;
  const std::function<void(const ObservedProduct&)>* observer = nullptr;

  bool quantizes(Product product) const { return settings->quantizes(layer, product); }
};

// A product that was enqueued; for checks that examine every product.
struct ObservedProduct {
  enum class Kind { forward, dgrad, wgrad };
  int layer;
  Product product;
  Kind kind;
  QuantizedTensor a, b;  // empty where the operands are bf16
  Tensor wide_a, wide_b;
  const void* out;  // bf16; fp32 for wgrad
  bool accumulated;
  int N;
  const QuantizeSource* source;  // of x in forward, of dy in dgrad and wgrad
};

// An operand x or dy. `wide` points to it in memory; if it is null, the operand is computed from `source` by the kernel
// that quantizes it.
template <class T>
struct LinearInput {
  const T* wide;
  QuantizeSource source;
  // True if the kernel that produced this tensor has already written its amax, wherever wanted_amax() asks for it.
  bool left_amax = true;
};

struct BlockContext;

// True if the product's output gradient must lie in memory in T; otherwise it is quantized as it is computed.
bool wants_wide(const BlockContext& context, Product product);
// Returns the address to which the producing kernel of an input or output gradient writes its largest absolute value,
// so that quantization needs no extra pass (quantize.h). Null: neither the product nor the recipe needs it.
// input_amax() is also null while an input is recomputed, since its amax is known.
float* wanted_amax(const Fp8Settings& settings, const Fp8ScaleRefs& words, int layer, Product product, Role role);
float* input_amax(const BlockContext& context, Product product);
// `layer` may be the context's or the one before it.
float* output_gradient_amax(const BlockContext& context, int layer, Product product);

// Quantizes the input by columns only, if it is saved in FP8. block_recompute() calls this for a product that it does
// not compute again.
template <class T>
void quantize_input(const BlockContext& context, Product product, const LinearInput<T>& x);
// out (N, OC) = x Wᵀ. Under tensor parallelism the inputs of qkv and gate_up and the outputs of o and down have this
// rank's R rows instead of N; so do their gradients.
template <class T>
void project(const BlockContext& context, Product product, T* out, const LinearInput<T>& x, const T* weight);
// Under tensor parallelism, starts the all-gather of the input that backward needs, of which `x` is this rank's part.
// project_backward() waits for it and is the next call that uses the gather buffer.
template <class T>
void gather_input(const BlockContext& context, Product product, const T* x);
// dx (N, IC) = dy W;  dweight (OC, IC) = or += dyᵀ x. `x` is forward's input, if that was kept in T.
template <class T>
void project_backward(const BlockContext& context, Product product, T* dx, float* dweight, const LinearInput<T>& dy,
                      const T* weight, const T* x, bool accumulate);
