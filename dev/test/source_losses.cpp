// Trains a small model on sequences of three sources, and compares the losses of the sources with those of their rows:
//
//   source_losses [tensor|context|graphs]      on one rank, or on several, of which two share a sequence
//
// The losses of each source are the sums of the rows' losses, which the trainer computes again one by one with the same
// weights; all sources together have the loss and the labels of the step; and the weights do not depend on the sources.
// Each planned byte is used, and the plan of one source has no buffer for them.
#include <array>
#include <cmath>
#include <cstdio>

#include "dev/test/tiny_trainer.h"

namespace {

constexpr int kSources = 3, kSteps = 6;

// Returns the sources of this rank's sequences of a step, other ones on each rank; the third source has none in step 1.
std::vector<int32_t> sources_of(const Training& training, int64_t step) {
  std::vector<int32_t> sources;
  for (int row = 0; row < training.settings.B * training.settings.micro_batches; ++row)
    sources.push_back((row + int32_t(step) * training.mesh.data_rank()) % (step == 1 ? 2 : kSources));
  return sources;
}

// Returns the sums of the losses of each source over all ranks, row by row, of a step that is not trained yet.
std::array<LossSum, kSources> sums_of_rows(Training& training, const Batch& batch,
                                           const std::vector<int32_t>& sources) {
  std::array<LossSum, kSources> sums;
  const auto T = size_t(training.settings.T), rows = size_t(training.settings.B);
  for (size_t first = 0; first < sources.size(); first += rows) {  // a micro-batch
    const auto part = [&](const std::vector<int32_t>& all) {
      return std::vector<int32_t>(all.begin() + ptrdiff_t(first * T), all.begin() + ptrdiff_t((first + rows) * T));
    };
    const std::vector<float> losses = training->losses(part(batch.inputs), part(batch.labels));
    const std::vector<int32_t> labels = part(batch.labels);
    for (size_t i = 0; i < losses.size(); ++i)
      if (LossSum& sum = sums[size_t(sources[first + i / T])]; labels[i] != -100 && training->is_leader())
        sum.nats += double(losses[i]), ++sum.labels;
  }
  for (LossSum& sum : sums) sum = training->sum_over_ranks(sum);
  return sums;
}

void require_near(const std::string& what, double got, double want) {
  // Sums of fp32 losses in fp64, in two orders; under tensor parallelism a forward pass without backward rounds alike.
  REQUIRE(std::abs(got - want) <= 1e-11 * std::abs(want), "%s: %.17g, expected %.17g", what.c_str(), got, want);
}

void check_step(Training& training, int64_t step) {
  const Batch batch = training.batch(step);
  const std::vector<int32_t> sources = sources_of(training, step);
  const std::array<LossSum, kSources> want = sums_of_rows(training, batch, sources);
  training->enqueue_step(
      {.step = step, .learning_rate = 1e-2, .inputs = batch.inputs, .labels = batch.labels, .sources = sources});
  const StepResult result = training.finish();
  REQUIRE(result.sources.size() == kSources, "the losses of %zu sources", result.sources.size());
  LossSum all;
  for (size_t i = 0; i < kSources; ++i) {
    const auto& [nats, labels] = result.sources[i];
    const std::string what = format("step %lld, source %zu", (long long)step, i);
    REQUIRE(labels == want[i].labels, "%s: %lld labels, expected %lld", what.c_str(), (long long)labels,
            (long long)want[i].labels);
    require_near(what, nats, want[i].nats);
    all.nats += nats, all.labels += labels;
  }
  REQUIRE(all.labels == result.label_count, "%lld labels of all sources, and %lld of the step", (long long)all.labels,
          (long long)result.label_count);
  require_near("all sources", all.mean(), result.loss);
  REQUIRE(step != 1 || result.sources[2].labels == 0, "the third source has labels in step 1");
}

size_t planned(const Trainer& trainer, const char* name) {
  size_t bytes = 0;
  for (const MemoryPlan::Buffer& buffer : trainer.plan().buffers())
    if (buffer.name == name) bytes += buffer.bytes;
  return bytes;
}

void check(World& world, const std::string& how) {
  const Mesh mesh = world.mesh(how == "tensor" ? 2 : 1, how == "context" ? 2 : 1);
  TrainerSettings settings = settings_in("fp32", tiny());
  settings.graphs = how == "graphs";
  Training alone(world, tiny(), settings, mesh);
  settings.sources = kSources;
  Training training(world, tiny(), settings, mesh);
  for (int64_t step = 0; step < kSteps; ++step) check_step(training, step);
  REQUIRE((training->graph_pieces() > 0) == settings.graphs, "%zu pieces of a graph", training->graph_pieces());
  alone.train(kSteps);
  require_same("the same training with one source", alone.end(), training.end());
  const size_t tokens = planned(*alone.trainer, "tokens");  // 5 arrays of all micro-batches, twice of them pinned
  REQUIRE(planned(*alone.trainer, "losses of sources") == 0 && planned(*training.trainer, "losses of sources") > 0 &&
              planned(*training.trainer, "tokens") == tokens / 5 * 6,
          "one source: %zu bytes of tokens; %d sources: %zu", tokens, kSources, planned(*training.trainer, "tokens"));
  if (world.first()) printf("source_losses %s on %d rank(s): ok\n", how.c_str(), world.ranks.size);
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(argc, argv, {{"source_losses [tensor|context|graphs]", [](const Ranks& ranks, const Words& words) {
                                    World world(ranks);
                                    check(world, words.empty() ? "data" : words[0]);
                                  }}});
}
