#include "llmc/predict/planner.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/device/replay.h"
#include "llmc/predict/simulation.h"
#include "llmc/train/settings.h"

namespace {

// 2 TiB for 8 GPUs, as in DGX and p5 nodes.
constexpr size_t kHostBytesPerGpu = size_t(256) << 30;

// A plan that leaves a GPU less than this is called narrow: no run of several GPUs has confirmed what the plan reserves
// for NCCL.
constexpr size_t kNarrowBytes = size_t(2) << 30;

// Tokens of a micro-batch that a rank computes, at most, unless the default has more. Qwen3-4B in FP8 gains 1.5% by
// prediction from 8192 to 16384, 0.7% from there to 32768, and 0.4% to 65536.
constexpr int64_t kMostTokens = 32768;

// Ways to recompute and to offload activations, of which the user may have asked for either.
std::vector<Options> activation_ways(const Options& from) {
  const bool recompute_asked = from.recompute != "none" || from.gives("recompute"),
             offload_asked = from.activation_offload != "none" || from.gives("activation-offload");
  if (recompute_asked && offload_asked) return {from};
  std::vector<Options> ways;
  const auto add = [&](const char* recompute, const char* offload) {
    ways.push_back(from);
    if (!recompute_asked) ways.back().recompute = recompute;
    if (!offload_asked) ways.back().activation_offload = offload;
  };
  if (recompute_asked || offload_asked) {  // each value of the other one
    add("none", "none"), add("norms", "input"), add("mlp", "attention"), add("block", "all");
    return ways;
  }
  constexpr const char* kWays[][2] = {{"none", "none"},       {"norms", "none"},    {"mlp", "none"},
                                      {"norms", "attention"}, {"mlp", "attention"}, {"mlp", "all"},
                                      {"block", "none"},      {"block", "input"}};
  for (const auto& [recompute, offload] : kWays) add(recompute, offload);
  return ways;
}

// Ways to keep parts of the state on the host, of which the user may have asked for some, or for none.
std::vector<Options> state_ways(const Options& from) {
  std::vector<Options> ways(4, from);
  const auto set_from = [&](size_t first, const char* name, bool Options::*part) {
    for (size_t i = first; i < ways.size() && !from.gives(name); ++i) ways[i].*part = true;
  };
  set_from(1, "offload-optimizer", &Options::offload_optimizer);
  set_from(2, "offload-gradients", &Options::offload_gradients);
  set_from(3, "offload-weights", &Options::offload_weights);
  ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
  return ways;
}

// Returns whether `a` computes nothing again and sends nothing that `b` does not. It is then the faster one, with the
// same micro-batch.
bool plainer(const Options& a, const Options& b) {
  return recompute_named(a.recompute) <= recompute_named(b.recompute) &&
         offload_named(a.activation_offload) <= offload_named(b.activation_offload) &&
         a.offload_optimizer <= b.offload_optimizer && a.offload_gradients <= b.offload_gradients &&
         a.offload_weights <= b.offload_weights && (a.fp8_weights == b.fp8_weights || a.fp8_weights == "kept");
}

}  // namespace

MemoryLimits MemoryLimits::here(const Options& options, const DeviceInfo& device, int ranks_on_node) {
  const size_t host = host_memory_bytes();
  MemoryLimits limits = elsewhere(options, device, ranks_on_node);
  limits.device = std::min(limits.device, device.free_bytes), limits.warning.clear();
  if (options.host_memory_limit.empty()) limits.host = host / 10 * 9, limits.host_from.clear();
  if (limits.host > host)
    limits.warning = format(
        "--host-memory-limit %s: the system says that this process can have %s of the host\n  the plan counts on %s; a "
        "run that cannot have it ends as it pins its memory, or is killed",
        options.host_memory_limit.c_str(), human_bytes(host).c_str(), human_bytes(limits.host).c_str());
  return limits;
}

MemoryLimits MemoryLimits::elsewhere(const Options& options, const DeviceInfo& device, int ranks_on_node) {
  const auto limit = [](const char* option, const std::string& text, size_t otherwise) {
    return text.empty() ? otherwise : size_t(parse_bytes(option, text));
  };
  MemoryLimits limits{
      limit("--memory-limit", options.memory_limit, device.free_bytes),
      limit("--host-memory-limit", options.host_memory_limit, size_t(ranks_on_node) * kHostBytesPerGpu / 10 * 9),
      ranks_on_node};
  if (limits.device > device.memory_bytes)
    limits.warning =
        format("--memory-limit %s: %s has %s\n  the plan is for one that has more", options.memory_limit.c_str(),
               device.name.c_str(), human_bytes(device.memory_bytes).c_str());
  if (options.host_memory_limit.empty())
    limits.host_from = format("a host is assumed to have %s for each GPU, of which 90%% may be pinned",
                              human_bytes(kHostBytesPerGpu).c_str());
  return limits;
}

Planner::Planner(const Options& options, const ModelConfig& config, const DeviceInfo& device, const Mesh& mesh,
                 int64_t data_tokens, const MemoryLimits& limits, const std::optional<ReplayRates>& rates)
    : options_(options),
      config_(config),
      device_(device),
      mesh_(mesh),
      data_tokens_(data_tokens),
      limits_(limits),
      rates_(rates) {}

RunSettings Planner::settings_of(const Options& options) const {
  return resolve_settings(options, config_, device_, mesh_.data_degree(), data_tokens_);
}

size_t Planner::on_host(const PlanCandidate& way) const {
  return (way.pinned + (device_.gpu ? 0 : way.device)) * size_t(limits_.ranks_on_node);
}

double Planner::part_of_limits(const PlanCandidate& way) const {
  return std::max(double(way.device) / double(limits_.device), double(on_host(way)) / double(limits_.host));
}

bool Planner::fits(const PlanCandidate& way) const {
  return way.device <= limits_.device && on_host(way) <= limits_.host;
}

PlanCandidate Planner::needs(const Options& options) const {
  return needs(options, plan_memory(config_, trainer_settings(options, settings_of(options)), mesh_, device_));
}

PlanCandidate Planner::needs(const Options& options, const MemoryPlan& plan) {
  return {options, plan.needed_device_bytes(), plan.bytes(Segment::pinned)};
}

void Planner::predict(PlanCandidate& way) const {
  const RunSettings settings = settings_of(way.options);
  const ReplayRates rates =
      rates_ ? *rates_
             : rates_of(device_.bf16_flops > 0 ? device_ : modelled_device("H100"), options_, limits_.ranks_on_node);
  const Replay step = replay_step(config_, trainer_settings(way.options, settings), mesh_, device_,
                                  settings.micro_batches, [&](const Record& record) {
                                    way.unconfirmed = rates.unconfirmed(rates.used_by(record));
                                    return replay(record, rates);
                                  });
  way.tokens_per_second = double(settings.step_tokens()) / mesh_.world_size / step.seconds;
}

// Returns the micro-batches to try, the largest first: they divide a data rank's sequences. If the user asked for one,
// that is the only one.
std::vector<int> Planner::micro_batch_sizes() const {
  const RunSettings asked = settings_of(options_);
  if (!is_auto(options_.micro_batch)) return {asked.B};
  const int64_t share = asked.B * asked.micro_batches;
  const int64_t most = std::max<int64_t>(asked.B, kMostTokens * mesh_.context_degree * mesh_.tensor_degree / asked.T);
  std::vector<int> sizes;
  for (int64_t B = std::min(share, most); B > 0; --B)
    if (share % B == 0) sizes.push_back(int(B));
  return sizes;
}

// Returns these options with the largest micro-batch that fits; if none fits, with the smallest.
PlanCandidate Planner::largest_that_fits(Options options) const {
  PlanCandidate way{};
  for (const int B : micro_batch_sizes()) {
    options.micro_batch = B;
    if (fits(way = needs(options))) break;
  }
  return way;
}

PlanCandidate Planner::weighed() const {
  PlanCandidate way = needs(options_);
  if (fits(way)) predict(way);
  return way;
}

// Returns the ways to keep the state, each with all ways to keep activations.
std::vector<Options> Planner::option_ways() const {
  std::vector<Options> states = state_ways(options_), ways;
  const bool fp8_asked = options_.fp8_weights != "kept" || options_.gives("fp8-weights");
  for (size_t i = 0, count = states.size(); !fp8_asked && i < count; ++i)
    if (has_fp8_weights_to_keep(states[i], mesh_.state_shards() > 1)) {
      states.push_back(states[i]);
      states.back().fp8_weights = "on-use";
    }
  for (const Options& state : states)
    for (const Options& activations : activation_ways(state)) ways.push_back(activations);
  return ways;
}

// Returns each way with the largest micro-batch that fits.
std::vector<PlanCandidate> Planner::all_ways() const {
  std::vector<PlanCandidate> ways;
  for (const Options& options : option_ways()) ways.push_back(largest_that_fits(options));
  return ways;
}

// Returns the way that needs the least of the host, of those that fit the device; if none does, the least of the
// device.
PlanCandidate Planner::nearest(const std::vector<PlanCandidate>& ways) const {
  const auto lack = [&](const PlanCandidate& way) {
    return way.device > limits_.device ? std::pair(way.device, size_t(0)) : std::pair(size_t(0), on_host(way));
  };
  return *std::ranges::min_element(ways, {}, lack);
}

PlanCandidate Planner::fastest() const {
  const std::vector<PlanCandidate> ways = all_ways();
  std::vector<PlanCandidate> fitting;
  for (PlanCandidate way : ways) {
    // With as large a micro-batch, and less to recompute and to send, `other` is at least as fast.
    const auto is_as_fast = [&](const PlanCandidate& other) {
      return other.options.micro_batch >= way.options.micro_batch && plainer(other.options, way.options);
    };
    if (!fits(way) || std::any_of(fitting.begin(), fitting.end(), is_as_fast)) continue;
    predict(way);
    fitting.push_back(way);
  }
  if (fitting.empty()) return nearest(ways);
  return *std::max_element(fitting.begin(), fitting.end(), [](const PlanCandidate& a, const PlanCandidate& b) {
    return a.tokens_per_second < b.tokens_per_second;
  });
}

// Returns the candidates, fastest first: each way with the default micro-batch, and with the largest one that fits.
std::vector<PlanCandidate> Planner::weigh_all() const {
  const int B = settings_of(options_).B;
  std::vector<PlanCandidate> all;
  for (const Options& options : option_ways()) {
    PlanCandidate way = needs(options), largest = largest_that_fits(options);
    way.options.micro_batch = B;
    predict(way), all.push_back(way);
    if (largest.options.micro_batch != B && fits(largest)) predict(largest), all.push_back(largest);
  }
  // Speeds are compared in steps of a thousandth. Among equally fast candidates the plainest comes first.
  const auto thousandths = [](const PlanCandidate& way) { return std::floor(1e3 * std::log(way.tokens_per_second)); };
  std::stable_sort(all.begin(), all.end(),
                   [&](const PlanCandidate& a, const PlanCandidate& b) { return thousandths(a) > thousandths(b); });
  return all;
}

std::string Planner::words(const Options& options) const {
  const std::string changed = changed_options_line(options, options_);
  return changed.empty() ? "as it is" : changed;
}

Options Planner::choose(Console& console) const {
  const std::vector<PlanCandidate> ways = weigh_all();
  const auto best = std::find_if(ways.begin(), ways.end(), [&](const PlanCandidate& way) { return fits(way); });
  console.heading(
      format("--plan auto: within %s of the device and %s of the host (%d rank%s a node), predicted tokens/s of a rank",
             human_bytes(limits_.device).c_str(), human_bytes(limits_.host).c_str(), limits_.ranks_on_node,
             limits_.ranks_on_node == 1 ? "" : "s"));
  if (!limits_.host_from.empty()) console.line(limits_.host_from + "; a rank's bytes:");
  if (device_.bf16_flops == 0)
    console.line(format("(at the rates of an H100: those of %s are not known)", device_.name.c_str()));
  if (!ways[0].unconfirmed.empty()) console.line("(" + ways[0].unconfirmed + ")");
  console.line(format("%10s  %10s  %10s %7s", "device", "host", "tokens/s", "slower"));
  std::vector<PlanCandidate> told;
  for (auto way = ways.begin(); way != ways.end(); ++way) {
    const auto saves = [&](const PlanCandidate& faster) {
      return double(way->device) < 0.99 * double(faster.device) || double(way->pinned) < 0.99 * double(faster.pinned);
    };
    if (way != best && !std::all_of(told.begin(), told.end(), saves)) continue;
    told.push_back(*way);
    const char* const device_mark = way->device > limits_.device ? "!" : mark(*way)[0] == '~' ? "~" : " ";
    console.line(format("%10s%s %10s%s %10s %6.1f%% %s", human_bytes(way->device).c_str(), device_mark,
                        human_bytes(as_run(*way).pinned).c_str(), on_host(*way) > limits_.host ? "!" : " ",
                        human_count(way->tokens_per_second).c_str(),
                        100 * (1 - way->tokens_per_second / ways[0].tokens_per_second), words(way->options).c_str()));
  }
  console.line(prediction_limits(mesh_.world_size));
  console.line("! is more than there is; ~ leaves less than " + human_bytes(kNarrowBytes) +
               " of the device; what is slower than another and saves less than 1% of its memory is left out");
  if (best == ways.end()) throw DoesNotFit(nothing_fits());
  console.line("chosen: " + words(best->options));
  return best->options;
}

// Says what the way that is nearest to fitting would need, and what it would with a state of fewer bytes.
std::string Planner::nothing_fits() const {
  std::vector<PlanCandidate> ways = {nearest(all_ways())};
  std::vector<Options> tried = {options_};
  const auto add = [&](auto change) {
    Options options = options_;
    change(options);
    const auto same = [&](const Options& other) { return other == options; };
    if (std::ranges::any_of(tried, same)) return;
    tried.push_back(options);
    const Planner smaller(options, config_, device_, mesh_, data_tokens_, limits_, rates_);
    ways.push_back(smaller.nearest(smaller.all_ways()));
  };
  const bool bf16 = settings_of(options_).dtype == DType::bf16;
  const auto narrow = [&](Options& o) { o.moment_dtype = "bf16", o.master_dtype = bf16 ? "bf16" : "fp32"; };
  const auto muon = [](Options& o) { o.optimizer = "muon"; };
  add(narrow), add(muon), add([&](Options& o) { narrow(o), muon(o); });
  std::string text =
      format("--plan auto: nothing of this fits %s of the device and %s of the host%s\n  a rank would need",
             human_bytes(limits_.device).c_str(), human_bytes(limits_.host).c_str(),
             limits_.ranks_on_node == 1 ? "" : format(", for %d ranks", limits_.ranks_on_node).c_str());
  for (const PlanCandidate& way : ways) text += needs_line(way);
  return text +
         "\n  bf16 moments and masters change the training's numbers, and Muon changes the training"
         "\n  fewer --layers or another --model need less of both; a shorter --seq-len less of the device; with more "
         "ranks and --zero-stage 3, --tensor-parallel-degree or --context-parallel-degree each needs less";
}

std::string Planner::needs_line(const PlanCandidate& way) const {
  return format("\n  %10s of the device and %10s of the host%s with %s", human_bytes(way.device).c_str(),
                human_bytes(way.pinned).c_str(), fits(way) ? ", which fits," : "", words(way.options).c_str());
}

Options Planner::choose(Communicator& communicator, Device& device, Console& console) const {
  Json outcome = Json::object();
  if (mesh_.rank == 0) try {
      outcome.set("options", options_json(choose(console)));
    } catch (const DoesNotFit& error) {
      outcome.set("does_not_fit", error.what());
    } catch (const Error& error) {
      outcome.set("error", error.what());
    }
  Stream stream(device, "plan");
  outcome = Json::parse(broadcast_text(communicator, stream, outcome.dump()), "the first rank's plan");
  if (const Json* error = outcome.find("does_not_fit")) throw DoesNotFit(error->as_string());
  if (const Json* error = outcome.find("error")) fail("%s", error->as_string().c_str());
  Options options = options_;
  apply_config(options, outcome.at("options"));
  return options;
}

bool Planner::fits(const MemoryPlan& plan) const { return fits(needs(options_, plan)); }

bool Planner::fits(const RunSettings& settings) const {
  return fits(plan_memory(config_, trainer_settings(options_, settings), mesh_, device_));
}

void Planner::plan_snapshot(const Options& options, RunSettings& settings) const {
  if (!settings.saves(options) || !options.checkpoint_async || settings.snapshot) return;
  settings.snapshot = true;
  const MemoryPlan plan = plan_memory(config_, trainer_settings(options, settings), mesh_, device_);
  settings.snapshot = on_host(needs(options, plan)) <= limits_.host;
}

PlanCandidate Planner::as_run(const PlanCandidate& way) const {
  RunSettings settings = settings_of(way.options);
  plan_snapshot(way.options, settings);
  return needs(way.options, plan_memory(config_, trainer_settings(way.options, settings), mesh_, device_));
}

const char* Planner::mark(const PlanCandidate& way) const {
  return !fits(way) ? "!" : device_.gpu && limits_.device < way.device + kNarrowBytes ? "~" : " ";
}

std::string Planner::narrow(const MemoryPlan& plan) const {
  if (*mark(needs(options_, plan)) != '~') return "";
  return format(
      "%s of %s%s are left, and what the plan reserves for libraries is in part an assumption\n  --plan auto "
      "--memory-limit SIZE plans with more room",
      human_bytes(limits_.device - plan.needed_device_bytes()).c_str(), human_bytes(limits_.device).c_str(),
      options_.memory_limit.empty() ? "" : " (--memory-limit)");
}

std::string Planner::largest(const MemoryPlan& plan) const {
  if (!device_.gpu || *mark(needs(options_, plan)) == ' ') return "";
  return "the ten largest of the device are\n" + plan.largest_on_device(10);
}

std::string Planner::verdict(const MemoryPlan& plan) const {
  const PlanCandidate way = needs(options_, plan);
  const std::string ranks = limits_.ranks_on_node > 1 ? format(", for %d ranks", limits_.ranks_on_node) : "",
                    included = device_.gpu ? "" : " (the device's memory included)", host = human_bytes(on_host(way)),
                    hosts = human_bytes(limits_.host), devices = human_bytes(limits_.device),
                    limited = options_.memory_limit.empty() ? "" : "--memory-limit; ";
  std::string device = human_bytes(way.device);
  if (plan.reserved_bytes()) device += format(" (of which %s reserved)", human_bytes(plan.reserved_bytes()).c_str());
  if (fits(way))
    return format("it fits: %s of the %s %s %s, %s of the %s of the host%s%s", device.c_str(), devices.c_str(),
                  limited.empty() ? "of" : "(--memory-limit) of", device_.name.c_str(), host.c_str(), hosts.c_str(),
                  ranks.c_str(), included.c_str());
  return format("it does not fit: the device needs %s and has %s (%s%s); the host needs %s%s%s and has %s",
                device.c_str(), devices.c_str(), limited.c_str(), device_.name.c_str(), host.c_str(), ranks.c_str(),
                included.c_str(), hosts.c_str());
}

// Returns what the run needs with each option that makes it smaller, and then with several of them together.
std::vector<PlanCandidate> Planner::savings() const {
  std::vector<Options> ways;
  Options all = options_;
  const auto add = [&](bool together, auto change) {
    ways.push_back(options_);
    change(ways.back());
    if (together) change(all);
  };
  add(true, [](Options& o) { o.offload_weights = true; });
  add(true, [](Options& o) { o.micro_batch = 1; });
  if (options_.fp8 != "off") add(false, [](Options& o) { o.fp8_weights = "on-use"; });
  if (mesh_.state_shards() > 1) add(true, [](Options& o) { o.zero_stage = 3; });
  add(false, [](Options& o) { o.offload_optimizer = o.offload_gradients = o.offload_weights = false; });
  if (options_.trains()) {
    add(false, [](Options& o) { o.recompute = "mlp"; });
    add(false, [](Options& o) { o.recompute = "mlp", o.activation_offload = "attention"; });
    add(false, [](Options& o) { o.recompute = "block"; });
    add(true, [](Options& o) { o.recompute = "block", o.activation_offload = "input", o.recompute_every = 1; });
    add(true, [](Options& o) { o.offload_optimizer = true; });
    add(true, [](Options& o) { o.offload_gradients = true; });
    add(false, [](Options& o) { o.moment_dtype = "bf16"; });
    add(false, [](Options& o) { o.activation_offload = "none"; });
    add(false, [](Options& o) { o.checkpoint_async = false; });
  }
  ways.push_back(all);
  std::vector<PlanCandidate> weighed;
  for (const Options& options : ways)
    if (options != options_) weighed.push_back(needs(options));
  return weighed;
}

void Planner::require_fits(const MemoryPlan& plan) const {
  const PlanCandidate now = needs(options_, plan);
  if (fits(now)) return;
  const auto short_of = [&](const PlanCandidate& way) {
    return now.device > limits_.device ? way.device : on_host(way);
  };
  std::vector<PlanCandidate> ways = savings();
  std::erase_if(ways, [&](const PlanCandidate& way) { return short_of(way) >= short_of(now); });
  std::stable_sort(ways.begin(), ways.end(),
                   [&](const PlanCandidate& a, const PlanCandidate& b) { return short_of(a) < short_of(b); });
  std::string advice;
  for (size_t i = 0; i < ways.size() && i < 5; ++i) advice += needs_line(ways[i]);
  throw DoesNotFit(format("%s\n%s%s\n  a shorter --seq-len or fewer --layers need less, too%s", verdict(plan).c_str(),
                          plan.table().c_str(), advice.empty() ? "" : ("\n  a rank would need" + advice).c_str(),
                          options_.plan == "auto" || !options_.trains()
                              ? ""
                              : "; --plan auto chooses of recompute, offload and micro-batch the fastest that fits"));
}
