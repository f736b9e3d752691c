// Searches the meshes of a cluster that is not here for the one that trains a model fastest, by prediction: for
// --plan mesh, and for dev/bench/meshes.
//
// The search tries every tensor-parallel degree that divides the GPUs of a node, and context-parallel degrees 1, 2, 4,
// 8 and 16. It skips degrees that leave a rank fewer than 1024 tokens of a sequence, unless there are too few sequences
// for all ranks. For each it tries ZeRO stages 3, 2 and 1, and stage 3 also over a half, a quarter, … of the data
// ranks, down to a node. For each of these it takes the fastest combination of recompute, offload and micro-batch that
// fits (Planner::fastest). Where --fp8-all-gather can be used, the best ones are tried again with it. The search keeps
// the options that the user set to something else than their default.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/console.h"
#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/config/config.h"
#include "llmc/device/device.h"
#include "llmc/device/rates.h"
#include "llmc/predict/planner.h"

class MeshSearch {
 public:
  struct Way {
    Mesh mesh;
    PlanCandidate plan;  // its options hold the whole choice
  };

  // Weighs all meshes of so many ranks that `wanted` accepts. The global batch is the same for all: the one asked for,
  // or else the default for sharding alone. Throws if no mesh can train the model at all, with a reason.
  MeshSearch(
      const Options& asked, const ModelConfig& config, const DeviceInfo& device, int world, const MemoryLimits& limits,
      const ReplayRates& rates, const std::function<bool(const Mesh&)>& wanted = [](const Mesh&) { return true; });

  // Returns the ways that fit, the fastest first.
  const std::vector<Way>& fitting() const { return fitting_; }
  // --plan mesh: prints a table of the fastest, and returns the options of the first. Throws DoesNotFit, with the
  // nearest, if none fits.
  Options choose(Console& console) const;

 private:
  void weigh(const Options& options, const Mesh& mesh);
  void sort();
  void weigh_fp8_gathers();

  const Options asked_;  // with the global batch
  const ModelConfig config_;
  const DeviceInfo device_;
  const MemoryLimits limits_;
  const ReplayRates rates_;
  std::vector<Way> fitting_;
  std::optional<Way> nearest_;
  double nearest_part_ = 0;
  int weighed_ = 0;      // meshes with a ZeRO stage
  std::string refused_;  // why the first of those was refused that cannot train the model
};
