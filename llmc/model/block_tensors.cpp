#include "llmc/model/block_tensors.h"

Parameter BlockTensors::parameter(const char* name) const {
  return {weights[name], gradients ? (*gradients)[name] : Tensor()};
}

Linear BlockTensors::linear(Projection projection) const {
  // Attention's output is kept anyway, so o saves no input.
  constexpr const char* inputs[kProjectionCount][2] = {{"input of qkv", "input of qkv, factors"},
                                                       {},
                                                       {"input of gate_up", "input of gate_up, factors"},
                                                       {"input of down", "input of down, factors"}};
  OperandMemory memory;
  if (const auto [bytes, scale_inv] = inputs[int(projection)]; bytes)
    memory = {saved[bytes].as<uint8_t>(), saved[scale_inv].as<float>()};
  return Linear(projection, layer, parameter(projection_name(projection)), fp8[size_t(projection)], memory,
                recomputes_inputs[int(projection)]);
}
