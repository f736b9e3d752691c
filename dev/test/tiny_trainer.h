// The small training that tests look at. A test of its own says its settings, and compares what two trainings leave:
//
//   World world(ranks);                                                // or World world; for one rank
//   TrainerSettings settings = settings_in("bf16", tiny());
//   const Trained want = train(world, tiny(), settings, 3);
//   settings.activations.recompute = Recompute::block;
//   require_same("recomputed", train(world, tiny(), settings, 3), want);
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dev/test/ranks_main.h"
#include "dev/test/touched.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/device/record.h"
#include "llmc/train/run_state.h"
#include "llmc/train/trainer.h"

// Nothing is a multiple of a tile, but the width of a head.
struct TinyModel {
  int C = 40, L = 3, NH = 6, NKV = 2, HD = 16, FF = 52, V = 97;
  bool tied = false;
  double init_std = 0.02;
  const char* family = "llama";
  int window = 0;  // in every other layer
};
inline ModelConfig tiny(const TinyModel& m = {}) {
  ModelConfig c = ModelConfig::preset("tiny");
  c.C = m.C, c.L = m.L, c.NH = m.NH, c.NKV = m.NKV, c.HD = m.HD, c.FF = m.FF, c.V = m.V;
  c.tied = m.tied, c.init_std = m.init_std, c.family = find_family(m.family), c.window = m.window;
  for (int layer = 0; layer < m.L && m.window; ++layer) c.layers.push_back({.windowed = layer % 2 == 0});
  return c;
}
// All that families differ in: biases, norms of each head and of all, norms after the layers, windows.
inline const TinyModel kFamilyModels[] = {{},
                                          {.tied = true, .family = "qwen2", .window = 20},
                                          {.family = "qwen3"},
                                          {.family = "ministral", .window = 5},
                                          {.family = "olmo2"}};

inline constexpr const char* kRecipes[] = {"tensorwise", "delayed", "rowwise", "rowwise-hp-wgrad", "blockwise"};

// Two micro-batches of 2 x 64 tokens, the head's chunk, in fp32, in bf16 or with the products of an FP8 recipe.
inline TrainerSettings settings_in(const std::string& precision, const ModelConfig& config,
                                   const std::string& skip = "") {
  TrainerSettings s;
  s.dtype = precision == "fp32" ? DType::fp32 : DType::bf16;
  s.B = 2, s.T = 64, s.micro_batches = 2;
  Fp8Choice choice;
  if (precision != "fp32" && precision != "bf16") choice.recipe = precision;
  choice.skip = skip;
  s.fp8 = fp8_settings(choice, config);
  s.fp8.history = 2;
  return s;
}

struct Batch {
  std::vector<int32_t> inputs, labels, positions;
};
// Tokens first .. first+count-1 of an endless text, of which every 13th is not learnt.
inline void add_tokens(Batch& batch, int V, size_t first, size_t count) {
  for (size_t number = first; number < first + count; ++number) {
    batch.inputs.push_back(int32_t(number * 2654435761u % 9973 % size_t(V)));
    batch.labels.push_back(number % 13 == 5 ? -100 : int32_t(batch.inputs.back() * 7 % V));
  }
}
inline Batch tokens_of(int V, size_t first, size_t count) {
  Batch batch;
  add_tokens(batch, V, first, count);
  return batch;
}

// The ranks, this one's device, and what connects them.
struct World {
  static const Ranks& alone() {
    static const Ranks ranks;
    return ranks;
  }
  explicit World(const Ranks& ranks = alone()) : World(ranks, CpuBackend::from_environment(ranks.local_size)) {}
  World(const Ranks& ranks, const CpuBackend& cpu)
      : ranks(ranks), device(ranks.local_rank, cpu), communicator(make_communicator(device, ranks, "")) {}

  bool first() const { return ranks.rank == 0; }
  Mesh mesh(int tensor = 1, int context = 1, int hybrid = 0) const {
    return Mesh::create(ranks.size, ranks.rank, tensor, context, hybrid);
  }
  // Planned, without memory.
  std::unique_ptr<Trainer> trainer(const ModelConfig& config, const TrainerSettings& settings) {
    return trainer(config, settings, mesh());
  }
  std::unique_ptr<Trainer> trainer(const ModelConfig& config, const TrainerSettings& settings, const Mesh& mesh) {
    return Trainer::create(device, *communicator, config, settings, mesh);
  }

  const Ranks& ranks;
  Device device;
  std::unique_ptr<Communicator> communicator;
};

using Tensors = std::map<std::string, std::vector<float>>;

struct Trained {
  std::vector<double> losses;
  std::vector<float> norms;
  Tensors gradients, weights;  // gradients of the last step, before clipping
};

template <class T>
void require_same_bits(const std::string& what, const std::vector<T>& got, const std::vector<T>& want) {
  REQUIRE(got.size() == want.size(), "%s: %zu numbers, expected %zu", what.c_str(), got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    REQUIRE(memcmp(&got[i], &want[i], sizeof(T)) == 0, "%s: number %zu of %zu is %.17g, expected %.17g", what.c_str(),
            i, got.size(), double(got[i]), double(want[i]));
}
inline void require_same_bits(const std::string& what, const Tensors& got, const Tensors& want) {
  REQUIRE(got.size() == want.size(), "%s of %zu tensors, expected %zu", what.c_str(), got.size(), want.size());
  for (const auto& [name, numbers] : want) require_same_bits(what + " of " + name, got.at(name), numbers);
}
inline void require_same(const std::string& what, const Trained& got, const Trained& want) {
  require_same_bits(what + ": losses", got.losses, want.losses);
  require_same_bits(what + ": norms", got.norms, want.norms);
  require_same_bits(what + ": gradients", got.gradients, want.gradients);
  require_same_bits(what + ": weights", got.weights, want.weights);
}

// A trainer on its way, with weights of seed 7, or without any yet.
struct Training {
  Training(World& world, const ModelConfig& config, const TrainerSettings& settings,
           const std::optional<Mesh>& mesh = {}, const std::optional<Init>& init = Init::normal)
      : world(world),
        config(config),
        settings(settings),
        mesh(mesh ? *mesh : world.mesh()),
        trainer(world.trainer(config, settings, this->mesh)) {
    trainer->allocate();
    if (init) trainer->initialize(*init, 7);
    allocations = world.device.allocations();
  }
  Trainer* operator->() { return trainer.get(); }

  // This rank's tokens of a step; all ranks' follow one another.
  Batch batch(int64_t number) const { return batch(number, settings.micro_batches); }
  Batch batch(int64_t number, int micro_batches) const {
    const size_t tokens = size_t(micro_batches) * size_t(settings.B) * size_t(settings.T);
    return tokens_of(config.V, (size_t(number) * size_t(mesh.data_degree()) + size_t(mesh.data_rank())) * tokens,
                     tokens);
  }
  void enqueue(double rate = 1e-2) { enqueue(batch(step), rate); }
  void enqueue(const Batch& batch, double rate = 1e-2, const StepFlags& flags = {}, bool no_graph = false) {
    trainer->enqueue_step({step++, rate, batch.inputs, batch.labels, flags, batch.positions, no_graph});
  }
  StepResult finish() {
    const StepResult result = trainer->wait_for_step();
    trained.losses.push_back(result.loss), trained.norms.push_back(result.grad_norm);
    return result;
  }
  void train(int steps) {
    for (int i = 0; i < steps; ++i) enqueue(), finish();
  }
  // Measures one micro-batch, which is always the same.
  LossSum evaluate() {
    const Batch micro = tokens_of(config.V, 77, size_t(settings.B) * size_t(settings.T));
    return trainer->evaluate(micro.inputs, micro.labels);
  }
  // Asks for all that a trainer does: two steps at once, a snapshot, an evaluation, passes of fewer tokens.
  void use_all() {
    enqueue(), enqueue(), finish();
    enqueue(), finish(), finish();
    if (settings.snapshot) trainer->take_snapshot(), trainer->wait_for_snapshot();
    evaluate();
    const Batch some = tokens_of(config.V, 0, 63);
    trainer->logits({some.inputs.begin(), some.inputs.begin() + 10}, 1, 10);
    trainer->logits(some.inputs, 1, 63);
  }
  // Gradients first: weights come through their memory. All ranks call.
  const Trained& end() {
    for (const ParameterInfo& t : trainer->layout().tensors) trained.gradients[t.name] = trainer->gradients(t.name);
    for (const ParameterInfo& t : trainer->layout().tensors) trained.weights[t.name] = trainer->weights(t.name);
    return trained;
  }
  // "bf16, FP8 tensorwise, tied, stage 3": what is not the default.
  std::string text() const {
    std::string text = dtype_name(settings.dtype);
    if (settings.fp8.recipe != Fp8Recipe::off) text += std::string(", FP8 ") + recipe_name(settings.fp8.recipe);
    if (settings.fp8.head != Fp8HeadProducts::off)
      text += settings.fp8.head == Fp8HeadProducts::on ? ", head too" : ", backward of the head too";
    if (settings.fp8.all_gather) text += settings.fp8.precompute_scales ? " gathered" : " gathered on demand";
    const auto skipped = std::count(settings.fp8.skipped.begin(), settings.fp8.skipped.end(), true);
    if (skipped) text += format(" but %d products", int(skipped));
    if (config.family != kFamilies) text = config.family->model_type + (" " + text);
    if (config.tied) text += ", tied";
    if (settings.reduce_dtype == DType::bf16) text += ", gradients are reduced in bf16";
    return settings.zero_stage ? text + format(", stage %d", settings.zero_stage) : text;
  }
  // Nothing was allocated since the start but a captured graph, and each planned byte was touched, and no other. All
  // ranks call.
  void require_planned(const std::string& what) {
    const size_t now = world.device.allocations() - (trainer->graph_pieces() > 0);
    REQUIRE(now == allocations, "%s: %zu allocations after the start", what.c_str(), now - allocations);
    Stream stream(world.device, "touched");
    require_touched(what, trainer->plan(), trainer->arena(), *world.communicator, stream);
  }

  World& world;
  const ModelConfig config;
  const TrainerSettings settings;
  const Mesh mesh;
  std::unique_ptr<Trainer> trainer;
  size_t allocations = 0;
  int64_t step = 0;  // the next one
  Trained trained;
};

inline Trained train(World& world, const ModelConfig& config, const TrainerSettings& settings, int steps,
                     const std::optional<Mesh>& mesh = {}) {
  Training training(world, config, settings, mesh);
  training.train(steps);
  return training.end();
}

// The step that comes next, as the device executes it.
inline Record record_next_step(Training& training) {
  Record executed;
  training.world.device.record_to(&executed);
  training.enqueue();
  training.world.device.record_to(nullptr);
  training.finish();
  return executed;
}

// Returns the least that the state.json of a checkpoint must have.
inline Json saved_state(int64_t step, int64_t updates) {
  return Json::object()
      .set("version", kStateVersion)
      .set("step", step)
      .set("optimizer_steps", updates)
      .set("skipped_steps", Json::array())
      .set("left_out", Json::array())
      .set("windows", kWindows)
      .set("last_step", nullptr)
      .set("last_score", nullptr);
}
