// Which mesh trains a model fastest on 8 to 512 nodes of 8 H100, at a fixed number of tokens a step: of all that fit
// the fastest by replay, a model, beside the fastest with sharding alone.
//
//   build/cpu/bench/meshes          all
//   build/cpu/bench/meshes 8b       the figure that --dry-run, roofline and scale have, too
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dev/bench/public_rates.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/train/planner.h"
#include "llmc/train/settings.h"
#include "llmc/train/simulation.h"

namespace {

constexpr int kGpus = 8;                                  // of a node
constexpr double kNetwork = 40e9;                         // bytes a second and GPU
constexpr int kFewLayers = 3, kMoreLayers = 6;            // whose records estimate the whole model's step
constexpr double kReplayedWhole = 1.05;                   // as slow by that estimate as the fastest, and at most
constexpr size_t kMostReplayedWhole = 6;                  // so many
constexpr int64_t kFewestRows = 4096, kMostRows = 32768;  // of a micro-batch, between a rank's products
constexpr const char* kRecompute[] = {"none", "norms", "mlp", "block"};

// One way to train: degrees, ZeRO stage, sequences of a micro-batch, which of kRecompute.
struct Way {
  int tensor, context, shard, zero, B, recompute;
  auto operator<=>(const Way&) const = default;
};

struct Weighed {
  Way way;
  int64_t micro_steps;
  size_t bytes;
  Replay step;
};

// A step of one micro-batch and one of two; more take as long as the second for each further one.
struct Steps {
  std::optional<Replay> one, two;
};

// So many nodes with a model and sequences of T tokens.
class Cluster {
 public:
  Cluster(const std::string& model, int T, int nodes, double network, bool fp8 = false)
      : T(T), world(nodes * kGpus), fp8_(fp8), device_(modelled_device("H100")), config_(ModelConfig::preset(model)) {
    config_.max_positions = std::max(config_.max_positions, T);
    rates_ = ReplayRates::of(device_);
    rates_.network_bytes = network;
    public_rates_ = ::with_public_attention(rates_, config_.HD, T);
  }

  const int T, world;
  // All that are wanted and fit with G sequences a step, with what their steps are estimated to take.
  std::vector<Weighed> fitting(int64_t G, const std::function<bool(const Way&)>& wanted);
  // The fastest of those that are wanted, by whole records.
  std::optional<Weighed> fastest(std::vector<Weighed> all, const std::function<bool(const Way&)>& wanted);
  Replay with_public_attention(const Weighed& w) const {
    Steps steps;
    return step_of(w.micro_steps, steps,
                   [&](int64_t micro_steps) { return replayed(w.way, config_.L, micro_steps, public_rates_); });
  }
  Mesh mesh_of(const Way& way) const { return Mesh::create(world, 0, way.tensor, way.context, way.shard); }
  double tokens_per_second(int64_t G, const Replay& step) const { return double(G * T) / world / step.seconds; }
  // The causal mask's part of attention alone counts.
  double flops(int64_t G, const Replay& step) const {
    return config_.flops_per_token(T, true) * tokens_per_second(G, step);
  }
  double peak() const { return device_.bf16_flops; }
  Replay whole(const Way& way, int64_t micro_steps);

 private:
  std::optional<Weighed> with_least_recompute(Way way, int64_t G) const;
  Replay estimated(const Way& way, int64_t micro_steps);
  Replay replayed(const Way& way, int layers, int64_t micro_steps, const ReplayRates& rates) const;
  static Replay step_of(int64_t micro_steps, Steps& known, const std::function<Replay(int64_t)>& replayed);
  TrainerSettings settings_of(const Way& way, int64_t micro_steps) const;

  const bool fp8_;  // tensorwise, and weights gathered in it
  const DeviceInfo device_;
  ModelConfig config_;
  ReplayRates rates_, public_rates_;
  std::map<Way, Steps> estimates_, wholes_;
};

TrainerSettings Cluster::settings_of(const Way& way, int64_t micro_steps) const {
  Options o;
  o.tensor_parallel_degree = way.tensor, o.context_parallel_degree = way.context;
  o.hybrid_shard_degree = way.shard, o.zero_stage = way.zero, o.recompute = kRecompute[way.recompute];
  o.seq_len = T, o.micro_batch = way.B;
  if (fp8_) o.fp8 = "tensorwise", o.fp8_all_gather = true;
  const int data_ranks = mesh_of(way).data_ranks();
  o.global_batch = micro_steps * way.B * data_ranks;
  return trainer_settings(o, resolve_settings(o, config_, device_, data_ranks, 0));
}

Replay Cluster::replayed(const Way& way, int layers, int64_t micro_steps, const ReplayRates& rates) const {
  ModelConfig config = config_;
  config.L = layers;
  const TrainerSettings settings = settings_of(way, micro_steps);
  return replay(record_step(config, settings, mesh_of(way), device_, micro_steps, false).record, rates);
}

// Of as many micro-batches, by what is known of a step of one and of two, and what `replayed` says of the rest.
Replay Cluster::step_of(int64_t micro_steps, Steps& known, const std::function<Replay(int64_t)>& replayed) {
  if (!known.one) known.one = replayed(1);
  if (micro_steps == 1) return *known.one;
  if (!known.two) known.two = replayed(2);
  return extended(*known.one, *known.two, double(micro_steps - 2));
}

// Each layer takes as long as those between two short models.
Replay Cluster::estimated(const Way& way, int64_t micro_steps) {
  return step_of(micro_steps, estimates_[way], [&](int64_t count) {
    const Replay few = replayed(way, kFewLayers, count, rates_), more = replayed(way, kMoreLayers, count, rates_);
    return extended(few, more, double(config_.L - kMoreLayers) / (kMoreLayers - kFewLayers));
  });
}

Replay Cluster::whole(const Way& way, int64_t micro_steps) {
  return step_of(micro_steps, wholes_[way], [&](int64_t count) { return replayed(way, config_.L, count, rates_); });
}

std::optional<Weighed> Cluster::with_least_recompute(Way way, int64_t G) const {
  const Mesh mesh = mesh_of(way);
  const int64_t micro_steps = G / mesh.data_ranks() / way.B;
  const size_t limit = MemoryLimits::elsewhere({}, device_, kGpus).device;
  const auto bytes_with = [&](int recompute) {
    way.recompute = recompute;
    return plan_memory(config_, settings_of(way, micro_steps), mesh, device_).needed_device_bytes();
  };
  constexpr int most = int(std::size(kRecompute)) - 1;
  if (bytes_with(most) > limit) return {};
  int recompute = 0;
  while (bytes_with(recompute) > limit) ++recompute;
  return Weighed{way, micro_steps, bytes_with(recompute), {}};
}

std::vector<Weighed> Cluster::fitting(int64_t G, const std::function<bool(const Way&)>& wanted) {
  std::vector<Weighed> all;
  const auto weigh_micro_batches = [&](Way way, int64_t share) {
    const int each = way.tensor * way.context;
    for (int64_t B = share; B >= 1; B /= 2) {
      const int64_t rows = B * T / each;
      if (rows > kMostRows && B > 1) continue;
      if (rows < kFewestRows && B < share) break;
      way.B = int(B);
      if (const auto fits = with_least_recompute(way, G)) {
        all.push_back(*fits);
        all.back().step = estimated(fits->way, fits->micro_steps);
      }
    }
  };
  for (const int tensor : {1, 2, 4, 8})
    for (const int context : {1, 2, 4, 8, 16}) {
      const int each = tensor * context, data_ranks = world / each;
      if (world % each || G % data_ranks || !wanted({tensor, context, 0, 0, 0, 0})) continue;
      for (int shard = data_ranks; shard >= 1 && shard * each >= kGpus; shard /= 2)
        weigh_micro_batches({tensor, context, shard, 3, 0, 0}, G / data_ranks);
      weigh_micro_batches({tensor, context, data_ranks, 1, 0, 0}, G / data_ranks);
    }
  return all;
}

double largest_error = 0;  // of estimates beside whole records

std::optional<Weighed> Cluster::fastest(std::vector<Weighed> all, const std::function<bool(const Way&)>& wanted) {
  std::erase_if(all, [&](const Weighed& w) { return !wanted(w.way); });
  const auto faster = [](const Weighed& a, const Weighed& b) { return a.step.seconds < b.step.seconds; };
  std::stable_sort(all.begin(), all.end(), faster);
  if (all.empty()) return {};
  const double slowest = kReplayedWhole * all[0].step.seconds;
  std::optional<Weighed> best;
  for (size_t i = 0; i < std::min(all.size(), kMostReplayedWhole) && all[i].step.seconds <= slowest; ++i) {
    Weighed w = all[i];
    w.step = whole(w.way, w.micro_steps);
    largest_error = std::max(largest_error, std::abs(all[i].step.seconds / w.step.seconds - 1));
    if (!best || faster(w, *best)) best = w;
  }
  return best;
}

// Percent of the step that compute waits for these streams.
double waits(const Replay& step, std::initializer_list<const char*> streams) {
  double seconds = 0;
  for (const char* stream : streams)
    if (const auto found = step.waits_by_stream.find(stream); found != step.waits_by_stream.end())
      seconds += found->second;
  return 100 * seconds / step.seconds;
}

std::string mesh_text(const Mesh& mesh) {
  return format("%4d x %4d x %2d x %d", mesh.replicate_degree, mesh.shard_degree, mesh.context_degree,
                mesh.tensor_degree);
}

void print_headings() {
  printf("%5s %6s %6s %6s  %-21s %4s %-8s %-9s %8s %9s %18s %7s %6s %7s  %-31s%s\n", "nodes", "GPUs", "tokens", "seqs",
         "best mesh", "ZeRO", "micro-", "recompute", "memory", "step", "waits, of the step", "tok/s", "MFU", "tok/s",
         "sharding alone,", "tensor 8,");
  printf("%5s %6s %6s %6s  %-21s %4s %-8s %-9s %8s %9s %6s %5s %5s %7s %6s %7s  %-31s%s\n", "", "", "a step", "a GPU",
         "repl shard context tens", "", "batches", "", "a rank", "", "w and g", "tens", "cont", "a GPU", "", "public",
         "tok/s", "tok/s");
}

// "9.75k none": with what backward computes again; or why there is none.
std::string rate_text(const Cluster& cluster, int64_t G, const std::optional<Weighed>& w, bool alone) {
  if (w) return human_count(cluster.tokens_per_second(G, w->step)) + " " + kRecompute[w->way.recompute];
  return alone && G % cluster.world ? "fewer than one sequence a rank" : "does not fit";
}

void print_row(Cluster& cluster, int64_t tokens) {
  const int64_t G = tokens / cluster.T;
  // 1024 tokens of a sequence a rank, and fewer where there are too few sequences.
  const int64_t largest = std::max<int64_t>(cluster.T / 1024, 4 * cluster.world / G);
  const std::vector<Weighed> all =
      cluster.fitting(G, [&](const Way& way) { return way.tensor * way.context <= largest; });
  const auto best = cluster.fastest(all, [](const Way&) { return true; });
  const auto alone = cluster.fastest(all, [](const Way& way) { return way.tensor * way.context == 1; });
  const auto tensor = cluster.fastest(all, [](const Way& way) { return way.tensor == kGpus; });
  printf("%5d %6d %5lldM %7.3g ", cluster.world / kGpus, cluster.world, (long long)tokens >> 20,
         double(G) / cluster.world);
  if (best) {
    const Replay& step = best->step;
    printf("%-21s %4d %3lld x %-2d %-9s %8s %7.2f s %6.1f%% %4.1f%% %4.1f%% %7s %5.1f%% %7s  ",
           mesh_text(cluster.mesh_of(best->way)).c_str(), best->way.zero, (long long)best->micro_steps, best->way.B,
           kRecompute[best->way.recompute], human_bytes(best->bytes).c_str(), step.seconds,
           waits(step, {"gather", "reduce"}), waits(step, {"tensor"}), waits(step, {"context"}),
           human_count(cluster.tokens_per_second(G, step)).c_str(), 100 * cluster.flops(G, step) / cluster.peak(),
           human_count(cluster.tokens_per_second(G, cluster.with_public_attention(*best))).c_str());
  } else {
    printf("%-105s", "nothing fits");
  }
  printf("%-31s%s\n", rate_text(cluster, G, alone, true).c_str(), rate_text(cluster, G, tensor, false).c_str());
  fflush(stdout);
}

void print_table(const char* model, int T, double network, std::initializer_list<int> all_nodes) {
  printf("%s, sequences of %d tokens, %.0f GB/s of network a GPU\n", model, T, network * 1e-9);
  print_headings();
  for (const int nodes : all_nodes) {
    Cluster cluster(model, T, nodes, network);
    for (const int64_t tokens : {4, 16}) print_row(cluster, tokens << 20);
  }
  printf("\n");
}

// What Meta measured (Llama team 2024, table 4), all with tensor 8, pipeline 16 and 16M tokens a step.
struct Published {
  int gpus, T, context, data;
  double flops;  // of a GPU
};
constexpr Published kPublished[] = {
    {8192, 8192, 1, 64, 430e12}, {16384, 8192, 1, 128, 400e12}, {16384, 131072, 16, 8, 380e12}};

void print_published() {
  printf(
      "Beside what was measured, 405B on H100 with 16M tokens a step (Llama team 2024, table 4; TFLOP/s a GPU, of "
      "989)\n"
      "%6s %8s  %-50s %9s %20s %17s %18s\n",
      "GPUs", "sequence", "measured", "TFLOP/s", "model, same degrees", "waits, w and g", "public attention");
  for (const Published& p : kPublished) {
    Cluster cluster("llama3.1-405b", p.T, p.gpus / kGpus, kNetwork);
    const int64_t G = (int64_t(16) << 20) / p.T;
    const auto wanted = [&](const Way& way) { return way.tensor == kGpus && way.context == p.context; };
    const auto same = cluster.fastest(cluster.fitting(G, wanted), wanted);
    printf("%6d %8d  tensor 8 x context %-2d x pipeline 16 x data %-8d %9.0f", p.gpus, p.T, p.context, p.data,
           p.flops * 1e-12);
    const auto rate = [&](const Replay& step) {
      return format("%.0f (%4.1f%%)", cluster.flops(G, step) * 1e-12, 100 * cluster.flops(G, step) / cluster.peak());
    };
    if (!same) printf(" %20s\n", "does not fit");
    else
      printf(" %20s %16.1f%% %18s\n", rate(same->step).c_str(), waits(same->step, {"gather", "reduce"}),
             rate(cluster.with_public_attention(*same)).c_str());
    fflush(stdout);
  }
  printf(
      "There is no pipeline here: blocks are sharded over the data ranks instead, and their weights and gradients "
      "travel\n"
      "with every micro-batch. At 8192 tokens a sequence, 2048 tokens a GPU and step hide that and 1024 do not (at "
      "131072\n"
      "attention takes long enough); a pipeline's stages keep their weights. Where the model is faster than what was\n"
      "measured: it has nothing of what a pipeline costs (it idles at a step's ends, and its stages differ), of late\n"
      "ranks, of a network that is narrower somewhere, and every product at the rate of its class.\n\n");
}

void print_assumptions() {
  const ReplayRates rates = ReplayRates::of(modelled_device("H100"));
  printf("A model, not a measurement: the recorded step of rank 0, each piece of work at named rates.\n%s\n",
         rates.text().c_str());
  printf(
      "Public attention: what FlashAttention-3 reaches. Hops have a latency, rings as many hops as ranks; what "
      "travels\n"
      "at once shares its links.\n"
      "Not modelled: ranks that are late, NCCL's kernels taking multiprocessors and the memory's rate from compute,\n"
      "messages too short for the full rate, a network that is narrower somewhere or shared with others. Of a rank's\n"
      "memory 1.5 GiB and 288 MiB for each of NCCL's communicators are kept free, by assumption.\n\n");
  printf(
      "bf16, fp32 state, gradients summed in fp32, nothing offloaded. Of tensor 1 to 8 x context 1 to 16 (1024 tokens "
      "of\n"
      "a sequence a rank, or fewer where sequences are too few) x shards over a node's ranks to all data ranks with "
      "ZeRO\n"
      "stage 3 (stage 1 over all), and micro-batches of up to %lld rows a rank: those that fit, with the least "
      "recompute\n"
      "that does. Records of %d and %d layers rank them; the fastest, up to %zu within %.0f%%, are replayed whole.\n\n",
      (long long)kMostRows, kFewLayers, kMoreLayers, kMostReplayedWhole, 100 * (kReplayedWhole - 1));
  printf(
      "Columns: nodes; GPUs; tokens a step; sequences a step and GPU; replicate x shard x context x tensor ranks; "
      "ZeRO\n"
      "stage; micro-batches of a data rank x sequences; what backward computes again; memory of a rank, reserve "
      "included; time of a "
      "step;\n"
      "share of it that compute waits for weights and gradients, for tensor and for context parallelism; tokens a "
      "second\n"
      "and GPU; MFU (causal: 6 N + 6 L C T); tokens a second with public attention. Beside it the fastest with "
      "sharding\n"
      "alone, and the fastest with tensor groups of a whole node.\n\n");
}

}  // namespace

int main(int argc, char** argv) try {
  const auto predicted_8b = [](bool fp8) {
    Cluster node("llama3-8b", 8192, 1, kNetwork, fp8);
    return node.tokens_per_second(kGpus, node.whole({1, 1, kGpus, 3, 1, 0}, 1));
  };
  print_8b(predicted_8b(false), predicted_8b(true));
  if (wants_8b_alone(argc, argv)) return 0;
  print_assumptions();
  constexpr const char* models[] = {"llama3-8b", "llama3-70b", "llama3.1-405b"};
  for (const char* model : models) print_table(model, 8192, kNetwork, {8, 32, 128, 256, 512});
  print_published();
  print_table("llama3.1-405b", 8192, kNetwork / 4, {32, 128, 512});
  for (const char* model : models) print_table(model, 131072, kNetwork, {32, 128, 512});
  printf("Estimates by few layers were at most %.1f%% off the steps that were replayed whole, too\n",
         100 * largest_error);
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
