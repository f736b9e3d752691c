#include "llmc/train/planner.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/device/replay.h"
#include "llmc/train/rehearsal.h"
#include "llmc/train/settings.h"

MemoryLimits MemoryLimits::of(const Options& options, const DeviceInfo& device, size_t host_bytes, int ranks_on_node) {
  const auto limit = [](const char* option, const std::string& text, size_t there_is) {
    return text.empty() ? there_is : std::min<size_t>(parse_bytes(option, text), there_is);
  };
  return {limit("--memory-limit", options.memory_limit, device.memory_bytes),
          limit("--host-memory-limit", options.host_memory_limit, host_bytes), ranks_on_node};
}

Planner::Planner(const Options& options, const LlamaConfig& config, const DeviceInfo& device, const Mesh& mesh,
                 int64_t data_tokens, const MemoryLimits& limits)
    : options_(options), config_(config), device_(device), mesh_(mesh), data_tokens_(data_tokens), limits_(limits) {}

bool Planner::fits(size_t device, size_t pinned) const {
  const size_t of_host = pinned + (device_.gpu ? 0 : device);
  return device <= limits_.device && of_host <= limits_.host / size_t(limits_.ranks_on_node);
}

Planner::Way Planner::weigh(const Options& options, bool time) const {
  const RunSettings settings = resolve_settings(options, config_, device_, mesh_.data_ranks(), data_tokens_);
  const TrainerSettings asked = trainer_settings(options, settings);
  if (!time) {
    const MemoryPlan plan = plan_memory(config_, asked, mesh_, device_);
    return {options, plan.device_bytes(), plan.bytes(Segment::pinned)};
  }
  const RecordedStep step = record_step(config_, asked, mesh_, device_, settings.micro_steps);
  ReplayRates rates = ReplayRates::of(device_.bf16_flops > 0 ? device_ : modelled_device("H100"));
  rates.ranks_per_node = limits_.ranks_on_node;
  return {options, step.plan.device_bytes(), step.plan.bytes(Segment::pinned),
          double(settings.step_tokens()) / mesh_.data_ranks() / replay(step.record, rates).seconds};
}

// From the most to the least memory. What the user asked for stays.
std::vector<Options> Planner::activation_ways(const Options& from) const {
  if (from.recompute != "none" || from.activation_offload != "none") return {from};
  constexpr const char* kWays[][2] = {{"none", "none"},       {"norms", "none"},    {"mlp", "none"},
                                      {"norms", "attention"}, {"mlp", "attention"}, {"mlp", "all"},
                                      {"block", "none"},      {"block", "input"}};
  std::vector<Options> ways;
  for (const auto& [recompute, offload] : kWays) {
    ways.push_back(from);
    ways.back().recompute = recompute, ways.back().activation_offload = offload;
  }
  return ways;
}

std::vector<Options> Planner::state_ways(const Options& from) const {
  std::vector<Options> ways = {from, from, from};
  ways[1].offload_optimizer = ways[2].offload_optimizer = ways[2].offload_gradients = true;
  ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
  return ways;
}

// The micro-batch that the run would have, and the smaller ones that divide it.
std::vector<Options> Planner::smaller_micro_batches(const Options& from) const {
  std::vector<Options> ways = {from};
  if (!is_auto(from.micro_batch)) return ways;
  const RunSettings settings = resolve_settings(from, config_, device_, mesh_.data_ranks(), data_tokens_);
  for (int64_t size = settings.B; size > 0; --size) {
    if (size < settings.B && ways.back().micro_batch % size) continue;
    if (size < settings.B) ways.push_back(from);
    ways.back().micro_batch = size;
  }
  return ways;
}

std::string Planner::words(const Options& options) const {
  const std::string changed = changed_options_line(options, options_);
  return changed.empty() ? "as it is" : changed;
}

std::string Planner::line(const Way& way, double fastest) const {
  std::string rate = format("%19s", "does not fit");
  if (fits(way.device, way.pinned))
    rate =
        format("%9s %8.1f%%", human_count(way.tokens_per_second).c_str(), 100 * (1 - way.tokens_per_second / fastest));
  return format("%10s %10s %s  %s", human_bytes(way.device).c_str(), human_bytes(way.pinned).c_str(), rate.c_str(),
                words(way.options).c_str());
}

Options Planner::choose(Console& console) const {
  std::vector<Way> weighed;
  double fastest = 0;
  for (const Options& state : state_ways(options_))
    for (const Options& activations : activation_ways(state)) {
      const std::vector<Options> sizes = smaller_micro_batches(activations);
      for (const Options& size : sizes) {
        const Way needs = weigh(size, false);
        const bool fits = this->fits(needs.device, needs.pinned);
        if (!fits && &size != &sizes.back()) continue;
        weighed.push_back(fits ? weigh(size, true) : needs);
        fastest = std::max(fastest, weighed.back().tokens_per_second);
        break;  // smaller ones are slower
      }
    }
  console.heading(
      format("--plan auto: within %s of the device and %s of the host (%d rank%s a node), by a model's rates",
             human_bytes(limits_.device).c_str(), human_bytes(limits_.host).c_str(), limits_.ranks_on_node,
             limits_.ranks_on_node == 1 ? "" : "s"));
  console.line(format("%10s %10s %9s %9s", "device", "host", "tokens/s", "slower by"));
  for (const Way& way : weighed) console.line(line(way, fastest));
  REQUIRE(fastest > 0,
          "--plan auto: nothing of this fits\n  more ranks with --zero-stage 3, a shorter --seq-len or fewer --layers "
          "would need less");
  const Way& best = *std::max_element(weighed.begin(), weighed.end(), [](const Way& a, const Way& b) {
    return a.tokens_per_second < b.tokens_per_second;
  });
  console.line("chosen: " + words(best.options));
  return best.options;
}

Options Planner::choose(Communicator& communicator, Device& device, Console& console) const {
  Stream stream(device, "plan");
  const std::string chosen =
      broadcast_text(communicator, stream, mesh_.rank == 0 ? options_json(choose(console)).dump() : "");
  Options options = options_;
  apply_config(options, Json::parse(chosen, "the first rank's plan"));
  return options;
}

std::string Planner::verdict(const MemoryPlan& plan) const {
  const size_t device = plan.device_bytes(), pinned = plan.bytes(Segment::pinned);
  return format("it %s: %s of the %s of %s, %s of the %s of the host%s", fits(device, pinned) ? "fits" : "does not fit",
                human_bytes(device).c_str(), human_bytes(limits_.device).c_str(), device_.name.c_str(),
                human_bytes(pinned * size_t(limits_.ranks_on_node)).c_str(), human_bytes(limits_.host).c_str(),
                limits_.ranks_on_node > 1 ? format(" (%d ranks)", limits_.ranks_on_node).c_str() : "");
}

// What would make the run smaller, the smallest first.
std::vector<Planner::Way> Planner::savings() const {
  if (options_.sample_only || options_.eval_only) return {};
  std::vector<Options> ways = activation_ways(options_);
  for (const Options& state : state_ways(options_)) ways.push_back(state);
  const auto add = [&](auto change) {
    ways.push_back(options_);
    change(ways.back());
  };
  add([](Options& o) { o.moment_dtype = "bf16"; });
  add([](Options& o) { o.micro_batch = 1; });
  if (mesh_.data_ranks() > 1) add([](Options& o) { o.zero_stage = 3; });
  std::erase(ways, options_);
  std::vector<Way> weighed;
  for (const Options& options : ways) weighed.push_back(weigh(options, false));
  std::sort(weighed.begin(), weighed.end(), [](const Way& a, const Way& b) { return a.device < b.device; });
  return weighed;
}

void Planner::require_fits(const MemoryPlan& plan) const {
  constexpr int kAdvised = 4;
  const size_t device = plan.device_bytes(), pinned = plan.bytes(Segment::pinned);
  if (fits(device, pinned)) return;
  const bool of_device = device > limits_.device;
  std::string advice;
  int advised = 0;
  for (const Way& way : savings())
    if ((of_device ? way.device < device : way.pinned < pinned) && advised++ < kAdvised)
      advice += format("\n  %-60s %10s of the device, %10s of the host%s", words(way.options).c_str(),
                       human_bytes(way.device).c_str(), human_bytes(way.pinned).c_str(),
                       fits(way.device, way.pinned) ? ": fits" : "");
  fail("%s\n%s%s\n  --plan auto weighs what of this is fastest; a shorter --seq-len or fewer --layers need less%s",
       verdict(plan).c_str(), plan.table().c_str(), advice.c_str(),
       of_device ? "" : "; the host is short: offload less, or start fewer ranks on a node");
}
