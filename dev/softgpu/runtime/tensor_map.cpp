// The driver's function that encodes tensor maps: its rules are those of the documentation of cuTensorMapEncodeTiled in
// the CUDA Driver API. What a map's 128 bytes hold is the driver's secret; here they are the CPU backend's.
#include <cuda.h>

#include <cstring>
#include <string>

#include "dev/softgpu/memory.h"
#include "dev/softgpu/runtime/api.h"
#include "dev/softgpu/runtime/device.h"
#include "llmc/base/error.h"
#include "llmc/device/cpu_tensor_map.h"

using namespace softgpu;

namespace {

Swizzle swizzle_of(CUtensorMapSwizzle swizzle) {
  return swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? Swizzle::bytes128
         : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? Swizzle::bytes64
         : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? Swizzle::bytes32
                                                : Swizzle::none;
}

// Fills the map, or says which rule is broken.
std::string encode_map(CpuTensorMap& map, const void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                       const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapSwizzle swizzle) {
  if (reinterpret_cast<u64>(address) % 16) return "globalAddress is not aligned to 16 bytes";
  map.magic = kTensorMapMagic;
  map.data = reinterpret_cast<const std::byte*>(bytes_at(reinterpret_cast<u64>(address)));
  for (int d = 0; d < 4; ++d) {
    if (sizes[d] == 0 || sizes[d] > 1ull << 32) return format("globalDim[%d] is %llu", d, (unsigned long long)sizes[d]);
    if (box[d] == 0 || box[d] > 256) return format("boxDim[%d] is %u", d, box[d]);
    if (steps[d] != 1) return "elementStrides other than 1 are not executed";
    map.sizes[d] = int64_t(sizes[d]), map.box[d] = uint16_t(box[d]);
  }
  for (int d = 0; d < 3; ++d) {
    if (strides[d] % 16 || strides[d] >= 1ull << 40)
      return format("globalStrides[%d] is %llu, no multiple of 16 below 2^40", d, (unsigned long long)strides[d]);
    map.strides[d] = int64_t(strides[d]);
  }
  if (swizzle > CU_TENSOR_MAP_SWIZZLE_128B) return "this swizzle is not executed";
  map.swizzle = swizzle_of(swizzle);
  if (box[0] * 2 % 16) return format("boxDim[0] is %u elements, no multiple of 16 bytes", box[0]);
  if (map.swizzle != Swizzle::none && box[0] * 2 > line_bytes(map.swizzle))
    return format("boxDim[0] is %u elements, more than the %u bytes of the swizzle", box[0], line_bytes(map.swizzle));
  return "";
}

CUresult encode(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                CUtensorMapFloatOOBfill fill) {
  if (device_properties().major < 9) return CUDA_ERROR_NOT_SUPPORTED;
  CpuTensorMap map{};
  std::string wrong;
  if (type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank != 4 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    wrong = "only 4 dimensions of bfloat16, without interleave, with zeros outside, are executed";
  else if (reinterpret_cast<u64>(to) % 64) wrong = "the map is not aligned to 64 bytes";
  else wrong = encode_map(map, address, sizes, strides, box, steps, swizzle);
  if (!wrong.empty()) {
    warn("cuTensorMapEncodeTiled: %s", wrong.c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  const TensorMap packed = pack(map);
  memcpy(to, &packed, sizeof packed);
  return CUDA_SUCCESS;
}

}  // namespace

SOFTGPU_API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                         unsigned long long, cudaDriverEntryPointQueryResult* found) {
  const bool known = !strcmp(name, "cuTensorMapEncodeTiled");
  *function = known ? reinterpret_cast<void*>(&encode) : nullptr;
  if (found) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
