// Searches the meshes of a cluster that is not here for the one that trains a model fastest, by prediction: for
// --plan mesh, and for dev/bench/meshes.
//
// Tensor parallelism within a node (the divisors of its GPUs); context parallelism of 1, 2, 4, 8, 16; a rank has 1024
// tokens of a sequence or more, unless there are too few sequences for all ranks. Over the data ranks ZeRO stage 3, 2
// or 1; stage 3 also over parts of them, halved down to a node. For each the fastest that fits of --plan auto's ways to
// recompute, to offload, and of micro-batches; where --fp8-all-gather can be used, the best are also weighed with it.
// The search keeps the options that the user set to something else than their default.
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
