// Trains a small model with steps that are enqueued piece by piece, and with steps that were captured once and are
// launched as a whole (Trainer::enqueue_step), and compares.
//
//   step_graphs some|every      on one rank, or on several that share the state out
//
// The bits are the same: losses, norms and weights, while the learning rate, the clipping and the step change, in three
// micro-batches and then in one, with an evaluation and a snapshot between steps. From the second step on the host
// waits once a step, for the step before, and never for the running one; nothing is allocated, but where the form of a
// step changes and it is captured again.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/device/record.h"
#include "llmc/train/trainer.h"

namespace {

constexpr int kB = 2, kT = 32, kSteps = 10, kMicroSteps = 3, kV = 97;
// Behind which steps; which the first rank records, and all enqueue piece by piece; from which on there is one
// micro-batch.
constexpr int kEvaluated = 4, kTaken = 6, kRecorded = 2, kShort = 8;

LlamaConfig small(bool tied) {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.C = 48, c.L = 4, c.NH = 6, c.NKV = 2, c.HD = 16, c.FF = 64, c.V = kV, c.tied = tied;
  return c;
}

struct Kind {
  std::string name;
  TrainerSettings settings;
  bool tied = false, packed = false;
  int degree = 0;  // of hybrid sharding

  // Behind which step, or with it: delayed scales are known in the third, which is recorded here.
  int captured() const { return settings.fp8.delayed() ? kRecorded + 1 : 0; }
};

// What a training ends with, and what the host did meanwhile.
struct Run {
  std::vector<double> losses;
  std::vector<float> norms;
  std::map<std::string, std::vector<float>> weights;
  size_t captures = 0, launches = 0;
};

struct World {
  const Ranks& ranks;
  Device device;
  std::unique_ptr<Communicator> communicator;

  explicit World(const Ranks& ranks)
      : ranks(ranks),
        device(ranks.local_rank, CpuWorld::from_environment(ranks.local_size)),
        communicator(make_communicator(device, ranks, "")) {}
};

struct Batch {
  std::vector<int32_t> inputs, labels, positions;
};

Batch batch_of(const Ranks& ranks, int step, int micro_steps, bool packed) {
  Batch batch;
  const size_t tokens = size_t(micro_steps) * kB * kT;
  for (size_t i = 0; i < tokens; ++i) {
    const size_t number = i + 10000 * (size_t(step) * size_t(ranks.size) + size_t(ranks.rank));
    batch.inputs.push_back(int(number * 2654435761u % 9973 % kV));
    batch.labels.push_back(number % 11 == size_t(step) ? -100 : int(number * 40503u % 7919 % kV));
    if (packed) batch.positions.push_back(int(i % kT < 13 ? i % kT : i % kT - 13));
  }
  return batch;
}

// The host's part of a step from the second on.
void require_free(const Device& device, const Kind& kind, int step, const HostWaits& before, size_t allocations,
                  size_t captures) {
  const HostWaits& now = device.host_waits();
  REQUIRE(now.running == before.running && now.before == before.before + 1 && now.earlier == before.earlier &&
              device.allocations() == allocations + captures,
          "%s: with step %d the host waited %zu times for the running step, %zu for the one before it, %zu for earlier "
          "ones, and allocated %zu times\n  expected 0, 1, 0, %zu",
          kind.name.c_str(), step, now.running - before.running, now.before - before.before,
          now.earlier - before.earlier, device.allocations() - allocations, captures);
}

// What only this rank records would meet collectives of other ranks' graphs.
void require_refused(Trainer& trainer, const StepInput& input) {
  std::string text;
  try {
    trainer.enqueue_step(input);
  } catch (const std::exception& error) {
    text = error.what();
  }
  REQUIRE(text.find("is recorded here") != std::string::npos, "a step that one rank records: '%s'", text.c_str());
}

Run train(World& world, const Kind& kind, bool graphs) {
  TrainerSettings settings = kind.settings;
  settings.graphs = graphs;
  Device& device = world.device;
  const auto trainer = Trainer::create(device, *world.communicator, small(kind.tied), settings,
                                       Mesh::create(world.ranks.size, world.ranks.rank, 1, 1, kind.degree));
  trainer->allocate();
  trainer->initialize(Init::normal, 7);
  Run run;
  const size_t launches = device.graph_launches();
  const auto finish = [&] {
    const StepResult result = trainer->wait_for_step();
    run.losses.push_back(result.loss), run.norms.push_back(result.grad_norm);
  };
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = batch_of(world.ranks, step, step < kShort ? kMicroSteps : 1, kind.packed);
    const HostWaits waits = device.host_waits();
    const size_t allocations = device.allocations();
    StepInput input{step, 2e-2 / (1 + step), batch.inputs, batch.labels, {}, batch.positions, false};
    Record record;
    const bool records = step == kRecorded && world.ranks.rank == 0;
    if (records) device.record_to(&record);
    if (records && graphs) require_refused(*trainer, input);
    input.piecewise = step == kRecorded;
    trainer->enqueue_step(input);
    if (records) device.record_to(nullptr);
    if (step > 0) finish();
    const size_t captures = graphs && (step == kind.captured() || step == kShort);
    if (step > 0 && !settings.fp8_stats && !records) require_free(device, kind, step, waits, allocations, captures);
    run.captures += device.allocations() - allocations;
    if (step == kTaken && settings.snapshot) trainer->take_snapshot();
    if (step != kEvaluated) continue;
    finish();
    trainer->evaluate({batch.inputs.begin(), batch.inputs.begin() + kB * kT},
                      {batch.labels.begin(), batch.labels.begin() + kB * kT});
    const Batch next = batch_of(world.ranks, ++step, kMicroSteps, kind.packed);
    trainer->enqueue_step({step, 2e-2 / (1 + step), next.inputs, next.labels, {}, next.positions});
  }
  finish();
  run.launches = device.graph_launches() - launches;
  for (const Tensor& tensor : trainer->layout().tensors) run.weights[tensor.name] = trainer->weights(tensor.name);
  return run;
}

void compare(World& world, Kind kind) {
  std::vector<float> norms = train(world, kind, false).norms;
  std::sort(norms.begin(), norms.end());
  kind.settings.grad_clip = norms[kSteps / 2];  // clips some steps
  const Run want = train(world, kind, false), got = train(world, kind, true);
  REQUIRE(want.losses.size() == kSteps && got.losses == want.losses && got.norms == want.norms,
          "%s: other losses or norms with graphs", kind.name.c_str());
  for (const auto& [name, weights] : want.weights)
    REQUIRE(got.weights.at(name) == weights, "%s: other weights of %s with graphs", kind.name.c_str(), name.c_str());
  const float clip = kind.settings.grad_clip;
  const auto clipped = std::count_if(want.norms.begin(), want.norms.end(), [&](float norm) { return norm > clip; });
  REQUIRE(clipped > 0 && clipped < kSteps, "%s: %zu of %d steps were clipped", kind.name.c_str(), size_t(clipped),
          kSteps);
  // All but the first step, the recorded one, with delayed scales the second, and the one behind the snapshot; those
  // with statistics are not like others.
  const size_t most = kSteps - 2 - kind.settings.fp8.delayed() - kind.settings.snapshot;
  REQUIRE(
      want.launches == 0 && (kind.settings.fp8_stats ? got.launches > 0 && got.launches < most : got.launches == most),
      "%s: %zu steps were launched as a whole, of %zu", kind.name.c_str(), got.launches, most);
  if (world.ranks.rank == 0)
    printf("ok   %-58s %2zu of %d steps launched, captured %zu times, %zu clipped, last loss %.9g\n", kind.name.c_str(),
           got.launches, kSteps, got.captures, size_t(clipped), got.losses.back());
}

Kind kind_of(const std::string& name, DType dtype, const char* recipe, int stage) {
  Kind kind{name, {}};
  TrainerSettings& s = kind.settings;
  s.dtype = dtype, s.B = kB, s.T = kT, s.micro_steps = kMicroSteps, s.zero_stage = stage, s.grad_clip = 0, s.seed = 3;
  Fp8Choice choice;
  if (recipe) choice.recipe = recipe;
  s.fp8 = fp8_settings(choice, small(false));
  s.fp8.history = 3;
  return kind;
}

std::vector<Kind> kinds(int ranks, bool every) {
  std::vector<Kind> all;
  const auto add = [&](std::string name, DType dtype, const char* recipe, int stage) -> Kind& {
    all.push_back(kind_of(name, dtype, recipe, stage));
    return all.back();
  };
  const auto offloaded = [&](Kind& kind) {
    kind.settings.activations = {Recompute::mlp, 1, Offload::attention, 2, true};
    kind.settings.state = {DType::fp32, DType::fp32, true, true, 1024};
    kind.settings.snapshot = true;
  };
  const std::vector<int> stages = ranks == 1 ? std::vector<int>{0}
                                  : every    ? std::vector<int>{0, 1, 2, 3}
                                             : std::vector<int>{1, 3};
  for (const int stage : stages) {
    const std::string shared = ranks == 1 ? "" : format(", stage %d", stage);
    add("fp32, tied" + shared, DType::fp32, nullptr, stage).tied = true;
    add("bf16, packed documents, a snapshot" + shared, DType::bf16, nullptr, stage).packed = true;
    all.back().settings.snapshot = true;
    offloaded(add("bf16, activations, state and gradients offloaded" + shared, DType::bf16, nullptr, stage));
    Kind& narrow = add("bf16, moments and master in bf16" + shared, DType::bf16, nullptr, stage);
    narrow.settings.state = {DType::bf16, DType::bf16, false, false, 1024};
    for (const char* recipe : {"tensorwise", "delayed", "rowwise", "rowwise-hp-wgrad", "blockwise"}) {
      if (!every && stage == 1 && recipe != std::string("delayed")) continue;
      add(std::string("FP8 ") + recipe + shared, DType::bf16, recipe, stage);
      const bool travels = stage > 0 && all.back().settings.fp8.has_one_scale();
      if (travels) all.back().settings.fp8.all_gather = true, all.back().name += ", gathered in FP8";
    }
    add("FP8 delayed, statistics of each fourth step" + shared, DType::bf16, "delayed", stage).settings.fp8_stats = 4;
    offloaded(add("FP8 tensorwise, all offloaded" + shared, DType::bf16, "tensorwise", stage));
  }
  if (ranks == 1) return all;
  Fp8Settings& late =
      add("FP8 tensorwise, gathered with late scales, stage 3", DType::bf16, "tensorwise", 3).settings.fp8;
  late.all_gather = true, late.precompute_scales = false;
  add("fp32, two replicas", DType::fp32, nullptr, 3).degree = 1;
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    const std::string what = argc == 2 ? argv[1] : "";
    REQUIRE(what == "some" || what == "every", "step_graphs some|every: see the head of its source");
    World world(ranks);
    const std::vector<Kind> all = kinds(ranks.size, what == "every");
    for (const Kind& kind : all) compare(world, kind);
    if (ranks.rank == 0)
      printf(
          "%zu kinds of trainings on %d rank%s: with graphs the same bits; from the second step on one wait a step, "
          "for the step before\n",
          all.size(), ranks.size, ranks.size == 1 ? "" : "s");
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}
