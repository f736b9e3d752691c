// The linear layers of a block under tensor parallelism (tensor_parallel.h). The functions do what project() and
// project_backward() of projection.h do, with this rank's part of the weight.
//
// In forward, qkv, gate and up gather the inputs of all tokens and compute this rank's columns of the output. o and
// down take these columns as input and scatter sums. In backward, qkv, gate and up scatter the sums of their input
// gradients, and gather their inputs again for the weight gradient. o and down gather their output gradients.
//
// In FP8 with one scale per tensor, gathered rows travel as bytes. The ranks agree on their scale, so the bytes are
// those that a single rank would have. A tensor that is not gathered keeps its rank's own scale, if that
// follows from the running pass (as in TransformerEngine). With other scales, rows are gathered in bf16 and each rank
// quantizes all of them.
#pragma once

#include "llmc/model/block.h"

// True if the product's inputs are gathered; otherwise its output gradients are.
constexpr bool gathers_inputs(Product product) { return product == Product::qkv || product == Product::gate_up; }

template <class T>
void project_in_parts(const BlockContext& context, Product product, T* out, const T* x, const T* weight);
// Starts the gather of the input. Call it before project_backward_in_parts() of a product that gathers its inputs.
template <class T>
void gather_input_in_parts(const BlockContext& context, Product product, const T* x);
template <class T>
void project_backward_in_parts(const BlockContext& context, Product product, T* dx, float* dweight, const T* dy,
                               const T* weight, const T* x, bool accumulate);

void project_fp8_in_parts(const BlockContext& context, const BlockFp8& f, Product product, bf16* out,
                          const LinearInput<bf16>& x);
void gather_fp8_input_in_parts(const BlockContext& context, const BlockFp8& f, Product product, const bf16* x);
void project_fp8_backward_in_parts(const BlockContext& context, const BlockFp8& f, Product product, bf16* dx,
                                   float* dweight, const LinearInput<bf16>& dy, const bf16* x, bool accumulate);
// Quantizes this rank's rows of an input that is gathered. The result is kept for backward.
QuantizedTensor quantize_own_input(const BlockContext& context, const BlockFp8& f, Product product,
                                   const LinearInput<bf16>& x);
