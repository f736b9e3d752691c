// How the operands of a block's FP8 products are quantized: what projection.cpp and tensor_projection.cpp share.
#pragma once

#include "llmc/model/block.h"

// Null where the product is in T.
inline const BlockFp8* fp8_of(const BlockContext& context, Product product) {
  return context.fp8 && context.fp8->quantizes(product) ? context.fp8 : nullptr;
}

inline QuantizedTensor with_memory(QuantizedTensor tensor, const OperandMemory& memory) {
  tensor.data = memory.data;
  tensor.factors = memory.factors;
  return tensor;
}

template <class T>
QuantizeSource source_of(const ProjectionOperand<T>& x) {
  return x.wide ? PlainSource{quantizable(x.wide)} : x.source;
}

inline void observe(const BlockFp8& f, const ObservedProduct& product) {
  if (f.observer) (*f.observer)(product);
}

// x (rows, columns) in the role, by rows into scratch and by columns into `kept`, if that is there. `again`: its traces
// are left already.
Quantization quantization(const BlockFp8& f, Product product, Role role, int rows, int columns,
                          const OperandMemory& kept, bool again);

// `has_amax`: the largest number is known, of this rank's rows. `travels`: the tensor-parallel ranks gather the bytes,
// and share their scale.
void quantize_operand(const BlockContext& context, const BlockFp8& f, int number, const QuantizeSource& source,
                      int rows, int columns, const Quantization& q, bool has_amax, bool travels = false);

// The input by columns alone, whose amax forward has found.
QuantizedTensor quantize_by_columns(const BlockContext& context, const BlockFp8& f, Product product,
                                    const QuantizeSource& source, int N, int IC, const OperandMemory& memory);

// Forward's input for the weight gradient: as it was kept, or quantized from `x`.
QuantizedTensor input_by_columns(const BlockContext& context, const BlockFp8& f, Product product, const bf16* x, int N,
                                 int IC);
