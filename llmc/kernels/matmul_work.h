// The checks of matrix products that both backends make, and the work that they declare.
#pragma once

#include <climits>

#include "llmc/base/error.h"
#include "llmc/device/device.h"
#include "llmc/device/tensor.h"
#include "llmc/device/work.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/quantized_tensor.h"

// One of the three products of a linear layer, with checked tensors, and the work that it declares.
struct LinearProduct {
  int N, OC, IC, stride;  // stride: elements from row to row of out or dout
  DType operands, result;
  Work work;
};

// A tensor under the name that errors give it.
struct Argument {
  const char* name;
  const Tensor& tensor;
};

// `y` is out or dout, `x` is in or din, `w` is weight or dweight. The type of the operands is `a` and `b`, that of the
// result is `result`. `tf32`: fp32 operands are rounded to TF32.
inline LinearProduct linear_product(Work work, const Argument& y, const Argument& x, const Argument& w, DType a,
                                    DType b, DType result, bool tf32) {
  const int64_t N = y.tensor.rows(), OC = y.tensor.columns(), IC = x.tensor.columns(), stride = y.tensor.row_stride();
  REQUIRE(y.tensor.axes == 2 && x.tensor.axes == 2 && N >= 1 && N <= INT_MAX && OC >= 1 && OC <= stride &&
              stride <= INT_MAX && IC >= 1 && IC <= INT_MAX,
          "%s: %s is %s, its rows are %lld elements apart, and %s is %s\n"
          "  expected (N, OC), rows at least OC apart, and (N, IC), with positive sizes",
          work.name, y.name, y.tensor.text().c_str(), (long long)stride, x.name, x.tensor.text().c_str());
  require_tensor(work.name, x.name, x.tensor, x.tensor.type, {N, IC});
  require_tensor(work.name, w.name, w.tensor, w.tensor.type, {OC, IC});
  REQUIRE(y.tensor.data, "%s: %s %s has no memory", work.name, y.name, y.tensor.text().c_str());
  REQUIRE(
      a == b && (a == DType::fp32 || a == DType::bf16) && (result == a || result == DType::fp32),
      "%s: there is no product of %s and %s to %s\n  expected two operands of fp32 or of bf16, to their type or fp32",
      work.name, dtype_name(a), dtype_name(b), dtype_name(result));
  work.flops = 2.0 * double(N) * double(OC) * double(IC);
  if (a == DType::fp32) work.rate = tf32 ? RateClass::product_tf32 : RateClass::product_fp32;
  return {int(N), int(OC), int(IC), int(stride), a, result, work};
}
inline LinearProduct forward_product(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& weight,
                                     bool tf32) {
  return linear_product({stream, "matmul_forward", {reads(in), reads(weight), writes(out)}}, {"out", out}, {"in", in},
                        {"weight", weight}, in.type, weight.type, out.type, tf32);
}
inline LinearProduct dgrad_product(Stream& stream, const Tensor& din, const Tensor& dout, const Tensor& weight,
                                   bool tf32) {
  return linear_product({stream, "matmul_dgrad", {reads(dout), reads(weight), writes(din)}}, {"dout", dout},
                        {"din", din}, {"weight", weight}, dout.type, weight.type, din.type, tf32);
}
inline LinearProduct wgrad_product(Stream& stream, const Tensor& dweight, const Tensor& dout, const Tensor& in,
                                   bool accumulate, bool tf32) {
  REQUIRE(dweight.type == DType::fp32, "matmul_wgrad: dweight is %s\n  expected fp32", dtype_name(dweight.type));
  return linear_product(
      {stream, "matmul_wgrad", {reads(dout), reads(in), accumulate ? updates(dweight) : writes(dweight)}},
      {"dout", dout}, {"in", in}, {"dweight", dweight}, dout.type, in.type, dweight.type, tf32);
}

// A general product with checked matrices, and the work that it declares.
struct GeneralProduct {
  int M, N, K;
  DType operands, result;
  bool adds;
  Work work;
};
inline GeneralProduct general_product(Stream& stream, const Tensor& out, const Matmul::Factor& a,
                                      const Matmul::Factor& b, float beta, const Tensor& addend, bool tf32) {
  const char* who = "matmul_gemm";
  const int64_t M = a.rows(), N = b.columns(), K = a.columns();
  REQUIRE(a.matrix.axes == 2 && b.matrix.axes == 2 && b.rows() == K && M >= 1 && M <= INT_MAX && N >= 1 &&
              N <= INT_MAX && K >= 1 && K <= INT_MAX,
          "%s: a is %s%s and b is %s%s\n  expected (M, K) and (K, N), with positive sizes", who,
          a.matrix.text().c_str(), a.transposed ? ", transposed," : "", b.matrix.text().c_str(),
          b.transposed ? ", transposed" : "");
  const DType type = a.matrix.type, result = out.type;
  require_tensor(who, "a", a.matrix, type, {a.matrix.rows(), a.matrix.columns()});
  require_tensor(who, "b", b.matrix, type, {b.matrix.rows(), b.matrix.columns()});
  require_tensor(who, "out", out, result, {M, N});
  REQUIRE((type == DType::fp32 || type == DType::bf16) && (result == type || result == DType::fp32),
          "%s: there is no product of %s to %s\n  expected operands of fp32 or bf16, to their type or fp32", who,
          dtype_name(type), dtype_name(result));
  if (beta != 0) require_tensor(who, "addend", addend, result, {M, N});
  const bool in_place = addend.data == out.data;
  Work work{stream, who, {reads(a.matrix), reads(b.matrix), beta != 0 && in_place ? updates(out) : writes(out)}};
  if (beta != 0 && !in_place) work.accesses[work.access_count++] = reads(addend);
  work.flops = 2.0 * double(M) * double(N) * double(K);
  if (type == DType::fp32) work.rate = tf32 ? RateClass::product_tf32 : RateClass::product_fp32;
  return {int(M), int(N), int(K), type, result, beta != 0, work};
}

inline Work quantized_work(Stream& stream, const char* name, const Tensor& out, const QuantizedTensor& a,
                           const QuantizedTensor& b, bool accumulate) {
  Work work{stream,
            name,
            {reads(a.data, a.bytes()), reads(a.scale_inv, a.scale_inv_count()), reads(b.data, b.bytes()),
             reads(b.scale_inv, b.scale_inv_count()), accumulate ? updates(out) : writes(out)},
            2.0 * double(a.rows) * double(b.rows) * double(a.columns)};
  const auto either = [&](Scaling scaling) { return a.scaling == scaling || b.scaling == scaling; };
  work.rate = either(Scaling::block_1x128) || either(Scaling::block_128x128) ? RateClass::product_fp8_block
              : either(Scaling::row)                                         ? RateClass::product_fp8_row
                                                                             : RateClass::product_fp8_tensor;
  return work;
}
inline void require_operands(const char* name, const Tensor& out, const QuantizedTensor& a, const QuantizedTensor& b,
                             bool accumulate) {
  REQUIRE(a && b && a.rows > 0 && b.rows > 0 && a.columns == b.columns && a.stride() == b.stride(),
          "%s: operands of %d x %d and %d x %d: expected as many columns, padded alike", name, a.rows, a.columns,
          b.rows, b.columns);
  REQUIRE(b.rows % b.padding() == 0 && (a.padding() == 16 || a.rows % a.padding() == 0),
          "%s: an output of %d x %d: expected multiples of %d", name, a.rows, b.rows, b.padding());
  require_tensor(name, "out", out, out.type == DType::fp32 ? DType::fp32 : DType::bf16, {a.rows, b.rows});
  REQUIRE(!accumulate || out.type == DType::fp32, "%s: only fp32 is added to", name);
}

// Returns why a modelled GPU cannot multiply such FP8 operands, as far as that is known; "" if it can.
inline std::string known_refusal(const DeviceInfo& info, const QuantizedTensor& a, const QuantizedTensor& b) {
  const bool one_scale_inv = a.scaling == Scaling::tensor && b.scaling == Scaling::tensor;
  if (!info.gpu || one_scale_inv || info.compute_capability == 90) return "";
  return format("cuBLASLt takes scales of the kind \"%s\" on compute capability 9.0 (Hopper) alone",
                scaling_name(a.scaling == Scaling::tensor ? b.scaling : a.scaling));
}
