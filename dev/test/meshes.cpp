// Trains one model on every mesh of the ranks that run this, and beside it on one rank alone:
//
//   meshes [every]        on 1, 2, 4 or 8 ranks under mpirun
//
// In fp32 the first loss and the gradients' norm agree to rounding, each gradient within 1e-5, and 20 losses within 3
// times what other orders of one rank's micro-batches do to them. Products are exact but for one rounding, for a BLAS
// rounds each machine's way: what is compared is the sums of the mesh.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/trainer.h"

namespace {

constexpr int kSequences = 16, kT = 32, kSteps = 20;
// Sums of other pieces: each rounds by 2^-24 of itself. The limits, and of a curve 1e-4 at most.
constexpr double kFirstLoss = 5e-7, kGradient = 1e-5, kNorm = 1e-6, kCurve = 1e-4;

struct Model {
  std::string name;
  LlamaConfig config;
};

LlamaConfig small(int NH, int NKV, int V, bool tied) {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.name = "small";
  c.C = 48, c.L = 2, c.NH = NH, c.NKV = NKV, c.HD = 16, c.FF = 72, c.V = V, c.tied = tied, c.init_std = 0.05;
  return c;
}

// What a training leaves; gradients are those of the first step.
struct Run {
  std::vector<double> losses;
  float norm = 0;
  std::map<std::string, std::vector<float>> gradients, weights;
};

// Sequence `number` of a step.
void add_sequence(std::vector<int32_t>& inputs, std::vector<int32_t>& labels, int64_t step, int number, int V) {
  for (int t = 0; t < kT; ++t) {
    const uint64_t place = uint64_t(step) * 100000 + uint64_t(number) * 1000 + uint64_t(t);
    inputs.push_back(int32_t(place * 2654435761u % 9973 % uint64_t(V)));
    labels.push_back(place % 13 == 5 ? -100 : int32_t(inputs.back() * 7 % V));
  }
}

TrainerSettings settings_of(int B, int micro_steps, int stage) {
  TrainerSettings s;
  s.B = B, s.T = kT, s.micro_steps = micro_steps, s.zero_stage = stage, s.seed = 3, s.tensor_chunks = 2;
  s.eps = 1e-5f;  // beyond the rounding of gradients that are all but 0, whose sign AdamW would follow
  return s;
}

// Micro-batches of this rank's sequences in `order`.
Run train(Device& device, Communicator& communicator, const Model& model, const TrainerSettings& settings,
          const Mesh& mesh, const std::vector<int>& order, int steps) {
  const auto trainer = Trainer::create(device, communicator, model.config, settings, mesh);
  trainer->allocate();
  trainer->initialize(Init::depth_scaled, 7);
  Run run;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<int32_t> inputs, labels;
    for (const int number : order) add_sequence(inputs, labels, step, number, model.config.V);
    trainer->enqueue_step({step, 1e-2 / double(1 + step / 4), inputs, labels});
    const StepResult result = trainer->wait_for_step();
    run.losses.push_back(result.loss);
    if (step > 0) continue;
    run.norm = result.grad_norm;
    for (const Tensor& t : trainer->layout().tensors) run.gradients[t.name] = trainer->gradients(t.name);
  }
  for (const Tensor& t : trainer->layout().tensors) run.weights[t.name] = trainer->weights(t.name);
  return run;
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
  Run run;
  double spread = 0;  // of its losses, over orders of its micro-batches
};

// Each rank trains with some of the 8 orders.
Alone train_alone(Device& device, Communicator& ranks, const Model& model) {
  SingleCommunicator communicator;
  const Mesh mesh = Mesh::create(1, 0);
  Alone alone{
      train(device, communicator, model, settings_of(kSequences, 1, 0), mesh, sequences(0, kSequences), kSteps)};
  float spread = 0;
  for (uint64_t seed = 1 + uint64_t(ranks.rank()); seed <= 8; seed += uint64_t(ranks.size())) {
    std::vector<int> order = sequences(0, kSequences);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[philox_word(seed, i, 0) % (i + 1)]);
    const Run other = train(device, communicator, model, settings_of(1, kSequences, 0), mesh, order, kSteps);
    spread = std::max(spread, float(largest_difference(other.losses, alone.run.losses)));
  }
  Stream stream(device, "spread");
  const DeviceMemory memory(device, sizeof spread);
  float* largest = reinterpret_cast<float*>(memory.data());
  copy(stream, largest, &spread, 1);
  ranks.all_reduce_max(stream, largest, 1);
  copy(stream, &spread, largest, 1);
  stream.synchronize();
  alone.spread = double(spread);
  return alone;
}

struct Way {
  int tensor, context, stage, hybrid, micro_steps;
};

void compare(Device& device, Communicator& communicator, const Ranks& ranks, const Model& model, const Alone& alone,
             const Way& way) {
  const Mesh mesh = Mesh::create(ranks.size, ranks.rank, way.tensor, way.context, way.hybrid);
  const int mine = kSequences / mesh.data_ranks(), B = mine / way.micro_steps;
  const Run run = train(device, communicator, model, settings_of(B, way.micro_steps, way.stage), mesh,
                        sequences(mine * mesh.data_rank(), mine), kSteps);
  const std::string name = format("%s, %s, stage %d, %d micro-batch(es)", model.name.c_str(),
                                  mesh.description().c_str(), way.stage, way.micro_steps);
  const double first = std::fabs(run.losses[0] / alone.run.losses[0] - 1),
               norm = std::fabs(double(run.norm) / double(alone.run.norm) - 1),
               curve = largest_difference(run.losses, alone.run.losses);
  double worst = 0;
  std::string whose;
  for (const auto& [tensor, gradient] : alone.run.gradients) {
    const double error = distance(run.gradients.at(tensor), gradient, double(alone.run.norm) / 1000);
    if (error > worst) worst = error, whose = tensor;
  }
  if (ranks.rank == 0)
    printf("     %-70s first loss %.1e, norm %.1e, gradients %.1e (%s), curve %.1e of %.1e\n", name.c_str(), first,
           norm, worst, whose.c_str(), curve, alone.spread);
  REQUIRE(first <= kFirstLoss, "%s: the first loss is %.9g, one rank's %.9g", name.c_str(), run.losses[0],
          alone.run.losses[0]);
  REQUIRE(worst <= kGradient, "%s: the gradient of %s is off by %.2e", name.c_str(), whose.c_str(), worst);
  REQUIRE(norm <= kNorm, "%s: the gradients' norm is %.9g, one rank's %.9g", name.c_str(), double(run.norm),
          double(alone.run.norm));
  REQUIRE(curve <= 3 * alone.spread && curve <= kCurve, "%s: losses differ by %.2e, those of other orders by %.2e",
          name.c_str(), curve, alone.spread);
}

std::vector<Way> ways(int ranks, bool every) {
  std::vector<Way> all;
  for (const int tensor : {1, 2, 4})
    for (const int context : {1, 2})
      for (const int stage : {0, 3})
        for (const int micro_steps : {1, 2}) {
          if (ranks % (tensor * context) != 0) continue;
          if (!every && micro_steps != 1 + (stage > 0)) continue;
          const int data = ranks / tensor / context;
          if (data * context == 1 && stage > 0) continue;
          for (int hybrid = 0; hybrid <= (every && data > 2 ? 2 : 0); hybrid += 2)
            all.push_back({tensor, context, stage, hybrid, micro_steps});
        }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    const std::string what = argc == 2 ? argv[1] : "";
    REQUIRE(argc == 1 || what == "every", "meshes [every]: see the head of its source");
    const std::vector<Model> models = {{"odd vocabulary, 8 heads of 2", small(8, 2, 97, false)},
                                       {"tied, 4 heads of 4", small(4, 4, 101, true)}};
    CpuWorld world = CpuWorld::from_environment(ranks.local_size);
    world.exact_products = true;
    Device device(ranks.local_rank, world);
    const auto communicator = make_communicator(device, ranks, "");
    int trainings = 0;
    for (const Model& model : models) {
      const Alone alone = train_alone(device, *communicator, model);
      for (const Way& way : ways(ranks.size, what == "every")) {
        compare(device, *communicator, ranks, model, alone, way);
        ++trainings;
      }
    }
    if (ranks.rank == 0) printf("ok   %d trainings on %d ranks are one rank's\n", trainings, ranks.size);
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}
