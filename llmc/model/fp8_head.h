// The head's products in FP8 (--fp8-head). x (N, C) is the output of the last norm, W (V, C) the head's weight:
//
//   logits = x Wᵀ         x, W e4m3                  with `on`; with `backward` it stays in bf16
//   dx     = dlogits W    dlogits e5m2, W e4m3
//   dW     = dlogitsᵀ x   dlogits e5m2, x e4m3
//
// Each operand has one scale, whatever the blocks' recipe is, and dlogits are e5m2 in each. The scales of x and W
// follow from their largest numbers in the pass. The scale of dlogits is known beforehand, since the classifier bounds
// them. W is quantized once in a pass: that reads and writes 6 bytes for each of its elements, beside products of 6 N
// operations. x and dlogits are quantized a chunk of tokens at a time.
//
// Under tensor parallelism each rank quantizes its part of the vocabulary, with a scale of its own.
#pragma once

#include "llmc/memory/fp8_scratch.h"
#include "llmc/model/pass.h"

struct Fp8HeadSizes {
  int V, ld;  // this rank's columns of the logits, and their row stride
  int C;
  int chunk;         // tokens
  size_t sum_bytes;  // of an element of dx
  bool training;
};

class Fp8Head {
 public:
  // The operands of a chunk take chunk_bytes() of `room`, from `offset` on, where nobody else writes while the head
  // computes. `first_id`: the first number of the head's tensors among those of FP8 (LayerProjections::head_id()).
  Fp8Head(MemoryPlan& plan, const Fp8Settings& settings, const Fp8HeadSizes& sizes, int first_id,
          const PlannedTensor& room, size_t offset);
  static size_t chunk_bytes(const Fp8HeadSizes& sizes);
  // `not_finite` receives the reports of tensors with an infinity or NaN, as in Quantization.
  void prepare(uint32_t* not_finite) { not_finite_ = not_finite; }

  bool computes_forward() const { return settings_.head == Fp8HeadProducts::on; }
  // True if the pass, or its backward, has a product of the head in FP8.
  bool computes_in(const Pass& pass) const { return computes_forward() || pass.training; }
  // Call these two before the others in such a pass: with the weight (V, C), of which the pass has the operands that it
  // needs, and with x (N, C). A pass that goes on with a sequence has the weight of the pass before.
  void quantize_weight(const Pass& pass, const Tensor& weight) const;
  void find_input_amax(const Pass& pass, const Tensor& x) const;
  // logits (count, ld) = x Wᵀ, where x (count, C) are rows of that x. Columns V .. ld-1 become 0.
  void forward(const Pass& pass, const Tensor& logits, const Tensor& x) const;
  // Takes the gradients (count, ld) of a chunk's logits for the other products. Columns V .. ld-1 are 0. Gradients
  // larger than 2 / state->label_count saturate.
  void begin_backward(const Pass& pass, const Tensor& dlogits, const StepState* state) const;
  // dx (count, C) = dlogits W
  void dgrad(const Pass& pass, const Tensor& dx) const;
  // dweight (V, C) = or += dlogitsᵀ x, where x (count, C) are rows of the pass's x.
  void wgrad(const Pass& pass, const Tensor& dweight, const Tensor& x, bool accumulate) const;

 private:
  void find_amax(const Pass& pass, const Tensor& source, const Quantization& q) const;
  Quantization quantization(Role role, const QuantizedTensor& rowwise, const QuantizedTensor& columnwise) const;
  void multiply(const Pass& pass, const char* name, const Tensor& out, const QuantizedTensor& a,
                const QuantizedTensor& b, bool accumulate, bool forward) const;
  // Operands of `count` tokens.
  QuantizedTensor x(int count, bool columnwise) const;
  QuantizedTensor dlogits(int count, bool columnwise) const;
  QuantizedTensor weight(bool columnwise) const;

  const Fp8Settings& settings_;
  const Fp8HeadSizes sizes_;
  const int first_id_;
  PlannedOperand weight_rowwise_, weight_columnwise_;  // absent where no product of the run takes it
  PlannedOperand x_;                                   // in one orientation at a time
  PlannedOperand dlogits_rowwise_, dlogits_columnwise_;
  PlannedTensor padded_;  // of fp8_matmul()
  PlannedTensor amax_;    // (2) of x and of the weight
  PlannedTensor scale_;   // (1) of dlogits
  uint32_t* not_finite_ = nullptr;
};
