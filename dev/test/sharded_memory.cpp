// The memory of a training that its ranks share out. Each rank that runs this ends with an error where its own is not
// as promised.
//
//   sharded_memory touched HYBRID_DEGREE [every]   some steps touch each planned byte, and no other, in each stage: a line
//   sharded_memory touched-fp8 HYBRID_DEGREE         a training; the same of FP8 trainings, in the stages that share
//   sharded_memory touched-muon HYBRID_DEGREE        the same with Muon, of each type
//   sharded_memory plan MODEL PRECISION      what is planned is what theory says: a line of a table for each stage
//   sharded_memory export MODEL DIR          writes random weights
//   sharded_memory initialize MODEL          what that adds, at most, to the memory of each rank, in stage 3:
//   sharded_memory import DIR                  "rank R of N: S bytes of state, A bytes added, M of them mapped"
//
// MODEL is a preset or a config.json.
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "dev/test/tiny_trainer.h"
#include "llmc/run/model_source.h"

namespace {

ModelConfig model_of(const std::string& model) {
  Options options;
  options.model = model;
  return open_model(options).config;
}

// ---------------------------------------------------------------------------------------------- touched

// Sharing out adds buffers, but no exceptions: what pads a unit or a part is 0 and is moved with it.
void require_touched(World& world, const ModelConfig& config, TrainerSettings settings, const std::string& degree) {
  settings.snapshot = true;
  Training training(world, config, settings, world.mesh(1, 1, std::stoi(degree)));
  training.use_all();
  training.require_planned(training.text());
  const MemoryPlan& plan = training->plan();
  if (world.first())
    printf("%s: %zu buffers of %zu bytes\n", training.text().c_str(), plan.buffers().size(),
           plan.device_bytes() + plan.bytes(Segment::pinned));
}

// Each head with each type; gradients are reduced in either type, in every other stage.
void touch(const Ranks& ranks, const Words& words) {
  World world(ranks);
  for (int stage = 0; stage < 4; ++stage)
    for (const bool tied : {false, true})
      for (const char* dtype : {"fp32", "bf16"})
        for (const DType reduce_dtype : {DType::fp32, DType::bf16}) {
          TrainerSettings settings = settings_in(dtype, tiny());
          settings.zero_stage = stage, settings.reduce_dtype = reduce_dtype;
          const bool in_turn = (tied + (settings.dtype == DType::bf16) + stage) % 2 == (reduce_dtype == DType::bf16);
          if (in_turn || words.size() > 2) require_touched(world, tiny({.tied = tied}), settings, words[1]);
        }
}

void touch_fp8(const Ranks& ranks, const Words& words) {
  World world(ranks);
  const struct {
    const char *recipe, *skip;
    bool all_gather, precompute, on_host = false;
  } kinds[] = {{"tensorwise", "", true, true},        {"tensorwise", "layers.1.self_attn.o", true, false},
               {"delayed", "", true, true},           {"delayed", "", true, false},
               {"delayed", "down", true, true},       {"rowwise", "", false, true},
               {"blockwise", "last=1", false, true},  {"tensorwise", "", true, true, true},
               {"delayed", "down", true, true, true}, {"rowwise", "", false, true, true}};
  for (int stage = 0; stage < 4; ++stage)
    for (const auto& kind : kinds) {
      if (stage == 0 && !kind.on_host) continue;
      TrainerSettings settings = settings_in(kind.recipe, tiny(), kind.skip);
      settings.zero_stage = stage, settings.fp8_stats = 1;
      settings.fp8.all_gather = kind.all_gather, settings.fp8.precompute_scales = kind.precompute;
      settings.state.weights_on_host = kind.on_host, settings.state.chunk = 1024;
      require_touched(world, tiny(), settings, words[1]);
    }
}

void touch_muon(const Ranks& ranks, const Words& words) {
  World world(ranks);
  for (int stage = 0; stage < 4; ++stage)
    for (const char* dtype : {"fp32", "bf16"}) {
      TrainerSettings settings = settings_in(dtype, tiny());
      settings.zero_stage = stage, settings.muon = true;
      require_touched(world, tiny(), settings, words[1]);
    }
}

// ---------------------------------------------------------------------------------------------- the plan

// Elements that a rank keeps of `parameters`, in so many units and products, of which it keeps one of `parts`. Each
// part of a unit and each product is padded to a multiple of ParameterLayout::kAlignment elements.
struct Theory {
  size_t parameters, units, products;

  void require(const char* what, size_t elements, size_t parts) const {
    const size_t least = (parameters + parts - 1) / parts;
    const size_t most = least + ParameterLayout::kAlignment * (units + products / parts + 1);
    REQUIRE(least <= elements && elements <= most,
            "%s: %zu elements are planned; of %zu in %zu parts these are %zu, with padding at most %zu", what, elements,
            parameters, parts, least, most);
  }
};

void plan_stage(World& world, const ModelConfig& c, DType dtype, int stage) {
  TrainerSettings settings;
  settings.dtype = dtype, settings.zero_stage = stage, settings.T = 64;
  const auto trainer = world.trainer(c, settings);
  std::map<std::string, size_t> bytes, slots;  // by category: what lasts, and whole units on their way
  for (const MemoryPlan::Buffer& b : trainer->plan().buffers()) {
    if (b.name == "weight decay of each range")
      continue;  // 24 bytes for each range of one kind, and the parts decide how many there are
    (b.name.ends_with("of a unit") ? slots : bytes)[b.category] += b.bytes;
  }
  const size_t size = dtype == DType::bf16 ? 2 : 4, ranks = size_t(world.ranks.size);
  const auto parts = [&](int from) { return stage >= from ? ranks : 1; };
  const Theory all{size_t(c.parameters()), size_t(c.L) + 2, 6 * size_t(c.L) + (c.tied ? 2 : 3)};
  const auto require_state = [&](const char* what, size_t elements, size_t parts) {
    Theory theory = all;
    if (parts == 1) theory.units *= ranks;  // whole units are padded so that they can be cut, in each stage
    theory.require(what, elements, parts);
  };
  require_state("weights", bytes["weights"] / size, parts(3));
  require_state("gradients", bytes["gradients"] / 4, parts(2));
  const size_t kept = dtype == DType::bf16 ? 3 : 2;  // moments, and a master copy
  require_state("optimizer", bytes["optimizer"] / 4 / kept, parts(1));

  // Whole: two blocks, and of the embedding and the head the larger one, or both where the head is tied.
  const size_t C = size_t(c.C), V = size_t(c.V);
  const size_t block = (size_t(c.parameters()) - (c.tied ? 1 : 2) * V * C - C) / size_t(c.L);
  const Theory on_the_way{2 * block + V * C + C, (c.tied ? 4 : 3) * ranks, 14};
  const bool shares = ranks > 1;
  if (stage >= 2 && shares) on_the_way.require("gradients on their way", slots["gradient slots"] / 4, 1);
  else REQUIRE(slots["gradient slots"] == 0, "stage %d needs no gradients on their way", stage);
  if (stage == 3 && shares) on_the_way.require("gathered", slots["gathered"] / size, 1);
  else REQUIRE(slots["gathered"] == 0, "stage %d gathers nothing", stage);
  if (world.ranks.rank > 0) return;
  const auto text = [](size_t bytes) { return human_bytes(bytes); };
  const size_t lasts = bytes["weights"] + bytes["gradients"] + bytes["optimizer"];
  const size_t passes = slots["gradient slots"] + slots["gathered"];
  printf("%5d %5zu %10s %10s %10s %10s %10s %10s %10s\n", stage, ranks, text(bytes["weights"]).c_str(),
         text(bytes["gradients"]).c_str(), text(bytes["optimizer"]).c_str(), text(lasts).c_str(),
         text(slots["gradient slots"]).c_str(), text(slots["gathered"]).c_str(), text(lasts + passes).c_str());
}

void plan(const Ranks& ranks, const Words& words) {
  World world(ranks);
  for (int stage = 0; stage < 4; ++stage)
    plan_stage(world, model_of(words[1]), words[2] == "bf16" ? DType::bf16 : DType::fp32, stage);
}

// ---------------------------------------------------------------------------------------------- beginning

// A figure of /proc/self/status, in bytes.
size_t status(const char* key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return size_t(atoll(line.c_str() + strlen(key) + 1)) << 10;
  fail("/proc/self/status has no %s", key);
}

// The bytes in memory of the mapped files whose path contains `part`.
size_t mapped_bytes(const std::string& part) {
  std::ifstream file("/proc/self/smaps");
  size_t bytes = 0;
  bool ours = false;
  for (std::string line; std::getline(file, line);) {
    if (line.find('-') < line.find(':')) ours = line.find(part) != std::string::npos;  // the head of a mapping
    if (ours && line.starts_with("Rss:")) bytes += size_t(atoll(line.c_str() + 4)) << 10;
  }
  return bytes;
}

void begin(const Ranks& ranks, const Words& words) {
  const bool import = words[0] == "import";
  const std::string& model = words[1];
  World world(ranks);
  TrainerSettings settings;
  settings.zero_stage = 3, settings.T = 64;
  const auto trainer = world.trainer(model_of(model), settings);
  trainer->allocate();  // which touches all of it, so that what follows is in addition to it
  // Freed memory is given back, and not counted with what comes next.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;  // VmHWM begins again
  const size_t before = status("VmRSS");
  REQUIRE(status("VmHWM") <= before + (size_t(1) << 20), "the peak of the memory could not be reset");
  std::optional<Safetensors> weights;
  if (import) trainer->load(weights.emplace(model));
  else trainer->initialize(Init::normal, 1);
  const size_t added = status("VmHWM") - before;
  size_t state = 0;
  for (const MemoryPlan::Buffer& b : trainer->plan().buffers())
    if (b.category == "weights" || b.category == "optimizer") state += b.bytes;
  printf("rank %d of %d: %zu bytes of state, %zu bytes added, %zu of them mapped\n", ranks.rank, ranks.size, state,
         added, import ? mapped_bytes(model + "/") : 0);
  fflush(stdout);
}

void write_weights(const Ranks& ranks, const Words& words) {
  World world(ranks);
  TrainerSettings settings;
  settings.training = false;
  Training(world, model_of(words[1]), settings)->save(words[2]);
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(argc, argv,
                    {{"sharded_memory touched HYBRID_DEGREE [every]", touch},
                     {"sharded_memory touched-fp8 HYBRID_DEGREE", touch_fp8},
                     {"sharded_memory touched-muon HYBRID_DEGREE", touch_muon},
                     {"sharded_memory plan MODEL bf16|fp32", plan},
                     {"sharded_memory export MODEL DIR", write_weights},
                     {"sharded_memory initialize|import MODEL", begin}});
}
