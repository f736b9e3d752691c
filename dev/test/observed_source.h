// The bf16 numbers that an observed product's operand was quantized from, on the host.
#pragma once

#include <cstring>
#include <variant>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/kernels/rmsnorm.h"
#include "llmc/kernels/rope.h"
#include "llmc/kernels/swiglu.h"
#include "llmc/model/linear.h"

template <class T>
std::vector<T> download(Stream& stream, const void* data, size_t count) {
  std::vector<T> values(count);
  copy(stream, values.data(), static_cast<const T*>(data), count);
  stream.synchronize();
  return values;
}

inline const char* kind_name(ProductKind kind) {
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

// The numbers that the source stands for; one that is quantized as it is computed is computed again, by the kernel that
// writes it.
inline std::vector<bf16> computed(Stream& stream, const QuantizeSource& source, float norm_eps) {
  const auto [rows, columns] = shape_of(source);
  const size_t count = size_t(rows) * size_t(columns);
  if (const auto* x = std::get_if<Tensor>(&source)) return download<bf16>(stream, x->data, count);
  Device& device = stream.device();
  const DeviceMemory memory(device, count * sizeof(bf16)), statistics(device, size_t(rows) * sizeof(float));
  const Tensor out(reinterpret_cast<bf16*>(memory.data()), {rows, columns});
  if (const auto* s = std::get_if<RmsnormOutput>(&source)) {
    float* rstd = reinterpret_cast<float*>(statistics.data());
    rmsnorm_forward(stream, out, Tensor(rstd, {rows}), s->x, s->weight, norm_eps);
    const auto had = download<float>(stream, s->rstd.data, size_t(rows)),
               has = download<float>(stream, rstd, size_t(rows));
    REQUIRE(memcmp(had.data(), has.data(), had.size() * sizeof(float)) == 0, "the norm's rstd is another");
  } else if (const auto* s = std::get_if<SwigluOutput>(&source)) {
    swiglu_forward(stream, out, s->gate_up);
  } else if (const auto* s = std::get_if<SwigluBackwardOutput>(&source)) {
    swiglu_backward(stream, out, s->dout, s->gate_up);
  } else {
    const auto& rope = std::get<RopeBackwardOutput>(source);
    copy(stream, out.as<bf16>(), rope.dqkv.as<bf16>(), count);
    rope_backward(stream, out, rope.angles);
  }
  return download<bf16>(stream, out.data, count);
}
