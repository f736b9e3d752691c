// This program predicts what one H100 or H200 trains. It prints microseconds a token of a step by class of work: at the
// data sheet's rates, at rates that other projects reach in public, and at those of our own kernels. The figures of
// other trainers stand below. It is a model: see llmc/device/rates.h and dev/bench/step_split.h.
//
//   build/cpu/bench/roofline          all
//   build/cpu/bench/roofline 8b       the figure that --dry-run, scale and meshes have, too
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "dev/bench/largest.h"
#include "dev/bench/public_rates.h"
#include "dev/bench/step_split.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/planner.h"
#include "llmc/predict/simulation.h"
#include "llmc/run/model_source.h"
#include "llmc/train/settings.h"

namespace {

struct Workload {
  std::string model;
  int T;
  std::string gpu;
  int ranks = 1;  // ZeRO-3 over all of them
  std::string fp8 = "off";
  bool gather = false;             // weights are gathered in FP8
  bool small_state = false;        // moments and master weights in bf16
  std::optional<int> layers = {};  // none: its own
};

Options options_of(const Workload& s, int B) {
  Options o;
  o.model = s.model, o.gpu = s.gpu, o.seq_len = s.T, o.fp8 = s.fp8;
  o.micro_batch = B, o.global_batch = int64_t(B) * s.ranks;
  if (s.layers) o.layers = *s.layers;
  if (s.ranks > 1) o.zero_stage = 3, o.fp8_all_gather = s.gather;
  if (s.small_state) o.moment_dtype = o.master_dtype = "bf16";
  return o;
}

struct Asked {
  ModelConfig config;
  RunSettings settings;
  TrainerSettings trainer;
  Mesh mesh;
};
Asked asked(const Workload& s, const DeviceInfo& device, int B) {
  const Options options = options_of(s, B);
  const ModelConfig config = open_model(options).config;
  const RunSettings settings = resolve_settings(options, config, device, s.ranks, 0);
  return {config, settings, trainer_settings(options, settings), Mesh::create(s.ranks, 0)};
}

size_t bytes_needed(const Workload& s, const DeviceInfo& device, int B) {
  const Asked a = asked(s, device, B);
  return plan_memory(a.config, a.trainer, a.mesh, device).needed_device_bytes();
}

size_t room(const DeviceInfo& device) { return MemoryLimits::elsewhere(Options(), device, 1).device; }

struct Prediction {
  double tokens_per_second;
  StepSplit split;
};
Prediction predict(const RecordedStep& step, const Asked& a, const ReplayRates& rates) {
  const Replay replayed = replay(step.record, rates);
  const double tokens = double(a.settings.step_tokens()) / a.mesh.world_size;
  return {tokens / replayed.seconds, split_step(step.record, replayed.spans, rates)};
}

std::string name_of(const Workload& s) {
  std::string name = s.model + format(", T = %d, %d %s", s.T, s.ranks, s.gpu.c_str());
  if (s.ranks > 1) name += ", ZeRO-3";
  name += s.fp8 == "off" ? ", bf16" : ", FP8 " + s.fp8;
  if (s.gather) name += " and gathered";
  if (s.small_state) name += ", master weights and moments in bf16";
  if (s.layers) name += format(", %d layers", *s.layers);
  return name;
}

void print_header() {
  printf("%-30s %9s %9s %9s %9s %9s %9s %9s %10s %8s %8s %8s\n", "us a token", "products", "in FP8", "attention",
         "passes", "optimizer", "waiting", "sum", "tokens/s", "MFU", "(full)", "of FP8");
}

void print_rows(const Workload& s, int B) {
  const DeviceInfo device = modelled_device(s.gpu);
  const Asked a = asked(s, device, B);
  const RecordedStep step = record_step(a.config, a.trainer, a.mesh, device, 1);
  printf("%s, B = %d: %s a device\n", name_of(s).c_str(), B, human_bytes(step.plan.device_bytes()).c_str());
  for (const ReplayRates& rates :
       {ReplayRates::data_sheet(device), public_rates(device, a.config.HD, s.T), ReplayRates::of(device)}) {
    const auto [tokens_per_second, split] = predict(step, a, rates);
    const double tokens = double(B) * s.T;
    const auto us = [&](WorkClass c) { return split[c].alone / tokens * 1e6; };
    printf("  %-28s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %10s", rates.name.c_str(), us(WorkClass::product),
           us(WorkClass::fp8_product), us(WorkClass::attention), us(WorkClass::pass), us(WorkClass::optimizer),
           us(WorkClass::communication) + us(WorkClass::host_copy) + split.idle / tokens * 1e6, 1e6 / tokens_per_second,
           human_count(tokens_per_second).c_str());
    const auto mfu = [&](bool causal) {
      return 100 * a.config.flops_per_token(s.T, causal) * tokens_per_second / device.bf16_flops;
    };
    for (const bool causal : {true, false}) printf(" %7.1f%%", mfu(causal));
    if (s.fp8 != "off") printf(" %7.1f%%", mfu(true) / kFp8Peak);
    printf("\n");
  }
  fflush(stdout);
}

// With as many sequences as fit; says so if not even one does.
void print_fitting(const Workload& s) {
  const DeviceInfo device = modelled_device(s.gpu);
  const int B = largest_passing([&](int n) { return bytes_needed(s, device, n) <= room(device); });
  if (B) return print_rows(s, B);
  printf("%s: does not fit: one sequence needs %s, of %s\n", name_of(s).c_str(),
         human_bytes(bytes_needed(s, device, 1)).c_str(), human_bytes(room(device)).c_str());
}

// As many layers as fit with one sequence.
void print_shortened(Workload s, int layers) {
  const DeviceInfo device = modelled_device(s.gpu);
  s.layers = largest_passing([&](int n) {
    s.layers = n;
    return n <= layers && bytes_needed(s, device, 1) <= room(device);
  });
  if (*s.layers) print_fitting(s);
}

void print_published() {
  const Workload h100{"llama3-8b", 8192, "H100", 32}, h200{"llama3-8b", 8192, "H200", 32},
      node{"llama3-8b", 8192, "H100", 8};
  printf(
      "Measured by others, tokens a second and GPU; next to them this model of ours in the same place, one sequence a "
      "GPU, at\npublic rates, and at those that are predicted for ours. Their micro-batches, recomputation and "
      "versions "
      "differ;\ntorchtitan's benchmarks of 12/2024 name H100 of 500 W with memory of 2.4 TB/s.\n\n"
      "%-66s %9s %9s %9s %9s\n",
      "Llama-3-8B, T = 8192", "measured", "public", "ours", "of that");
  struct Line {
    const char* who;
    Workload setup;
    const char* fp8;
    bool gather;
    double tokens;
  };
  for (const Line& line : {Line{"torchtitan, 32 H100, bf16", h100, "off", false, 6475},
                           Line{"torchtitan, 32 H100, bf16, torch.compile", h100, "off", false, 7166},
                           Line{"torchtitan, 32 H100, FP8 products", h100, "tensorwise", false, 8624},
                           Line{"torchtitan, 32 H100, FP8 products and all-gather", h100, "tensorwise", true, 8950},
                           Line{"torchtitan, 32 H200, FP8", h200, "tensorwise", true, 10938},
                           Line{"NeMo 24.12, 8 H100, FP8 (2 GPUs share a sequence)", node, "tensorwise", true, 12273},
                           Line{"Megatron-Bridge, 8 H100, FP8", node, "tensorwise", true, 14451}}) {
    Workload s = line.setup;
    s.fp8 = line.fp8, s.gather = line.gather;
    const DeviceInfo device = modelled_device(s.gpu);
    const Asked a = asked(s, device, 1);
    const RecordedStep step = record_step(a.config, a.trainer, a.mesh, device, 1);
    const double there = predict(step, a, public_rates(device, a.config.HD, s.T)).tokens_per_second,
                 ours = predict(step, a, ReplayRates::of(device)).tokens_per_second;
    printf("%-66s %9.0f %9.0f %9.0f %8.0f%%\n", line.who, line.tokens, there, ours, 100 * line.tokens / ours);
  }
  printf(
      "\nOther models: LLMQ on one H100, T = 1024, bf16 and FP8: 0.5B 149.5k, 164k; 1.5B 58.9k, 73.0k; 3B 30.9k, "
      "40.4k; 7B 13.8k,\n19.1k. TransformerEngine on P5, one node: 1B 40.2k, 40.8k; 7B 9.35k, 11.0k "
      "(build/cpu/bench/scale).\n");
}

// The figure that --dry-run, scale and meshes have, too.
double tokens_per_second_8b(const char* fp8) {
  const Workload s{"llama3-8b", 8192, "H100", 8, fp8, std::string(fp8) != "off"};
  const DeviceInfo device = modelled_device(s.gpu);
  const Asked a = asked(s, device, 1);
  return predict(record_step(a.config, a.trainer, a.mesh, device, 1), a, ReplayRates::of(device)).tokens_per_second;
}

}  // namespace

int main(int argc, char** argv) try {
  print_8b(tokens_per_second_8b("off"), tokens_per_second_8b("tensorwise"));
  if (wants_8b_alone(argc, argv)) return 0;
  printf(
      "A model, not a measurement: a recorded step of one micro-batch, each operation as long as its FLOPs or its "
      "bytes take,\nwhichever is longer. FP8 is tensorwise; state in fp32 unless it says otherwise; as many sequences "
      "(B) as fit.\nMFU is of the data sheet's bf16, causal "
      "(6 N + 6 L C T); full: 6 N + 12 L C T; of FP8: causal, of the data sheet's FP8.\n\n");
  for (const char* gpu : {"H100", "H200"}) {
    const DeviceInfo device = modelled_device(gpu);
    const ReplayRates rates = ReplayRates::of(device), best = public_rates(device, 128, 8192);
    printf("%s: data sheet %.0f TFLOP/s (FP8 %.0f), memory %.2f TB/s; public %.0f (FP8 %.0f), %.2f TB/s\n", gpu,
           device.bf16_flops * 1e-12, kFp8Peak * device.bf16_flops * 1e-12, device.memory_bytes_per_second * 1e-12,
           best.flops(RateClass::product_bf16) * 1e-12, best.flops(RateClass::product_fp8_tensor) * 1e-12,
           best.memory_bytes * 1e-12);
    for (const int HD : {64, 128})
      printf("  attention, head size %d: public %s; predicted %s\n", HD,
             attention_text(public_rates(device, HD, HD == 64 ? 4096 : 8192), HD).c_str(),
             attention_text(rates, HD).c_str());
    printf("predicted:\n%s\n", rates.text().c_str());
  }
  for (const char* gpu : {"H100", "H200"}) {
    printf("\n");
    print_header();
    for (const char* fp8 : {"off", "tensorwise"}) print_fitting({"llama3.2-1b", 4096, gpu, 1, fp8});
    for (const char* fp8 : {"off", "tensorwise"}) {
      const Workload alone{"llama3-8b", 8192, gpu, 1, fp8};
      print_fitting(alone);
      Workload small = alone, sharded = alone;
      small.small_state = true, sharded.ranks = 8, sharded.gather = alone.fp8 != "off";
      print_fitting(small);
      print_shortened(alone, 32);
      print_fitting(sharded);
    }
  }
  for (const int ranks : {1, 8}) printf("\n%s: %s\n", counted(ranks, "GPU").c_str(), prediction_limits(ranks).c_str());
  printf("\n");
  print_published();
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
