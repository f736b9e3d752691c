// Models a step of a cluster that is not here. One process records what one of the cluster's ranks would do, on a GPU
// that it does not have, and replays that with given rates. All times are predictions of this model.
#pragma once

#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/device/record.h"
#include "llmc/device/replay.h"
#include "llmc/train/report.h"
#include "llmc/train/trainer.h"

struct RecordedStep {
  Record record;  // of a step that follows another one
  MemoryPlan plan;
};

// Records what this rank of the mesh does in a step of `micro_steps` micro-batches. `checks_order` is passed to Device.
RecordedStep record_step(const ModelConfig& config, TrainerSettings settings, const Mesh& mesh,
                         const DeviceInfo& device, int64_t micro_steps, bool checks_order = true);

// Replays such a step. It records two micro-batches at most; further ones take as long as the second. The result has
// spans only if all micro-batches were recorded.
Replay replay_step(const ModelConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                   const DeviceInfo& device, int64_t micro_steps, const std::function<Replay(const Record&)>& replayed);

// Returns the memory plan of such a rank, without a step.
MemoryPlan plan_memory(const ModelConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                       const DeviceInfo& device);

// Says what a predicted speed leaves out, and what runs on so many ranks reached of such predictions; several lines.
std::string prediction_limits(int ranks);

// --dry-run --nodes: prints the memory of a rank, the bytes that it sends in a step, and the replayed step; with --plan
// mesh before it the fastest meshes, and after it the command that trains on the first of them. --trace also writes the
// step to a file. Returns whether the run fits.
bool simulate(const Options& options, Console& console);
