// How a training scales from 1 to 256 nodes of 8 GPUs: records of the step of one rank, replayed with named rates; a
// model, next to what others measured.
//
//   build/cpu/bench/scale          all
//   build/cpu/bench/scale 8b       the figure that --dry-run, roofline and meshes have, too
#include <cstdio>
#include <string>

#include "dev/bench/public_rates.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/simulation.h"
#include "llmc/run/model_source.h"
#include "llmc/train/settings.h"

namespace {

constexpr int kNodes[] = {1, 2, 4, 8, 16, 32, 256};
constexpr double kLink = 50e9, kNvlink = 450e9;  // a GPU: 400 Gb/s of network card, NVLink 4 each way

struct Model {
  const char *name, *title;
  int64_t T, B;
};
constexpr Model k1B{"llama3.2-1b", "1B (Llama-3.2-1B)", 4096, 4}, k7B{"llama2-7b", "7B (Llama-2-7B)", 4096, 2},
    k8B{"llama3-8b", "8B (Llama-3-8B)", 8192, 1};

struct Way {
  const char* name;
  bool fp8, gather, hybrid;
};
constexpr Way kWays[] = {{"bf16, ZeRO-3", false, false, false},
                         {"bf16, hybrid", false, false, true},
                         {"FP8, ZeRO-3", true, false, false},
                         {"FP8, hybrid", true, false, true},
                         {"FP8 and gathered, ZeRO-3", true, true, false},
                         {"FP8 and gathered, hybrid", true, true, true}};

ReplayRates rates_of(const std::string& gpu, const Model& model, bool ours) {
  const ReplayRates rates = ReplayRates::of(modelled_device(gpu));
  return ours ? rates : with_public_attention(rates, ModelConfig::preset(model.name).HD, int(model.T));
}

// Rank 0 of so many nodes.
Record record_of(const std::string& gpu, const Model& model, const Way& way, int nodes) {
  Options o;
  o.model = model.name, o.gpu = gpu, o.seq_len = model.T, o.micro_batch = model.B, o.zero_stage = 3;
  const int world = 8 * nodes;
  o.global_batch = model.B * world, o.hybrid_shard_degree = way.hybrid ? 8 : 0;
  if (way.fp8) o.fp8 = "tensorwise", o.fp8_all_gather = way.gather;
  const DeviceInfo device = modelled_device(gpu);
  const Mesh mesh = Mesh::create(world, 0, 1, 1, int(o.hybrid_shard_degree));
  const ModelConfig config = open_model(o).config;
  const RunSettings settings = resolve_settings(o, config, device, world, 0);
  return record_step(config, trainer_settings(o, settings), mesh, device, 1, false).record;
}

struct Point {
  double tokens_per_second, exposed;  // of a GPU; share of the step that compute waits
};
Point point_of(const Record& record, const Model& model, const ReplayRates& rates) {
  const Replay replayed = replay(record, rates);
  return {double(model.B * model.T) / replayed.seconds, replayed.exposed / replayed.seconds};
}

void print_table(const std::string& gpu, const Model& model, bool ours) {
  const ReplayRates rates = rates_of(gpu, model, ours);
  printf("%s, %lld x %lld tokens a GPU, %s, attention %s%s\n%-26s", model.title, (long long)model.B, (long long)model.T,
         gpu.c_str(), attention_text(rates, ModelConfig::preset(model.name).HD).c_str(),
         ours ? " (ours, predicted)" : " (public)", "");
  for (const int nodes : kNodes) printf(" %18s", format("%d node%s", nodes, nodes == 1 ? "" : "s").c_str());
  printf("\n");
  for (const Way& way : kWays) {
    printf("%-26s", way.name);
    double first = 0;
    for (const int nodes : kNodes) {
      const Point p = point_of(record_of(gpu, model, way, nodes), model, rates);
      if (nodes == 1) first = p.tokens_per_second;
      printf(" %7s %4.1f%% %4.0f%%", human_count(p.tokens_per_second).c_str(), 100 * p.exposed,
             100 * p.tokens_per_second / first);
    }
    printf("\n");
    fflush(stdout);
  }
  printf("%s\n\n", prediction_limits(8).c_str());
}

// Measurements of others, in tokens a second and GPU.
struct Published {
  const char *who, *gpu;
  Model model;
  Way way;
  int from_nodes, to_nodes;  // equal: one figure
  double from, to;
};
constexpr Way kBf16 = kWays[0], kFp8 = kWays[2], kFp8Gathered = kWays[4];
const Published kPublished[] = {
    {"TransformerEngine on P5, 1B, bf16", "H100", k1B, kBf16, 1, 32, 40200, 33500},
    {"TransformerEngine on P5, 1B, FP8", "H100", k1B, kFp8, 1, 32, 40800, 38000},
    {"TransformerEngine on P5, 7B, bf16", "H100", k7B, kBf16, 1, 32, 9350, 7900},
    {"TransformerEngine on P5, 7B, FP8", "H100", k7B, kFp8, 1, 32, 11000, 9700},
    {"NeMo 24.12, 7B, FP8", "H100", k7B, kFp8Gathered, 1, 1, 16934, 0},
    {"torchtitan, 8B, bf16", "H100", k8B, kBf16, 4, 4, 6475, 0},
    {"torchtitan, 8B, bf16, torch.compile", "H100", k8B, kBf16, 4, 4, 7166, 0},
    {"torchtitan, 8B, FP8 products", "H100", k8B, kFp8, 4, 4, 8624, 0},
    {"torchtitan, 8B, FP8 products and all-gather", "H100", k8B, kFp8Gathered, 4, 4, 8950, 0},
    {"Megatron-Bridge, 8B, FP8", "H100", k8B, kFp8Gathered, 1, 1, 14451, 0}};

void print_published() {
  printf("%-46s %4s %7s %9s %9s %9s %9s   %s\n", "measured, tokens/s a GPU", "", "nodes", "measured", "model", "of it",
         "public", "kept from the first to the second: measured, model");
  for (const Published& p : kPublished) {
    double first = 0;
    for (const int nodes : {p.from_nodes, p.to_nodes}) {
      const bool again = first > 0;
      if (again && p.from_nodes == p.to_nodes) break;
      const Record record = record_of(p.gpu, p.model, p.way, nodes);
      const auto predicted = [&](bool ours) {
        return point_of(record, p.model, rates_of(p.gpu, p.model, ours)).tokens_per_second;
      };
      const double measured = again ? p.to : p.from, ours = predicted(true);
      printf("%-46s %4s %7d %9.0f %9.0f %8.0f%% %9.0f", again ? "" : p.who, again ? "" : p.gpu, nodes, measured, ours,
             100 * measured / ours, predicted(false));
      if (again) printf("   %.0f%%, %.0f%%", 100 * p.to / p.from, 100 * ours / first);
      printf("\n");
      first = ours;
    }
  }
}

// Bytes a second and GPU that the network would have to be down to, for the model to keep no more than was measured.
double explaining_network(const Published& p) {
  ReplayRates rates = rates_of(p.gpu, p.model, true);
  const Record one = record_of(p.gpu, p.model, p.way, p.from_nodes),
               many = record_of(p.gpu, p.model, p.way, p.to_nodes);
  const double wanted = p.to / p.from * point_of(one, p.model, rates).tokens_per_second;
  double low = 0.1e9, high = kLink;
  for (int i = 0; i < 30; ++i) {
    rates.network_bytes = (low + high) / 2;
    (point_of(many, p.model, rates).tokens_per_second < wanted ? low : high) = rates.network_bytes;
  }
  return high;
}

void print_disagreement() {
  const ReplayRates ours = rates_of("H100", k1B, true);
  const auto exposed = [&](const Way& way) {
    return 100 * point_of(record_of("H100", k1B, way, 256), k1B, ours).exposed;
  };
  printf(
      "\nWhere this model disagrees, and why. Level: it is faster than TransformerEngine on P5 and torchtitan, by what "
      "the table\nshows. It has every product at the rate of its class and every pass at the memory's rate. "
      "Theirs have launches from\nPython and passes that are not fused (quantization by itself takes about 17%% of "
      "TransformerEngine's FP8 linear layers).\nThe micro-batch and sequence of TransformerEngine's runs and the shape "
      "of its 1B are not known here. Megatron-Bridge is nearest\nto this model. torchtitan's tables stand in "
      "build/cpu/bench/published.\n");
  printf(
      "Scaling: the model hides nearly all communication to 32 nodes. torchtitan of 12/2024 kept 97 to 98%% over 16 "
      "times the\nnodes, on 400 Gb/s a GPU. TransformerEngine on P5 lost 7 to 17%% to 32 nodes; for the model to lose "
      "as much, a GPU's\nnetwork would have to be down to\n");
  for (size_t i = 0; i < 4; ++i)
    printf("  %5.1f GB/s of %.0f: %s\n", explaining_network(kPublished[i]) * 1e-9, kLink * 1e-9, kPublished[i].who);
  printf(
      "which is less than such cards give. What the model does not know: ranks that are late (a step takes as long as "
      "the slowest\nof all), NCCL's kernels, which take multiprocessors and the memory's rate from compute, messages "
      "too short for the full\nrate, other traffic in the network.\n");
  printf(
      "256 nodes: a ring of 2048 hops costs milliseconds a gather, whatever the bandwidth (1B in bf16 waits %.0f%% of "
      "the step, in\nFP8 with its gathers %.0f%%, where compute is shorter); sharding within a "
      "node waits %.0f%%. Of more ranks\neach updates less: hence more than 100%% of one node's speed.\n",
      exposed(kWays[0]), exposed(kWays[4]), exposed(kWays[1]));
}

}  // namespace

int main(int argc, char** argv) try {
  const auto predicted_8b = [](const Way& way) {
    return point_of(record_of("H100", k8B, way, 1), k8B, rates_of("H100", k8B, true)).tokens_per_second;
  };
  print_8b(predicted_8b(kBf16), predicted_8b(kFp8Gathered));
  if (wants_8b_alone(argc, argv)) return 0;
  const ReplayRates links = ReplayRates::of(modelled_device("H100"));
  printf(
      "A model, not a measurement: the recorded step of rank 0, each operation at named rates. Of one micro-batch "
      "a step, so\nthat nothing hides the sums of the gradients but its own backward. ZeRO-3 over all GPUs, or within "
      "a "
      "node, the nodes being\nreplicas (hybrid). Weights gathered in bf16 or FP8, gradients summed in fp32.\n");
  for (const char* gpu : {"H100", "H200"})
    printf("%s:\n%s\n", gpu, ReplayRates::of(modelled_device(gpu)).text().c_str());
  printf(
      "That is %.0f%% of %.0f GB/s of network and %.0f%% of %.0f GB/s of NVLink a GPU. Gathers and scatters go around "
      "all ranks in a ring, as NCCL's: each hop costs its "
      "latency.\n"
      "Columns: tokens a second and GPU; share of the step that compute waits for communication; speed against one "
      "node's\n\n",
      100 * links.network_bytes / kLink, kLink * 1e-9, 100 * links.node_bytes / kNvlink, kNvlink * 1e-9);
  for (const char* gpu : {"H100", "H200"})
    for (const Model& model : {k1B, k7B})
      for (const bool ours : {true, false}) print_table(gpu, model, ours);
  print_published();
  print_disagreement();
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
