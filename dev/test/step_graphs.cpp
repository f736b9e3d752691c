// Trains a small model with steps that are enqueued operation by operation, and with steps that were captured once and
// are launched as a whole (Trainer::enqueue_step), and compares.
//
//   step_graphs some|every      on one rank, or on several that share the state out
//
// The bits are the same: losses, norms, gradients and weights, while the learning rate, the clipping and the step
// change, in three micro-batches and then in one, with evaluations and a snapshot between steps. From the second step
// on the host waits once a step, for the step before, unless an evaluation has, and never for the running one; nothing
// is allocated, but where the form of a step changes and it is captured again.
#include <algorithm>
#include <cstdio>

#include "dev/test/tiny_trainer.h"
#include "llmc/device/record.h"

namespace {

constexpr int kT = 32, kSteps = 10, kMicroSteps = 3;
// A snapshot follows step kTaken. The first rank records step kRecorded, which all enqueue operation by operation. From
// step kShort on there is one micro-batch.
constexpr int kTaken = 6, kRecorded = 2, kShort = 8;
// Each fourth step, from kLoud on, is clipped, and no other. All its tokens are one token with one label, so that the
// gradients of all tokens point the same way: the norm is 12 or more. Other steps have 97 labels, whose gradients
// mostly cancel, and the learning rate is small: the norm is 3 or less.
constexpr int kLoud = 1;
constexpr float kClip = 6;
bool loud(int step) { return step % 4 == kLoud; }

struct Kind {
  std::string name;
  TrainerSettings settings;
  bool tied = false, packed = false;
  int degree = 0;  // of hybrid sharding
  const char* family = "llama";
  int window = 0;

  ModelConfig config() const {
    return tiny({.C = 48, .L = 4, .FF = 64, .tied = tied, .family = family, .window = window});
  }
  // Behind which step, or with it: delayed scales are known in the third, which is recorded here.
  int captured() const { return settings.fp8.delayed() ? kRecorded + 1 : 0; }
  // Evaluations gather the weights that are not current: when a capture, which gathers nothing, has marked them as
  // current; when a step was launched; and when the next step is captured, whose graph gathers all the same.
  bool is_evaluated(int step) const { return step == captured() || step == 5 || step == kShort - 1; }
};

// The end of a training, and the host's part in it.
struct Run {
  Trained trained;
  std::vector<double> evaluations;  // losses
  size_t captures = 0, launches = 0;
};

Batch batch_of(const Training& training, int step, bool packed) {
  Batch batch = training.batch(step, step < kShort ? kMicroSteps : 1);
  if (loud(step)) {
    std::fill(batch.inputs.begin(), batch.inputs.end(), 5);
    std::fill(batch.labels.begin(), batch.labels.end(), 11);
  }
  for (size_t i = 0; packed && i < batch.inputs.size(); ++i)
    batch.positions.push_back(int(i % kT < 13 ? i % kT : i % kT - 13));
  return batch;
}

// The host's part of a step from the second on. `under_way`: 1 if the step before it had not ended, else 0.
void require_free(const Device& device, const Kind& kind, int step, const HostWaits& before, size_t under_way,
                  size_t allocations, size_t captures) {
  const HostWaits& now = device.host_waits();
  REQUIRE(now.running == before.running && now.before == before.before + under_way && now.earlier == before.earlier &&
              device.allocations() == allocations + captures,
          "%s: with step %d the host waited %zu times for the running step, %zu for the one before it, %zu for earlier "
          "ones, and allocated %zu times\n  expected 0, %zu, 0, %zu",
          kind.name.c_str(), step, now.running - before.running, now.before - before.before,
          now.earlier - before.earlier, device.allocations() - allocations, under_way, captures);
}

// A step that only this rank records would meet collectives of other ranks' graphs.
void require_refused(Trainer& trainer, const Batch& batch) {
  std::string text;
  try {
    trainer.enqueue_step({kRecorded, 1e-2, batch.inputs, batch.labels, {}, batch.positions});
  } catch (const std::exception& error) {
    text = error.what();
  }
  REQUIRE(text.find("is recorded here") != std::string::npos, "a step that one rank records: '%s'", text.c_str());
}

Run train(World& world, const Kind& kind, bool graphs) {
  TrainerSettings settings = kind.settings;
  settings.graphs = graphs;
  Device& device = world.device;
  Training training(world, kind.config(), settings, world.mesh(1, 1, kind.degree));
  Run run;
  const size_t launches = device.graph_launches();
  size_t under_way = 0;
  for (int step = 0; step < kSteps; ++step) {
    const HostWaits waits = device.host_waits();
    const size_t allocations = device.allocations();
    Record record;
    const bool records = step == kRecorded && world.first();
    if (records) device.record_to(&record);
    if (records && graphs) require_refused(*training.trainer, batch_of(training, step, kind.packed));
    training.enqueue(batch_of(training, step, kind.packed), 4e-4 / (2 + step), {}, step == kRecorded);
    if (records) device.record_to(nullptr);
    if (under_way) training.finish();
    const size_t captures = graphs && (step == kind.captured() || step == kShort);
    if (step > 0 && !settings.fp8_stats && !records)
      require_free(device, kind, step, waits, under_way, allocations, captures);
    run.captures += device.allocations() - allocations;
    if (step == kTaken && settings.snapshot) training->take_snapshot();
    under_way = !kind.is_evaluated(step);
    if (under_way) continue;
    training.finish();
    run.evaluations.push_back(training.evaluate().nats);
  }
  training.finish();
  run.launches = device.graph_launches() - launches;
  run.trained = training.end();
  return run;
}

void compare(World& world, const Kind& kind) {
  const Run want = train(world, kind, false), got = train(world, kind, true);
  require_same(kind.name + " with graphs", got.trained, want.trained);
  for (size_t i = 0; i < want.evaluations.size(); ++i)
    REQUIRE(got.evaluations[i] == want.evaluations[i],
            "%s: with graphs evaluation %zu has a loss of %.17g, without %.17g", kind.name.c_str(), i,
            got.evaluations[i], want.evaluations[i]);
  size_t clipped = 0;
  for (int step = 0; step < kSteps; ++step) {
    const float norm = want.trained.norms[size_t(step)];
    REQUIRE((norm > kClip) == loud(step), "%s: the norm of step %d is %.3g, the limit %g\n  expected that the limit %s",
            kind.name.c_str(), step, norm, kClip, loud(step) ? "clips it" : "leaves it alone");
    clipped += norm > kClip;
  }
  // All but the first step, the recorded one, with delayed scales the second, and the one after the snapshot; those
  // with statistics are not like others.
  const size_t most = kSteps - 2 - kind.settings.fp8.delayed() - kind.settings.snapshot;
  REQUIRE(
      want.launches == 0 && (kind.settings.fp8_stats ? got.launches > 0 && got.launches < most : got.launches == most),
      "%s: %zu steps were launched as a whole, of %zu", kind.name.c_str(), got.launches, most);
  if (world.first())
    printf("ok   %-58s %2zu of %d steps launched, captured %zu times, %zu clipped, last loss %.9g\n", kind.name.c_str(),
           got.launches, kSteps, got.captures, clipped, got.trained.losses.back());
}

// Some: on several ranks stages 1 and 3, each with every second kind.
std::vector<Kind> kinds(int ranks, bool every) {
  std::vector<Kind> all;
  const auto add = [&](const std::string& name, const std::string& precision, int stage) -> Kind& {
    Kind& kind = all.emplace_back(Kind{name, {}});
    kind.settings = settings_in(precision, kind.config());
    kind.settings.T = kT, kind.settings.micro_batches = kMicroSteps, kind.settings.fp8.history = 3;
    kind.settings.zero_stage = stage, kind.settings.seed = 3, kind.settings.grad_clip = kClip;
    return kind;
  };
  const auto offloaded = [&](Kind& kind) {
    kind.settings.activations = {Recompute::mlp, 1, Offload::attention, 2, true};
    kind.settings.state = {DType::fp32, DType::fp32, true, true, 1024, true};
    kind.settings.snapshot = true;
  };
  for (int stage = 0; stage < (ranks == 1 ? 1 : 4); ++stage) {
    const std::string shared = ranks == 1 ? "" : format(", stage %d", stage);
    add("fp32, tied" + shared, "fp32", stage).tied = true;
    Kind& packed = add("bf16, packed documents, a snapshot" + shared, "bf16", stage);
    packed.packed = packed.settings.snapshot = true;
    add("fp32, ministral, packed documents" + shared, "fp32", stage).family = "ministral";
    all.back().packed = true, all.back().window = 5;
    add("bf16, qwen2" + shared, "bf16", stage).family = "qwen2";
    add("FP8 delayed, qwen3" + shared, "delayed", stage).family = "qwen3";
    add("FP8 tensorwise, olmo2" + shared, "tensorwise", stage).family = "olmo2";
    offloaded(add("bf16, activations, state and gradients offloaded" + shared, "bf16", stage));
    add("bf16, moments and master in bf16" + shared, "bf16", stage).settings.state = {DType::bf16, DType::bf16, false,
                                                                                      false, 1024};
    for (const std::string recipe : kRecipes) {
      Kind& kind = add("FP8 " + recipe + shared, recipe, stage);
      if (stage == 0 || !kind.settings.fp8.per_tensor_scale()) continue;
      kind.settings.fp8.all_gather = true, kind.name += ", gathered in FP8";
    }
    add("FP8 delayed, statistics of each fourth step" + shared, "delayed", stage).settings.fp8_stats = 4;
    offloaded(add("FP8 tensorwise, all offloaded" + shared, "tensorwise", stage));
    for (const char* precision : {"fp32", "bf16"}) {
      Kind& kind = add(std::string(precision) + ", Muon" + shared, precision, stage);
      kind.settings.muon = true;
      if (precision[0] == 'b') offloaded(kind);
    }
  }
  if (ranks == 1) return all;
  std::vector<Kind> chosen;
  for (size_t i = 0; i < all.size(); ++i)
    if (const int stage = all[i].settings.zero_stage; every || (stage % 2 == 1 && i % 2 == (stage == 3)))
      chosen.push_back(all[i]);
  all = chosen;
  Fp8Settings& late = add("FP8 tensorwise, gathered with late scales, stage 3", "tensorwise", 3).settings.fp8;
  late.all_gather = true, late.precompute_scales = false;
  add("fp32, two replicas", "fp32", 3).degree = 1;
  return all;
}

void run(const Ranks& ranks, const Words& words) {
  World world(ranks);
  const std::vector<Kind> all = kinds(ranks.size, words[0] == "every");
  for (const Kind& kind : all) compare(world, kind);
  if (world.first())
    printf(
        "%zu kinds of trainings on %d rank(s): with graphs the same bits; from the second step on one wait a step, for "
        "the step before\n",
        all.size(), ranks.size);
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"step_graphs some|every", run}}); }
