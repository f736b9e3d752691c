// Trains a small model up to a step that is not finite, and compares the state before and after.
//
//   not_finite FOLDER      on one rank, or on several; files go below FOLDER
//
// One token, or one label, in the last micro-batch of the last rank meets weights that make an activation, a gradient
// or a loss infinite or NaN. That step and the one that is under way after it must leave weights, moments, FP8 scales
// and their history as they were, to the bit, on all ranks. So must the search, which must name the rank, the
// micro-batch and the tensor. A checkpoint taken then must go on as if the two steps had never been asked for.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "dev/test/training_state.h"
#include "llmc/train/checkpointer.h"

namespace {

constexpr int kGood = 4;        // steps before the bad one
constexpr int kToken = 96;      // as an input and as a label it occurs in the bad step alone
constexpr float kHuge = 3e38f;  // twice as much is infinite, also in bf16

// The numbers that are not finite begin at one of these. In each, column 0 of the embedding is set apart: no block
// reads or writes it.
enum class Fault { activation, overflow, gradient, loss, sum };
constexpr Fault kFaults[] = {Fault::activation, Fault::overflow, Fault::gradient, Fault::loss, Fault::sum};
const char* name_of(Fault fault) {
  constexpr const char* names[] = {"an activation", "a norm's output", "a gradient", "a loss", "the norm alone"};
  return names[int(fault)];
}

struct Kind {
  std::string name;
  TrainerSettings settings;
  const char* family = "llama";
  int tensor = 1, context = 1, hybrid = 0;

  ModelConfig config() const { return tiny({.L = 2, .family = family}); }
  bool is_in_fp8() const { return settings.fp8.on(); }
};

float weight_of(const ParameterInfo& t, size_t row, size_t column, Fault fault) {
  const std::string& name = t.name;
  const float usual = 0.001f * float(int((row * 7919 + column * 104729 + name.size() * 31) % 23) - 11);
  const bool is_embedding = name == "model.embed_tokens.weight", is_head = name == "lm_head.weight",
             is_bad = row == size_t(kToken);
  if (name.ends_with(".bias")) return usual;
  if (!t.is_matrix())
    return fault == Fault::overflow && name == "model.layers.0.input_layernorm.weight" && row == 0 ? kHuge : 1;
  if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight")) return row == 0 ? 0 : usual;
  if (column != 0) return fault == Fault::activation && is_embedding && is_bad && column == 3 ? NAN : usual;
  switch (fault) {
    case Fault::activation:
      return is_embedding || is_head ? usual : 0;
    // The norm's output is infinite where the embedding is not 0, and the products multiply it by 0.
    case Fault::overflow:
      return is_embedding && is_bad ? 1.0f : 0;
    // Column 0 of the residual stream is 0, so the huge weight adds nothing to the logits, but to its gradient.
    case Fault::gradient:
      return is_head && is_bad ? kHuge : 0;
    // So much less that each gradient is some 2e38, and the norm of eight of them infinite.
    case Fault::sum:
      return is_head && is_bad ? 0.08f * kHuge : 0;
    // The logit of the label is -inf for every token, so its probability is 0.
    case Fault::loss:
      return is_embedding ? 0.05f : is_head && is_bad ? -kHuge : 0;
  }
  return 0;
}

// Each 16th token is learnt. The token kToken is in the bad step alone, in the last micro-batch of the last data rank.
Batch batch_of(const Training& training, int64_t step, std::optional<Fault> fault = {}) {
  Batch batch = training.batch(step);
  for (size_t i = 0; i < batch.inputs.size(); ++i) {
    batch.inputs[i] %= kToken;
    batch.labels[i] = i % 16 == 7 ? int32_t(i * 5 % kToken) : -100;
  }
  if (!fault || training.mesh.data_rank() + 1 < training.mesh.data_degree()) return batch;
  const size_t tokens = size_t(training.settings.B) * size_t(training.settings.T), end = batch.inputs.size();
  for (size_t at = end - 9; at >= end - tokens; at -= 16) {
    batch.labels[at] = kToken;
    // All labels of the micro-batch, each of another token, so that no two gradients are added.
    batch.inputs[at] = *fault == Fault::sum ? int32_t((end - at) / 16) : kToken;
    if (*fault != Fault::sum) break;
  }
  return batch;
}

void require_found(World& world, const Training& training, const Kind& kind, Fault fault, const std::string& what,
                   const std::optional<NotFinite>& found) {
  // In a product that is not in FP8, or whose rows have scales of their own, the infinity times 0 is NaN. With one
  // scale that was known before, FP8 makes it its largest number, and only its report shows it.
  const std::string expected = fault == Fault::activation ? "the output of the embedding"
                               : fault == Fault::gradient ? "the gradient of the residual stream in the head"
                               : fault == Fault::loss     ? "the logits in the head"
                               : kind.is_in_fp8()         ? "the input of qkv in block 0, which FP8 cannot hold"
                                                          : "the output of the first norm in block 0";
  const bool everywhere = fault == Fault::loss;  // in all tokens' logits, and harmless but in one
  const bool last = training.mesh.data_rank() + 1 == training.mesh.data_degree();
  REQUIRE(!found || everywhere || last, "%s: found on rank %d: %s", what.c_str(), world.ranks.rank,
          found->tensor.c_str());
  // Several ranks compute the same sequences. The one that has the token's rows finds it first.
  Stream stream(world.device, "found");
  const std::vector<int64_t> all =
      gather_numbers(*world.communicator, stream,
                     found ? (found->micro_batch << 32) + found->position : std::numeric_limits<int64_t>::max());
  const auto first = std::min_element(all.begin(), all.end());
  if (fault == Fault::sum) {
    REQUIRE(!found, "%s: found %s", what.c_str(), found->tensor.c_str());
    return;
  }
  REQUIRE(*first < std::numeric_limits<int64_t>::max(), "%s: found nothing", what.c_str());
  if (first - all.begin() != world.ranks.rank) return;
  const int64_t micro_batch = everywhere ? 0 : training.settings.micro_batches - 1;
  REQUIRE(found->tensor == expected && found->micro_batch == micro_batch,
          "%s: found %s in micro-batch %lld\n  expected %s in %lld", what.c_str(), found->tensor.c_str(),
          (long long)found->micro_batch, expected.c_str(), (long long)micro_batch);
  const bool has_rows = kind.tensor == 1 && kind.context == 1 &&
                        (fault == Fault::activation || (fault == Fault::overflow && !kind.is_in_fp8()));
  REQUIRE(!has_rows || found->token == int64_t(training.settings.B) * training.settings.T - 9,
          "%s: found at token %lld", what.c_str(), (long long)found->token);
}

void check(World& world, const Kind& kind, Fault fault, const std::string& folder) {
  const std::string what = kind.name + ", " + name_of(fault), path = folder + "/model.safetensors";
  Stream stream(world.device, "test");
  if (world.first())
    write_model(path, kind.config(),
                [&](const ParameterInfo& t, size_t row, size_t column) { return weight_of(t, row, column, fault); });
  barrier(*world.communicator, stream);
  const auto planned = [&] {
    return std::make_unique<Training>(world, kind.config(), kind.settings,
                                      world.mesh(kind.tensor, kind.context, kind.hybrid), std::optional<Init>());
  };
  const auto start = [&] {
    auto training = planned();
    (*training)->load(Safetensors(path));
    world.device.synchronize();  // no group of ranks, as the next trainer's, is made while collectives are under way
    return training;
  };
  // The learning rate of the first steps is 0 but for the activation: weights that move would spread the huge numbers.
  const double rate = fault == Fault::activation ? 1e-3 : 0;
  const auto training = start();
  Training& t = *training;
  for (int i = 0; i < kGood; ++i) {
    t.enqueue(batch_of(t, t.step), rate);
    const StepResult result = t.finish();
    REQUIRE(!result.held && result.finite, "%s: step %d is held, with the loss %g and the norm %g", what.c_str(), i,
            result.loss, double(result.grad_norm));
  }
  const TrainingState before = state_of(t, batch_of(t, 99));
  REQUIRE(before.updates == kGood, "%s: %lld updates", what.c_str(), (long long)before.updates);
  const Batch bad = batch_of(t, kGood, fault);
  t.enqueue(bad, 1e-2), t.enqueue(batch_of(t, t.step), 1e-2);
  const StepResult first = t.finish();
  t.enqueue(batch_of(t, t.step), 1e-2);
  const StepResult second = t.finish(), third = t.finish();
  REQUIRE(!first.finite && first.held && second.held && third.held && second.finite && third.finite,
          "%s: the losses are %g, %g and %g, finite %d %d %d, held %d %d %d", what.c_str(), first.loss, second.loss,
          third.loss, first.finite, second.finite, third.finite, first.held, second.held, third.held);
  require_same(what + ", held", state_of(t, batch_of(t, 99)), before);
  const Trainer::Search search = t->search_not_finite({kGood, 1e-2, bad.inputs, bad.labels});
  require_found(world, t, kind, fault, what, search.found);
  REQUIRE(!search.result.finite, "%s: run again, the step is finite", what.c_str());
  const Batch good = batch_of(t, kGood + 1);
  const Trainer::Search nothing = t->search_not_finite({kGood + 1, 1e-2, good.inputs, good.labels});
  REQUIRE(nothing.result.finite && nothing.result.held, "%s: a good step is not finite", what.c_str());
  // The logits of that label are -inf for every token.
  REQUIRE(!nothing.found || fault == Fault::loss, "%s: %s of a good step", what.c_str(), nothing.found->tensor.c_str());
  require_same(what + ", run again", state_of(t, batch_of(t, 99)), before);

  // Step 8 is update 5, of a checkpoint as of the training that never met the bad steps. Both stand at step 7.
  const std::string root = folder + "/checkpoints";
  Checkpointer checkpointer(root, 1, *t.trainer, world.ranks);
  REQUIRE(checkpointer.save(7, saved_state(7, t->updates())), "%s: not saved", what.c_str());
  const auto go_on = [&](Training& of) {
    of.step = 7;
    const Batch batch = batch_of(of, 7);
    of.enqueue(batch, rate), of.finish();
    return state_of(of, batch_of(of, 99));
  };
  const auto other = start(), restored = planned();
  for (int i = 0; i < kGood; ++i) other->enqueue(batch_of(*other, other->step), rate), other->finish();
  (*restored)->restore(Checkpoint(checkpoint_path(root, 7)));
  require_same(what + ", gone on", go_on(*restored), go_on(*other));
  barrier(*world.communicator, stream);
  if (world.first()) std::filesystem::remove_all(root);
}

std::vector<Kind> kinds(int ranks) {
  std::vector<Kind> all;
  const auto add = [&](const std::string& name, const char* precision, int stage = 0, bool graphs = false,
                       const char* family = "llama") -> Kind& {
    Kind& kind = all.emplace_back();
    kind.name = name;
    kind.settings = settings_in(precision, kind.config());
    kind.settings.zero_stage = stage, kind.settings.graphs = graphs;
    if (graphs) kind.name += ", graphs";
    if (stage) kind.name += format(", stage %d", stage);
    kind.family = family;
    return kind;
  };
  const StateSettings offloaded{DType::fp32, DType::fp32, true, true, 1024, true};
  if (ranks == 1) {
    add("fp32", "fp32");
    add("bf16, qwen3", "bf16", 0, true, "qwen3");
    add("bf16, all state in bf16, olmo2", "bf16", 0, false, "olmo2").settings.state = {DType::bf16, DType::bf16, false,
                                                                                       false, 1024};
    Kind& kind = add("bf16, all offloaded, qwen2", "bf16", 0, false, "qwen2");
    kind.settings.state = offloaded, kind.settings.activations = {Recompute::mlp, 1, Offload::attention, 2, true};
    add("FP8 tensorwise", "tensorwise", 0, true);
    add("FP8 delayed", "delayed", 0, true);
    add("FP8 rowwise", "rowwise");
    add("FP8 blockwise", "blockwise");
    add("bf16, Muon", "bf16", 0, true).settings.muon = true;
    return all;
  }
  if (ranks == 2) {
    add("fp32", "fp32", 1, true);
    add("bf16", "bf16", 2).settings.reduce_dtype = DType::bf16;
    add("FP8 delayed", "delayed", 2, true);
    Kind& gathered = add("FP8 tensorwise, gathered", "tensorwise", 3, true);
    gathered.settings.fp8.all_gather = true;
    add("bf16, offloaded", "bf16", 3).settings.state = offloaded;
    add("bf16, tensor-parallel, qwen2", "bf16", 0, false, "qwen2").tensor = 2;
    add("FP8 delayed, tensor-parallel", "delayed").tensor = 2;
    add("fp32, context-parallel, qwen3", "fp32", 0, false, "qwen3").context = 2;
    Kind& muon = add("bf16, Muon, offloaded", "bf16", 3, true);
    muon.settings.muon = true, muon.settings.state = offloaded;
    return all;
  }
  Kind& delayed = add("FP8 delayed, two replicas", "delayed", 3, true);
  delayed.hybrid = 2, delayed.settings.fp8.all_gather = true;
  add("FP8 tensorwise, two replicas", "tensorwise", 1).hybrid = 2;
  add("bf16, tensor-parallel", "bf16", 1, true).tensor = 2;
  return all;
}

void run(const Ranks& ranks, const Words& words) {
  World world(ranks);
  int checked = 0;
  const std::vector<Kind> all = kinds(ranks.size);
  for (size_t i = 0; i < all.size(); ++i)
    for (const Fault fault : kFaults) {
      if (fault == Fault::sum && (i > 0 || ranks.size > 1)) continue;  // how large the gradients are is for this kind
      // Two of the four, and in FP8 the one that only the report of one rank shows.
      const bool is_reported = fault == Fault::overflow && all[i].is_in_fp8();
      if (ranks.size > 1 && (i + size_t(fault)) % 2 && !is_reported) continue;
      // Norms after the layers multiply the huge numbers in other places.
      if (fault != Fault::activation && all[i].config().family->norm_after) continue;
      check(world, all[i], fault, words[0]), ++checked;
    }
  if (world.first())
    printf("%d steps that are not finite on %d rank(s): the state stays, and the place is named\n", checked,
           ranks.size);
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"not_finite FOLDER", run}}); }
