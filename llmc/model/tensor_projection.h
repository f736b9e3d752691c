// The linear layers of a block where tensor parallelism shares them out (tensor_parallel.h): as project() and
// project_backward() of projection.h, of this rank's part of the weight.
//
// Qkv, gate and up gather all tokens' inputs and leave this rank's columns; o and down take these, and scatter sums.
// Backward it is the other way round: those gather the inputs once more, for the weight, and these output gradients.
//
// In FP8 with one scale a tensor what is gathered travels as bytes, by a scale that the ranks agree on: so they are
// those that one rank has. What does not travel keeps its rank's scale (as in TransformerEngine). With other scales it
// is gathered in bf16, and each rank quantizes all of it.
#pragma once

#include "llmc/model/block.h"

// Whether its inputs are gathered; else its output gradients are.
constexpr bool gathers_inputs(Product product) { return product == Product::qkv || product == Product::gate_up; }

template <class T>
void project_in_parts(const BlockContext& context, Product product, T* out, const T* x, const T* weight);
// Before project_backward_in_parts() of a product that gathers its inputs: these set out.
template <class T>
void gather_input_in_parts(const BlockContext& context, Product product, const T* x);
template <class T>
void project_backward_in_parts(const BlockContext& context, Product product, T* dx, float* dweight, const T* dy,
                               const T* weight, const T* x, bool accumulate);

void project_fp8_in_parts(const BlockContext& context, const BlockFp8& f, Product product, bf16* out,
                          const ProjectionOperand<bf16>& x);
void gather_fp8_input_in_parts(const BlockContext& context, const BlockFp8& f, Product product, const bf16* x);
void project_fp8_backward_in_parts(const BlockContext& context, const BlockFp8& f, Product product, bf16* dx,
                                   float* dweight, const ProjectionOperand<bf16>& dy, const bf16* x, bool accumulate);
// This rank's rows of an input that is gathered, as they are kept for backward.
QuantizedTensor quantize_own_input(const BlockContext& context, const BlockFp8& f, Product product,
                                   const ProjectionOperand<bf16>& x);
