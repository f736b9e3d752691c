// Trainer::verify() on trainings of several ranks: no alarm where nothing is wrong, no trace in what is trained after
// it, and the rank that is wrong by name. verify.sh starts it.
//
//   verify sound […]                       trains with and without verifications
//   verify long STEPS […]                  trains so many steps, with a verification after every tenth one
//   verify flipped RANK BUFFER BYTE WANT […]  flips a bit of a planned buffer in the memory of a rank; WANT is what the
//                                          verification then says, "" for nothing
//   verify wrong RANK FROM COUNT WANT […]  with product_preload.c: products FROM, … of the next verification are wrong
//
// The last words are settings, as those of settings_of().
#include <dlfcn.h>

#include <cstdlib>

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

// Verifications have allocated nothing, and have touched what was planned for them, and no other byte.
void require_planned(const std::string& what, Training& training) {
  REQUIRE(training.world.device.allocations() == training.allocations, "%s: allocations after the start", what.c_str());
  const Touched touched = look_at(training->plan(), training->arena());
  REQUIRE(touched.outside == 0 && touched.untouched.find("verification, ") == std::string::npos,
          "%s: %zu bytes outside of buffers were touched, not touched:\n%s", what.c_str(), touched.outside,
          touched.untouched.c_str());
}

// Trains with a verification after each step, and without. A verification leaves no gradients, so that those of the
// last step are compared before it.
void compare(World& world, const std::string& name, const ModelConfig& config, TrainerSettings settings,
             const Mesh& mesh) {
  constexpr int kSteps = 4;
  Training without(world, config, settings, mesh);
  without.train(kSteps);
  const Trained& plain = without.end();
  settings.verifies = true;
  Training verified(world, config, settings, mesh);
  for (int i = 0; i < kSteps; ++i) {
    if (i) require_sound(name, verified);
    verified.train(1);
  }
  verified->logits(tokens_of(config.V, 0, 32).inputs, 1, 32);  // they keep the head's weights
  if (!settings.graphs) require_planned(name, verified);       // a graph that is captured has memory of its own
  require_same(name, verified.end(), plain);
  if (settings.fp8_stats) {
    const auto got = verified->fp8_statistics(kSteps - 1), want = without->fp8_statistics(kSteps - 1);
    REQUIRE(got.size() == want.size() && memcmp(got.data(), want.data(), got.size() * sizeof got[0]) == 0,
            "%s: other FP8 statistics", name.c_str());
  }
  require_sound(name, verified);
  for (const ParameterInfo& t : verified->layout().tensors)
    require_same_bits(name + ": weights after the last one", verified->weights(t.name), plain.weights.at(t.name));
  if (world.first()) printf("ok   %s: %s\n", name.c_str(), verified.text().c_str());
}

// A training as words say: tensor=2 context=2 hybrid=2 stage=3 precision=delayed recompute offload state gradients …
struct Case {
  std::string name;
  ModelConfig config;
  TrainerSettings settings;
  Mesh mesh;
};

Case case_of(const World& world, const Words& words, size_t first) {
  std::string name = format("%d rank(s)", world.ranks.size);
  for (size_t i = first; i < words.size(); ++i) name += " " + words[i];
  Values values(words, first);
  TinyModel model{.tied = values.has("tied"), .family = values.has("qwen3") ? "qwen3" : "llama"};
  if (values.has("heads")) model.NH = 8;  // for four ranks, of which each two have the same keys and values
  const ModelConfig config = tiny(model);
  TrainerSettings s = settings_in(values.take("precision", "fp32"), config);
  s.zero_stage = values.number("stage");
  const Mesh mesh = world.mesh(values.number("tensor", 1), values.number("context", 1), values.number("hybrid"));
  if (values.has("recompute")) s.activations.recompute = Recompute::block;
  if (values.has("offload")) s.activations.offload = Offload::all, s.activations.horizon = 1;
  s.state.on_host = values.has("state");
  s.state.gradients_on_host = values.has("gradients");
  s.state.weights_on_host = values.has("weights");
  if (values.has("narrow")) s.state.moments = s.state.master = DType::bf16;
  if (values.has("bf16-sums")) s.reduce_dtype = DType::bf16;
  s.graphs = values.has("graphs");
  s.muon = values.has("muon");
  s.fp8.all_gather = values.has("gathered");
  s.fp8_stats = values.number("stats");
  values.require_all_taken();
  return {name, config, s, mesh};
}

void sound(const Ranks& ranks, const Words& words) {
  World world(ranks);
  const Case c = case_of(world, words, 1);
  compare(world, c.name, c.config, c.settings, c.mesh);
}

// All ranks must be told the same, which is `want`.
void require_found(const Case& c, Training& training, const std::string& what, const std::string& want) {
  const auto wrong = verify(training);
  const std::string got = wrong ? text_of(*wrong) : "";
  REQUIRE(got == want, "%s, %s: \"%s\", expected \"%s\"", c.name.c_str(), what.c_str(), got.c_str(), want.c_str());
  if (training.world.first())
    printf("ok   %s, %s: %s\n", c.name.c_str(), what.c_str(), got.empty() ? "nothing is said" : got.c_str());
}

Training trained(World& world, Case& c) {
  c.settings.verifies = true;
  Training training(world, c.config, c.settings, c.mesh);
  training.train(2);
  require_sound(c.name, training);
  return training;
}

void long_run(const Ranks& ranks, const Words& words) {
  World world(ranks);
  Case c = case_of(world, words, 2);
  c.settings.verifies = true;
  Training training(world, c.config, c.settings, c.mesh);
  constexpr int kEvery = 10;
  const int steps = std::stoi(words[1]);
  for (int step = 0; step < steps; step += kEvery) {
    training.train(kEvery);
    require_sound(format("%s, after step %d", c.name.c_str(), step + kEvery), training);
  }
  if (world.first()) printf("ok   %s: %d steps, %d verifications\n", c.name.c_str(), steps, steps / kEvery);
}

void flipped(const Ranks& ranks, const Words& words) {
  World world(ranks);
  Case c = case_of(world, words, 5);
  Training training = trained(world, c);
  bool found = false;
  for (const MemoryPlan::Buffer& buffer : training->plan().buffers()) {
    if (buffer.name != words[2]) continue;
    const size_t byte = std::stoul(words[3]);
    REQUIRE(!found && byte < buffer.bytes, "several buffers are named %s, or byte %zu is beyond its %zu",
            words[2].c_str(), byte, buffer.bytes);
    found = true;
    if (ranks.rank == std::stoi(words[1]))
      training->arena().base(buffer.segment)[buffer.offset + byte] ^= std::byte{0x10};
  }
  REQUIRE(found, "no buffer is named %s", words[2].c_str());
  require_found(c, training, format("a bit of %s flipped on rank %s", words[2].c_str(), words[1].c_str()), words[4]);
}

void wrong(const Ranks& ranks, const Words& words) {
  World world(ranks);
  Case c = case_of(world, words, 5);
  Training training = trained(world, c);
  auto* const so_far = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "products_so_far"));
  REQUIRE(so_far && so_far() > 0, "the products do not go through product_preload.c");
  const int first = so_far() + std::stoi(words[2]);
  if (ranks.rank == std::stoi(words[1]))
    setenv("PRODUCTS_WRONG", format("%d-%d", first, first - 1 + std::stoi(words[3])).c_str(), 1);
  require_found(c, training, format("%s product(s) wrong on rank %s", words[3].c_str(), words[1].c_str()), words[4]);
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(argc, argv,
                    {{"verify sound […]", sound},
                     {"verify long STEPS […]", long_run},
                     {"verify flipped RANK BUFFER BYTE WANT […]", flipped},
                     {"verify wrong RANK FROM COUNT WANT […]", wrong}});
}
