// The linear layers of a block: y = x Wᵀ and its two gradients, in T or, by a recipe, in FP8 (fp8.h).
//
// Forward quantizes x by rows, for its product, and by columns, for the weight gradient: that is all that is kept of
// it, but of attention's output, which lies in memory for attention's own backward: by columns it is quantized then, by
// the same scales. Backward quantizes dy in the same two ways. Weights come quantized.
#pragma once

#include <functional>

#include "llmc/kernels/matmul.h"
#include "llmc/kernels/quantize.h"
#include "llmc/model/fp8.h"

// Memory of an operand, as large as the largest that it is for.
struct OperandMemory {
  uint8_t* data = nullptr;
  float* factors = nullptr;
};

struct QuantizedWeight {
  QuantizedTensor by_rows, by_columns;  // W (OC, IC), Wᵀ (IC, OC)
};

// Of each tensor that is quantized, by fp8_number().
struct ScaleWords {
  float* amax = nullptr;                     // of the running pass; cleared at its begin
  const float* scale = nullptr;              // delayed: the step's; null: it follows from amax
  bool may_lack_scale = false;               // some scale may be 0: it follows from amax, too
  float* seen = nullptr;                     // delayed: largest of the step so far; null: not recorded
  QuantizeStatistics* statistics = nullptr;  // null: not counted
  bool needs_amax() const { return !scale || may_lack_scale; }
};

struct ObservedProduct;

// What a block's FP8 products need, beyond what those in T do.
struct BlockFp8 {
  const Fp8Settings* settings = nullptr;
  int layer = 0;
  QuantizedWeight weights[kProducts];                   // empty where the product is in T
  OperandMemory saved_inputs[kProducts];                // x by columns; none without a backward pass
  OperandMemory by_rows, by_columns, input_by_columns;  // scratch
  float *row_amax = nullptr, *column_amax = nullptr;    // scratch
  std::byte* padded = nullptr;                          // scratch of quantized_product()
  ScaleWords words;
  // What is quantized was so before in this pass: its largest numbers are known, and its traces left.
  bool again = false;
  uint32_t* not_finite = nullptr;  // see not_finite_word()
  // The ranks agree on the tensor's amax, where they share its scale and have no earlier one; null: they need not.
  const std::function<void(int number)>* agree = nullptr;
  const std::function<void(const ObservedProduct&)>* observer = nullptr;

  bool quantizes(Product product) const { return settings->quantizes(layer, product); }
};

// A product that was enqueued, for checks that look at all of them.
struct ObservedProduct {
  enum class Kind { forward, dgrad, wgrad };
  int layer;
  Product product;
  Kind kind;
  QuantizedTensor a, b;  // empty where the operands are bf16
  const bf16 *wide_a = nullptr, *wide_b = nullptr;
  const void* out;  // bf16, or fp32 of wgrad
  bool accumulated;
  int N;
  const QuantizeSource* source;  // of x in forward, of dy in dgrad and wgrad
};

// x, or dy: as it lies in memory, or, null there, as those compute it who quantize it.
template <class T>
struct ProjectionOperand {
  const T* wide;
  QuantizeSource source;
  bool left_amax =
      true;  // its largest number was left by who computed it, or what it follows from, where it was wanted
};

inline const bf16* quantizable(const bf16* x) { return x; }
inline const bf16* quantizable(const float*) { return nullptr; }  // fp32 is never quantized

struct BlockContext;

// Whether the product's operand has to lie in memory in T: else it is quantized as it is computed.
bool wants_wide(const BlockContext& context, Product product);
// Where the kernel that computes a product's input or output gradient may leave its largest number, so that nobody
// looks for it (quantize.h); null: nobody asks. Of an input that is computed again it is known.
float* wanted_amax(const Fp8Settings& settings, const ScaleWords& words, int layer, Product product, Role role);
float* input_amax(const BlockContext& context, Product product);
// `layer` may be the one before the context's.
float* output_gradient_amax(const BlockContext& context, int layer, Product product);

// The input by columns alone, where it is to be kept and in FP8: of a product that is not computed again.
template <class T>
void quantize_input(const BlockContext& context, Product product, const ProjectionOperand<T>& x);
// out (N, OC) = x Wᵀ.
template <class T>
void project(const BlockContext& context, Product product, T* out, const ProjectionOperand<T>& x, const T* weight);
// Where tensor parallelism has a part of `x` only, the input of the product: all of it sets out, and must be there no
// sooner than for project_backward(), the next that gathers.
template <class T>
void gather_input(const BlockContext& context, Product product, const T* x);
// dx (N, IC) = dy W;  dweight (OC, IC) = or += dyᵀ x. `x`: forward's input where that is wide.
template <class T>
void project_backward(const BlockContext& context, Product product, T* dx, float* dweight,
                      const ProjectionOperand<T>& dy, const T* weight, const T* x, bool accumulate);
