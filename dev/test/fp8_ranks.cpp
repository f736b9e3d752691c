// FP8 trainings on the ranks that run this. Each rank ends with an error where they are not as promised.
//
//   fp8_ranks same [every]                 how the ranks share the state out, how weights are gathered and the order of the
//                                          streams change no bit of losses and weights
//   fp8_ranks step CHECKPOINT FILE [WORD…] one step from a checkpoint on, of 6 micro-batches which the ranks share:
//                                          prints the loss, writes the gradients to FILE
//
//   recipe=NAME  stage=N  degree=N  all-gather  on-demand  without-history
#include <cstdio>

#include "dev/test/tiny_trainer.h"
#include "llmc/base/safetensors.h"
#include "llmc/train/checkpoint.h"

namespace {

ModelConfig odd() { return tiny({.C = 36, .FF = 51, .init_std = 0.05}); }

TrainerSettings settings_of(const std::string& recipe, const ModelConfig& config, const std::string& skip = "") {
  TrainerSettings settings = settings_in(recipe, config, skip);
  settings.B = 1, settings.T = 21;
  return settings;
}

// ---------------------------------------------------------------------------------------------- the same bits

using Schedule = CpuBackend::Schedule;

struct Way {
  std::string name;
  int stage = 0, degree = 0, prefetch = 1;
  bool all_gather = false, precompute = true;
  std::optional<Schedule> schedule = {};  // else as the environment says
  unsigned long seed = 0;
};

Trained train(const Ranks& ranks, const ModelConfig& config, TrainerSettings settings, const Way& way,
              int micro_batches) {
  CpuBackend cpu = CpuBackend::from_environment(ranks.local_size);
  if (way.schedule) cpu.schedule = *way.schedule, cpu.seed = way.seed;
  World world(ranks, cpu);
  settings.micro_batches = micro_batches;
  settings.zero_stage = way.stage, settings.prefetch = way.prefetch;
  settings.fp8.all_gather = way.all_gather && settings.fp8.per_tensor_scale();
  settings.fp8.precompute_scales = way.precompute;
  Training training(world, config, settings, world.mesh(1, 1, way.degree));
  const int steps = settings.fp8.delayed() ? 4 : 3;  // the history, of 2 steps, is full, and forgets
  for (int step = 0; step < steps; ++step) {
    training.enqueue(3e-3);
    if (step > 0) training.finish();
  }
  training.finish();
  return training.end();
}

int compare(const Ranks& ranks, const std::string& what, const TrainerSettings& settings, const std::vector<Way>& ways,
            int micro_batches, const ModelConfig& config = odd()) {
  const Trained want = train(ranks, config, settings, ways[0], micro_batches);
  for (size_t i = 1; i < ways.size(); ++i)
    require_same(format("%s in %d micro-batches: %s against %s", what.c_str(), micro_batches, ways[i].name.c_str(),
                        ways[0].name.c_str()),
                 train(ranks, config, settings, ways[i], micro_batches), want);
  return int(ways.size());
}

std::vector<Way> at_random(const std::string& name, int stage, bool gathers, unsigned long seeds) {
  std::vector<Way> ways;
  for (unsigned long seed = 1; seed <= seeds; ++seed)
    ways.push_back({format("%sstreams at random, seed %lu", name.c_str(), seed), stage, 0, stage ? 2 : 1, gathers,
                    seed % 2 == (stage == 2), Schedule::random, seed});
  return ways;
}

// A model whose blocks have their middle within a norm, so that two ranks each have a part of it.
ModelConfig with_cut_norm() {
  const ModelConfig config = tiny({.C = 300, .L = 2, .FF = 86});
  const ParameterLayout layout(config, 2);
  const int block = layout.block_unit(0);
  const Slice first = layout.slices(block, layout.part_size(block), 1).at(0);
  REQUIRE(first.tensor->unquantized_index >= 0 && first.first > 0, "the second part begins with element %zu of %s",
          first.first, first.tensor->name.c_str());
  return config;
}

// Sums are of one order within a group of ways: of one micro-batch in all stages, of several in 0 and 1, and in 2
// and 3.
void same(const Ranks& ranks, const Words& words) {
  const bool every = words.size() > 1;
  int trainings = 0;
  for (const std::string recipe : kRecipes) {
    const TrainerSettings settings = settings_of(recipe, odd());
    const bool gathers = settings.fp8.per_tensor_scale();
    const auto add = [](std::vector<Way>& ways, const std::vector<Way>& more) {
      ways.insert(ways.end(), more.begin(), more.end());
    };
    std::vector<Way> ways = {{"stage 0"}};
    if (ranks.size == 1) {
      ways.push_back({"lazy streams", 0, 0, 1, false, true, Schedule::lazy});
      add(ways, at_random("", 0, false, every ? 8 : 2));
      trainings += compare(ranks, recipe, settings, ways, 2);
      continue;
    }
    ways.push_back({"stage 3", 3});
    if (every) add(ways, {{"stage 1", 1}, {"stage 2", 2}});
    for (int stage = 1; gathers && stage <= 3; ++stage) {
      const std::string name = format("stage %d, weights in FP8", stage);
      ways.push_back({name, stage, 0, 1, true});
      if (every || stage == 3) ways.push_back({name + ", scales on demand", stage, 0, 1, true, false});
    }
    trainings += compare(ranks, recipe, settings, ways, 1);
    ways = {{"stage 2", 2}, {"stage 3, lazy streams", 3, 0, 1, gathers, true, Schedule::lazy}};
    add(ways, at_random("stage 3, ", 3, gathers, every ? 8 : 1));
    if (every) add(ways, at_random("stage 2, ", 2, gathers, 8));
    trainings += compare(ranks, recipe, settings, ways, 2);
    if (ranks.size % 2 || ranks.size == 2) continue;
    ways = {{"hybrid stage 2", 2, 2}, {"hybrid stage 3", 3, 2, 1, gathers}};
    if (gathers) ways.push_back({"hybrid stage 3, scales on demand", 3, 2, 1, gathers, false});
    trainings += compare(ranks, recipe, settings, ways, 2);
  }
  // Blocks of both kinds take turns in the buffers.
  if (ranks.size > 1)
    trainings += compare(
        ranks, "tensorwise, one product in bf16", settings_of("tensorwise", odd(), "layers.1.mlp.down_proj"),
        {{"stage 0"}, {"stage 3, weights in FP8", 3, 0, 1, true}, {"stage 1, weights in FP8", 1, 0, 1, true}}, 1);
  if (ranks.size == 2)
    trainings += compare(ranks, "tensorwise, a norm of two ranks", settings_of("tensorwise", with_cut_norm()),
                         {{"stage 0"}, {"stage 3, weights in FP8", 3, 0, 1, true}}, 1, with_cut_norm());
  if (ranks.rank == 0) printf("%d trainings on %d ranks, the same bits within each group\n", trainings, ranks.size);
}

// ---------------------------------------------------------------------------------------------- one step

void step(const Ranks& ranks, const Words& words) {
  const Checkpoint checkpoint(words[1]);
  const ModelConfig config = ModelConfig::from_json(checkpoint.state().at("model"), "checkpoint");
  Values values(words, 3);
  TrainerSettings settings = settings_of(values.take("recipe"), config);
  settings.zero_stage = values.number("stage"), settings.micro_batches = 6 / ranks.size;
  settings.fp8.history = 1024;
  settings.fp8.all_gather = values.has("all-gather"), settings.fp8.precompute_scales = !values.has("on-demand");
  REQUIRE(values.has("without-history") || !settings.fp8.delayed() ||
              checkpoint.other("fp8_amax_history").size() == size_t(LayerProjections(config).ids()) * 3,
          "the checkpoint has no history of 3 steps");
  World world(ranks);
  Training training(world, config, settings, world.mesh(1, 1, values.number("degree")), {});
  values.require_all_taken();
  training->restore(checkpoint);
  training.step = checkpoint.step();
  training.enqueue(3e-3);
  const double loss = training.finish().loss;
  const Tensors& gradients = training.end().gradients;
  if (!world.first()) return;
  std::vector<TensorSpec> specs;
  for (const auto& [name, numbers] : gradients) specs.push_back({name, StoredType::F32, {numbers.size()}});
  SafetensorsWriter writer(words[2], specs);
  for (const auto& [name, numbers] : gradients) writer.write(name, numbers.data(), numbers.size() * sizeof(float));
  writer.finish();
  printf("loss %.17g\n", loss);
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(argc, argv, {{"fp8_ranks same [every]", same}, {"fp8_ranks step CHECKPOINT FILE […]", step}});
}
