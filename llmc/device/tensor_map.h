// A tensor in device memory as Hopper's copy engine (TMA) sees it: up to four dimensions, of which boxes are copied to
// and from shared memory. The part of a box that lies outside the tensor reads as zeros and is not written.
#pragma once

#include <cstdint>

#include "llmc/device/device.h"
#include "llmc/device/matrix_descriptor.h"

// A tensor of bf16. Dimension 0 is contiguous.
struct TmaTensor {
  const void* data = nullptr;
  int64_t sizes[4] = {1, 1, 1, 1};    // elements, 1 to 2^32
  int64_t strides[3] = {16, 16, 16};  // bytes between neighbours in dimension 1, 2, 3; unused if the size is 1
  int box[4] = {1, 1, 1, 1};          // elements of a box in each dimension
  Swizzle swizzle = Swizzle::bytes128;
};

// The encoded tensor. A kernel takes it as a `const __grid_constant__ TensorMap` parameter.
struct alignas(128) TensorMap {
  uint64_t words[16] = {};
};

// Returns the rule of TMA that the view breaks, with its values; "" if it breaks none. The rules: the address and the
// strides are multiples of 16 bytes; sizes are 1 to 2^32 elements; strides are below 2^40 bytes; a box has 1 to 256
// elements per dimension; a row of the box (dimension 0) is a multiple of 16 bytes and no longer than the swizzle's
// line.
std::string tensor_map_error(const TmaTensor& view);

// Returns the tensor map of a view; an empty one for a device that executes nothing. Throws, with `who` in the message,
// if TMA refuses the view.
TensorMap tensor_map(Device& device, const TmaTensor& view, const char* who);

// Each backend's own part of tensor_map. The view has been checked.
TensorMap encode_tensor_map(const TmaTensor& view, const char* who);
