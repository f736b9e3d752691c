// Records a step of a training on the ranks that run this, and that of the same rank by itself, on a device that
// executes nothing: the two must be alike in all but addresses.  recorded STAGE HYBRID_DEGREE [RECIPE]
// With a recipe: FP8 products, and weights travel in FP8 where they can.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/rehearsal.h"

namespace {

void require_alike(const Record& executed, const Record& recorded) {
  REQUIRE(executed.entries.size() == recorded.entries.size(), "%zu entries were executed, %zu recorded",
          executed.entries.size(), recorded.entries.size());
  for (size_t i = 0; i < executed.entries.size(); ++i) {
    const Record::Entry &a = executed.entries[i], &b = recorded.entries[i];
    bool alike = a.kind == b.kind && a.stream == b.stream && a.name == b.name && a.place == b.place &&
                 a.flops == b.flops && a.rate == b.rate && a.head_size == b.head_size && a.sent == b.sent &&
                 a.ranks == b.ranks && a.accesses.size() == b.accesses.size();
    for (size_t k = 0; alike && k < a.accesses.size(); ++k)
      alike = a.accesses[k].bytes == b.accesses[k].bytes && a.accesses[k].write == b.accesses[k].write;
    REQUIRE(alike, "entry %zu: %s (%s), %zu bytes sent, was executed; %s (%s), %zu bytes, recorded", i, a.name.c_str(),
            a.place.c_str(), a.sent, b.name.c_str(), b.place.c_str(), b.sent);
  }
}

constexpr int kMicroSteps = 3;

void compare(const Ranks& ranks, int stage, int hybrid_degree, const char* recipe) {
  const Mesh mesh = Mesh::create(ranks.size, ranks.rank, 1, 1, hybrid_degree);
  LlamaConfig config = LlamaConfig::preset("tiny");
  TrainerSettings settings;
  settings.B = 2, settings.T = 32, settings.zero_stage = stage, settings.micro_steps = kMicroSteps;
  if (recipe) {
    Fp8Choice choice;
    choice.recipe = recipe;
    settings.dtype = DType::bf16;
    settings.fp8 = fp8_settings(choice, config);
    settings.fp8.all_gather = settings.fp8.has_one_scale();
  }
  Device device(ranks.local_rank, CpuWorld::from_environment(ranks.local_size));
  const auto communicator = make_communicator(device, ranks, "");
  const auto trainer = Trainer::create(device, *communicator, config, settings, mesh);
  trainer->allocate();
  trainer->initialize(Init::normal, 1);
  Record executed;
  const std::vector<int32_t> tokens(kMicroSteps * 2 * 32, 0);
  for (int64_t i = 0; i < 2; ++i) {
    if (i == 1) device.record_to(&executed);
    trainer->enqueue_step({i, 1e-3, tokens, tokens});
    device.record_to(nullptr);
    trainer->wait_for_step();
  }
  require_alike(executed, record_step(config, settings, mesh, device.info(), kMicroSteps).record);
  size_t sent = 0;
  for (const Record::Entry& entry : executed.entries) sent += entry.sent;
  if (ranks.rank == 0) printf("%zu entries alike, %zu bytes sent\n", executed.entries.size(), sent);
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    REQUIRE(argc == 3 || argc == 4, "recorded: %d arguments, expected 2 or 3", argc - 1);
    compare(ranks, atoi(argv[1]), atoi(argv[2]), argc == 4 ? argv[3] : nullptr);
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}
