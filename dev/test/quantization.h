// The entry `quantization` that dev/reference writes: dev/reference/README.md tells what is in it.
#pragma once

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/config/config.h"
#include "llmc/config/fp8.h"

// `skip` names products as "down", of all blocks, or "layers.3.down".
inline Fp8Settings read_quantization(const Json& json, const ModelConfig& config) {
  Fp8Settings s = fp8_settings(
      {json.get_string("recipe"), json.get_string("gradient"), json.at("pow2").as_bool() ? "on" : "off", ""}, config);
  const LayerProjections projections(config);
  for (const Json& name : json.at("skip").elements())
    for (const LayerProjection& p : projections.all())
      if (name.as_string() == p.name() || name.as_string() == format("layers.%d.%s", p.layer, p.name()))
        s.skipped[size_t(p.index)] = true;
  s.history = int(json.get_int("history")), s.margin = int(json.get_int("margin"));
  s.latest = json.get_string("algorithm") == "latest";
  if (json.contains("head")) s.head = head_products_named(json.get_string("head"));
  return s;
}
