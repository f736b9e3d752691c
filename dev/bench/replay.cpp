// Replays recorded steps with named rates: a model, not a measurement.
//
//   build/cpu/bench/replay table                            1 to 256 nodes of 8 H100, 1B, 7B, 8B and 70B
//   build/cpu/bench/replay offload                          what activation offload exposes, Llama-8B on one H200
//   build/cpu/bench/replay --nodes 4 --model llama3-8b --zero-stage 3 --network-bandwidth 25 …
//
// Takes train_llama's options and, of the model: --flops (of bf16 products), --fp8-flops (whatever shares a factor),
// --attention-flops (backward as 5 products), --memory-bandwidth, --kernel-latency; a rank sends --node-bandwidth
// within its node, and a hop takes --node-latency and --network-latency: bytes, FLOPs and seconds. Two rates are
// train_llama's options, in GB/s: --network-bandwidth and --host-bandwidth.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/simulation.h"
#include "llmc/run/model_source.h"
#include "llmc/train/settings.h"

namespace {

struct Figures {
  Replay replayed;
  size_t device_bytes;
  bool fits;
  double tokens_per_gpu, mfu;
};

using Changes = std::map<std::string, double>;

ReplayRates rates_of(const DeviceInfo& device, const Options& options, const Changes& changes) {
  ReplayRates rates = rates_of(device, options, int(options.gpus_per_node));
  const std::map<std::string, double*> names = {
      {"--memory-bandwidth", &rates.memory_bytes},       {"--kernel-latency", &rates.kernel_seconds},
      {"--node-bandwidth", &rates.node_bytes},           {"--node-latency", &rates.node_hop_seconds},
      {"--network-latency", &rates.network_hop_seconds},
  };
  for (const auto& [name, value] : changes) {
    REQUIRE(value > 0, "%s %g: expected a number above 0", name.c_str(), value);
    if (name == "--flops") rates.set({RateClass::product_bf16}, value, "given");
    else if (name == "--fp8-flops") rates.set(kFp8Products, value, "given");
    else if (name == "--attention-flops")
      rates.set(kAttentionForward, value, "given"), rates.set(kAttentionBackward, value, "given");
    else *names.at(name) = value;
  }
  return rates;
}

struct Recorded {
  DeviceInfo device;
  int world;
  ModelConfig config;
  RunSettings settings;
  RecordedStep step;
};

Recorded record(const Options& options) {
  const DeviceInfo device = modelled_device(options.gpu);
  const int world = int(options.nodes * options.gpus_per_node);
  const Mesh mesh = Mesh::create(world, 0, int(options.tensor_parallel_degree), int(options.context_parallel_degree),
                                 int(options.hybrid_shard_degree));
  const ModelConfig config = open_model(options).config;
  const RunSettings settings = resolve_settings(options, config, device, mesh.data_degree(), 0);
  return {device, world, config, settings,
          record_step(config, trainer_settings(options, settings), mesh, device, settings.micro_batches)};
}

Figures figures_of(const Options& options, const Changes& changes) {
  const auto [device, world, config, settings, step] = record(options);
  Figures f{replay(step.record, rates_of(device, options, changes)), step.plan.device_bytes(), false, 0, 0};
  f.fits = step.plan.needed_device_bytes() <= device.memory_bytes;
  f.tokens_per_gpu = double(settings.step_tokens()) / f.replayed.seconds / world;
  f.mfu = config.flops_per_token(settings.T, true) * f.tokens_per_gpu / device.bf16_flops;
  if (!options.trace.empty()) write_trace(options.trace, step.record, f.replayed.spans);
  return f;
}

void print(const std::string& what, const Figures& f) {
  printf(
      "%-44s %9s%s  sends %9s in its node, %9s across nodes (%9s by its card)  %8.1f ms compute %7.1f ms exposed  %7s "
      "tok/s/GPU  MFU %4.1f%%\n",
      what.c_str(), human_bytes(f.device_bytes).c_str(), f.fits ? " " : "!",
      human_bytes(uint64_t(f.replayed.within_nodes)).c_str(), human_bytes(uint64_t(f.replayed.between_nodes)).c_str(),
      human_bytes(uint64_t(f.replayed.by_card)).c_str(), f.replayed.compute * 1e3, f.replayed.exposed * 1e3,
      human_count(f.tokens_per_gpu).c_str(), f.mfu * 100);
  fflush(stdout);
}

void print_table(Options options, const Changes& changes) {
  struct Case {
    const char* model;
    int64_t T, B;
  };
  const DeviceInfo device = modelled_device("H100");
  options.gpu = "H100", options.zero_stage = 3;
  printf(
      "A model, of steps of one micro-batch on nodes of 8 H100, ZeRO stage 3 over all of them (or within a node, the\n"
      "nodes being replicas): memory of a rank (!: more than it has), what a rank sends in groups within "
      "its node and across nodes, and what of the latter its network card sends\n%s\n\n",
      rates_of(device, options, changes).text().c_str());
  for (const Case& c :
       {Case{"llama3.2-1b", 4096, 4}, {"llama2-7b", 4096, 2}, {"llama3-8b", 8192, 1}, {"llama3-70b", 4096, 1}}) {
    for (const int64_t hybrid : {0, 8}) {
      for (const int64_t nodes : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
        if (hybrid && nodes == 1) continue;
        options.model = c.model, options.seq_len = c.T, options.micro_batch = c.B;
        options.nodes = nodes, options.hybrid_shard_degree = hybrid;
        options.global_batch = c.B * nodes * options.gpus_per_node;
        print(format("%-12s %lld x %lld tokens, %3lld nodes%s", c.model, (long long)c.B, (long long)c.T,
                     (long long)nodes, hybrid ? ", hybrid 8" : ""),
              figures_of(options, changes));
      }
    }
    printf("\n");
  }
}

size_t bytes_of(const MemoryPlan& plan, Segment segment, std::initializer_list<const char*> categories) {
  size_t bytes = 0;
  for (const MemoryPlan::Buffer& b : plan.buffers())
    for (const char* category : categories)
      if (b.segment == segment && b.category == category) bytes += b.bytes;
  return bytes;
}

void print_offload(const Changes& changes) {
  constexpr double kBandwidths[] = {35, 45, 55};  // GB/s
  Options options;
  options.model = "llama3-8b", options.gpu = "H200";
  options.nodes = options.gpus_per_node = 1;
  options.seq_len = 8192, options.micro_batch = options.global_batch = 1;
  printf(
      "A model, of steps of one sequence of 8192 tokens of Llama-8B on one H200: memory of activations, what is "
      "computed\n"
      "again in it, and how long compute waits for copies to the host and back, which go both ways at once\n%s\n\n",
      rates_of(modelled_device(options.gpu), options, changes).text().c_str());
  printf("%-10s %-38s %9s %9s %9s %12s", "", "", "device", "of slots", "pinned", "compute");
  for (const double bandwidth : kBandwidths) printf("   exposed at %2.0f GB/s", bandwidth);
  printf("\n");
  for (const char* fp8 : {"off", "tensorwise"})
    for (const auto& [recompute, offload] : std::vector<std::pair<const char*, const char*>>{{"none", "none"},
                                                                                             {"none", "input"},
                                                                                             {"none", "attention"},
                                                                                             {"none", "all"},
                                                                                             {"norms", "attention"},
                                                                                             {"norms", "all"},
                                                                                             {"mlp", "attention"},
                                                                                             {"mlp", "all"},
                                                                                             {"block", "none"},
                                                                                             {"block", "input"}}) {
      options.fp8 = fp8, options.recompute = recompute, options.activation_offload = offload;
      const Recorded r = record(options);
      const auto text = [&](Segment segment, std::initializer_list<const char*> categories) {
        return human_bytes(bytes_of(r.step.plan, segment, categories));
      };
      printf("%-10s %-38s %9s %9s %9s", std::string(fp8) == "off" ? "bf16" : fp8,
             format("recompute %s, offload %s", recompute, offload).c_str(),
             text(Segment::device, {"activations", "offload slots", "recompute"}).c_str(),
             text(Segment::device, {"offload slots"}).c_str(), text(Segment::pinned, {"activations"}).c_str());
      for (const double bandwidth : kBandwidths) {
        options.host_bandwidth = bandwidth;
        const Replay replayed = replay(r.step.record, rates_of(r.device, options, changes));
        if (bandwidth == kBandwidths[0]) printf(" %9.1f ms", replayed.compute * 1e3);
        printf(" %9.1f ms (%4.1f%%)", replayed.exposed * 1e3, 100 * replayed.exposed / replayed.compute);
      }
      printf("\n");
      fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Changes changes;
    std::vector<std::string> arguments;
    bool table = false, offload = false;
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      const bool rate = argument == "--flops" || argument == "--fp8-flops" || argument == "--attention-flops" ||
                        argument == "--kernel-latency" || argument == "--memory-bandwidth" ||
                        argument == "--node-bandwidth" || argument == "--node-latency" ||
                        argument == "--network-latency";
      if (argument == "table") table = true;
      else if (argument == "offload") offload = true;
      else if (rate && i + 1 < argc) changes[argument] = atof(argv[++i]);
      else arguments.push_back(argument);
    }
    Options options = parse_options(arguments);
    if (table) print_table(options, changes);
    if (offload) print_offload(changes);
    if (table || offload) {
      printf("%s\n", prediction_limits(table ? 8 : 1).c_str());
      return 0;
    }
    if (options.nodes == 0) options.nodes = 1;
    printf("a model, at\n%s\n", rates_of(modelled_device(options.gpu), options, changes).text().c_str());
    print(format("%s, %lld nodes of %lld %s", options.model.c_str(), (long long)options.nodes,
                 (long long)options.gpus_per_node, modelled_device(options.gpu).name.c_str()),
          figures_of(options, changes));
    printf("%s\n", prediction_limits(int(options.nodes * options.gpus_per_node)).c_str());
  } catch (const std::exception& error) {
    fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
