#include "llmc/model/block_tensors.h"

#include "llmc/base/error.h"

Parameter BlockTensors::parameter(const char* name) const {
  return {weights[name], gradients ? (*gradients)[name] : Tensor()};
}

Linear BlockTensors::linear(Projection which) const {
  const LayerProjection* p = projections.find(layer, which);
  REQUIRE(p, "block %d has no product named %s", layer, kProjections[int(which)].name);
  OperandMemory memory;
  if (p->row().saved_input)
    memory = {saved[p->row().saved_input].as<uint8_t>(), saved[p->row().saved_scales].as<float>()};
  return Linear(*p, parameter(p->name()), fp8[size_t(which)], memory, recomputes_inputs[size_t(which)]);
}
