// Finds those of the given options that change nothing in a run.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/config/config.h"
#include "llmc/device/device.h"
#include "llmc/train/settings.h"

// The facts of a run that the `needs` of the option table refer to.
struct RunFacts {
  const Options& options;  // with the choices of --plan and of a checkpoint
  const RunSettings& settings;
  const ModelConfig& config;
  const DeviceInfo& device;
  const Mesh& mesh;
  bool loads_weights = false;
  bool measures = true;  // there is held-out data, or questions
};

// Returns why the condition `need`, a word of the table's `needs`, does not hold, such as "--fp8 is off"; "" if it
// holds. Throws on an unknown word.
std::string unmet_need(const std::string& need, const RunFacts& run);

// Returns a remark for each `given` option that changes nothing: "--fp8-skip changes nothing: --fp8 is off".
std::vector<std::string> idle_options(const Options& given, const RunFacts& run);

// Returns one remark on the `given` options at which a dry run of a cluster that is not here does not look, or "".
std::string unread_options(const Options& given);
