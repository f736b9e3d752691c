// Newton and Schulz's iteration, with which Muon makes a matrix nearly orthogonal (contract: torch.optim.Muon).
#pragma once

#include <algorithm>
#include <cstdint>

#include "llmc/device/tensor.h"
#include "llmc/kernels/matmul.h"

inline constexpr int kNewtonSchulzSteps = 5;  // an odd number

// The floating-point operations of the iteration's products, for r x c with r <= c: 4 r² c + 2 r³ a step. A and its
// polynomial are symmetric. A kernel that computed half of A = X Xᵀ would save r² c of them, and one that also computed
// half of A A r³ more. These are 17% and 33% of a square matrix, and 22% and 28% of one four times as wide.
inline double newton_schulz_flops(int64_t rows, int64_t columns) {
  const double r = double(std::min(rows, columns)), c = double(std::max(rows, columns));
  return kNewtonSchulzSteps * (4 * r * r * c + 2 * r * r * r);
}

// The memory of newton_schulz() besides its matrices, for matrices whose shorter side is at most r: gram and polynomial
// (r, r) in the matrices' type, partials (global_norm_partials(rows columns)) and square_sum (1) in fp64.
struct NewtonSchulzScratch {
  Tensor gram, polynomial, partials, square_sum;
};

// result = the orthogonal factor of x, nearly: both are (rows, columns), and x is overwritten. With X the matrix, or
// its transpose if it has more rows than columns:
//
//   X = X / max(|X|, 1e-7)                                    |X|: the root of the sum of all squares
//   5 times:  A = X Xᵀ,  X = a X + (b A + c A²) X             (a, b, c) = (3.4445, -4.7750, 2.0315)
//
// Each product is rounded once to the type, fp32 or bf16; its sums are fp32. All tensors are 256-byte aligned. The bits
// depend on x alone, not on the rank that computes it. Throws on other types and shapes.
void newton_schulz(Matmul& matmul, Stream& stream, const Tensor& x, const Tensor& result,
                   const NewtonSchulzScratch& scratch);
