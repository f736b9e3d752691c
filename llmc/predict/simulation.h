// Models a step of a cluster that is not here. One process records what one of the cluster's ranks would do, on a GPU
// that it does not have, and replays that with given rates. All times are predictions of this model.
#pragma once

#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/device/record.h"
#include "llmc/device/replay.h"
#include "llmc/train/trainer.h"

struct RecordedStep {
  Record record;  // of a step that follows another one
  MemoryPlan plan;
};

// Records what this rank of the mesh does in a step of `micro_batches` micro-batches. `checks_order` is passed to
// Device.
RecordedStep record_step(const ModelConfig& config, TrainerSettings settings, const Mesh& mesh,
                         const DeviceInfo& device, int64_t micro_batches, bool checks_order = true);

// Replays such a step. It records two micro-batches at most; further ones take as long as the second. The result has
// spans only if all micro-batches were recorded.
Replay replay_step(const ModelConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                   const DeviceInfo& device, int64_t micro_batches,
                   const std::function<Replay(const Record&)>& replayed);

// Returns the memory plan of such a rank, without a step.
MemoryPlan plan_memory(const ModelConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                       const DeviceInfo& device);

// Returns the rates of the table for this device, with those of its links that the options give. Throws if the device's
// data sheet is not known.
ReplayRates rates_of(const DeviceInfo& device, const Options& options, int ranks_per_node);

// The share of such predictions that most published runs on several GPUs reached (dev/docs/predictions.md).
inline constexpr double kLittleReached = 0.50, kMuchReached = 0.65;
// Says what a predicted speed leaves out, and what runs on so many ranks reached of such predictions; several lines.
std::string prediction_limits(int ranks);
