// A step of a cluster that is not here: one process records what one of its ranks would be asked to do, on a GPU that
// it does not have, and replays that with named rates. Every figure of time is a model's.
#pragma once

#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/device/record.h"
#include "llmc/device/replay.h"
#include "llmc/train/report.h"
#include "llmc/train/trainer.h"

struct RecordedStep {
  Record record;  // of a step behind another one
  MemoryPlan plan;
};

// What this rank of the mesh is asked for in a step of so many micro-batches. `checks_order`: as a Device's.
RecordedStep record_step(const LlamaConfig& config, TrainerSettings settings, const Mesh& mesh,
                         const DeviceInfo& device, int64_t micro_steps, bool checks_order = true);

// Such a step replayed, of which two micro-batches at most are recorded: further ones take as long as the second. Has
// spans where all of it is recorded.
Replay replay_step(const LlamaConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                   const DeviceInfo& device, int64_t micro_steps, const std::function<Replay(const Record&)>& replayed);

// The memory of such a rank alone.
MemoryPlan plan_memory(const LlamaConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                       const DeviceInfo& device);

// --dry-run --nodes: prints the memory of a rank, the bytes of a step by link, and the replayed step; --trace writes
// it. Returns whether it fits.
bool rehearse(const Options& options, Console& console);
