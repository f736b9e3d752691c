#include "llmc/device/cpu_tensor_map.h"

#include <algorithm>

TensorMap encode_tensor_map(const TmaTensor& view, const char*) {
  CpuTensorMap map{};
  map.magic = kTensorMapMagic;
  map.data = static_cast<const std::byte*>(view.data);
  std::copy_n(view.sizes, 4, map.sizes);
  std::copy_n(view.strides, 3, map.strides);
  for (int d = 0; d < 4; ++d) map.box[d] = uint16_t(view.box[d]);
  map.swizzle = view.swizzle;
  return pack(map);
}
