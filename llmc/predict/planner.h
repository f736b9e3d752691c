// Trades memory against speed: predicts what each way to need less memory saves and costs, for --plan auto and for runs
// that do not fit. Times come from a model (replay.h) with the rates of the table (rates.h), or with an H100's if the
// table has none for the device.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/console.h"
#include "llmc/base/error.h"
#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/config/config.h"
#include "llmc/device/device.h"
#include "llmc/device/rates.h"
#include "llmc/memory/plan.h"
#include "llmc/train/settings.h"

struct MemoryLimits {
  size_t device;  // bytes of one rank, the plan's reserve included
  size_t host;    // pinned bytes of all ranks of a node; in the CPU backend also what stands for device memory
  int ranks_on_node;
  std::string host_from = {};  // what the host's limit follows from, if it is assumed
  std::string warning = {};

  // Returns the limits of this machine. The device's limit is its free memory, or less by --memory-limit. The host's is
  // 90% of its memory, or --host-memory-limit. `warning` is set if the host's limit is more than the system says there
  // is.
  static MemoryLimits here(const Options& options, const DeviceInfo& device, int ranks_on_node);
  // Returns the limits of a node that is not here: its device's memory and 90% of 256 GiB of host memory for each rank,
  // or what the options say.
  static MemoryLimits elsewhere(const Options& options, const DeviceInfo& device, int ranks_on_node);
};

struct DoesNotFit : Error {
  explicit DoesNotFit(const std::string& text) : Error(text, ExitCode::does_not_fit) {}
};

// A change of the options, and the bytes that a rank then needs on its device (reserve included) and in pinned memory.
struct PlanCandidate {
  Options options;
  size_t device, pinned;
  double tokens_per_second = 0;  // of one rank; 0: not predicted
  std::string unconfirmed = {};  // unconfirmed rates that this prediction rests on
};

class Planner {
 public:
  // Plans a training on a mesh of ranks, as seen by this rank. Predicts by `rates`, or else by those of the device.
  Planner(const Options& options, const ModelConfig& config, const DeviceInfo& device, const Mesh& mesh,
          int64_t data_tokens, const MemoryLimits& limits, const std::optional<ReplayRates>& rates = {});

  // Returns the options with the choices of --plan auto: the fastest that fit. Prints what it compared. Throws
  // DoesNotFit if nothing fits.
  Options choose(Console& console) const;
  // The first rank chooses, and all ranks return its choice.
  Options choose(Communicator& communicator, Device& device, Console& console) const;
  // Returns the options as they are, with their memory and, if they fit, their predicted speed.
  PlanCandidate weighed() const;
  // Returns the fastest of the same ways that fits, and prints nothing; if none fits, the one that is nearest to it.
  PlanCandidate fastest() const;
  // Returns the larger of the parts of both limits that this way takes. Above 1 it does not fit.
  double part_of_limits(const PlanCandidate& way) const;
  bool fits(const PlanCandidate& way) const;
  bool fits(const MemoryPlan& plan) const;
  bool fits(const RunSettings& settings) const;
  // Plans a copy of the state for checkpoints that are saved by default, if the host has room for it.
  void plan_snapshot(const Options& options, RunSettings& settings) const;
  // Returns the way with this copy, as a run has it.
  PlanCandidate as_run(const PlanCandidate& way) const;
  // Returns a mark for tables, "!" if it does not fit, "~" if it leaves little of a GPU's memory, else " ".
  const char* mark(const PlanCandidate& way) const;
  // Returns a warning if the plan leaves little of a GPU's memory, else "".
  std::string narrow(const MemoryPlan& plan) const;
  // Returns the ten largest tensors of the device, a line each, if the plan leaves little of a GPU's memory or does not
  // fit, else "".
  std::string largest(const MemoryPlan& plan) const;
  const MemoryLimits& limits() const { return limits_; }
  // "it fits: ..." or "it does not fit: ...", with the sizes.
  std::string verdict(const MemoryPlan& plan) const;
  // Throws DoesNotFit if the plan does not fit, with its largest categories and the options that would save the most.
  void require_fits(const MemoryPlan& plan) const;

 private:
  RunSettings settings_of(const Options& options) const;
  PlanCandidate needs(const Options& options) const;
  static PlanCandidate needs(const Options& options, const MemoryPlan& plan);
  void predict(PlanCandidate& way) const;
  size_t on_host(const PlanCandidate& way) const;  // bytes of the whole node
  std::vector<int> micro_batch_sizes() const;
  PlanCandidate largest_that_fits(Options options) const;
  std::vector<Options> option_ways() const;
  std::vector<PlanCandidate> all_ways() const;
  PlanCandidate nearest(const std::vector<PlanCandidate>& ways) const;
  std::vector<PlanCandidate> weigh_all() const;
  std::vector<PlanCandidate> savings() const;
  std::string words(const Options& options) const;
  std::string needs_line(const PlanCandidate& way) const;
  std::string nothing_fits() const;

  const Options options_;
  const ModelConfig config_;
  const DeviceInfo device_;
  const Mesh mesh_;
  const int64_t data_tokens_;
  const MemoryLimits limits_;
  const std::optional<ReplayRates> rates_;
};
