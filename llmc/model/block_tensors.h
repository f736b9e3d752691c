// One block's weights, gradients and saved tensors, and what is built from those that it finds by name.
#pragma once

#include <array>
#include <optional>

#include "llmc/config/activations.h"
#include "llmc/config/parameters.h"
#include "llmc/model/linear.h"

struct BlockTensors {
  int layer;
  const LayerProjections& projections;
  UnitTensors weights;
  std::optional<UnitTensors> gradients;               // in backward
  std::array<QuantizedWeight, kProjectionCount> fp8;  // empty where the product is not in FP8
  SavedTensors saved;
  bool recomputes_inputs[kProjectionCount] = {};  // recomputation saves the product's FP8 input, not forward

  Parameter parameter(const char* name) const;
  // Throws if the layer has none.
  Linear linear(Projection which) const;
};

// A linear layer's input or output gradient: in memory or, if backward needs no copy of it in the model's type,
// computed by the kernel that quantizes it.
inline LinearInput input_of(const Tensor& high_precision, const QuantizeSource& source, const float* amax = nullptr) {
  return {high_precision ? QuantizeSource(high_precision) : source, amax};
}
