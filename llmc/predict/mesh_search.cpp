#include "llmc/predict/mesh_search.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/simulation.h"

namespace {

constexpr int kMostContext = 16;
constexpr int kFewestTokens = 1024;  // of a sequence on a rank
constexpr size_t kRows = 8;          // of the table

// The degrees to try: the user's own, if it was asked for.
std::vector<int> degrees(const Options& options, const char* name, int64_t degree, int most, bool powers) {
  if (degree != 1 || options.gives(name)) return {int(degree)};
  std::vector<int> all;
  for (int degree = 1; degree <= most; ++degree)
    if (powers ? (degree & (degree - 1)) == 0 : most % degree == 0) all.push_back(degree);
  return all;
}

// The ways to shard over data ranks: ZeRO stages, and --hybrid-shard-degree. `least` is the smallest part to try.
std::vector<Options> sharding_ways(const Options& from, int data_ranks, int context, int least) {
  std::vector<Options> ways;
  const auto add = [&](int64_t stage, int64_t shard) {
    ways.push_back(from);
    ways.back().zero_stage = stage, ways.back().hybrid_shard_degree = shard;
  };
  const bool stage_asked = from.zero_stage || from.gives("zero-stage"),
             degree_asked = from.hybrid_shard_degree || from.gives("hybrid-shard-degree");
  if (!from.hybrid_shard_degree && data_ranks * context == 1) {
    add(from.zero_stage, 0);
    return ways;
  }
  for (const int64_t stage : {3, 2, 1, 0}) {
    if (stage_asked ? from.zero_stage != stage : stage == 0) continue;
    add(stage, from.hybrid_shard_degree);
    if (stage != 3 || degree_asked) continue;
    for (int shard = data_ranks / 2; shard > 1 && shard >= least && data_ranks % shard == 0; shard /= 2)
      add(stage, shard);
  }
  return ways;
}

// Returns the options with a global batch that does not depend on the mesh.
Options with_global_batch(Options options, const ModelConfig& config, const DeviceInfo& device, int world) {
  const Mesh mesh = mesh_of(options, world, 0);
  options.global_batch = resolve_settings(options, config, device, mesh.data_degree(), 0).G;
  return options;
}

}  // namespace

MeshSearch::MeshSearch(const Options& asked, const ModelConfig& config, const DeviceInfo& device, int world,
                       const MemoryLimits& limits, const ReplayRates& rates,
                       const std::function<bool(const Mesh&)>& wanted)
    : asked_(is_auto(asked.global_batch) ? with_global_batch(asked, config, device, world) : asked),
      config_(config),
      device_(device),
      limits_(limits),
      rates_(rates) {
  const int node = limits.ranks_on_node;
  const RunSettings settings = resolve_settings(asked_, config, device, 1, 0);
  const int64_t most_together = std::max({int64_t(1), int64_t(settings.T / kFewestTokens), 4 * world / settings.G,
                                          asked.tensor_parallel_degree * asked.context_parallel_degree});
  for (const int tensor :
       degrees(asked, "tensor-parallel-degree", asked.tensor_parallel_degree, std::min(node, world), false))
    for (const int context :
         degrees(asked, "context-parallel-degree", asked.context_parallel_degree, kMostContext, true)) {
      const int together = tensor * context;
      if (world % together || together > most_together) continue;
      Options options = asked_;
      options.tensor_parallel_degree = tensor, options.context_parallel_degree = context;
      const int data_ranks = world / together, least = (node + together - 1) / together;
      for (const Options& sharded : sharding_ways(options, data_ranks, context, least)) try {
          const Mesh mesh = mesh_of(sharded, world, 0);
          if (wanted(mesh)) weigh(sharded, mesh);
        } catch (const Error& error) {  // these degrees cannot share the model's heads, the sequence or the batch
          if (refused_.empty()) refused_ = error.what();
        }
    }
  REQUIRE(weighed_, "--plan mesh: no mesh of %d ranks can train this; the first of them says\n  %s", world,
          refused_.empty() ? "none is wanted" : refused_.c_str());
  sort();
  weigh_fp8_gathers();
}

// Speeds are compared in steps of a thousandth. Of equally fast ways the one that needs the least memory comes first.
void MeshSearch::sort() {
  const auto order = [](const Way& way) {
    return std::pair(-std::floor(1e3 * std::log(way.plan.tokens_per_second)), way.plan.device);
  };
  std::stable_sort(fitting_.begin(), fitting_.end(), [&](const Way& a, const Way& b) { return order(a) < order(b); });
}

// Weighs the fastest ways again, with weights that are gathered in FP8. Those that gain nothing stay as they are.
void MeshSearch::weigh_fp8_gathers() {
  if (asked_.fp8_all_gather || asked_.gives("fp8-all-gather") ||
      (asked_.fp8 != "tensorwise" && asked_.fp8 != "delayed"))
    return;
  for (size_t i = 0; i < std::min(2 * kRows, fitting_.size()); ++i) {
    const Way& way = fitting_[i];
    if (way.mesh.state_shards() == 1 || !way.plan.options.zero_stage) continue;
    Options gathered = way.plan.options;
    gathered.fp8_all_gather = true;
    const Planner planner(gathered, config_, device_, way.mesh, 0, limits_, rates_);
    const PlanCandidate plan = planner.weighed();
    if (planner.fits(plan) && plan.tokens_per_second > 1.001 * way.plan.tokens_per_second) fitting_[i].plan = plan;
  }
  sort();
}

void MeshSearch::weigh(const Options& options, const Mesh& mesh) {
  const Planner planner(options, config_, device_, mesh, 0, limits_, rates_);
  Way way{mesh, planner.fastest()};
  ++weighed_;
  if (planner.fits(way.plan)) {
    fitting_.push_back(way);
  } else if (const double part = planner.part_of_limits(way.plan); !nearest_ || part < nearest_part_) {
    nearest_ = way, nearest_part_ = part;
  }
}

Options MeshSearch::choose(Console& console) const {
  const auto words = [&](const Way& way) {
    const std::string changed = changed_options_line(way.plan.options, asked_);
    return changed.empty() ? "as it is" : changed;
  };
  const auto mesh_text = [](const Mesh& m) {
    return format("%d x %d x %d x %d", m.replicate_degree, m.shard_degree, m.context_degree, m.tensor_degree);
  };
  if (fitting_.empty())
    throw DoesNotFit(format(
        "--plan mesh: none of %d meshes fits %s of the device and %s of the host (%d ranks a node)\n  the nearest "
        "needs %s of the device and %s of the host, for a rank, with %s\n  more nodes, a GPU with more memory, a "
        "shorter --seq-len or fewer --layers need less; --moment-dtype bf16 and --master-dtype bf16 change the "
        "training's numbers, and save half of the state",
        weighed_, human_bytes(limits_.device).c_str(), human_bytes(limits_.host).c_str(), limits_.ranks_on_node,
        human_bytes(nearest_->plan.device).c_str(), human_bytes(nearest_->plan.pinned).c_str(),
        words(*nearest_).c_str()));
  const Way& best = fitting_[0];
  const RunSettings settings = resolve_settings(asked_, config_, device_, 1, 0);
  console.heading(format("--plan mesh: %d meshes weighed, of which %zu fit; %s of %d tokens a step", weighed_,
                         fitting_.size(), counted(settings.G, "sequence").c_str(), settings.T));
  console.line(format("within %s of the device and %s of the host (%d ranks a node)%s%s",
                      human_bytes(limits_.device).c_str(), human_bytes(limits_.host).c_str(), limits_.ranks_on_node,
                      limits_.host_from.empty() ? "" : "; ", limits_.host_from.c_str()));
  console.line(
      format("bytes of a rank, predicted tokens/s of a GPU, and MFU of %s's peak; replicate x shard x context x tensor "
             "ranks; ~ leaves less than 2 GiB of the device",
             settings.fp8.on() ? "FP8" : "bf16"));
  if (!best.plan.unconfirmed.empty()) console.line("(" + best.plan.unconfirmed + ")");
  console.line(format("%10s %10s %10s %7s %18s", "device", "host", "tokens/s", "MFU", "mesh"));
  for (size_t i = 0; i < std::min(kRows, fitting_.size()); ++i) {
    const Way& way = fitting_[i];
    const Planner planner(way.plan.options, config_, device_, way.mesh, 0, limits_, rates_);
    const double peak = device_.bf16_flops * (settings.fp8.on() ? kFp8Peak : 1);
    console.line(format("%10s %10s %10s %6.1f%% %18s %s %s", human_bytes(way.plan.device).c_str(),
                        human_bytes(planner.as_run(way.plan).pinned).c_str(),
                        human_count(way.plan.tokens_per_second).c_str(),
                        100 * config_.flops_per_token(settings.T, true) * way.plan.tokens_per_second / peak,
                        mesh_text(way.mesh).c_str(), planner.mark(way.plan), words(way).c_str()));
  }
  console.line(prediction_limits(best.mesh.world_size));
  console.line("chosen: " + words(best));
  return best.plan.options;
}
