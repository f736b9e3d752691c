// How the operands of a block's FP8 products are quantized. projection.cpp and tensor_projection.cpp share this.
#pragma once

#include "llmc/model/block.h"

// Returns null if the product is in T.
inline const BlockFp8* fp8_of(const BlockContext& context, Product product) {
  return context.fp8 && context.fp8->quantizes(product) ? context.fp8 : nullptr;
}

inline QuantizedTensor with_memory(QuantizedTensor tensor, const OperandMemory& memory) {
  tensor.data = memory.data;
  tensor.factors = memory.factors;
  return tensor;
}

// Returns the source of an operand (rows, columns).
template <class T>
QuantizeSource source_of(const LinearInput<T>& x, int rows, int columns) {
  return x.wide ? Tensor(x.wide, {rows, columns}) : x.source;
}

inline void observe(const BlockFp8& f, const ObservedProduct& product) {
  if (f.observer) (*f.observer)(product);
}

// Describes how to quantize x (rows, columns) in this role: by rows into scratch, and by columns into `kept` if that
// has memory. `again`: history and statistics have been updated already.
Quantization quantization(const BlockFp8& f, Product product, Role role, int rows, int columns,
                          const OperandMemory& kept, bool again);

// `has_amax`: the amax of this rank's rows is known. `travels`: the tensor-parallel ranks gather the bytes, so they
// take the maximum of their amaxes and share the scale.
void quantize_operand(const BlockContext& context, const BlockFp8& f, int number, const QuantizeSource& source,
                      const Quantization& q, bool has_amax, bool travels = false);

// Quantizes the input by columns only. If its tensor has one scale, forward has found the amax.
QuantizedTensor quantize_by_columns(const BlockContext& context, const BlockFp8& f, Product product,
                                    const QuantizeSource& source, const OperandMemory& memory);

// Returns forward's input for the weight gradient: as it was saved, or quantized from `x` (N, IC).
QuantizedTensor input_by_columns(const BlockContext& context, const BlockFp8& f, Product product, const Tensor& x);
