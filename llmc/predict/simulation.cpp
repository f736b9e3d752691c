#include "llmc/predict/simulation.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/comm/recording_communicator.h"

RecordedStep record_step(const ModelConfig& config, TrainerSettings settings, const Mesh& mesh,
                         const DeviceInfo& modelled, int64_t micro_batches, bool checks_order) {
  settings.micro_batches = std::max(settings.micro_batches, int(micro_batches));
  Device device(modelled, checks_order);
  RecordingCommunicator communicator(mesh.rank, Communicator::first_ranks(mesh.world_size));
  const auto trainer = Trainer::create(device, communicator, config, settings, mesh);
  trainer->allocate();
  const size_t tokens = size_t(micro_batches) * size_t(settings.B) * size_t(settings.T);
  const std::vector<int32_t> inputs(tokens, 0), labels(tokens, 0);
  RecordedStep step{{}, trainer->plan()};
  for (int64_t i = 0; i < 2; ++i) {
    if (i == 1) device.record_to(&step.record);
    trainer->enqueue_step({i, 1e-3, inputs, labels});
    device.record_to(nullptr);
    trainer->wait_for_step();
  }
  return step;
}

Replay replay_step(const ModelConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                   const DeviceInfo& modelled, int64_t micro_batches,
                   const std::function<Replay(const Record&)>& replayed) {
  const auto replay_of = [&](int64_t count) {
    return replayed(record_step(config, settings, mesh, modelled, count, false).record);
  };
  Replay first = replay_of(std::min<int64_t>(micro_batches, 2));
  return micro_batches > 2 ? extended(replay_of(1), first, double(micro_batches - 2)) : first;
}

MemoryPlan plan_memory(const ModelConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                       const DeviceInfo& modelled) {
  Device device(modelled);
  RecordingCommunicator communicator(mesh.rank, Communicator::first_ranks(mesh.world_size));
  return Trainer::create(device, communicator, config, settings, mesh)->plan();
}

ReplayRates rates_of(const DeviceInfo& device, const Options& options, int ranks_per_node) {
  ReplayRates rates = ReplayRates::of(device);
  rates.ranks_per_node = ranks_per_node;
  if (!is_auto(options.network_bandwidth)) rates.set_network(options.network_bandwidth * 1e9);
  if (!is_auto(options.host_bandwidth)) rates.set_host(options.host_bandwidth * 1e9);
  return rates;
}

std::string prediction_limits(int ranks) {
  const std::string always =
      "loading of data, validation, samples, checkpoints, and clocks other than those of an H200 that trains at 700 W";
  if (ranks == 1)
    return "not modelled: " + always +
           "\none H200, whose steps gave the rates, was within 2% of such predictions in bf16, and 3% to 5% slower in "
           "FP8\none H100 was within 1% of them for Llamas of 124M and 8B, and 3% to 11% slower for Qwen2.5 "
           "(dev/docs/predictions.md)";
  return "not modelled: ranks that are late, what NCCL takes of multiprocessors and memory, short messages, other "
         "traffic "
         "in the network; " +
         always +
         format(
             "\npublished runs on several GPUs reached 39%% to 94%% of such predictions, most of them %.0f%% to %.0f%% "
             "(dev/docs/predictions.md)",
             100 * kLittleReached, 100 * kMuchReached);
}
