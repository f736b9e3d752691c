// torchtitan's published tables, row by row, next to our plan of memory and our predicted speed for the same model,
// GPUs, sequences and precision. Pipeline stages, which this program does not have, become further ranks of ZeRO-3.
//
//   build/cpu/bench/published             all rows
//   build/cpu/bench/published 405b        those of this model
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/planner.h"
#include "llmc/predict/simulation.h"
#include "llmc/train/settings.h"

namespace {

constexpr double kTheirMemory = 2.4e12;  // bytes per second of the H100 in their tables, by their data sheet
constexpr int kOverlap = 4;              // chunks of tensor parallelism, where they have asynchronous TP

// This says what forward leaves for backward. torchtitan's `selective` keeps attention and every second product of a
// block, and its `full` keeps a block's input. Here the first of the list that fits is taken.
struct Policy {
  const char *recompute, *offload;
};
struct Checkpointing {
  const char* name;
  std::vector<Policy> ours;
};
const Checkpointing kSelective{"selective", {{"norms", "none"}, {"mlp", "none"}, {"block", "none"}}},
    kFull{"full", {{"block", "none"}, {"block", "input"}}};

struct Cluster {
  const char* gpu;
  int shard, tensor, context, pipeline;  // degrees; FSDP's is `shard`
  int gpus() const { return shard * tensor * context * pipeline; }
};

struct Row {
  const char *what, *model;
  Cluster theirs;
  int64_t T, batch;  // tokens of a sequence; sequences of each of their data ranks in a step
  const char* fp8;
  bool asynchronous_tp;
  double tokens, gib;  // per second and GPU; memory of a GPU, 0: not published
};

struct Table {
  const char* title;
  const Checkpointing& checkpointing;
  std::vector<Row> rows;
};

constexpr char k8B[] = "llama3.1-8b", k70B[] = "llama3.1-70b", k405B[] = "llama3.1-405b";
constexpr Cluster kNode{"H100", 8, 1, 1, 1}, k16Nodes{"H100", 128, 1, 1, 1}, k2D{"H100", 32, 8, 1, 1},
    k3D{"H100", 8, 8, 1, 8}, k405BWithoutPipeline{"H100", 16, 8, 1, 1}, k8BTensor{"H100", 8, 8, 1, 1},
    kA100s{"A100", 64, 1, 1, 1}, k4H200Nodes{"H200", 32, 1, 1, 1}, k8H200Nodes{"H200", 64, 1, 1, 1};

constexpr Cluster context_of(int shard, int context, int tensor, int pipeline) {
  return {"H100", shard, tensor, context, pipeline};
}

// In the repository pytorch/torchtitan: benchmarks/llama3_h100_202412_torchtitan.md, docs/performance.md at commit
// 4d88a8a44, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md, and
// benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md.
const Table kTables[] = {
    {"12/2024, table 1: FSDP",
     kSelective,
     {{"FSDP", k8B, kNode, 8192, 2, "off", false, 5762, 82.4},
      {"+ torch.compile", k8B, kNode, 8192, 2, "off", false, 6667, 77.0},
      {"+ torch.compile + Float8", k8B, kNode, 8192, 2, "tensorwise", false, 8532, 76.8}}},
    {"12/2024, table 2: FSDP + CP + torch.compile + Float8",
     kFull,
     {{"FSDP 8, CP 1", k8B, kNode, 32768, 1, "tensorwise", false, 3890, 83.9},
      {"FSDP 4, CP 2", k8B, context_of(4, 2, 1, 1), 65536, 1, "tensorwise", false, 2540, 84.2},
      {"FSDP 2, CP 4", k8B, context_of(2, 4, 1, 1), 131072, 1, "tensorwise", false, 1071, 84.0},
      {"FSDP 1, CP 8", k8B, context_of(1, 8, 1, 1), 262144, 1, "tensorwise", false, 548, 84.5}}},
    {"12/2024, table 3: FSDP",
     kSelective,
     {{"FSDP", k8B, k16Nodes, 8192, 2, "off", false, 5605, 67.0},
      {"+ torch.compile", k8B, k16Nodes, 8192, 2, "off", false, 6514, 62.0},
      {"+ torch.compile + Float8", k8B, k16Nodes, 8192, 2, "tensorwise", false, 8380, 61.8}}},
    {"12/2024, table 4: FSDP 32 + TP 8 + torch.compile + Float8",
     kFull,
     {{"2D", k70B, k2D, 8192, 16, "tensorwise", false, 829, 71.9},
      {"2D + AsyncTP", k70B, k2D, 8192, 16, "tensorwise", true, 876, 67.6}}},
    {"12/2024, table 5: FSDP 8 + TP 8 + PP 8 + torch.compile + Float8 + AsyncTP",
     kFull,
     {{"1F1B", k405B, k3D, 8192, 32, "tensorwise", true, 100, 82.5},
      {"Interleaved 1F1B", k405B, k3D, 8192, 32, "tensorwise", true, 128, 72.7}}},
    {"12/2024, table 6: FSDP + TP 8 + PP 8 + CP + torch.compile + Float8 + AsyncTP + 1F1B",
     kFull,
     {{"FSDP 8, CP 1", k405B, k3D, 32768, 8, "tensorwise", true, 76, 75.3},
      {"FSDP 4, CP 2", k405B, context_of(4, 2, 8, 8), 65536, 8, "tensorwise", true, 47, 75.9},
      {"FSDP 2, CP 4", k405B, context_of(2, 4, 8, 8), 131072, 8, "tensorwise", true, 31, 77.1},
      {"FSDP 1, CP 8", k405B, context_of(1, 8, 8, 8), 262144, 8, "tensorwise", true, 16, 84.9}}},
    {"8/2024: FSDP 16 + TP 8, no pipeline",
     kFull,
     {{"2D", k405B, k405BWithoutPipeline, 8192, 2, "off", false, 109, 0},
      {"2D + Float8", k405B, k405BWithoutPipeline, 8192, 2, "tensorwise", false, 177, 0},
      {"2D + Float8 + AsyncTP", k405B, k405BWithoutPipeline, 8192, 2, "tensorwise", true, 185, 0}}},
    {"4/2024: FSDP", kSelective, {{"FSDP", k8B, kA100s, 8192, 1, "off", false, 2973, 0}}},
    {"4/2024: FSDP", kFull, {{"FSDP", k70B, kA100s, 8192, 1, "off", false, 331, 0}}},
    {"6/2025, Trainy on WhiteFiber: FSDP + torch.compile + Float8",
     kSelective,
     {{"4 nodes", k8B, k4H200Nodes, 8192, 2, "tensorwise", false, 10938, 47.96},
      {"8 nodes", k8B, k8H200Nodes, 8192, 2, "tensorwise", false, 10753, 46.97}}},
    {"6/2025: FSDP 32 + TP 8 + torch.compile",
     kFull,
     {{"bf16", k70B, k2D, 8192, 16, "off", false, 597.3, 0},
      {"bf16 + AsyncTP", k70B, k2D, 8192, 16, "off", true, 652.4, 0},
      {"tensorwise", k70B, k2D, 8192, 16, "tensorwise", false, 809.8, 0},
      {"tensorwise + AsyncTP", k70B, k2D, 8192, 16, "tensorwise", true, 942.4, 0},
      {"rowwise", k70B, k2D, 8192, 16, "rowwise", false, 599.6, 0},
      {"rowwise + AsyncTP", k70B, k2D, 8192, 16, "rowwise", true, 624.8, 0}}},
    {"6/2025: FSDP 8 + TP 8 + torch.compile",
     kSelective,
     {{"bf16", k8B, k8BTensor, 8192, 12, "off", false, 4378, 0},
      {"bf16 + AsyncTP", k8B, k8BTensor, 8192, 12, "off", true, 4809.4, 0},
      {"tensorwise", k8B, k8BTensor, 8192, 12, "tensorwise", false, 5078.1, 0},
      {"tensorwise + AsyncTP", k8B, k8BTensor, 8192, 12, "tensorwise", true, 5570.1, 0},
      {"rowwise", k8B, k8BTensor, 8192, 12, "rowwise", false, 3708.5, 0},
      {"rowwise + AsyncTP", k8B, k8BTensor, 8192, 12, "rowwise", true, 3914.9, 0}}}};

// One way to train a row here: its plan, and what its step is predicted to take.
class Ours {
 public:
  Ours(const Row& row, const Policy& policy, int64_t micro_batch)
      : policy(policy), micro_batch(micro_batch), device_(modelled_device(row.theirs.gpu)), row_(row) {
    const Cluster& c = row.theirs;
    mesh = Mesh::create(c.gpus(), 0, c.tensor, c.context);
    config_ = ModelConfig::preset(row.model);
    config_.max_positions = std::max(config_.max_positions, int(row.T));
    const Options o = options();
    const RunSettings run = resolve_settings(o, config_, device_, mesh.data_degree(), 0);
    micro_batches = run.micro_batches;
    settings_ = trainer_settings(o, run);
    const MemoryPlan plan = plan_memory(config_, settings_, mesh, device_);
    bytes = plan.device_bytes(), needed = plan.needed_device_bytes();
  }
  bool fits() const { return needed <= MemoryLimits::elsewhere({}, device_, 8).device; }
  // Tokens per second and GPU, with the memory of our data sheet or another.
  double tokens_per_second(std::optional<double> memory = {}) const {
    ReplayRates rates = ReplayRates::of(device_);
    if (memory) rates.memory_bytes *= *memory / device_.memory_bytes_per_second;
    const Replay step = replay_step(config_, settings_, mesh, device_, micro_batches,
                                    [&](const Record& record) { return replay(record, rates); });
    return double(micro_batches * micro_batch * mesh.data_degree() * row_.T) / mesh.world_size / step.seconds;
  }

  Policy policy;
  int64_t micro_batch, micro_batches;
  Mesh mesh;
  size_t bytes, needed;  // of a rank: what the plan allocates; and with the reserve for CUDA and NCCL

 private:
  Options options() const {
    Options o;
    o.model = row_.model, o.gpu = row_.theirs.gpu, o.seq_len = row_.T, o.zero_stage = 3, o.fp8 = row_.fp8;
    o.fp8_all_gather = o.fp8 == "tensorwise";
    o.tensor_parallel_degree = mesh.tensor_degree, o.context_parallel_degree = mesh.context_degree;
    o.tensor_parallel_overlap = row_.asynchronous_tp ? kOverlap : 1, o.tensor_parallel_reduce_dtype = "bf16";
    o.micro_batch = micro_batch, o.global_batch = row_.batch * row_.theirs.shard;
    o.recompute = policy.recompute, o.activation_offload = policy.offload;
    return o;
  }
  const DeviceInfo device_;
  const Row& row_;
  ModelConfig config_;
  TrainerSettings settings_;
};

// The first policy that fits, with as many sequences in a micro-batch as fit; or the one that needs least.
Ours ours_for(const Row& row, const Checkpointing& checkpointing) {
  REQUIRE(row.batch % row.theirs.pipeline == 0, "%s: %lld sequences a data rank, not a multiple of %d stages", row.what,
          (long long)row.batch, row.theirs.pipeline);
  for (const Policy& policy : checkpointing.ours)
    for (int64_t B = row.batch / row.theirs.pipeline;; B /= 2) {
      const Ours ours(row, policy, B);
      if (ours.fits()) return ours;
      if (B % 2) break;
    }
  return {row, checkpointing.ours.back(), 1};
}

std::string gib(double bytes) { return format("%.1f", bytes / double(size_t(1) << 30)); }

void print_row(const Row& row, const Checkpointing& checkpointing) {
  const Ours ours = ours_for(row, checkpointing);
  const std::string policy =
      std::string(ours.policy.recompute) + (strcmp(ours.policy.offload, "none") ? ", offloaded" : "");
  printf("%-24s %-13s %3d %4s %6lld %5lld %8.0f %6s   %3d x %d x %d %3lld x %-2lld %-16s %6s %7s", row.what, row.model,
         row.theirs.gpus(), row.theirs.gpu, (long long)row.T, (long long)row.batch, row.tokens,
         row.gib > 0 ? format("%.1f", row.gib).c_str() : "-", ours.mesh.shard_degree, ours.mesh.context_degree,
         ours.mesh.tensor_degree, (long long)ours.micro_batches, (long long)ours.micro_batch, policy.c_str(),
         gib(double(ours.bytes)).c_str(), gib(double(ours.needed)).c_str());
  if (!ours.fits()) {
    printf("  does not fit\n");
    return;
  }
  const double predicted = ours.tokens_per_second();
  printf(" %9.0f %8.0f%%", predicted, 100 * row.tokens / predicted);
  if (!strcmp(row.theirs.gpu, "H100")) printf(" %9.0f", ours.tokens_per_second(kTheirMemory));
  printf("\n");
  fflush(stdout);
}

void print_table(const Table& table, const std::string& model) {
  const auto wanted = [&](const Row& row) { return std::string(row.model).ends_with(model); };
  if (std::none_of(table.rows.begin(), table.rows.end(), wanted)) return;
  printf("%s, %s activation checkpointing\n", table.title, table.checkpointing.name);
  for (const Row& row : table.rows)
    if (wanted(row)) print_row(row, table.checkpointing);
  printf("%s\n\n", prediction_limits(8).c_str());
}

void print_head() {
  printf(
      "Published by torchtitan, measured; and a model of this program, not a measurement: the plan of rank 0's memory, "
      "and its\nrecorded step, each operation at the rates of the table (--dry-run --nodes 1 prints them). ZeRO-3 "
      "over all ranks that\nshare a tensor-parallel part, also over those that are pipeline stages there; the same "
      "tensor and context degrees and\nsequences a step, in one micro-batch if it fits. Gradients are summed in fp32, "
      "tensor parallelism's sums in bf16, and\ntensorwise FP8 gathers weights in FP8. AsyncTP: %d chunks, else 1. "
      "Tokens/s are those of a GPU.\n\n",
      kOverlap);
  const char* format = "%-24s %-13s %8s %6s %5s %8s %6s   %11s %8s %-16s %6s %7s %9s %9s %9s\n";
  printf(format, "", "", "", "", "local", "", "", "shard, ctx,", "micro-", "", "GiB,", "with", "", "published",
         "predicted,");
  printf(format, "published", "model", "GPUs", "T", "batch", "tokens/s", "GiB", "tensor", "batches", "recompute",
         "plan", "reserve", "predicted", "of it", "2.4 TB/s");
}

}  // namespace

int main(int argc, char** argv) try {
  print_head();
  for (const Table& table : kTables) print_table(table, argc > 1 ? argv[1] : "");
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
