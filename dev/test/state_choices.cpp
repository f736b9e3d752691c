// Trains a small model with what may become of the optimizer's state (state_store.h), and compares.
//
//   state_choices some|every      on one rank, or on several that share it out in each stage
//
// An offloaded state, offloaded gradients and both have the bits of those on the device, in each type and stage and in
// pieces of any length. Each planned byte is touched and no other, none is allocated after the start, and what the plan
// keeps is what theory says.
// What is read back, a snapshot of it too, is what the weights are.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "dev/test/touched.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/trainer.h"

namespace {

constexpr int kSteps = 4, kMicroSteps = 3;

LlamaConfig small(bool tied) {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.C = 40, c.L = 3, c.NH = 6, c.NKV = 2, c.HD = 16, c.FF = 52, c.V = 97, c.tied = tied;
  return c;
}

struct Choice {
  DType dtype, master, moments;
  int stage;
  bool tied;
  bool state_on_host, gradients_on_host;
  size_t piece;

  std::string types() const {
    return format("%s, master %s, moments %s, stage %d, %s head", dtype_name(dtype), dtype_name(master),
                  dtype_name(moments), stage, tied ? "tied" : "own");
  }
  std::string name() const {
    return types() + format(", on the host: %s%s, %zu at once", state_on_host ? "state " : "",
                            gradients_on_host ? "gradients" : "", piece);
  }
};

struct End {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> gradients, weights;
};

struct World {
  const Ranks& ranks;
  Device device;
  std::unique_ptr<Communicator> communicator;

  explicit World(const Ranks& ranks)
      : ranks(ranks),
        device(ranks.local_rank, CpuWorld::from_environment(ranks.local_size)),
        communicator(make_communicator(device, ranks, "")) {}

  std::unique_ptr<Trainer> trainer(const Choice& c) {
    TrainerSettings settings;
    settings.dtype = c.dtype;
    settings.B = 2, settings.T = 64, settings.micro_steps = kMicroSteps;
    settings.zero_stage = c.stage;
    settings.snapshot = true;
    settings.seed = 11;
    settings.state = {c.master, c.moments, c.state_on_host, c.gradients_on_host, c.piece};
    return Trainer::create(device, *communicator, small(c.tied), settings,
                           Mesh::create(ranks.size, ranks.rank, 1, 1, 0));
  }
};

// What this rank saves is what it computes with, in a snapshot as between the steps. `weights`: of all tensors.
void check_saved(Trainer& trainer, const Choice& choice, const std::map<std::string, std::vector<float>>& weights) {
  trainer.take_snapshot();
  const Snapshot& snapshot = trainer.wait_for_snapshot();
  const std::vector<UnitShare> shares = trainer.shares();
  std::vector<float> buffer;
  for (size_t unit = 0; unit < shares.size(); ++unit)
    for (const StateKind kind : kStateKinds) {
      std::vector<float> read(shares[unit].count);
      trainer.read_state(kind, int(unit), shares[unit].first, read.size(), read.data());
      const float* taken = snapshot.read(kind, int(unit), 0, read.size(), buffer);
      for (size_t i = 0; i < read.size(); ++i)
        REQUIRE(read[i] == taken[i], "%s: %s of unit %zu: %g is read, %g was taken", choice.name().c_str(),
                name_of(kind), unit, double(read[i]), double(taken[i]));
      if (kind != StateKind::weights) continue;
      for (const Piece& piece : trainer.layout().pieces(int(unit), shares[unit].first, shares[unit].count)) {
        const std::vector<float>& whole = weights.at(piece.tensor->name);
        for (size_t i = 0; i < piece.count; ++i)
          REQUIRE(read[piece.at + i] == whole[piece.first + i], "%s: %s is read otherwise than saved",
                  choice.name().c_str(), piece.tensor->name.c_str());
      }
    }
}

End train(World& world, const Choice& choice) {
  const auto trainer = world.trainer(choice);
  trainer->allocate();
  trainer->initialize(Init::normal, 7);
  const size_t allocations = world.device.allocations();
  const size_t tokens = kMicroSteps * 2 * 64;
  End end;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int32_t> inputs, labels;
    for (size_t i = 0; i < tokens; ++i) {
      const size_t number = i + tokens * (size_t(step) * size_t(world.ranks.size) + size_t(world.ranks.rank));
      inputs.push_back(int(number * 2654435761u % 9973 % 97)), labels.push_back(int(number * 40503u % 7919 % 97));
    }
    trainer->enqueue_step({step, 1e-2, inputs, labels});
    if (step % 2) end.losses.push_back(trainer->wait_for_step().loss);
    if (step % 2) end.losses.push_back(trainer->wait_for_step().loss);
    if (step == 1) trainer->evaluate({inputs.begin(), inputs.begin() + 128}, {labels.begin(), labels.begin() + 128});
  }
  // Before weights are asked for, which come through gradients' memory.
  for (const Tensor& tensor : trainer->layout().tensors) end.gradients[tensor.name] = trainer->gradients(tensor.name);
  for (const Tensor& tensor : trainer->layout().tensors) end.weights[tensor.name] = trainer->weights(tensor.name);
  check_saved(*trainer, choice, end.weights);
  REQUIRE(world.device.allocations() == allocations, "%s: %zu allocations after the start", choice.name().c_str(),
          world.device.allocations() - allocations);
  const Touched touched = look_at(trainer->plan(), trainer->arena());
  REQUIRE(touched.untouched.empty() && touched.outside == 0,
          "%s: %zu bytes outside of buffers were touched, not touched:\n%s", choice.name().c_str(), touched.outside,
          touched.untouched.c_str());
  size_t device = 0, pinned = 0;
  for (const MemoryPlan::Buffer& b : trainer->plan().buffers())
    if (b.category == "optimizer" && b.name != "weight decay of each range")
      (b.segment == Segment::pinned ? pinned : device) += b.bytes;
  const size_t elements =
      trainer->layout().size / (choice.stage && world.ranks.size > 1 ? size_t(world.ranks.size) : 1);
  const size_t master = choice.dtype == DType::bf16 && choice.master == DType::fp32 ? 4 : 0,
               moment = choice.moments == DType::fp32 ? 4 : 2;
  REQUIRE(device + pinned == elements * (master + 2 * moment) && (choice.state_on_host ? device : pinned) == 0,
          "%s: %zu + %zu bytes are planned for %zu elements", choice.name().c_str(), device, pinned, elements);
  return end;
}

// All that must have the same bits as the first of them.
int compare(World& world, Choice choice, bool every) {
  End want;
  int same = 0;
  for (const bool state_on_host : {false, true})
    for (const bool gradients_on_host : {false, true})
      for (const size_t piece : {128, 1024, 1 << 20}) {
        if (!every && piece == 1024) continue;
        if (!state_on_host && !gradients_on_host && piece > 128) continue;
        choice.state_on_host = state_on_host, choice.gradients_on_host = gradients_on_host, choice.piece = piece;
        const End got = train(world, choice);
        if (want.losses.empty()) want = got;
        REQUIRE(got.losses == want.losses, "%s: other losses", choice.name().c_str());
        for (const auto& [name, weights] : want.weights)
          REQUIRE(got.weights.at(name) == weights, "%s: other weights of %s", choice.name().c_str(), name.c_str());
        for (const auto& [name, gradients] : want.gradients)
          REQUIRE(got.gradients.at(name) == gradients, "%s: other gradients of %s", choice.name().c_str(),
                  name.c_str());
        ++same;
      }
  if (world.ranks.rank == 0)
    printf("ok   %s: %d with the same bits, each planned byte touched and no other\n", choice.types().c_str(), same);
  return same;
}

// Some: of two ranks, each of the types with two of the stages, each stage with either head.
void run(const Ranks& ranks, bool every) {
  World world(ranks);
  int same = 0, types = 0;
  for (const auto& [dtype, master] :
       {std::pair(DType::fp32, DType::fp32), {DType::bf16, DType::fp32}, {DType::bf16, DType::bf16}})
    for (const DType moments : {DType::fp32, DType::bf16}) {
      for (const int stage : {0, 1, 2, 3})
        for (const bool tied : {false, true}) {
          if (ranks.size == 1 && stage) continue;
          if (!every && (ranks.size > 1 && (types + stage) % 2)) continue;
          if (!every && tied != ((types / 2 + stage / 2) % 2 == 1)) continue;
          same += compare(world, {dtype, master, moments, stage, tied, false, false, 128}, every);
        }
      ++types;
    }
  if (ranks.rank == 0) printf("%d choices, the state on the host with the bits of that on the device\n", same);
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    const std::string what = argc == 2 ? argv[1] : "";
    REQUIRE(what == "some" || what == "every", "state_choices some|every: see the head of its source");
    run(ranks, what == "every");
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}
