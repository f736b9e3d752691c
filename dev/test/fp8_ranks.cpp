// FP8 trainings on the ranks that run this. Each rank ends with an error where they are not as promised.
//
//   fp8_ranks same [every]                 how the ranks share the state out, how weights travel and the order of the
//                                          streams change no bit of losses and weights
//   fp8_ranks step CHECKPOINT FILE [WORD…] one step from a checkpoint on, of 6 micro-batches which the ranks share:
//                                          prints the loss, writes the gradients to FILE
//
//   recipe=NAME  stage=N  degree=N  all-gather  on-demand  without-history
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/safetensors.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/checkpoint.h"
#include "llmc/train/trainer.h"

namespace {

constexpr Fp8Recipe kRecipes[] = {Fp8Recipe::tensorwise, Fp8Recipe::delayed, Fp8Recipe::rowwise,
                                  Fp8Recipe::rowwise_hp_wgrad, Fp8Recipe::blockwise};

LlamaConfig odd() {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.C = 36, c.L = 3, c.NH = 6, c.NKV = 2, c.HD = 16, c.FF = 51, c.V = 97, c.init_std = 0.05;
  return c;
}

TrainerSettings settings_of(const char* recipe, const LlamaConfig& config, const char* skip = "") {
  TrainerSettings settings;
  settings.dtype = DType::bf16;
  settings.B = 1, settings.T = 21;
  Fp8Choice choice;
  choice.recipe = recipe;
  choice.skip = skip;
  settings.fp8 = fp8_settings(choice, config);
  settings.fp8.history = 2;
  return settings;
}

// Micro-batches first .. first+count-1 of a step.
void fill(std::vector<int32_t>& inputs, std::vector<int32_t>& labels, int64_t step, int first, int count, int tokens) {
  inputs.clear(), labels.clear();
  for (int i = first * tokens; i < (first + count) * tokens; ++i) {
    const uint64_t place = uint64_t(step) * 1000 + uint64_t(i);
    inputs.push_back(int32_t(place * 2654435761u % 9973 % 97));
    labels.push_back(int32_t(place * 40503u % 7919 % 97));
  }
}

// ---------------------------------------------------------------------------------------------- the same bits

struct Way {
  std::string name;
  int stage = 0, degree = 0, prefetch = 1;
  bool all_gather = false, precompute = true;
  std::optional<CpuWorld::Schedule> schedule = {};  // else as the environment says
  unsigned long seed = 0;
};

std::vector<float> train(const Ranks& ranks, const LlamaConfig& config, TrainerSettings settings, const Way& way,
                         int micro_steps) {
  CpuWorld world = CpuWorld::from_environment(ranks.local_size);
  if (way.schedule) world.schedule = *way.schedule, world.seed = way.seed;
  Device device(ranks.local_rank, world);
  const auto communicator = make_communicator(device, ranks, "");
  settings.micro_steps = micro_steps;
  settings.zero_stage = way.stage, settings.prefetch = way.prefetch;
  settings.fp8.all_gather = way.all_gather && settings.fp8.has_one_scale();
  settings.fp8.precompute_scales = way.precompute;
  const auto trainer =
      Trainer::create(device, *communicator, config, settings, Mesh::create(ranks.size, ranks.rank, 1, 1, way.degree));
  trainer->allocate();
  trainer->initialize(Init::normal, 7);
  std::vector<float> bits;
  std::vector<int32_t> inputs, labels;
  const auto keep = [&](const StepResult& result) {
    bits.push_back(float(result.loss)), bits.push_back(result.grad_norm);
  };
  for (int64_t step = 0; step < 4; ++step) {
    fill(inputs, labels, step, ranks.rank * micro_steps, micro_steps, settings.B * settings.T);
    trainer->enqueue_step({step, 3e-3, inputs, labels});
    if (step > 0) keep(trainer->wait_for_step());
  }
  keep(trainer->wait_for_step());
  for (const Tensor& tensor : trainer->layout().tensors) {
    const std::vector<float> weights = trainer->weights(tensor.name);
    bits.insert(bits.end(), weights.begin(), weights.end());
  }
  return bits;
}

// Sums are of one order within a group of ways: of one micro-batch in all stages, of several in 0 and 1, and in 2
// and 3.
void same(const Ranks& ranks, bool every) {
  using Schedule = CpuWorld::Schedule;
  const LlamaConfig config = odd();
  int trainings = 0;
  const auto compare = [&](const char* what, const TrainerSettings& settings, const std::vector<Way>& ways,
                           int micro_steps) {
    const std::vector<float> first = train(ranks, config, settings, ways[0], micro_steps);
    for (size_t i = 1; i < ways.size(); ++i) {
      const std::vector<float> bits = train(ranks, config, settings, ways[i], micro_steps);
      REQUIRE(bits.size() == first.size() && memcmp(bits.data(), first.data(), bits.size() * sizeof(float)) == 0,
              "%s in %d micro-batches: %s has other bits than %s, losses %.9g and %.9g", what, micro_steps,
              ways[i].name.c_str(), ways[0].name.c_str(), bits[6], first[6]);
    }
    trainings += int(ways.size());
  };
  for (const Fp8Recipe recipe : kRecipes) {
    const TrainerSettings settings = settings_of(recipe_name(recipe), config);
    const bool gathers = settings.fp8.has_one_scale();
    const Way whole{"stage 0"};
    const Way lazy{"lazy streams", 0, 0, 1, false, true, Schedule::lazy};
    if (ranks.size == 1) {
      std::vector<Way> ways = {whole, lazy};
      for (unsigned long seed = 1; seed <= (every ? 8u : 2u); ++seed)
        ways.push_back({format("streams at random, seed %lu", seed), 0, 0, 1, false, true, Schedule::random, seed});
      compare(recipe_name(recipe), settings, ways, 2);
      continue;
    }
    std::vector<Way> ways = {whole, {"stage 3", 3}};
    if (every) ways.insert(ways.end(), {{"stage 1", 1}, {"stage 2", 2}});
    if (gathers) {
      for (int stage = 1; stage <= 3; ++stage) {
        const std::string name = format("stage %d, weights in FP8", stage);
        ways.push_back({name, stage, 0, 1, true});
        if (every || stage == 3) ways.push_back({name + ", scales on demand", stage, 0, 1, true, false});
      }
    }
    compare(recipe_name(recipe), settings, ways, 1);
    ways = {{"stage 2", 2}, {"stage 3, lazy streams", 3, 0, 1, gathers, true, Schedule::lazy}};
    for (unsigned long seed = 1; seed <= (every ? 8u : 1u); ++seed) {
      ways.push_back({format("stage 3, streams at random, seed %lu", seed), 3, 0, 2, gathers, seed % 2 == 0,
                      Schedule::random, seed});
      if (every)
        ways.push_back({format("stage 2, streams at random, seed %lu", seed), 2, 0, 2, gathers, seed % 2 == 1,
                        Schedule::random, seed});
    }
    compare(recipe_name(recipe), settings, ways, 2);
    if (ranks.size % 2 == 0 && ranks.size > 2) {
      compare(recipe_name(recipe), settings,
              {{"hybrid stage 2", 2, 2}, {"hybrid stage 3", 3, 2, 1, gathers}, {"on demand", 3, 2, 1, gathers, false}},
              2);
    }
  }
  // Blocks of both kinds take turns in the buffers.
  if (ranks.size > 1) {
    const TrainerSettings settings = settings_of("tensorwise", config, "layers.1.mlp.down_proj");
    compare("tensorwise, one product in bf16", settings,
            {{"stage 0"}, {"stage 3, weights in FP8", 3, 0, 1, true}, {"stage 1, weights in FP8", 1, 0, 1, true}}, 1);
  }
  if (ranks.rank == 0) printf("%d trainings on %d ranks, the same bits within each group\n", trainings, ranks.size);
}

// ---------------------------------------------------------------------------------------------- one step

void step(const Ranks& ranks, const std::vector<std::string>& words) {
  constexpr int kMicroSteps = 6;
  const Checkpoint checkpoint(words.at(1));
  const LlamaConfig config = LlamaConfig::from_json(checkpoint.state().at("model"), "checkpoint");
  std::map<std::string, std::string> values;
  for (size_t i = 3; i < words.size(); ++i) {
    const size_t equals = std::min(words[i].find('='), words[i].size());
    values[words[i].substr(0, equals)] = equals < words[i].size() ? words[i].substr(equals + 1) : "yes";
  }
  TrainerSettings settings = settings_of(values["recipe"].c_str(), config);
  settings.zero_stage = atoi(values["stage"].c_str());
  settings.micro_steps = kMicroSteps;
  settings.fp8.history = 1024;
  settings.fp8.all_gather = values["all-gather"] == "yes",
  settings.fp8.precompute_scales = values["on-demand"] != "yes";
  REQUIRE(!settings.fp8.delayed() || values["without-history"] == "yes" ||
              checkpoint.other("fp8_amax_history").size() == size_t(config.L * kProducts * kRoles) * 3,
          "the checkpoint has no history of 3 steps");
  Device device(ranks.local_rank, CpuWorld::from_environment(ranks.local_size));
  const auto communicator = make_communicator(device, ranks, "");
  const auto trainer = Trainer::create(device, *communicator, config, settings,
                                       Mesh::create(ranks.size, ranks.rank, 1, 1, atoi(values["degree"].c_str())));
  trainer->allocate();
  trainer->restore(checkpoint);
  std::vector<int32_t> inputs, labels;
  const int count = kMicroSteps / ranks.size;
  fill(inputs, labels, checkpoint.step(), ranks.rank * count, count, settings.B * settings.T);
  trainer->enqueue_step({checkpoint.step(), 3e-3, inputs, labels});
  const StepResult result = trainer->wait_for_step();
  std::vector<TensorSpec> specs;
  for (const Tensor& t : trainer->layout().tensors) specs.push_back({t.name, StoredType::F32, {t.size()}});
  std::optional<SafetensorsWriter> writer;
  if (ranks.rank == 0) writer.emplace(words.at(2), specs);
  for (const Tensor& t : trainer->layout().tensors) {
    const std::vector<float> gradients = trainer->gradients(t.name);
    if (writer) writer->write(t.name, gradients.data(), gradients.size() * sizeof(float));
  }
  if (!writer) return;
  writer->finish();
  printf("loss %.17g\n", result.loss);
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    const std::vector<std::string> words(argv + 1, argv + argc);
    const std::string what = words.empty() ? "" : words[0];
    if (what == "same") same(ranks, words.size() > 1);
    else if (what == "step" && words.size() >= 3) step(ranks, words);
    else fail("fp8_ranks: see the head of its source for what it takes");
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}
