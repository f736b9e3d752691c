// Named arrays for Python to look at: on the host, in a safetensors file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/safetensors.h"
#include "llmc/kernels/quantized_tensor.h"

struct NamedArray {
  StoredType type;
  Shape shape;
  std::vector<std::byte> bytes;
};
using NamedArrays = std::map<std::string, NamedArray>;

template <class T>
NamedArray array_of(StoredType type, Shape shape, const std::vector<T>& values) {
  NamedArray array{type, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
  memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

inline void write_arrays(const std::string& path, const NamedArrays& arrays) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, array] : arrays) specs.push_back({name, array.type, array.shape});
  std::stable_sort(specs.begin(), specs.end(),
                   [](const auto& a, const auto& b) { return bytes_of(a.type) > bytes_of(b.type); });
  SafetensorsWriter writer(path, specs);
  for (const TensorSpec& spec : specs) {
    const std::vector<std::byte>& bytes = arrays.at(spec.name).bytes;
    writer.write(spec.name, bytes.data(), bytes.size());
  }
  writer.finish();
}

// A quantized matrix without its padding, which must be 0, and the scale_inv of its groups, shaped as
// dev/reference/fp8.py has them. `padded` and `scale_inv` are all of t's memory.
struct UnpaddedOperand {
  NamedArray data, inverse;
};
inline UnpaddedOperand unpadded(const std::string& name, const QuantizedTensor& t, const std::vector<uint8_t>& padded,
                                const std::vector<float>& scale_inv) {
  const size_t rows = size_t(t.rows), columns = size_t(t.columns), stride = size_t(t.stride());
  std::vector<uint8_t> data;
  for (size_t i = 0; i < padded.size(); ++i) {
    if (i / stride < rows && i % stride < columns) data.push_back(padded[i]);
    else REQUIRE(padded[i] == 0, "%s: the padding at %zu, %zu is %d", name.c_str(), i / stride, i % stride, padded[i]);
  }
  const auto blocks = [](size_t n) { return (n + 127) / 128; };
  const size_t row_step = t.scaling == Scaling::block_128x128 ? 128 : 1;
  const size_t column_step = t.scaling == Scaling::tensor || t.scaling == Scaling::row ? columns : 128;
  std::vector<float> scales;
  for (size_t r = 0; r < rows; r += row_step)
    for (size_t c = 0; c < columns; c += column_step) scales.push_back(scale_inv[t.scale_inv_at(int(r), int(c))]);
  Shape shape = {scales.size()};
  if (t.scaling == Scaling::block_1x128) shape = {rows, blocks(columns)};
  if (t.scaling == Scaling::block_128x128) shape = {blocks(rows), blocks(columns)};
  if (t.scaling == Scaling::tensor || t.one_scale) {  // written out for each row: the same
    REQUIRE(std::count(scales.begin(), scales.end(), scales[0]) == ptrdiff_t(scales.size()),
            "%s: the rows have several scales", name.c_str());
    scales.resize(1), shape.clear();
  }
  return {array_of(t.format == Fp8Format::e4m3 ? StoredType::F8_E4M3 : StoredType::F8_E5M2, {rows, columns}, data),
          array_of(StoredType::F32, shape, scales)};
}
