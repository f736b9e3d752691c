// Trains a small model up to a spike, and compares the state before and after.
//
//   spikes FOLDER      on one rank, or on several; files go below FOLDER
//
// The last micro-batch of the last rank has labels that the model takes for impossible, or inputs whose gradients make
// the norm more than 50 times too large. That step must leave weights, moments, FP8 scales, their history and the
// window as they were, to the bit, on all ranks; the step after it goes on as if the spike had never been. So must a
// training that goes on from the snapshot that was taken while the spike was under way. Two spikes in a row halt it.
#include <cstdio>
#include <filesystem>

#include "dev/test/training_state.h"
#include "llmc/train/checkpointer.h"

namespace {

constexpr int kGood = SpikeWindow::kFewest + 2;  // steps before the spike
constexpr int kToken = 96;                       // as an input and as a label it occurs in the spike alone
constexpr double kRate = 1e-3;

enum class Fault { labels, inputs };
const char* name_of(Fault fault) { return fault == Fault::labels ? "impossible labels" : "huge gradients"; }

struct Kind {
  std::string name;
  TrainerSettings settings;
  int tensor = 1, context = 1, hybrid = 0;
};
ModelConfig model() {
  ModelConfig config = tiny({.L = 2});
  config.norm_eps = 1e-6;
  return config;
}

// Column 0 of the embedding is the same for all tokens, so that the head makes the label kToken impossible: its logit
// is about -400. The embedding of the token kToken is 0, which the norms multiply by 1 / sqrt(eps), and its gradient
// too.
float weight_of(const ParameterInfo& t, size_t row, size_t column) {
  const float usual = 0.003f * float(int((row * 7919 + column * 104729 + t.name.size() * 31) % 23) - 11);
  const bool is_token = row == size_t(kToken);
  if (!t.is_matrix()) return 1;
  if (t.name == "model.embed_tokens.weight") return is_token ? 0 : column == 0 ? 0.5f : 10 * usual;
  if (t.name == "lm_head.weight" && column == 0) return is_token ? -200.0f : 0;
  return usual;
}

Batch batch_of(const Training& training, int64_t step, std::optional<Fault> fault = {}) {
  Batch batch = training.batch(step);
  for (size_t i = 0; i < batch.inputs.size(); ++i) {
    batch.inputs[i] %= kToken;
    if (batch.labels[i] >= 0) batch.labels[i] %= kToken;
  }
  if (!fault || training.mesh.data_rank() + 1 < training.mesh.data_degree()) return batch;
  std::vector<int32_t>& poisoned = *fault == Fault::labels ? batch.labels : batch.inputs;
  std::fill(poisoned.end() - training.settings.B * training.settings.T, poisoned.end(), kToken);
  return batch;
}

TrainingState state_of(Training& training) { return state_of(training, batch_of(training, 99)); }

// The same state after so many spikes in a row.
TrainingState with_row(TrainingState state, float spikes) {
  for (size_t i = 0; i < state.names.size(); ++i)
    if (state.names[i] == "spikes_in_a_row") state.numbers[i] = {spikes};
  return state;
}

// `fault` made it a spike, by its loss or by its norm; nothing: it is none.
void require_result(const std::string& what, const StepResult& got, std::optional<Fault> fault, bool halted = false) {
  const bool spike = fault == Fault::labels   ? got.loss_spike
                     : fault == Fault::inputs ? got.norm_spike && !got.loss_spike
                                              : !got.loss_spike && !got.norm_spike;
  REQUIRE(spike && got.held == (fault || halted) && got.halted == halted && got.finite,
          "%s: with the loss %g and the norm %g, held %d, halted %d, a spike by loss %d, by norm %d", what.c_str(),
          got.loss, double(got.grad_norm), got.held, got.halted, got.loss_spike, got.norm_spike);
}

void check(World& world, const Kind& kind, Fault fault, const std::string& folder) {
  const std::string what = kind.name + ", " + name_of(fault), root = folder + "/checkpoints";
  Stream stream(world.device, "test");
  const auto planned = [&] {
    return std::make_unique<Training>(world, model(), kind.settings, world.mesh(kind.tensor, kind.context, kind.hybrid),
                                      std::optional<Init>());
  };
  const auto restored = [&](int64_t step) {
    auto training = planned();
    (*training)->restore(Checkpoint(checkpoint_path(root, step)));
    training->step = step;
    return training;
  };
  const auto training = planned();
  Training& t = *training;
  t->load(Safetensors(folder + "/model.safetensors"));
  double mean_norm = 0;
  for (int i = 0; i < kGood; ++i) {
    t.enqueue(batch_of(t, t.step), kRate);
    const StepResult result = t.finish();
    require_result(what + format(", step %d", i), result, {});
    mean_norm += double(result.grad_norm) / kGood;
  }
  const TrainingState before = state_of(t);
  Checkpointer checkpointer(root, 0, *t.trainer, world.ranks);
  REQUIRE(checkpointer.save(kGood, saved_state(kGood, t->updates())), "%s: not saved", what.c_str());

  // The spike is in a snapshot before the host knows that it is one.
  t.enqueue(batch_of(t, kGood, fault), kRate);
  checkpointer.begin(kGood + 1);
  t.enqueue(batch_of(t, t.step), kRate, checkpointer.flags());
  const StepResult spike = t.finish();
  require_result(what, spike, fault);
  REQUIRE(fault == Fault::labels || spike.grad_norm > 50 * mean_norm, "%s: a norm of %g after %g", what.c_str(),
          double(spike.grad_norm), mean_norm);
  REQUIRE(t->updates() == kGood, "%s: %lld updates", what.c_str(), (long long)t->updates());
  checkpointer.write(saved_state(kGood + 1, t->updates()));
  const StepResult next = t.finish();
  checkpointer.take_flags(next.flags), checkpointer.finish();
  require_result(what + ", the next step", next, {});
  const TrainingState after = state_of(t);

  const auto without = restored(kGood);  // and in the middle of the window
  ++without->step;
  without->enqueue(batch_of(*without, without->step), kRate), without->finish();
  require_same(what + ", gone on", after, state_of(*without));

  const auto again = restored(kGood + 1);
  require_same(what + ", the snapshot", state_of(*again), with_row(before, 1));
  again->enqueue(batch_of(*again, 7, fault), kRate), again->enqueue(batch_of(*again, 8), kRate);
  require_result(what + ", the second one", again->finish(), fault, true);
  require_result(what + ", after the second one", again->finish(), {}, true);
  require_same(what + ", halted", state_of(*again), with_row(before, 2));
  Checkpointer second(root, 0, *again->trainer, world.ranks);
  REQUIRE(second.save(kGood + 2, saved_state(kGood + 2, (*again)->updates())), "%s: not saved", what.c_str());
  const auto last = restored(kGood + 2);
  last->step = kGood + 1;
  last->enqueue(batch_of(*last, last->step), kRate);
  require_result(what + ", gone on after both", last->finish(), {});
  require_same(what + ", gone on after both", state_of(*last), after);
  barrier(*world.communicator, stream);
  if (world.first()) std::filesystem::remove_all(root);
}

std::vector<Kind> kinds(int ranks) {
  std::vector<Kind> all;
  const auto add = [&](const std::string& name, const char* precision, int stage = 0, bool graphs = false) -> Kind& {
    Kind& kind = all.emplace_back();
    kind.name = name;
    if (stage) kind.name += format(", stage %d", stage);
    if (graphs) kind.name += ", graphs";
    kind.settings = settings_in(precision, model());
    kind.settings.zero_stage = stage, kind.settings.graphs = graphs;
    // By the last bits of the processor's products, usual steps come up to 7 deviations high.
    kind.settings.skip_spikes = 20, kind.settings.bad_steps_limit = 2, kind.settings.snapshot = true;
    return kind;
  };
  const StateSettings offloaded{DType::fp32, DType::fp32, true, true, 1024, true};
  if (ranks == 1) {
    add("fp32", "fp32");
    add("FP8 delayed", "delayed", 0, true);
    add("bf16, all state in bf16", "bf16").settings.state = {DType::bf16, DType::bf16, false, false, 1024};
    add("FP8 tensorwise", "tensorwise", 0, true);
  } else if (ranks == 2) {
    add("FP8 delayed", "delayed", 2, true);
    add("bf16, offloaded", "bf16", 3).settings.state = offloaded;
    add("FP8 tensorwise, gathered", "tensorwise", 3).settings.fp8.all_gather = true;
    add("fp32, tensor-parallel", "fp32", 0, true).tensor = 2;
    add("fp32, context-parallel", "fp32").context = 2;
  } else {
    Kind& delayed = add("FP8 delayed, two replicas", "delayed", 3, true);
    delayed.hybrid = 2, delayed.settings.fp8.all_gather = true;
    add("bf16, tensor-parallel", "bf16", 1).tensor = 2;
  }
  return all;
}

void run(const Ranks& ranks, const Words& words) {
  World world(ranks);
  Stream stream(world.device, "test");
  if (world.first()) write_model(words[0] + "/model.safetensors", model(), weight_of);
  barrier(*world.communicator, stream);
  int checked = 0;
  const std::vector<Kind> all = kinds(ranks.size);
  for (size_t i = 0; i < all.size(); ++i)
    for (const Fault fault : {Fault::labels, Fault::inputs}) {
      if (i >= 2 && i % 2 == size_t(fault)) continue;  // one of the two
      check(world, all[i], fault, words[0]), ++checked;
    }
  if (world.first())
    printf("%d spikes on %d rank(s): the state stays, and the training goes on or halts\n", checked, ranks.size);
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"spikes FOLDER", run}}); }
