// Matrices of products: in device memory, 256-byte aligned. The guards of Array would shift them.
#pragma once

#include <cstring>
#include <vector>

#include "dev/kernels/array.h"

template <class T>
struct Operand {
  DeviceMemory memory;
  Stream& stream;
  size_t count;
  Operand(Stream& stream, const std::vector<T>& values)
      : memory(stream.device(), values.size() * sizeof(T)), stream(stream), count(values.size()) {
    upload(values);
  }
  T* data() const { return reinterpret_cast<T*>(memory.data()); }
  Tensor tensor(TensorShape shape) const { return Tensor(data(), {int64_t(count)}).first(shape); }
  void upload(const std::vector<T>& values) const {
    copy(stream, data(), values.data(), count);
    stream.synchronize();
  }
  std::vector<T> download() const {
    std::vector<T> values(count);
    copy(stream, values.data(), data(), count);
    stream.synchronize();
    return values;
  }
};

template <class T>
std::vector<T> poisoned(size_t count) {
  std::vector<T> values(count);
  memset(values.data(), 0xff, count * sizeof(T));
  return values;
}
