// Which mesh trains a model fastest on 8 to 512 nodes of 8 H100, at a fixed number of tokens a step: of all that fit
// the fastest by replay, a model, and the fastest with sharding alone.
//
//   build/cpu/bench/meshes          all
//   build/cpu/bench/meshes 8b       the figure that --dry-run, roofline and scale have, too
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dev/bench/public_rates.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/mesh_search.h"
#include "llmc/predict/simulation.h"
#include "llmc/train/settings.h"

namespace {

constexpr int kGpus = 8;                    // of a node
constexpr double kNetwork = 40e9;           // bytes a second and GPU
constexpr const char* kHostLimit = "8GiB";  // of a node: batches fit, and nothing that is offloaded

using Way = MeshSearch::Way;
using Wanted = std::function<bool(const Mesh&)>;

// So many nodes with a model and sequences of T tokens.
class Cluster {
 public:
  Cluster(const std::string& model, int T, int nodes, double network)
      : T(T), world(nodes * kGpus), device_(modelled_device("H100")), config_(ModelConfig::preset(model)) {
    config_.max_positions = std::max(config_.max_positions, T);
    rates_ = ReplayRates::of(device_);
    rates_.network_bytes = network;
  }

  const int T, world;
  // All that are wanted, with G sequences a step.
  MeshSearch search(int64_t G, const Wanted& wanted) const {
    Options o;
    o.seq_len = T, o.global_batch = G, o.host_memory_limit = kHostLimit;
    return MeshSearch(o, config_, device_, world, MemoryLimits::elsewhere(o, device_, kGpus), rates_, wanted);
  }
  Replay step_of(const Way& w) const { return step_of(w.plan.options, w.mesh, rates_); }
  Replay with_public_attention(const Way& w) const {
    return step_of(w.plan.options, w.mesh, ::with_public_attention(rates_, config_.HD, T));
  }
  // Tokens/s of a GPU, each with a sequence, sharded over all by ZeRO-3.
  double of_zero_3(bool fp8) const {
    Options o;
    o.seq_len = T, o.micro_batch = 1, o.global_batch = world, o.zero_stage = 3;
    if (fp8) o.fp8 = "tensorwise", o.fp8_all_gather = true;
    return tokens_per_second(world, step_of(o, Mesh::create(world, 0), rates_));
  }
  double tokens_per_second(int64_t G, const Replay& step) const { return double(G * T) / world / step.seconds; }
  // The causal mask's part of attention alone counts.
  double flops(int64_t G, const Replay& step) const {
    return config_.flops_per_token(T, true) * tokens_per_second(G, step);
  }
  double peak() const { return device_.bf16_flops; }
  int64_t micro_batches(const Way& w) const { return settings_of(w.plan.options, w.mesh).micro_batches; }

 private:
  RunSettings settings_of(const Options& o, const Mesh& mesh) const {
    return resolve_settings(o, config_, device_, mesh.data_degree(), 0);
  }
  Replay step_of(const Options& o, const Mesh& mesh, const ReplayRates& rates) const {
    const RunSettings settings = settings_of(o, mesh);
    return replay_step(config_, trainer_settings(o, settings), mesh, device_, settings.micro_batches,
                       [&](const Record& record) { return replay(record, rates); });
  }

  const DeviceInfo device_;
  ModelConfig config_;
  ReplayRates rates_;
};

// The fastest of those that are wanted.
std::optional<Way> fastest(const MeshSearch& search, const Wanted& wanted) {
  for (const Way& way : search.fitting())
    if (wanted(way.mesh)) return way;
  return {};
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
std::string rate_text(const Cluster& cluster, int64_t G, const std::optional<Way>& w, bool alone) {
  if (w) return human_count(w->plan.tokens_per_second) + " " + w->plan.options.recompute;
  return alone && G % cluster.world ? "fewer than one sequence a rank" : "does not fit";
}

void print_row(const Cluster& cluster, int64_t tokens) {
  const int64_t G = tokens / cluster.T;
  const Wanted any = [](const Mesh&) { return true; };
  const MeshSearch all = cluster.search(G, any);
  const auto best = fastest(all, any);
  const auto alone = fastest(all, [](const Mesh& m) { return m.tensor_degree * m.context_degree == 1; });
  const auto tensor = fastest(all, [](const Mesh& m) { return m.tensor_degree == kGpus; });
  printf("%5d %6d %5lldM %7.3g ", cluster.world / kGpus, cluster.world, (long long)tokens >> 20,
         double(G) / cluster.world);
  if (best) {
    const Replay step = cluster.step_of(*best);
    const Options& o = best->plan.options;
    printf("%-21s %4lld %3lld x %-2lld %-9s %8s %7.2f s %6.1f%% %4.1f%% %4.1f%% %7s %5.1f%% %7s  ",
           mesh_text(best->mesh).c_str(), (long long)o.zero_stage, (long long)cluster.micro_batches(*best),
           (long long)o.micro_batch, o.recompute.c_str(), human_bytes(best->plan.device).c_str(), step.seconds,
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
    const Cluster cluster(model, T, nodes, network);
    for (const int64_t tokens : {4, 16}) print_row(cluster, tokens << 20);
  }
  printf("%s\n\n", prediction_limits(kGpus).c_str());
}

// Meta's measurements (Llama team 2024, table 4), all with tensor 8, pipeline 16 and 16M tokens a step.
struct Published {
  int gpus, T, context, data;
  double flops;  // of a GPU
};
constexpr Published kPublished[] = {
    {8192, 8192, 1, 64, 430e12}, {16384, 8192, 1, 128, 400e12}, {16384, 131072, 16, 8, 380e12}};

void print_published() {
  printf(
      "Against what was measured, 405B on H100 with 16M tokens a step (Llama team 2024, table 4; TFLOP/s a GPU, of "
      "989)\n"
      "%6s %8s  %-50s %9s %20s %17s %18s\n",
      "GPUs", "sequence", "measured", "TFLOP/s", "model, same degrees", "waits, w and g", "public attention");
  for (const Published& p : kPublished) {
    const Cluster cluster("llama3.1-405b", p.T, p.gpus / kGpus, kNetwork);
    const int64_t G = (int64_t(16) << 20) / p.T;
    const Wanted wanted = [&](const Mesh& m) { return m.tensor_degree == kGpus && m.context_degree == p.context; };
    const auto same = fastest(cluster.search(G, wanted), wanted);
    printf("%6d %8d  tensor 8 x context %-2d x pipeline 16 x data %-8d %9.0f", p.gpus, p.T, p.context, p.data,
           p.flops * 1e-12);
    const auto rate = [&](const Replay& step) {
      return format("%.0f (%4.1f%%)", cluster.flops(G, step) * 1e-12, 100 * cluster.flops(G, step) / cluster.peak());
    };
    if (!same) {
      printf(" %20s\n", "does not fit");
    } else {
      const Replay step = cluster.step_of(*same);
      printf(" %20s %16.1f%% %18s\n", rate(step).c_str(), waits(step, {"gather", "reduce"}),
             rate(cluster.with_public_attention(*same)).c_str());
    }
    fflush(stdout);
  }
  printf(
      "There is no pipeline here: blocks are sharded over the data ranks instead, and their weights and gradients "
      "are\n"
      "sent with every micro-batch. At 8192 tokens a sequence, 2048 tokens a GPU and step hide that and 1024 do not "
      "(at "
      "131072\n"
      "attention takes long enough); a pipeline's stages keep their weights. Where the model is faster than what was\n"
      "measured: it has nothing of what a pipeline costs (it idles at a step's ends, and its stages differ), of late\n"
      "ranks, of a network that is narrower somewhere, and every product at the rate of its class.\n\n");
}

void print_assumptions() {
  const ReplayRates rates = ReplayRates::of(modelled_device("H100"));
  printf("A model, not a measurement: the recorded step of rank 0, each operation at named rates.\n%s\n",
         rates.text().c_str());
  printf(
      "Public attention: what FlashAttention-3 reaches. Hops have a latency, rings as many hops as ranks; collectives "
      "that\n"
      "send at once share their links.\n"
      "Of a rank's memory 1.5 GiB and 288 MiB for each of NCCL's communicators are kept free, by assumption.\n\n");
  printf(
      "bf16, fp32 state, gradients summed in fp32, nothing offloaded. The search is that of --plan mesh: tensor 1 to "
      "8 x\ncontext 1 to 16, ZeRO stages 1 to 3, of each mesh the fastest that fits.\n\n");
  printf(
      "Columns: nodes; GPUs; tokens a step; sequences a step and GPU; replicate x shard x context x tensor ranks; "
      "ZeRO\n"
      "stage; micro-batches of a data rank x sequences; what backward computes again; memory of a rank, reserve "
      "included; time of a "
      "step;\n"
      "share of it that compute waits for weights and gradients, for tensor and for context parallelism; tokens a "
      "second\n"
      "and GPU; MFU (causal: 6 N + 6 L C T); tokens a second with public attention. Then the fastest with "
      "sharding\n"
      "alone, and the fastest with tensor groups of a whole node.\n\n");
}

}  // namespace

int main(int argc, char** argv) try {
  const Cluster node("llama3-8b", 8192, 1, kNetwork);
  print_8b(node.of_zero_3(false), node.of_zero_3(true));
  if (wants_8b_alone(argc, argv)) return 0;
  print_assumptions();
  constexpr const char* models[] = {"llama3-8b", "llama3-70b", "llama3.1-405b"};
  for (const char* model : models) print_table(model, 8192, kNetwork, {8, 32, 128, 256, 512});
  print_published();
  print_table("llama3.1-405b", 8192, kNetwork / 4, {32, 128, 512});
  for (const char* model : models) print_table(model, 131072, kNetwork, {32, 128, 512});
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
