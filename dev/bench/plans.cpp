// Prints what one GPU trains: of each Llama the longest sequence that fits with each policy of memory, what that policy
// costs, and what --plan auto picks. Memory is what the plan has, times are a model's.
//
//   build/cpu/bench/plans [GPU…]        (H100, H200)
#include <cstdio>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/planner.h"
#include "llmc/predict/simulation.h"
#include "llmc/run/model_source.h"
#include "llmc/train/settings.h"

namespace {

constexpr const char* kModels[] = {"llama3.2-1b", "llama3.2-3b", "llama3-8b", "llama3-70b"};
constexpr double kBandwidths[] = {35e9, 45e9, 55e9};
constexpr int64_t kLongest = 131072;
constexpr const char* kHost = "1TiB";

struct Policy {
  const char *recompute, *offload;
  bool state, gradients, weights = false;
  std::string name() const {
    const char* const host = weights ? "all three" : gradients ? "state, gradients" : state ? "state" : "";
    return format("%-6s %-10s %s", recompute, offload, host);
  }
};

constexpr Policy kPolicies[] = {
    {"none", "none", false, false},       {"norms", "none", false, false},     {"mlp", "none", false, false},
    {"norms", "attention", false, false}, {"mlp", "attention", false, false},  {"block", "none", false, false},
    {"block", "input", false, false},     {"none", "none", true, false},       {"mlp", "attention", true, false},
    {"block", "input", true, false},      {"mlp", "attention", true, true},    {"block", "input", true, true},
    {"mlp", "all", true, true, true},     {"block", "input", true, true, true}};

Options options_of(const char* model, const std::string& gpu, const Policy& policy, int64_t T) {
  Options options;
  options.model = model, options.gpu = gpu, options.seq_len = T;
  options.micro_batch = options.global_batch = 1;
  options.recompute = policy.recompute, options.activation_offload = policy.offload;
  options.offload_optimizer = policy.state, options.offload_gradients = policy.gradients;
  options.offload_weights = policy.weights;
  return options;
}

struct Asked {
  ModelConfig config;
  TrainerSettings settings;
};
Asked asked(const Options& options, const DeviceInfo& device) {
  ModelConfig config = open_model(options).config;
  config.max_positions = std::max<int>(config.max_positions, int(kLongest));  // memory is asked for, not quality
  const RunSettings settings = resolve_settings(options, config, device, 1, 0);
  return {config, trainer_settings(options, settings)};
}

// Returns how many bytes of its memory a run may take.
size_t room(const DeviceInfo& device) { return MemoryLimits::elsewhere(Options(), device, 1).device; }

// The longest sequence of a power of two, from 1024 on, that fits; 0: none does.
int64_t longest(const char* model, const std::string& gpu, const Policy& policy, const DeviceInfo& device) {
  int64_t fits = 0;
  for (int64_t T = 1024; T <= kLongest; T *= 2) {
    const Asked a = asked(options_of(model, gpu, policy, T), device);
    if (plan_memory(a.config, a.settings, Mesh{}, device).needed_device_bytes() > room(device)) break;
    fits = T;
  }
  return fits;
}

void print_policy(const std::string& gpu, const Policy& policy, const DeviceInfo& device) {
  printf("%s", format("%-36s", policy.name().c_str()).c_str());
  for (const char* model : kModels) {
    const int64_t T = longest(model, gpu, policy, device);
    if (!T) {
      printf(" | %37s", "does not fit");
      continue;
    }
    const Asked a = asked(options_of(model, gpu, policy, T), device);
    const RecordedStep step = record_step(a.config, a.settings, Mesh{}, device, 1);
    printf(" | %6lld %9s", (long long)T, human_bytes(step.plan.bytes(Segment::pinned)).c_str());
    for (const double bandwidth : kBandwidths) {
      ReplayRates rates = ReplayRates::of(device);
      rates.host_bytes = bandwidth;
      const Replay replayed = replay(step.record, rates);
      printf(" %5.1f%%", 100 * replayed.exposed / replayed.seconds);
    }
  }
  printf("\n");
  fflush(stdout);
}

// Prints what --plan auto chooses where the user leaves the options as they are.
void print_choices(const std::string& gpu, const DeviceInfo& device) {
  Console silent(false);
  printf("\n--plan auto, with %s of the host:\n", kHost);
  for (const char* model : kModels)
    for (const int64_t T : {4096, 8192, 32768, 131072}) {
      Options options = options_of(model, gpu, kPolicies[0], T);
      options.host_memory_limit = kHost;
      const ModelConfig config = asked(options, device).config;
      const Planner planner(options, config, device, Mesh{}, 0, MemoryLimits::elsewhere(options, device, 1));
      std::string chosen;
      try {
        chosen = changed_options_line(planner.choose(silent), options);
      } catch (const Error&) {
        chosen = "nothing fits";
      }
      printf("  %-12s %7lld tokens: %s\n", model, (long long)T, chosen.empty() ? "as it is" : chosen.c_str());
    }
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<std::string> gpus(argv + 1, argv + argc);
  if (gpus.empty()) gpus = {"H100", "H200"};
  for (const std::string& gpu : gpus) {
    const DeviceInfo device = modelled_device(gpu);
    printf(
        "\nWithin %s of one %s, reserve included: of each model the longest sequence that trains (micro-batch 1, bf16, "
        "fp32 state), what "
        "is pinned on\nthe host, and the share of a step that compute waits for copies at 35, 45 and 55 GB/s each "
        "way\n\n%-36s",
        human_bytes(room(device)).c_str(), device.name.c_str(), "recompute, offload, on the host");
    for (const char* model : kModels) printf(" | %-37s", model);
    printf("\n");
    for (const Policy& policy : kPolicies) print_policy(gpu, policy, device);
    printf("%s\n", prediction_limits(1).c_str());
    print_choices(gpu, device);
  }
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
