// Products of FP8 operands of any size: out (a.rows, b.rows) = or += a bᵀ, contiguous rows. Operands are padded
// (quantized_tensor.h), and a GPU's products need padded outputs too. If the padded output is larger than `out`, the
// product goes to `padded` first and is copied from there to `out` without the padding. If `b` has 128x128 blocks, this
// is done 2048 columns at a time. Deterministic.
#pragma once

#include "llmc/kernels/matmul.h"

// Returns the bytes that `padded` needs, 0 if the sizes need none. `element_bytes`: bytes of one element of `out`.
size_t fp8_matmul_scratch(const QuantizedTensor& a, const QuantizedTensor& b, size_t element_bytes);
// Returns the most bytes that any number of rows from 1 to a.rows needs. With blocks of 128, a.rows may need no padding
// itself while fewer rows do.
size_t fp8_matmul_most_scratch(const QuantizedTensor& a, const QuantizedTensor& b, size_t element_bytes);

// out (a.rows, b.rows) is fp32 or bf16; `accumulate` is for fp32 only. `fast`: see Matmul::multiply. Throws on other
// types or shapes, and if `padded` is needed but null.
void fp8_matmul(Stream& stream, Matmul& matmul, const char* name, const Tensor& out, QuantizedTensor a,
                QuantizedTensor b, bool accumulate, bool fast, std::byte* padded);
