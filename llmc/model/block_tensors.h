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

// Returns the source of a product: `high_precision`, the matrix in the model's type, unless that is absent because
// backward needs no such copy. Then it is `source`, from which the kernel that quantizes the matrix computes it.
inline ProductSource source_of(const Tensor& high_precision, const QuantizeSource& source,
                               const float* amax = nullptr) {
  return {high_precision ? QuantizeSource(high_precision) : source, amax};
}
