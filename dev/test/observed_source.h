// The bf16 numbers that an observed product's operand was quantized from, on the host.
#pragma once

#include <cstring>
#include <variant>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/kernels/rmsnorm.h"
#include "llmc/kernels/rope.h"
#include "llmc/kernels/swiglu.h"
#include "llmc/model/projection.h"

template <class T>
std::vector<T> download(Stream& stream, const void* data, size_t count) {
  std::vector<T> values(count);
  copy(stream, values.data(), static_cast<const T*>(data), count);
  stream.synchronize();
  return values;
}

inline const char* kind_name(ObservedProduct::Kind kind) {
  constexpr const char* names[] = {"forward", "dgrad", "wgrad"};
  return names[int(kind)];
}

// The transpose of x (rows, columns).
template <class T>
std::vector<T> transposed(const std::vector<T>& x, size_t rows, size_t columns) {
  std::vector<T> t(x.size());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) t[c * rows + r] = x[r * columns + c];
  return t;
}

// The numbers that the source (rows, columns) stands for; one that is quantized as it is computed is computed again, by
// the kernel that writes it.
inline std::vector<bf16> computed(Stream& stream, const QuantizeSource& source, int rows, int columns, float norm_eps) {
  const size_t count = size_t(rows) * size_t(columns);
  Device& device = stream.device();
  const DeviceMemory memory(device, count * sizeof(bf16)), statistics(device, size_t(rows) * sizeof(float));
  bf16* out = reinterpret_cast<bf16*>(memory.data());
  if (const auto* s = std::get_if<PlainSource>(&source)) return download<bf16>(stream, s->x, count);
  if (const auto* s = std::get_if<RmsnormSource>(&source)) {
    float* rstd = reinterpret_cast<float*>(statistics.data());
    rmsnorm_forward(stream, Tensor(out, {rows, columns}), Tensor(rstd, {rows}), Tensor(s->x, {rows, columns}),
                    Tensor(s->weight, {columns}), norm_eps);
    const auto had = download<float>(stream, s->rstd, size_t(rows)), has = download<float>(stream, rstd, size_t(rows));
    REQUIRE(memcmp(had.data(), has.data(), had.size() * sizeof(float)) == 0, "the norm's rstd is another");
  } else if (const auto* s = std::get_if<SwigluSource>(&source)) {
    swiglu_forward(stream, Tensor(out, {rows, columns}), Tensor(s->gate_up, {rows, 2 * columns}));
  } else if (const auto* s = std::get_if<SwigluBackwardSource>(&source)) {
    swiglu_backward(stream, Tensor(out, {rows, columns}), Tensor(s->dout, {rows, columns / 2}),
                    Tensor(s->gate_up, {rows, columns}));
  } else {
    const auto& rope = std::get<RopeBackwardSource>(source);
    copy(stream, out, rope.dqkv, count);
    rope_backward(
        stream, Tensor(out, {rows, columns}),
        {Tensor(rope.table, {rope.table_positions, rope.HD / 2, 2}), Tensor(rope.positions, {rows}), rope.heads});
  }
  return download<bf16>(stream, out, count);
}
