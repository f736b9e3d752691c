// Loads a checkpoint on the mesh of the ranks that run this, and saves it again:
//   recheckpoint CHECKPOINT ROOT STAGE HYBRID_DEGREE TENSOR_DEGREE CONTEXT_DEGREE
// or says whether two checkpoints, of whatever meshes, hold the same bits:
//   recheckpoint CHECKPOINT OTHER
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/train/checkpointer.h"
#include "llmc/train/trainer.h"

namespace {

LlamaConfig model_of(const Checkpoint& checkpoint) {
  return LlamaConfig::from_json(checkpoint.state().at("model"), "checkpoint");
}

struct Sharing {
  int stage, hybrid_degree, tensor_degree, context_degree;
};

void save_again(const Ranks& ranks, const std::string& path, const std::string& root, const Sharing& sharing) {
  Device device(ranks.local_rank, CpuWorld::from_environment(ranks.local_size));
  const auto communicator = make_communicator(device, ranks, "");
  const Checkpoint checkpoint(path);
  TrainerSettings settings;
  settings.T = 8;
  settings.zero_stage = sharing.stage;
  const auto trainer = Trainer::create(
      device, *communicator, model_of(checkpoint), settings,
      Mesh::create(ranks.size, ranks.rank, sharing.tensor_degree, sharing.context_degree, sharing.hybrid_degree));
  trainer->allocate();
  trainer->restore(checkpoint);
  Checkpointer checkpointer(root, 0, *trainer, ranks);
  REQUIRE(checkpointer.save(checkpoint.step(), checkpoint.state()), "not saved");
}

void compare(const Checkpoint& a, const Checkpoint& b) {
  size_t numbers = 0;
  std::vector<float> x, y;
  for (const Tensor& t : TensorLayout(model_of(a)).tensors)
    for (const StateKind kind : kStateKinds) {
      x.resize(t.size()), y.resize(t.size());
      a.read(kind, t.name, 0, t.size(), x.data());
      b.read(kind, t.name, 0, t.size(), y.data());
      REQUIRE(memcmp(x.data(), y.data(), t.size() * sizeof(float)) == 0, "%s of %s differ", name_of(kind),
              t.name.c_str());
      numbers += t.size();
    }
  printf("%zu weights and moments, the same bits\n", numbers);
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    if (argc == 7) save_again(ranks, argv[1], argv[2], {atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6])});
    else if (argc == 3) compare(Checkpoint(argv[1]), Checkpoint(argv[2]));
    else fail("recheckpoint: %d arguments, expected 2 or 6", argc - 1);
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}
