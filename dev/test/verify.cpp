// Trainer::verify() on trainings of several ranks: no alarm where nothing is wrong, no trace in what is trained after
// it, and the rank that is wrong by name. verify.sh starts it.
#include "dev/test/tiny_trainer.h"

namespace {

// One micro-batch of a data rank, of the step that comes next.
std::optional<WrongBits> verify(Training& training) {
  const Mesh own = training.mesh;
  Batch batch;
  return training->verify([&](int data_rank) {
    const size_t tokens = size_t(training.settings.B) * size_t(training.settings.T);
    batch = tokens_of(training.config.V,
                      (size_t(training.step) * size_t(own.data_degree()) + size_t(data_rank)) * tokens, tokens);
    return StepInput{training.step, 0, batch.inputs, batch.labels, {}, batch.positions};
  });
}

std::string text_of(const WrongBits& wrong) {
  std::string ranks;
  for (const int rank : wrong.suspects.ranks) ranks += format("%s%d", ranks.empty() ? "" : ",", rank);
  const char* const kinds[] = {"copies", "computation", "repetition"};
  return format("%s of ranks %s%s: %s", kinds[int(wrong.kind)], ranks.c_str(), wrong.suspects.certain ? "" : "?",
                wrong.what.c_str());
}

void require_sound(const std::string& what, Training& training) {
  if (const auto wrong = verify(training)) fail("%s: a false alarm: %s", what.c_str(), text_of(*wrong).c_str());
}

// Trains with a verification after each step, and without. A verification leaves no gradients, so that those of the last
// step are compared before it.
void compare(World& world, const std::string& name, const ModelConfig& config, TrainerSettings settings,
             const Mesh& mesh) {
  constexpr int kSteps = 4;
  const Trained plain = train(world, config, settings, kSteps, mesh);
  settings.verifies = true;
  Training verified(world, config, settings, mesh);
  for (int i = 0; i < kSteps; ++i) {
    if (i) require_sound(name, verified);
    verified.train(1);
  }
  verified.require_planned(name);
  require_same(name, verified.end(), plain);
  require_sound(name, verified);
  for (const ParameterInfo& t : verified->layout().tensors)
    require_same_bits(name + ": weights after the last one", verified->weights(t.name), plain.weights.at(t.name));
  if (world.first()) printf("ok   %s: %s\n", name.c_str(), verified.text().c_str());
}

// tensor=2 context=2 hybrid=2 stage=3 precision=delayed recompute offload state gradients graphs muon bf16 prefetch=2 …
void sound(const Ranks& ranks, const Words& words) {
  World world(ranks);
  std::string name = format("%d rank(s)", ranks.size);
  for (size_t i = 1; i < words.size(); ++i) name += " " + words[i];
  Values values(words, 1);
  const TinyModel model{.tied = values.has("tied"), .family = values.has("qwen3") ? "qwen3" : "llama"};
  const ModelConfig config = tiny(model);
  TrainerSettings s = settings_in(values.take("precision", "fp32"), config);
  s.zero_stage = values.number("stage");
  const Mesh mesh = world.mesh(values.number("tensor", 1), values.number("context", 1), values.number("hybrid"));
  if (values.has("recompute")) s.activations.recompute = Recompute::block;
  if (values.has("offload")) s.activations.offload = Offload::all, s.activations.horizon = 1;
  s.state.on_host = values.has("state");
  s.state.gradients_on_host = values.has("gradients");
  if (values.has("narrow")) s.state.moments = DType::bf16, s.state.master = DType::bf16;
  s.graphs = values.has("graphs");
  s.muon = values.has("muon");
  s.snapshot = values.has("snapshot");
  s.fp8.all_gather = values.has("gathered");
  s.fp8_stats = values.number("stats");
  if (values.has("spikes")) s.skip_spikes = 6;
  values.require_all_taken();
  compare(world, name, config, s, mesh);
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"verify sound […]", sound}}); }
