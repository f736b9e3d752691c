#include "llmc/kernels/newton_schulz.h"

#include "llmc/base/error.h"
#include "llmc/kernels/global_norm.h"
#include "llmc/kernels/muon.h"

void newton_schulz(Matmul& matmul, Stream& stream, const Tensor& x, const Tensor& result,
                   const NewtonSchulzScratch& scratch) {
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  const int64_t rows = x.rows(), columns = x.columns(), n = std::min(rows, columns);
  require_tensor("newton_schulz", "x", x, x.type, {rows, columns});
  require_tensor("newton_schulz", "result", result, x.type, {rows, columns});
  const Tensor partials = scratch.partials.elements(0, global_norm_partials(size_t(x.size())));
  global_norm_squares(stream, partials, x);
  global_norm_sum(stream, scratch.square_sum, partials);
  muon_normalize(stream, x, scratch.square_sum);

  const bool tall = rows > columns;  // the iteration is that of the transpose
  const Tensor gram = scratch.gram.first({n, n}), polynomial = scratch.polynomial.first({n, n});
  const Tensor* from = &x;
  const Tensor* to = &result;
  for (int step = 0; step < kNewtonSchulzSteps; ++step, std::swap(from, to)) {
    matmul.gemm(gram, {*from, tall}, {*from, !tall});
    matmul.gemm(polynomial, {gram}, {gram}, c, b, gram);
    if (tall) matmul.gemm(*to, {*from}, {polynomial, true}, 1, a, *from);
    else matmul.gemm(*to, {polynomial}, {*from}, 1, a, *from);
  }
}
