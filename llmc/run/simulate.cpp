#include "llmc/run/simulate.h"

#include <algorithm>
#include <string_view>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/mesh_search.h"
#include "llmc/predict/mfu.h"
#include "llmc/predict/planner.h"
#include "llmc/predict/simulation.h"
#include "llmc/run/description.h"
#include "llmc/run/idle_options.h"
#include "llmc/run/model_source.h"
#include "llmc/train/settings.h"

namespace {

// Returns the purpose of the work of a stream, other than compute, that a step uses.
std::string purpose_of(const std::string& stream, const Options& o) {
  constexpr const char* kPurposes[][2] = {{"gather", "weights"},
                                          {"reduce", "gradients"},
                                          {"tensor", "tensor parallelism"},
                                          {"context", "context parallelism"},
                                          {"offload", "copies to the host"},
                                          {"prefetch", "copies from the host"}};
  if (stream == "reduce" && o.optimizer == "muon") return "gradients and Muon";
  for (const auto& [name, purpose] : kPurposes)
    if (stream == name) return purpose;
  fail("a model of a step: the stream '%s' has no purpose\n  name it in kPurposes of llmc/run/simulate.cpp",
       stream.c_str());
}

// Lists the bytes that a rank sends in a step, by collective, and what of them crosses the network.
std::string traffic_of(const Replay& step, const ReplayRates& rates, const Options& o) {
  std::string text;
  for (const auto& [what, bytes] : step.sent)
    if (bytes > 0)
      text += format("%s%-20s %-44s %9s", text.empty() ? "" : "\n", purpose_of(what.first, o).c_str(),
                     what.second.c_str(), human_bytes(uint64_t(bytes)).c_str());
  if (step.by_card > 0)
    text += format("\n%-65s %9s = %.2f s at %.4g GB/s", "of which each GPU's network card sends",
                   human_bytes(uint64_t(step.by_card)).c_str(), step.by_card / rates.network_bytes,
                   rates.network_bytes * 1e-9);
  return text.empty() ? "nothing" : text;
}

// Returns milliseconds for a short step, seconds for one of 10 s or more.
std::string time_text(double seconds, const Replay& of_step) {
  return of_step.seconds < 10 ? format("%.1f ms", seconds * 1e3) : format("%.2f s", seconds);
}

// "12.0 ms for weights, 3.1 ms for gradients", the longest first.
std::string waits_of(const Replay& step, const Options& o) {
  std::vector<std::pair<double, std::string>> waits;
  for (const auto& [stream, seconds] : step.waits_by_stream)
    if (seconds >= 1e-3 * step.seconds) waits.push_back({seconds, purpose_of(stream, o)});
  std::sort(waits.rbegin(), waits.rend());
  std::string text;
  for (const auto& [seconds, purpose] : waits)
    text += (text.empty() ? "" : ", ") + time_text(seconds, step) + " for " + purpose;
  return text;
}

// Returns the command that runs with these options on such nodes: by Slurm, and for few nodes first by ssh.
std::string train_command(const Options& options) {
  const int64_t nodes = options.nodes, gpus = options.gpus_per_node;
  const std::string slurm =
      format("sbatch --nodes %lld --gpus-per-node %lld scripts/train.sbatch", (long long)nodes, (long long)gpus);
  std::string ssh = nodes * gpus == 1 ? "./train_llama" : "scripts/run";
  if (nodes == 1 && gpus > 1) ssh += format(" -n %lld", (long long)gpus);
  for (int64_t node = 1; nodes > 1 && node <= nodes; ++node)
    ssh += format("%snode%lld:%lld", node == 1 ? " --hosts " : ",", (long long)node, (long long)gpus);
  std::string given;
  constexpr std::string_view kOfModels =
      " dry-run nodes gpus-per-node gpu plan trace network-bandwidth host-bandwidth ";
  for (const std::string& option : asked_options(options)) {  // "memory-limit 1GiB"
    const std::string name = option.substr(0, option.find(' '));
    if (kOfModels.find(" " + name + " ") == kOfModels.npos)
      given += " --" + name + " " + shell_quoted(option.substr(name.size() + 1));
  }
  const std::string first = nodes <= 4 ? ssh + given : "", second = nodes * gpus > 1 ? slurm + given : "";
  return first + (first.empty() || second.empty() ? "" : "\n") + second;
}

// Returns the bytes of a checkpoint on the disk, and, if the run `saves` some by itself, of those that stay. A
// checkpoint stores weights and moments in fp32, whatever type they have in memory.
std::string checkpoint_sizes(const Options& o, const ModelConfig& config, bool saves) {
  const double numbers = double(config.parameters()) * double(std::size(kStateKinds)) -
                         (o.optimizer == "muon" ? LayerProjections(config).weights() : 0);  // they have one moment
  const double bytes = numbers * sizeof(float);
  if (!saves) return format("about %s on the disk", human_bytes(uint64_t(bytes)).c_str());
  const std::string all = o.keep_checkpoints ? format("the newest %lld stay: %s", (long long)o.keep_checkpoints,
                                                      human_bytes(uint64_t(bytes * double(o.keep_checkpoints))).c_str())
                                             : "all of them stay";
  return format("each about %s on the disk; %s", human_bytes(uint64_t(bytes)).c_str(), all.c_str());
}

// A step of a cluster that is not here.
struct Modelled {
  const Options& asked;
  const Options& options;  // with the choices of --plan
  const DeviceInfo& device;
  const ModelConfig& config;
  const Mesh& mesh;
  const RunSettings& settings;
  const ReplayRates& rates;
  Replay replayed = {};
  std::vector<Rate> used = {};  // of the rates

  double tokens_per_second() const {  // of a GPU
    return double(settings.step_tokens()) / replayed.seconds / mesh.world_size;
  }
};

// Returns how long the run takes, if its length was asked for: "2000 steps, 8.39B tokens: 3d04h, …"; else "".
std::string length_of(const Modelled& m) {
  if (is_auto(m.asked.steps) && is_auto(m.asked.train_tokens)) return "";
  const int world = m.mesh.world_size;
  const double tokens = double(m.settings.steps) * double(m.settings.step_tokens()),
               seconds = tokens / world / m.tokens_per_second();
  const auto duration = [&](double part) {
    const double days = seconds / part / 86400;
    return days < 1 ? human_duration(seconds / part) : format(days < 100 ? "%.1f days" : "%.0f days", days);
  };
  std::string text =
      format("%s, %s tokens: %s by this prediction, %s GPU-hours", counted(m.settings.steps, "step").c_str(),
             human_count(tokens).c_str(), duration(1).c_str(), human_count(seconds / 3600 * world).c_str());
  if (world > 1)
    text += format("\n%s to %s at %.0f%% to %.0f%% of the predicted speed", duration(kMuchReached).c_str(),
                   duration(kLittleReached).c_str(), 100 * kMuchReached, 100 * kLittleReached);
  return text;
}

void replay_modelled(Modelled& m) {
  const TrainerSettings settings = trainer_settings(m.options, m.settings);
  const auto replayed = [&](const Record& record) {
    m.used = m.rates.used_by(record);
    return replay(record, m.rates);
  };
  if (m.options.trace.empty()) {
    m.replayed = replay_step(m.config, settings, m.mesh, m.device, m.settings.micro_batches, replayed);
  } else {
    const Record record = record_step(m.config, settings, m.mesh, m.device, m.settings.micro_batches).record;
    m.replayed = replayed(record);
    write_trace(m.options.trace, record, m.replayed.spans);
  }
}

void print_step(const Modelled& m, Console& console) {
  console.item("step", format("%s, %s", describe_step(m.settings, m.mesh).c_str(), dtype_name(m.settings.dtype)));
  if (is_auto(m.asked.global_batch))
    console.item("", format("global batch %s: the default; --global-batch N sets another",
                            counted(m.settings.G, "sequence").c_str()));
  console.item("activations",
               describe_activations(m.settings.activations, m.config, m.settings.fp8, m.mesh.tensor_degree));
}

// Prints what a rank is, holds and sends.
void print_rank(const Modelled& m, const MemoryPlan& plan, const Planner& planner, Console& console) {
  const Options& options = m.options;
  console.heading(format("%lld node%s of %lld %s: a %s", (long long)options.nodes, options.nodes == 1 ? "" : "s",
                         (long long)options.gpus_per_node, m.device.name.c_str(),
                         options.trains() ? "model of one step" : "plan of memory"));
  console.item("model",
               format("%s: %s parameters", m.config.name.c_str(), human_count(double(m.config.parameters())).c_str()));
  console.item("ranks", describe_mesh(m.mesh, options, m.config));
  if (options.trains()) print_step(m, console);
  console.item("memory", plan.table());
  if (const std::string largest = planner.largest(plan); !largest.empty()) console.item("", largest);
  console.item("", planner.verdict(plan));
  if (const std::string narrow = planner.narrow(plan); !narrow.empty()) console.warning(narrow);
  if (!planner.limits().host_from.empty()) console.item("", planner.limits().host_from);
  if (options.trains()) {
    const bool saves = m.settings.saves(options);
    console.item("checkpoints", describe_checkpoints(options, m.settings));
    if (saves || options.checkpoint_on_signal) console.item("", checkpoint_sizes(options, m.config, saves));
  }
  if (!planner.fits(plan) && options.zero_stage < 3 && m.mesh.state_shards() > 1)
    console.item("",
                 format("--zero-stage 3 shards weights, gradients and moments over %d ranks", m.mesh.state_shards()));
  if (!planner.fits(plan) && options.plan == "as-asked" && options.trains())
    console.item(
        "",
        "--plan auto chooses of recompute, offload and micro-batch the fastest that fits, --plan mesh also the "
        "mesh");
  if (options.trains()) console.item("sent", traffic_of(m.replayed, m.rates, m.options));
  for (const std::string& remark : idle_options(m.asked, {options, m.settings, m.config, m.device, m.mesh}))
    console.item("", remark);
  if (const std::string unread = unread_options(m.asked); !unread.empty()) console.item("", unread);
}

bool offloads(const Options& o) {
  return o.activation_offload != "none" || o.offload_optimizer || o.offload_gradients || o.offload_weights;
}

void print_prediction(const Modelled& m, Console& console) {
  const Replay& step = m.replayed;
  const double tokens_per_second = m.tokens_per_second();
  console.item("rates", m.rates.table(m.used));
  console.item("predicted",
               format("%s tokens/s a GPU: %s a step, of which %s compute and %s waiting for communication and copies",
                      human_count(tokens_per_second).c_str(), time_text(step.seconds, step).c_str(),
                      time_text(step.compute, step).c_str(), time_text(step.exposed, step).c_str()));
  if (const std::string unconfirmed = m.rates.unconfirmed(m.used); !unconfirmed.empty())
    console.item("", "(" + unconfirmed + ")");
  const double mfu = m.config.flops_per_token(m.settings.T, true) * tokens_per_second / m.device.bf16_flops;
  const double in_full = m.config.flops_per_token(m.settings.T, false) * tokens_per_second / m.device.bf16_flops;
  const std::string text =
      m.settings.fp8.on()
          ? format("MFU %.1f%% of FP8's %.4g TFLOP/s, %.1f%% of bf16's %.4g (%.1f%% with attention in full)",
                   100 * mfu / kFp8Peak, kFp8Peak * m.device.bf16_flops * 1e-12, 100 * mfu, m.device.bf16_flops * 1e-12,
                   100 * in_full)
          : mfu_text(m.config, m.settings.T, tokens_per_second, m.device.bf16_flops, false);
  console.item("", text + ", by the data sheet");
  if (const std::string waits = waits_of(step, m.options); !waits.empty()) console.item("", "it waits " + waits);
  if (m.asked.plan == "as-asked") console.item("", prediction_limits(m.mesh.world_size));  // else it stands above
  if (m.mesh.world_size > 1)
    console.item("", format("%.0f%% to %.0f%% of the prediction would be %s to %s tokens/s a GPU", 100 * kLittleReached,
                            100 * kMuchReached, human_count(kLittleReached * tokens_per_second).c_str(),
                            human_count(kMuchReached * tokens_per_second).c_str()));
  if (m.mesh.world_size > 1 && offloads(m.options))
    console.item("", "no published run that was compared offloads: with offload less may be reached");
  if (const std::string length = length_of(m); !length.empty()) console.item("length", length);
}

}  // namespace

bool simulate(const Options& given, Console& console) {
  Options asked = given;
  if (!asked.nodes) {
    asked.nodes = 1;
    if (!asked.gives("gpus-per-node") && asked.gpus_per_node == Options().gpus_per_node) asked.gpus_per_node = 1;
  }
  REQUIRE(asked.trains() || asked.trace.empty(), "--trace %s: it is of a step of a training", asked.trace.c_str());
  const DeviceInfo device = modelled_device(asked.gpu);
  const int ranks = int(asked.gpus_per_node), world = int(asked.nodes) * ranks;
  const ModelConfig config = open_model(asked).config;
  const MemoryLimits limits = MemoryLimits::elsewhere(asked, device, ranks);
  if (!limits.warning.empty()) console.warning(limits.warning);
  const ReplayRates rates = rates_of(device, asked, ranks);
  Options options = asked;
  if (asked.plan == "mesh" && asked.trains())
    options = MeshSearch(asked, config, device, world, limits, rates).choose(console);
  if (asked.plan == "auto" && asked.trains())
    options = Planner(asked, config, device, mesh_of(asked, world, 0), 0, limits).choose(console);
  const Mesh mesh = mesh_of(options, world, 0);
  const Planner planner(options, config, device, mesh, 0, limits);
  RunSettings settings = resolve_settings(options, config, device, mesh.data_degree(), 0);
  planner.plan_snapshot(options, settings);             // as a run would: Setup
  if (options.sample_only && is_auto(options.seq_len))  // a prompt of one token, and what follows: choose_context
    settings.context_length = int(std::min<int64_t>(1 + options.sample_tokens, config.max_positions));
  const MemoryPlan plan = plan_memory(config, trainer_settings(options, settings), mesh, device);
  Modelled modelled{asked, options, device, config, mesh, settings, rates};
  if (options.trains()) replay_modelled(modelled);
  print_rank(modelled, plan, planner, console);
  if (options.trains()) print_prediction(modelled, console);
  if (!options.trace.empty()) console.item("trace", options.trace + ": open it in ui.perfetto.dev");
  if (!planner.fits(plan)) console.warning("it does not fit (see memory above): this cannot run");
  else console.item("command", train_command(options));
  return planner.fits(plan);
}
