// Memory against speed: what the ways to need less memory would give and cost, for --plan auto and for runs that do not
// fit. Times are a model's (replay.h), with a GPU's known rates; where the device has none, with an H100's.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/device/device.h"
#include "llmc/memory/plan.h"
#include "llmc/model/config.h"
#include "llmc/train/report.h"

struct MemoryLimits {
  size_t device;  // of one rank
  size_t host;    // pinned, of all ranks of a node together; in the CPU world with what stands for devices
  int ranks_on_node;
};
// --memory-limit and --host-memory-limit, or what the device and the machine have.
MemoryLimits memory_limits(const Options& options, const DeviceInfo& device, int ranks_on_node);

class Planner {
 public:
  // Of a training on a mesh of ranks; all ranks come to the same conclusions.
  Planner(const Options& options, const LlamaConfig& config, const DeviceInfo& device, const Mesh& mesh,
          int64_t data_tokens, int ranks_on_node);

  // The options, with what --plan auto chooses: of all that fits the fastest. Prints what it weighed. Throws if nothing
  // fits.
  Options choose(Console& console) const;
  // Throws if the plan does not fit, with its largest categories and the options that would save the most.
  void require_fits(const MemoryPlan& plan) const;

 private:
  struct Way {
    std::string words;                                          // "--recompute mlp"
    std::vector<std::pair<std::string, std::string>> settings;  // of options, as a config file has them
  };
  struct Weighed {
    Way way;
    Options options;
    size_t device, pinned;
    double tokens_per_second = 0;  // of a rank; 0: not asked for
    std::string memory() const;
  };
  std::vector<Way> activation_ways() const;
  std::vector<Way> state_ways() const;
  std::vector<int64_t> micro_batches() const;
  Options with(const Way& way) const;
  Weighed weigh(const Way& way, bool time) const;
  bool fits(size_t device, size_t pinned) const;

  const Options options_;
  const LlamaConfig config_;
  const DeviceInfo device_;
  const Mesh mesh_;
  const int64_t data_tokens_;
  const MemoryLimits limits_;
};
