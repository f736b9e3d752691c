// A tensor in device memory as Hopper's copy engine (TMA) sees it: up to four dimensions, of which boxes are copied to
// and from shared memory. What of a box lies outside the tensor reads as zeros and is not written.
#pragma once

#include <cstdint>

#include "llmc/device/device.h"
#include "llmc/device/matrix_descriptor.h"

// A tensor of bf16. Dimension 0 is the contiguous one.
struct TensorView {
  const void* data = nullptr;
  int64_t sizes[4] = {1, 1, 1, 1};    // elements, 1 to 2^32
  int64_t strides[3] = {16, 16, 16};  // bytes from one to the next of dimension 1, 2, 3; any where there is but one
  int box[4] = {1, 1, 1, 1};          // elements of a box
  Swizzle swizzle = Swizzle::bytes128;
};

// What a kernel is given, as a `const __grid_constant__ TensorMap` parameter.
struct alignas(128) TensorMap {
  uint64_t words[16] = {};
};

// The rule of the copy engine that the view breaks, with its values; "" if none. An address and strides that are
// multiples of 16 bytes, strides below 2^40, boxes of 1 to 256, of whole 16 bytes in dimension 0, and no longer there
// than the swizzle's line.
std::string tensor_map_refuses(const TensorView& view);

// Throws, with `who`, on a view that the copy engine refuses. Empty for a device that executes nothing.
TensorMap tensor_map(Device& device, const TensorView& view, const char* who);

// Each world's own part of tensor_map: of a view that was checked.
TensorMap encode_tensor_map(const TensorView& view, const char* who);
