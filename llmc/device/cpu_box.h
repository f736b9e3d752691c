// A box that TMA moves, in the CPU backend: where each 16 bytes of it lie in shared memory and in the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "llmc/device/cpu_hopper.h"
#include "llmc/device/cpu_tensor_map.h"

namespace cpu_backend {

inline constexpr int kChunkBytes = 16, kChunkElements = 8;

struct BoxChunk {
  size_t offset;         // bytes, in shared memory
  const std::byte* row;  // of the tensor; null outside the tensor
  int64_t first;         // the index in that row of the first of the 8 elements; some may lie outside the tensor
};

// Appends the chunks of the box that begins at `place` in the tensor and at byte `offset` of shared memory.
void append_chunks(const CpuTensorMap& map, const BoxPlace& place, uint32_t offset, std::vector<BoxChunk>& chunks);

}  // namespace cpu_backend
