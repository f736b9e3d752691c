// The memory of a training that its ranks share out. Each rank that runs this ends with an error where its own is not
// as promised.
//
//   sharded_memory touched HYBRID_DEGREE     some steps touch each planned byte, and no other, in each stage
//   sharded_memory touched-fp8 HYBRID_DEGREE   the same of FP8 trainings
//   sharded_memory plan MODEL PRECISION      what is planned is what theory says: a line of a table for each stage
//   sharded_memory export MODEL DIR          writes random weights
//   sharded_memory initialize MODEL          what that adds, at most, to the memory of each rank, in stage 3:
//   sharded_memory import DIR                  "rank R of N: S bytes of state, A bytes added, M of them mapped"
//
// MODEL is a preset or a config.json.
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dev/test/touched.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/model_source.h"
#include "llmc/train/trainer.h"

namespace {

struct World {
  const Ranks& ranks;
  Device device;
  std::unique_ptr<Communicator> communicator;

  explicit World(const Ranks& ranks)
      : ranks(ranks),
        device(ranks.local_rank, CpuWorld::from_environment(ranks.local_size)),
        communicator(make_communicator(device, ranks, "")) {}
  std::unique_ptr<Trainer> trainer(const LlamaConfig& config, const TrainerSettings& settings, int hybrid_degree = 0) {
    return Trainer::create(device, *communicator, config, settings,
                           Mesh::create(ranks.size, ranks.rank, 1, 1, hybrid_degree));
  }
};

ModelSource model_of(const std::string& model) {
  Options options;
  options.model = model;
  return open_model(options);
}

// ---------------------------------------------------------------------------------------------- touched

constexpr int kMicroSteps = 2;

// As in test_memory.cu, and a snapshot. Sharing out adds buffers, but no exceptions: what pads a unit or a part is 0
// and is moved with it.
void train_and_look(World& world, const LlamaConfig& config, const TrainerSettings& settings, int hybrid_degree) {
  const auto trainer = world.trainer(config, settings, hybrid_degree);
  trainer->allocate();
  trainer->initialize(Init::normal, 7);
  const size_t allocations = world.device.allocations();
  const size_t tokens = size_t(settings.B) * size_t(settings.T);
  std::vector<int32_t> inputs, labels;
  for (size_t i = 0; i < kMicroSteps * tokens; ++i) {
    const size_t number = i + size_t(world.ranks.rank) * 13;
    inputs.push_back(int(number % 97)), labels.push_back(int(number * 7 % 97));
  }
  for (int step = 0; step < 3; ++step) {
    trainer->enqueue_step({step, 1e-3, inputs, labels});
    if (step > 0) trainer->wait_for_step();
  }
  trainer->wait_for_step();
  trainer->take_snapshot();
  trainer->wait_for_snapshot();
  trainer->evaluate({inputs.begin(), inputs.begin() + ptrdiff_t(tokens)},
                    {labels.begin(), labels.begin() + ptrdiff_t(tokens)});
  trainer->logits({inputs.begin(), inputs.begin() + 10}, 1, 10);
  REQUIRE(world.device.allocations() == allocations, "%zu allocations after the start",
          world.device.allocations() - allocations);
  const Touched touched = look_at(trainer->plan(), trainer->arena());
  REQUIRE(touched.untouched.empty() && touched.outside == 0,
          "%zu bytes outside of buffers were touched, not touched:\n%s", touched.outside, touched.untouched.c_str());
  if (world.ranks.rank == 0)
    printf("stage %d, %s, %s, FP8 %s%s, gradients travel in %s: %zu buffers of %zu bytes\n", settings.zero_stage,
           config.tied ? "tied" : "untied", dtype_name(settings.dtype), recipe_name(settings.fp8.recipe),
           settings.fp8.all_gather ? " gathered" : "", dtype_name(settings.reduce_dtype),
           trainer->plan().buffers().size(), trainer->plan().device_bytes() + trainer->plan().bytes(Segment::pinned));
}

LlamaConfig small(bool tied) {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.C = 40, c.L = 3, c.NH = 6, c.NKV = 2, c.HD = 16, c.FF = 52, c.V = 97, c.tied = tied;
  return c;
}

void touch_fp8(World& world, int stage, int hybrid_degree) {
  const struct {
    const char *recipe, *skip;
    bool all_gather, precompute;
  } kinds[] = {{"tensorwise", "", true, true},      {"tensorwise", "layers.1.self_attn.o", true, false},
               {"delayed", "", true, true},         {"delayed", "", true, false},
               {"delayed", "down", true, true},     {"rowwise", "", false, true},
               {"blockwise", "last=1", false, true}};
  for (const auto& kind : kinds) {
    TrainerSettings settings;
    settings.dtype = DType::bf16;
    settings.B = 4, settings.T = 64, settings.micro_steps = kMicroSteps;
    settings.zero_stage = stage;
    settings.snapshot = true;
    settings.fp8_stats = 1;
    Fp8Choice choice;
    choice.recipe = kind.recipe;
    choice.skip = kind.skip;
    settings.fp8 = fp8_settings(choice, small(false));
    settings.fp8.history = 2;
    settings.fp8.all_gather = kind.all_gather, settings.fp8.precompute_scales = kind.precompute;
    train_and_look(world, small(false), settings, hybrid_degree);
  }
}

void touch(World& world, int stage, int hybrid_degree) {
  for (bool tied : {false, true})
    for (DType dtype : {DType::fp32, DType::bf16})
      for (DType reduce_dtype : {DType::fp32, DType::bf16}) {
        TrainerSettings settings;
        settings.dtype = dtype, settings.reduce_dtype = reduce_dtype;
        settings.micro_steps = kMicroSteps;
        settings.B = 4, settings.T = 64;  // the head's chunks of 128 are whole: of a part of one the rest is padding
        settings.zero_stage = stage;
        settings.snapshot = true;
        train_and_look(world, small(tied), settings, hybrid_degree);
      }
}

// ---------------------------------------------------------------------------------------------- the plan

// Elements that a rank keeps of `parameters`, in so many units and products, of which it keeps one of `parts`. Each
// part of a unit and each product is padded to a multiple of TensorLayout::kAlignment elements.
struct Theory {
  size_t parameters, units, products;

  void require(const char* what, size_t elements, size_t parts) const {
    const size_t least = (parameters + parts - 1) / parts;
    const size_t most = least + TensorLayout::kAlignment * (units + products / parts + 1);
    REQUIRE(least <= elements && elements <= most,
            "%s: %zu elements are planned; of %zu in %zu parts these are %zu, with padding at most %zu", what, elements,
            parameters, parts, least, most);
  }
};

void plan(World& world, const std::string& model, DType dtype, int stage) {
  const LlamaConfig c = model_of(model).config;
  TrainerSettings settings;
  settings.dtype = dtype;
  settings.zero_stage = stage;
  settings.T = 64;
  const auto trainer = world.trainer(c, settings);
  std::map<std::string, size_t> bytes, slots;  // by category: what lasts, and whole units on their way
  for (const MemoryPlan::Buffer& b : trainer->plan().buffers()) {
    if (b.name == "weight decay of each range") continue;  // 24 bytes for each stretch of a kind, as the parts fall
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

// ---------------------------------------------------------------------------------------------- beginning

// A figure of /proc/self/status, in bytes.
size_t status(const char* key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return size_t(atoll(line.c_str() + strlen(key) + 1)) << 10;
  fail("/proc/self/status has no %s", key);
}

// What lies in memory of the mapped files whose path contains `part`.
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

void begin(World& world, const std::string& model, bool import) {
  TrainerSettings settings;
  settings.zero_stage = 3;
  settings.T = 64;
  const LlamaConfig config = model_of(model).config;
  const auto trainer = world.trainer(config, settings);
  trainer->allocate();  // which touches it all: what comes is beside it
  // What is freed is given back, and not counted with what comes next.
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
  printf("rank %d of %d: %zu bytes of state, %zu bytes added, %zu of them mapped\n", world.ranks.rank, world.ranks.size,
         state, added, import ? mapped_bytes(model + "/") : 0);
  fflush(stdout);
}

void write_weights(World& world, const std::string& model, const std::string& directory) {
  TrainerSettings settings;
  settings.training = false;
  const auto trainer = world.trainer(model_of(model).config, settings);
  trainer->allocate();
  trainer->initialize(Init::normal, 1);
  trainer->save(directory);
}

void run(const Ranks& ranks, const std::vector<std::string>& words) {
  World world(ranks);
  const std::string what = words.empty() ? "" : words[0];
  if (what == "touched" && words.size() == 2)
    for (int stage = 0; stage < 4; ++stage) touch(world, stage, atoi(words[1].c_str()));
  else if (what == "touched-fp8" && words.size() == 2)
    for (int stage = 0; stage < 4; ++stage) touch_fp8(world, stage, atoi(words[1].c_str()));
  else if (what == "plan" && words.size() == 3)
    for (int stage = 0; stage < 4; ++stage)
      plan(world, words[1], words[2] == "bf16" ? DType::bf16 : DType::fp32, stage);
  else if (what == "export" && words.size() == 3) write_weights(world, words[1], words[2]);
  else if ((what == "initialize" || what == "import") && words.size() == 2) begin(world, words[1], what == "import");
  else fail("sharded_memory: see the head of its source for what it takes");
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    run(ranks, {argv + 1, argv + argc});
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}
