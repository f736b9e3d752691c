#include "llmc/device/cpu_box.h"

namespace cpu_backend {

void append_chunks(const CpuTensorMap& map, const BoxPlace& place, uint32_t offset, std::vector<BoxChunk>& chunks) {
  uint32_t address = offset;
  for (int64_t i3 = 0; i3 < map.box[3]; ++i3)
    for (int64_t i2 = 0; i2 < map.box[2]; ++i2)
      for (int64_t i1 = 0; i1 < map.box[1]; ++i1) {
        const int64_t at[3] = {place[1] + i1, place[2] + i2, place[3] + i3};
        const std::byte* row = map.data;
        for (int d = 0; d < 3; ++d) {
          if (at[d] < 0 || at[d] >= map.sizes[d + 1]) row = nullptr;
          if (row) row += at[d] * map.strides[d];
        }
        for (int64_t c = 0; c < map.box[0] / kChunkElements; ++c, address += kChunkBytes)
          chunks.push_back({swizzled_byte(address, map.swizzle), row, place[0] + c * kChunkElements});
      }
}

}  // namespace cpu_backend
