// Quantizes the matrices of a file in all ways that products want, for dev/reference/compare_quantize.py.
//
//   quantize_matrices IN OUT      of each bf16 matrix NAME (R, K) of IN, OUT holds
//
//   NAME.{rows,columns}.{e4m3,e5m2}.{tensor,row,one,1x128,128x128}.{any,pow2}.{data,inverse}
//
// The bytes, (R, K), of columns the transpose's (K, R), without the padding, which must be 0; the inverse scales of the
// groups. "one" is the scale of "tensor", which the product takes from a factor a row.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "dev/kernels/array.h"
#include "dev/test/arrays.h"
#include "llmc/base/text.h"
#include "llmc/kernels/quantize.h"

namespace {

struct Groups {
  const char* name;
  Scaling scaling;
  bool one_scale = false;
};
constexpr Groups kGroups[] = {{"tensor", Scaling::tensor},
                              {"row", Scaling::row},
                              {"one", Scaling::row, true},
                              {"1x128", Scaling::block_1x128},
                              {"128x128", Scaling::block_128x128}};

struct Room {  // poisoned, as all memory of Array's
  QuantizedTensor tensor;
  Array<uint8_t> data;
  Array<float> scale_inv;
  Room(Stream& stream, const QuantizedTensor& t)
      : tensor(t), data(stream, t.bytes()), scale_inv(stream, t.scale_inv_count()) {
    tensor.data = data.data(), tensor.scale_inv = scale_inv.data();
  }
};

// Both orientations in one pass.
void add_quantized(NamedArrays& out, Stream& stream, const StoredTensor& matrix, Fp8Format fp8, const Groups& groups,
                   bool power_of_two) {
  const int rows = int(matrix.shape[0]), columns = int(matrix.shape[1]);
  Array<bf16> x(stream, matrix.elements());
  copy_bytes(stream, x.data(), matrix.data, matrix.data_bytes);
  const Room rowwise(stream, {nullptr, nullptr, rows, columns, fp8, groups.scaling, groups.one_scale}),
      columnwise(stream, {nullptr, nullptr, columns, rows, fp8, groups.scaling, groups.one_scale});
  Array<float> amax(stream, std::vector{0.0f}), row_amax(stream, size_t(rows)), column_amax(stream, size_t(columns));
  Array<uint32_t> not_finite(stream, std::vector{~0u});
  Quantization q;
  q.rowwise = rowwise.tensor, q.columnwise = columnwise.tensor;
  q.power_of_two = power_of_two;
  q.amax = amax.data(), q.row_amax = row_amax.tensor({rows}), q.column_amax = column_amax.tensor({columns});
  q.not_finite = not_finite.data();
  if (q.needs_amax()) quantize_amax(stream, x.tensor({rows, columns}), q);
  quantize(stream, x.tensor({rows, columns}), q);
  REQUIRE(not_finite.download()[0] == ~0u, "%s holds an infinity or NaN", matrix.name.c_str());
  for (const auto& [name, room] : {std::pair("rows", &rowwise), std::pair("columns", &columnwise)}) {
    const std::string stem = format("%s.%s.%s.%s.%s.", matrix.name.c_str(), name, format_name(fp8), groups.name,
                                    power_of_two ? "pow2" : "any");
    UnpaddedOperand operand = unpadded(stem, room->tensor, room->data.download(), room->scale_inv.download());
    out.emplace(stem + "data", std::move(operand.data));
    out.emplace(stem + "inverse", std::move(operand.inverse));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  REQUIRE(argc == 3, "quantize_matrices IN OUT: see the head of its source");
  Device device(0, CpuBackend::from_environment(1));
  Stream stream(device, "quantize");
  const Safetensors in(argv[1]);
  NamedArrays out;
  for (const StoredTensor& matrix : in.tensors()) {
    REQUIRE(matrix.type == StoredType::BF16 && matrix.shape.size() == 2, "%s: expected a bf16 matrix",
            matrix.name.c_str());
    for (const Fp8Format fp8 : {Fp8Format::e4m3, Fp8Format::e5m2})
      for (const Groups& groups : kGroups)
        for (const bool power_of_two : {false, true}) add_quantized(out, stream, matrix, fp8, groups, power_of_two);
  }
  write_arrays(argv[2], out);
  printf("%zu matrices, %zu operands\n", in.tensors().size(), out.size() / 2);
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
