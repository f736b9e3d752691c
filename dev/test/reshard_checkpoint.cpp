// Loads a checkpoint on the mesh of the ranks that run this, and saves it again:
//   reshard_checkpoint CHECKPOINT ROOT STAGE HYBRID_DEGREE TENSOR_DEGREE CONTEXT_DEGREE
// or says whether two checkpoints, of whatever meshes, hold the same bits:
//   reshard_checkpoint CHECKPOINT OTHER
#include <cstdio>
#include <cstring>

#include "dev/test/tiny_trainer.h"
#include "llmc/train/checkpointer.h"

namespace {

bool is_by_muon(const Checkpoint& checkpoint) {
  return checkpoint.state().at("options").get_string("optimizer", "adamw") == "muon";
}

ModelConfig model_of(const Checkpoint& checkpoint) {
  return ModelConfig::from_json(checkpoint.state().at("model"), "checkpoint");
}

void save_again(const Ranks& ranks, const Words& words) {
  World world(ranks);
  const auto number = [&](size_t word) { return std::stoi(words[word]); };
  const Checkpoint checkpoint(words[0]);
  TrainerSettings settings;
  settings.T = 8, settings.zero_stage = number(2), settings.muon = is_by_muon(checkpoint);
  Training training(world, model_of(checkpoint), settings, world.mesh(number(4), number(5), number(3)), {});
  training->restore(checkpoint);
  Checkpointer checkpointer(words[1], 0, *training.trainer, ranks);
  REQUIRE(checkpointer.save(checkpoint.step(), checkpoint.state()), "not saved");
}

void compare(const Ranks&, const Words& words) {
  const Checkpoint a(words[0]), b(words[1]);
  size_t numbers = 0;
  std::vector<float> x, y;
  for (const ParameterInfo& t : ParameterLayout(model_of(a)).tensors)
    for (const StateKind kind : kStateKinds) {
      if (kind == StateKind::second_moment && is_by_muon(a) && is_block_matrix(t)) continue;  // it has none
      x.resize(t.size()), y.resize(t.size());
      a.read(kind, t.name, 0, t.size(), x.data());
      b.read(kind, t.name, 0, t.size(), y.data());
      REQUIRE(memcmp(x.data(), y.data(), t.size() * sizeof(float)) == 0, "%s of %s differ", checkpoint_name(kind),
              t.name.c_str());
      numbers += t.size();
    }
  printf("%zu weights and moments, the same bits\n", numbers);
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(
      argc, argv,
      {{"reshard_checkpoint CHECKPOINT ROOT STAGE HYBRID_DEGREE TENSOR_DEGREE CONTEXT_DEGREE", save_again},
       {"reshard_checkpoint CHECKPOINT OTHER", compare}});
}
