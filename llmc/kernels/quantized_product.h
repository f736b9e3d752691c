// Products of FP8 operands of any size: out (a.rows, b.rows) = or += a bᵀ, contiguous rows. Operands are padded
// (quantized_tensor.h), and a GPU's products want outputs that are padded too: where they would be larger than `out`
// they go to `padded` first, and from there without the padding to `out`: some columns at a time, if `b` has 128x128
// blocks. Deterministic.
#pragma once

#include "llmc/kernels/matmul.h"

// Bytes of `padded`, 0 where the sizes need none; `element_bytes` of one number of `out`.
size_t quantized_product_scratch(const QuantizedTensor& a, const QuantizedTensor& b, size_t element_bytes);
// The most that any number of rows from 1 to a.rows needs. Rows in blocks of 128 may need no padding themselves, while
// fewer do.
size_t quantized_product_most_scratch(const QuantizedTensor& a, const QuantizedTensor& b, size_t element_bytes);

// T is float or bf16; only fp32 is added to. `fast`: see Matmul::multiply.
template <class T>
void quantized_product(Stream& stream, Matmul& matmul, const char* name, T* out, QuantizedTensor a, QuantizedTensor b,
                       bool accumulate, bool fast, std::byte* padded);
