// Which of the options that were given change nothing in a run.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/device/device.h"
#include "llmc/model/config.h"
#include "llmc/train/settings.h"

// A run, as far as the `needs` of the option table ask for it.
struct RunFacts {
  const Options& options;  // with what --plan and a checkpoint chose
  const RunSettings& settings;
  const LlamaConfig& config;
  const DeviceInfo& device;
  const Mesh& mesh;
  bool loads_weights = false;
  bool measures = true;  // there is held-out data, or questions
};

// Why what the word of the table's `needs` names is not so, as "--fp8 is off"; "" if it is so. Throws on a word that no
// condition has.
std::string unmet_need(const std::string& need, const RunFacts& run);

// A remark for each of the `given` options that changes nothing: "--fp8-skip changes nothing: --fp8 is off".
std::vector<std::string> idle_options(const Options& given, const RunFacts& run);
