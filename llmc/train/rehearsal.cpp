#include "llmc/train/rehearsal.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/comm/recording_communicator.h"
#include "llmc/device/known_devices.h"
#include "llmc/train/model_source.h"
#include "llmc/train/planner.h"
#include "llmc/train/settings.h"
#include "llmc/train/tuner.h"

RecordedStep record_step(const LlamaConfig& config, TrainerSettings settings, const Mesh& mesh,
                         const DeviceInfo& modelled, int64_t micro_steps, bool checks_order) {
  settings.micro_steps = std::max(settings.micro_steps, int(micro_steps));
  Device device(modelled, checks_order);
  RecordingCommunicator communicator(mesh.rank, Communicator::first_ranks(mesh.world_size));
  const auto trainer = Trainer::create(device, communicator, config, settings, mesh);
  trainer->allocate();
  const size_t tokens = size_t(micro_steps) * size_t(settings.B) * size_t(settings.T);
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

Replay replay_step(const LlamaConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                   const DeviceInfo& modelled, int64_t micro_steps,
                   const std::function<Replay(const Record&)>& replayed) {
  const auto replay_of = [&](int64_t count) {
    return replayed(record_step(config, settings, mesh, modelled, count, false).record);
  };
  Replay first = replay_of(std::min<int64_t>(micro_steps, 2));
  return micro_steps > 2 ? extended(replay_of(1), first, double(micro_steps - 2)) : first;
}

MemoryPlan plan_memory(const LlamaConfig& config, const TrainerSettings& settings, const Mesh& mesh,
                       const DeviceInfo& modelled) {
  Device device(modelled);
  RecordingCommunicator communicator(mesh.rank, Communicator::first_ranks(mesh.world_size));
  return Trainer::create(device, communicator, config, settings, mesh)->plan();
}

namespace {

// Bytes that a rank sends in a step, by collective.
std::string traffic_of(const Record& record, const ReplayRates& rates) {
  std::vector<std::pair<std::string, double>> sums;
  for (const Record::Entry& entry : record.entries) {
    if (entry.ranks.size() < 2 || !entry.sent) continue;
    const bool one_node = entry.ranks.back() / rates.ranks_per_node == entry.ranks.front() / rates.ranks_per_node;
    const std::string name =
        format("%s of %zu ranks, %s", entry.name.c_str(), entry.ranks.size(), one_node ? "in a node" : "between nodes");
    auto found = std::find_if(sums.begin(), sums.end(), [&](const auto& sum) { return sum.first == name; });
    if (found == sums.end()) found = sums.insert(sums.end(), {name, 0});
    found->second += double(entry.sent);
  }
  std::string text;
  for (const auto& [name, bytes] : sums)
    text += format("%s%-44s %9s", text.empty() ? "" : "\n", name.c_str(), human_bytes(uint64_t(bytes)).c_str());
  return text.empty() ? "nothing" : text;
}

}  // namespace

void rehearse(const Options& asked, Console& console) {
  const DeviceInfo device = modelled_device(asked.gpu);
  const int world = int(asked.nodes * asked.gpus_per_node);
  const Mesh mesh = Mesh::create(world, 0, int(asked.tensor_parallel_degree), int(asked.context_parallel_degree),
                                 int(asked.hybrid_shard_degree));
  const LlamaConfig config = open_model(asked).config;
  const int ranks = int(asked.gpus_per_node);
  const Planner planner(asked, config, device, mesh, 0, MemoryLimits::elsewhere(asked, device, ranks));
  const Options options = asked.plan == "auto" ? planner.choose(console) : asked;
  const RunSettings settings = resolve_settings(options, config, device, mesh.data_ranks(), 0);
  const RecordedStep step =
      record_step(config, trainer_settings(options, settings), mesh, device, settings.micro_steps);
  ReplayRates rates = ReplayRates::of(device);
  rates.ranks_per_node = ranks;
  const Replay replayed = replay(step.record, rates);

  console.heading(format("%lld node%s of %lld %s: a model of one step", (long long)options.nodes,
                         options.nodes == 1 ? "" : "s", (long long)options.gpus_per_node, device.name.c_str()));
  console.item("model",
               format("%s: %s parameters", config.name.c_str(), human_count(double(config.parameters())).c_str()));
  console.item("ranks", format("%s, ZeRO stage %lld", mesh.description().c_str(), (long long)options.zero_stage));
  console.item("step", format("%lld sequences of %d tokens: a rank %lld micro-batch%s of %d, %s", (long long)settings.G,
                              settings.T, (long long)settings.micro_steps, settings.micro_steps == 1 ? "" : "es",
                              settings.B, dtype_name(settings.dtype)));
  console.item("activations", describe_activations(settings.activations, config, settings.fp8));
  console.item("memory", step.plan.table());
  console.item("", planner.verdict(step.plan));
  console.item("sent", traffic_of(step.record, rates));
  if (const std::string ignored = ignored_tuning(options); !ignored.empty()) console.item("", ignored);
  console.item("rates", rates.text());
  const double tokens = double(settings.step_tokens());
  const double mfu = config.flops_per_token(settings.T, false) * tokens / world / replayed.seconds / device.bf16_flops;
  console.item("replayed",
               format("%.1f ms a step, of which %.1f ms compute and %.1f ms waiting for communication and copies: %s "
                      "tokens/s a GPU, MFU %.1f%%",
                      replayed.seconds * 1e3, replayed.compute * 1e3, replayed.exposed * 1e3,
                      human_count(tokens / replayed.seconds / world).c_str(), mfu * 100));
  if (options.trace.empty()) return;
  write_trace(options.trace, step.record, replayed.spans);
  console.item("trace", options.trace + ": open it in ui.perfetto.dev");
}
