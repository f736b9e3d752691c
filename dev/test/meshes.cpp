// Trains one model on every mesh of the ranks that run this, and on one rank alone:
//
//   meshes MODEL […]      on 1, 2, 4 or 8 ranks under mpirun; every: all models, on more meshes, with more steps;
//                         muon: a Llama whose blocks' matrices Muon updates
//
// In fp32 the first loss and the gradients' norm agree to rounding, each gradient within 1e-5, and 10 losses (every:
// 20) within 3 times what other orders of one rank's micro-batches do to them. Products are exact but for one rounding,
// for a BLAS rounds each machine's way: what is compared is the sums of the mesh.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "dev/test/tiny_trainer.h"
#include "llmc/base/philox.h"

namespace {

constexpr int kSequences = 16, kT = 32;
// A mesh adds other partial sums: each rounds by 2^-24 of itself. A curve may differ by 1e-4 at most.
constexpr double kFirstLoss = 5e-7, kGradient = 1e-5, kNorm = 1e-6, kCurve = 1e-4;

struct Model {
  std::string name;
  ModelConfig config;
  int steps;
  bool muon = false;
};

// Ranks share heads of keys and values, and rows of an odd vocabulary.
const TinyModel kModels[] = {
    {.NH = 8, .NKV = 2},
    {.NH = 4, .NKV = 4, .V = 101, .tied = true},
    {.NH = 4, .NKV = 2, .tied = true, .family = "qwen2", .window = 9},
    {.NH = 8, .NKV = 2, .HD = 24, .family = "qwen3"},
    {.NH = 4, .NKV = 2, .family = "ministral", .window = 5},
    {.NH = 8, .NKV = 2, .family = "olmo2"},
};
ModelConfig small(TinyModel model) {
  model.C = 48, model.L = 2, model.FF = 72, model.init_std = 0.05;
  return tiny(model);
}
std::string name_of(const TinyModel& model) { return model.tied ? std::string(model.family) + "-tied" : model.family; }

TrainerSettings settings_of(const Model& model, int B, int micro_batches, int stage) {
  TrainerSettings s;
  s.muon = model.muon;
  s.B = B, s.T = kT, s.micro_batches = micro_batches, s.zero_stage = stage, s.seed = 3, s.tensor_chunks = 2;
  s.eps = 1e-5f;  // beyond the rounding of gradients that are all but 0, whose sign AdamW would follow
  return s;
}

// Micro-batches of this rank's sequences in `order`; gradients are those of the first step.
Trained train(World& world, const Model& model, const TrainerSettings& settings, const Mesh& mesh,
              const std::vector<int>& order) {
  Training training(world, model.config, settings, mesh, Init::depth_scaled);
  Tensors gradients;
  for (int step = 0; step < model.steps; ++step) {
    Batch batch;
    for (const int number : order) add_tokens(batch, model.config.V, size_t(step) * 100000 + size_t(number) * 1000, kT);
    training.enqueue(batch, 1e-2 / double(1 + step / 4));
    training.finish();
    if (step == 0) gradients = training.end().gradients;
  }
  training.trained.gradients = gradients;
  return training.trained;
}

std::vector<int> sequences(int first, int count) {
  std::vector<int> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]) / std::fabs(b[i]));
  return most;
}

// ‖a - b‖ / max(‖b‖, floor)
double distance(const std::vector<float>& a, const std::vector<float>& b, double floor) {
  REQUIRE(a.size() == b.size(), "%zu numbers against %zu", a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference += std::pow(double(a[i]) - double(b[i]), 2), size += std::pow(double(b[i]), 2);
  return std::sqrt(difference) / std::max(std::sqrt(size), floor);
}

struct Alone {
  Trained run;
  double spread = 0;  // of its losses, over orders of its micro-batches
};

// Each rank trains with some of the 8 orders.
Alone train_alone(World& world, World& alone_world, const Model& model) {
  const Mesh mesh;
  Alone alone{train(alone_world, model, settings_of(model, kSequences, 1, 0), mesh, sequences(0, kSequences))};
  float spread = 0;
  for (uint64_t seed = 1 + uint64_t(world.ranks.rank); seed <= 8; seed += uint64_t(world.ranks.size)) {
    std::vector<int> order = sequences(0, kSequences);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[philox_word(seed, i, 0) % (i + 1)]);
    const Trained other = train(alone_world, model, settings_of(model, 1, kSequences, 0), mesh, order);
    spread = std::max(spread, float(largest_difference(other.losses, alone.run.losses)));
  }
  Stream stream(world.device, "spread");
  const DeviceMemory memory(world.device, sizeof spread);
  float* largest = reinterpret_cast<float*>(memory.data());
  copy(stream, largest, &spread, 1);
  world.communicator->all_reduce_max(stream, {largest, {1}});
  copy(stream, &spread, largest, 1);
  stream.synchronize();
  alone.spread = double(spread);
  return alone;
}

struct Way {
  int tensor, context, stage, hybrid, micro_batches;
  int context_heads;  // 1: one after the other; 0: as the program chooses, which is all of so few
};

void compare(World& world, const Model& model, const Alone& alone, const Way& way) {
  const Mesh mesh = world.mesh(way.tensor, way.context, way.hybrid);
  const int mine = kSequences / mesh.data_degree(), B = mine / way.micro_batches;
  TrainerSettings settings = settings_of(model, B, way.micro_batches, way.stage);
  settings.context_heads = way.context_heads;
  const Trained run = train(world, model, settings, mesh, sequences(mine * mesh.data_rank(), mine));
  const std::string name =
      format("%s, %s%s, stage %d, %d micro-batch(es)", model.name.c_str(), mesh.description().c_str(),
             way.context_heads ? " head by head" : "", way.stage, way.micro_batches);
  const double first = std::fabs(run.losses[0] / alone.run.losses[0] - 1),
               norm = std::fabs(double(run.norms[0]) / double(alone.run.norms[0]) - 1),
               curve = largest_difference(run.losses, alone.run.losses);
  double worst = 0;
  std::string whose;
  for (const auto& [tensor, gradient] : alone.run.gradients) {
    const double error = distance(run.gradients.at(tensor), gradient, double(alone.run.norms[0]) / 1000);
    if (error > worst) worst = error, whose = tensor;
  }
  if (world.first())
    printf("     %-70s first loss %.1e, norm %.1e, gradients %.1e (%s), curve %.1e of %.1e\n", name.c_str(), first,
           norm, worst, whose.c_str(), curve, alone.spread);
  REQUIRE(first <= kFirstLoss, "%s: the first loss is %.9g, one rank's %.9g", name.c_str(), run.losses[0],
          alone.run.losses[0]);
  REQUIRE(worst <= kGradient, "%s: the gradient of %s is off by %.2e", name.c_str(), whose.c_str(), worst);
  REQUIRE(norm <= kNorm, "%s: the gradients' norm is %.9g, one rank's %.9g", name.c_str(), double(run.norms[0]),
          double(alone.run.norms[0]));
  // A smooth model feels other orders less than the rounding of its loss.
  REQUIRE(curve <= std::max(3 * alone.spread, kFirstLoss) && curve <= kCurve,
          "%s: losses differ by %.2e, those of other orders by %.2e", name.c_str(), curve, alone.spread);
}

std::vector<Way> ways(int ranks, bool every) {
  std::vector<Way> all;
  for (const int tensor : {1, 2, 4})
    for (const int context : {1, 2})
      for (const int stage : {0, 3})
        for (const int micro_batches : {1, 2}) {
          if (ranks % (tensor * context) != 0) continue;
          if (!every && micro_batches != 1 + (stage > 0)) continue;
          const int data = ranks / tensor / context;
          if (data * context == 1 && stage > 0) continue;
          for (int hybrid = 0; hybrid <= (every && data > 2 ? 2 : 0); hybrid += 2)
            all.push_back({tensor, context, stage, hybrid, micro_batches, context > 1 && stage == 0 ? 1 : 0});
        }
  return all;
}

void run(const Ranks& ranks, const Words& words) {
  const bool every = std::count(words.begin(), words.end(), "every");
  std::vector<Model> models;
  for (const TinyModel& model : kModels)
    if (every || std::count(words.begin(), words.end(), name_of(model)))
      models.push_back({name_of(model), small(model), every ? 20 : 10});
  if (every || std::count(words.begin(), words.end(), "muon"))
    models.push_back({"muon", small(kModels[0]), every ? 20 : 10, true});
  REQUIRE(!models.empty() && (every || models.size() == words.size()), "usage: meshes every | MODEL …");
  CpuBackend cpu = CpuBackend::from_environment(ranks.local_size);
  cpu.exact_products = true;
  World world(ranks, cpu), alone_world(World::alone(), cpu);
  int trainings = 0;
  for (const Model& model : models) {
    const Alone alone = train_alone(world, alone_world, model);
    for (const Way& way : ways(ranks.size, every)) {
      compare(world, model, alone, way);
      ++trainings;
    }
  }
  if (world.first()) printf("ok   %d trainings on %d ranks are one rank's\n", trainings, ranks.size);
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"meshes MODEL […]", run}}); }
