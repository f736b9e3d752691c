// Memory against speed: what the ways to need less memory would give and cost, for --plan auto and for runs that do not
// fit. Times are a model's (replay.h), with the table's rates (rates.h); where the device has none, with an H100's.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/device/device.h"
#include "llmc/memory/plan.h"
#include "llmc/model/config.h"
#include "llmc/train/report.h"
#include "llmc/train/settings.h"

struct MemoryLimits {
  size_t device;  // of one rank, the plan's reserve included
  size_t host;    // pinned, of all ranks of a node together; in the CPU world with what stands for devices
  int ranks_on_node;
  std::string warning = {};

  // Returns the limits of this machine. The device's is its free memory, or less by --memory-limit. The host's is 90%
  // of its memory, or --host-memory-limit. `warning` is for a limit beyond the memory that the system tells of.
  static MemoryLimits here(const Options& options, const DeviceInfo& device, int ranks_on_node);
  // Returns the limits of a node that is not here: its device's memory and 256 GiB of host memory for each, or those
  // that the options name.
  static MemoryLimits elsewhere(const Options& options, const DeviceInfo& device, int ranks_on_node);
};

// What does not fit ends with an exit code of its own.
struct DoesNotFit : Error {
  using Error::Error;
  static constexpr int kExitCode = 2;
};
int exit_code(const std::exception& error);  // that, or 1

class Planner {
 public:
  // Of a training on a mesh of ranks, as this one sees it.
  Planner(const Options& options, const LlamaConfig& config, const DeviceInfo& device, const Mesh& mesh,
          int64_t data_tokens, const MemoryLimits& limits);

  // The options, with what --plan auto chooses: of all that fits the fastest. Prints what it weighed. Throws if nothing
  // fits.
  Options choose(Console& console) const;
  // The same on all ranks: the first one chooses.
  Options choose(Communicator& communicator, Device& device, Console& console) const;
  bool fits(const MemoryPlan& plan) const;
  bool fits(const RunSettings& settings) const;
  // "it fits: ..." or "it does not fit: ...", with the sizes.
  std::string verdict(const MemoryPlan& plan) const;
  // Throws if the plan does not fit, with its largest categories and the options that would save the most.
  void require_fits(const MemoryPlan& plan) const;

 private:
  // The options changed in one way, and what the run then needs of a rank; of its device, reserve included.
  struct Way {
    Options options;
    size_t device, pinned;
    double tokens_per_second = 0;  // of a rank; 0: not asked for
    std::string unconfirmed = {};  // rates that this prediction rests on
  };
  Way needs(const Options& options) const;
  static Way needs(const Options& options, const MemoryPlan& plan);
  void predict(Way& way) const;
  bool fits(const Way& way) const;
  size_t on_host(const Way& way) const;  // of the node
  std::vector<Way> weigh_all() const;
  std::vector<Way> savings() const;
  std::string words(const Options& options) const;

  const Options options_;
  const LlamaConfig config_;
  const DeviceInfo device_;
  const Mesh mesh_;
  const int64_t data_tokens_;
  const MemoryLimits limits_;
};
