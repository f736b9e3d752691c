// A TensorMap in the CPU backend holds the view of the tensor (TmaTensor) itself.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

#include "llmc/device/tensor_map.h"

struct CpuTensorMap {
  uint64_t magic;
  const std::byte* data;
  int64_t sizes[4];    // elements
  int64_t strides[3];  // bytes
  uint16_t box[4];
  Swizzle swizzle;
};

inline constexpr uint64_t kTensorMapMagic = 0x70616d20726f736eull;

inline TensorMap pack(const CpuTensorMap& map) {
  static_assert(sizeof map <= sizeof(TensorMap));
  TensorMap packed;
  memcpy(packed.words, &map, sizeof map);
  return packed;
}
inline CpuTensorMap unpack(const TensorMap& packed) {
  CpuTensorMap map;
  memcpy(&map, packed.words, sizeof map);
  return map;
}
