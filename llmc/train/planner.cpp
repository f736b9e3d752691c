#include "llmc/train/planner.h"

#include <unistd.h>

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/comm/recording_communicator.h"
#include "llmc/device/known_devices.h"
#include "llmc/device/replay.h"
#include "llmc/train/rehearsal.h"
#include "llmc/train/settings.h"

MemoryLimits memory_limits(const Options& options, const DeviceInfo& device, int ranks_on_node) {
  const size_t host = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  const auto limit = [](const char* option, const std::string& text, size_t otherwise) {
    return text.empty() ? otherwise : std::min<size_t>(parse_bytes(option, text), otherwise);
  };
  return {limit("--memory-limit", options.memory_limit, device.memory_bytes),
          limit("--host-memory-limit", options.host_memory_limit, host), ranks_on_node};
}

Planner::Planner(const Options& options, const LlamaConfig& config, const DeviceInfo& device, const Mesh& mesh,
                 int64_t data_tokens, int ranks_on_node)
    : options_(options),
      config_(config),
      device_(device),
      mesh_(mesh),
      data_tokens_(data_tokens),
      limits_(memory_limits(options, device, ranks_on_node)) {}

bool Planner::fits(size_t device, size_t pinned) const {
  const size_t of_rank = pinned + (device_.gpu ? 0 : device);
  return device <= limits_.device && of_rank * size_t(limits_.ranks_on_node) <= limits_.host;
}

// From the least to the most memory that they save. What the user asked for stays.
std::vector<Planner::Way> Planner::activation_ways() const {
  if (options_.recompute != "none" || options_.activation_offload != "none") return {{"", {}}};
  const auto way = [](const char* recompute, const char* offload) {
    Way w{"", {}};
    if (std::string(recompute) != "none") w = {std::string("--recompute ") + recompute, {{"recompute", recompute}}};
    if (std::string(offload) == "none") return w;
    w.words += std::string(w.words.empty() ? "" : " ") + "--activation-offload " + offload;
    w.settings.push_back({"activation_offload", offload});
    return w;
  };
  return {way("none", "none"),      way("norms", "none"),    way("mlp", "none"),   way("norms", "attention"),
          way("mlp", "attention"), way("mlp", "all"), way("block", "none"), way("block", "input")};
}

std::vector<Planner::Way> Planner::state_ways() const {
  std::vector<Way> ways = {{"", {}}};
  if (!options_.offload_optimizer) ways.push_back({"--offload-optimizer", {{"offload_optimizer", "on"}}});
  if (!options_.offload_gradients) {
    Way both = ways.back();
    both.words += std::string(both.words.empty() ? "" : " ") + "--offload-gradients";
    both.settings.push_back({"offload_gradients", "on"});
    ways.push_back(both);
  }
  return ways;
}

// The one that the run would have, and the smaller ones that divide it.
std::vector<int64_t> Planner::micro_batches() const {
  const RunSettings settings = resolve_settings(options_, config_, device_, mesh_.data_ranks(), data_tokens_);
  std::vector<int64_t> sizes = {settings.B};
  for (int64_t b = settings.B - 1; b > 0 && is_auto(options_.micro_batch); --b)
    if (sizes.back() % b == 0) sizes.push_back(b);
  return sizes;
}

Options Planner::with(const Way& way) const {
  Options options = options_;
  Json changes = Json::object();
  for (const auto& [name, value] : way.settings) changes.set(name, value);
  apply_config(options, changes);
  return options;
}

Planner::Weighed Planner::weigh(const Way& way, bool time) const {
  Weighed w{way, with(way), 0, 0};
  const RunSettings settings = resolve_settings(w.options, config_, device_, mesh_.data_ranks(), data_tokens_);
  const TrainerSettings asked = trainer_settings(w.options, settings);
  if (!time) {
    const MemoryPlan plan = plan_memory(config_, asked, mesh_, device_);
    w.device = plan.device_bytes(), w.pinned = plan.bytes(Segment::pinned);
    return w;
  }
  const RecordedStep step = record_step(config_, asked, mesh_, device_, settings.micro_steps);
  w.device = step.plan.device_bytes(), w.pinned = step.plan.bytes(Segment::pinned);
  ReplayRates rates = ReplayRates::of(device_.bf16_flops > 0 ? device_ : modelled_device("H100"));
  rates.ranks_per_node = limits_.ranks_on_node;
  w.tokens_per_second = double(settings.step_tokens()) / mesh_.data_ranks() / replay(step.record, rates).seconds;
  return w;
}

std::string Planner::Weighed::memory() const {
  return format("%10s %10s", human_bytes(device).c_str(), human_bytes(pinned).c_str());
}

Options Planner::choose(Console& console) const {
  std::vector<Weighed> fitting;
  std::vector<std::string> lines;
  const std::vector<int64_t> sizes = micro_batches();
  const std::vector<Way> activations = activation_ways();
  // The optimizer's state leaves the device only where nothing else will do.
  for (const Way& state : state_ways()) {
    for (const Way& activation : activations)
      for (const int64_t size : sizes) {
        Way way{activation.words, activation.settings};
        way.words += std::string(way.words.empty() || state.words.empty() ? "" : " ") + state.words;
        way.settings.insert(way.settings.end(), state.settings.begin(), state.settings.end());
        way.settings.push_back({"micro_batch", std::to_string(size)});
        const Weighed w = weigh(way, false);
        if (!fits(w.device, w.pinned) && size > sizes.back()) continue;
        const std::string name = format("%-58s micro-batch %3lld", way.words.empty() ? "as it is" : way.words.c_str(),
                                        (long long)size);
        if (!fits(w.device, w.pinned)) {
          lines.push_back(format("%s %s  does not fit", name.c_str(), w.memory().c_str()));
          continue;
        }
        fitting.push_back(weigh(way, true));
        lines.push_back(format("%s %s %9s tokens/s", name.c_str(), fitting.back().memory().c_str(),
                               human_count(fitting.back().tokens_per_second).c_str()));
        break;  // smaller ones are slower
      }
    if (!fitting.empty()) break;
  }
  console.heading(format("--plan auto: within %s of the device and %s of the host (%d rank%s a node); a model's rates",
                         human_bytes(limits_.device).c_str(), human_bytes(limits_.host).c_str(), limits_.ranks_on_node,
                         limits_.ranks_on_node == 1 ? "" : "s"));
  for (const std::string& line : lines) console.line(line);
  REQUIRE(!fitting.empty(), "--plan auto: no way to train this fits\n  more ranks with --zero-stage 3, a shorter --seq-len "
                            "or fewer --layers would need less");
  const auto best = std::max_element(fitting.begin(), fitting.end(), [](const Weighed& a, const Weighed& b) {
    return a.tokens_per_second < b.tokens_per_second;
  });
  console.line(format("chosen: %s --micro-batch %lld", best->way.words.empty() ? "as it is," : best->way.words.c_str(),
                      (long long)best->options.micro_batch));
  return best->options;
}

void Planner::require_fits(const MemoryPlan& plan) const {
  const size_t device = plan.device_bytes(), pinned = plan.bytes(Segment::pinned);
  if (fits(device, pinned)) return;
  std::vector<Way> ways = activation_ways();
  ways.erase(ways.begin());
  for (const Way& way : state_ways())
    if (!way.words.empty()) ways.push_back(way);
  if (options_.moment_dtype == "fp32") ways.push_back({"--moment-dtype bf16", {{"moment_dtype", "bf16"}}});
  const int64_t size = micro_batches()[0];
  if (size > 1) ways.push_back({"--micro-batch 1", {{"micro_batch", "1"}}});
  if (mesh_.data_ranks() > 1 && options_.zero_stage < 3) ways.push_back({"--zero-stage 3", {{"zero_stage", "3"}}});
  std::vector<Weighed> weighed;
  for (const Way& way : ways) weighed.push_back(weigh(way, false));
  std::sort(weighed.begin(), weighed.end(), [](const Weighed& a, const Weighed& b) { return a.device < b.device; });
  std::string advice;
  for (size_t i = 0; i < weighed.size() && i < 4; ++i)
    if (weighed[i].device < device || weighed[i].pinned < pinned)
      advice += format("\n  %-52s needs %10s of the device, %10s of the host%s", weighed[i].way.words.c_str(),
                       human_bytes(weighed[i].device).c_str(), human_bytes(weighed[i].pinned).c_str(),
                       fits(weighed[i].device, weighed[i].pinned) ? ": it fits" : "");
  const bool of_device = device > limits_.device;
  fail("this run needs %s of device memory and %s of the host's a rank; there are %s of %s, and %s of the host for %d "
       "rank%s\n%s\n%s  --plan auto weighs all ways, a smaller --seq-len or fewer --layers needs less%s",
       human_bytes(device).c_str(), human_bytes(pinned).c_str(), human_bytes(limits_.device).c_str(),
       device_.name.c_str(), human_bytes(limits_.host).c_str(), limits_.ranks_on_node,
       limits_.ranks_on_node == 1 ? "" : "s", plan.table().c_str(), of_device ? "" : "  it is the host's that is short\n",
       advice.c_str());
}
