// Tensor maps of the CUDA backend. Only the driver knows the bits of a tensor map. The driver's function is looked up
// at run time, so that no program links with libcuda.
#include <cuda.h>

#include <bit>

#include "llmc/device/cuda_error.h"
#include "llmc/device/tensor_map.h"

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode_function(const char* who) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const char* name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  if (status == cudaSuccess && found == cudaDriverEntryPointSuccess && function)
    return reinterpret_cast<Encode>(function);
  cudaGetLastError();  // clears the error: fail() below reports it
  int driver = 0;
  cudaDriverGetVersion(&driver);
  fail("%s: the driver has no %s (%s)\n  it is one for CUDA %d.%d, and 12.0 or later is needed: update it", who, name,
       status == cudaSuccess ? "no such function" : cudaGetErrorString(status), driver / 1000, driver % 1000 / 10);
}

CUtensorMapSwizzle swizzle_of(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case Swizzle::bytes32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case Swizzle::bytes64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::bytes128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  fail("swizzle %u is none", unsigned(swizzle));
}

}  // namespace

TensorMap encode_tensor_map(const TmaTensor& view, const char* who) {
  static_assert(sizeof(CUtensorMap) == 128 && sizeof(TensorMap) == 128);
  static_assert(alignof(TensorMap) >= alignof(CUtensorMap));
  static const Encode encode = encode_function(who);

  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4], steps[4] = {1, 1, 1, 1};
  for (int d = 0; d < 4; ++d) sizes[d] = cuuint64_t(view.sizes[d]), box[d] = cuuint32_t(view.box[d]);
  // The stride of a dimension of size 1 is never used, but the driver checks it; 16 is always valid.
  for (int d = 0; d < 3; ++d) strides[d] = view.sizes[d + 1] == 1 ? 16 : cuuint64_t(view.strides[d]);

  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(view.data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(view.swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);  // zeros outside the tensor
  if (result == CUDA_SUCCESS) return std::bit_cast<TensorMap>(map);
  fail_as(ExitCode::unexpected,
          "%s: cuTensorMapEncodeTiled gives error %d\n"
          "  tensor at %p: %llu x %llu x %llu x %llu, strides %llu, %llu, %llu bytes, boxes %u x %u x %u x %u, "
          "swizzle of %u bytes\n"
          "  only GPUs of compute capability 9.0 or more make tensor maps",
          who, int(result), view.data, static_cast<unsigned long long>(sizes[0]),
          static_cast<unsigned long long>(sizes[1]), static_cast<unsigned long long>(sizes[2]),
          static_cast<unsigned long long>(sizes[3]), static_cast<unsigned long long>(strides[0]),
          static_cast<unsigned long long>(strides[1]), static_cast<unsigned long long>(strides[2]), box[0], box[1],
          box[2], box[3], line_bytes(view.swizzle));
}
