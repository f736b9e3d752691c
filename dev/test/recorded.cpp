// Records a step of a training on the ranks that run this, and that of the same rank by itself, on a device that
// executes nothing: the two must be alike in all but addresses.  recorded STAGE HYBRID_DEGREE [RECIPE]
// With a recipe: FP8 products, and weights that are gathered in FP8 where they can be.
#include <cstdio>

#include "dev/test/record_order.h"
#include "dev/test/tiny_trainer.h"
#include "llmc/predict/simulation.h"

namespace {

void compare(const Ranks& ranks, const Words& words) {
  World world(ranks);
  const Mesh mesh = world.mesh(1, 1, std::stoi(words[1]));
  TrainerSettings settings = settings_in(words.size() > 2 ? words[2] : "fp32", tiny());
  settings.T = 32, settings.micro_batches = 3, settings.zero_stage = std::stoi(words[0]);
  settings.fp8.all_gather = settings.fp8.per_tensor_scale();
  Training training(world, tiny(), settings, mesh);
  training.train(1);
  const Record executed = record_next_step(training);
  require_alike(executed, record_step(tiny(), settings, mesh, world.device.info(), settings.micro_batches).record);
  size_t sent = 0;
  for (const Record::Entry& entry : executed.entries) sent += entry.sent;
  if (world.first()) printf("%zu entries alike, %zu bytes sent\n", executed.entries.size(), sent);
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"recorded STAGE HYBRID_DEGREE [RECIPE]", compare}}); }
