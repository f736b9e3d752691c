// Trains a small model with what may become of the optimizer's state (optimizer_state.h), and compares.
//
//   state_choices some|every      on one rank, or on several that shard it in each stage
//
// State, gradients and weights on the host, each alone and together, have the bits of those on the device, in each type
// and stage and in chunks of any length, whether AdamW updates all weights or Muon those of the blocks' matrices. Each
// planned byte is touched and no other, none is allocated after the start, and what the plan keeps is what theory says.
// The state that is read back, and a snapshot of it, hold the same weights.
#include <cstdio>

#include "dev/test/tiny_trainer.h"

namespace {

struct Choice {
  DType dtype, master, moments;
  int stage;
  bool tied, muon;
  bool state_on_host = false, gradients_on_host = false, weights_on_host = false;
  size_t chunk = 128;

  std::string types() const {
    return format("%s, master %s, moments %s, stage %d, %s head%s", dtype_name(dtype), dtype_name(master),
                  dtype_name(moments), stage, tied ? "tied" : "own", muon ? ", Muon" : "");
  }
  std::string name() const {
    return types() + format(", on the host: %s%s%s, %zu at once", state_on_host ? "state " : "",
                            gradients_on_host ? "gradients " : "", weights_on_host ? "weights" : "", chunk);
  }
};

// This rank must save what it computes with, in a snapshot as between the steps.
void check_saved(Trainer& trainer, const std::string& name, const Tensors& weights) {
  trainer.take_snapshot();
  const Snapshot& snapshot = trainer.wait_for_snapshot();
  std::vector<float> buffer;
  for (const StateKind kind : kStateKinds)
    for (const auto& [unit, shard, _] : trainer.saved()[kind].entries()) {
      std::vector<float> read(shard.count);
      trainer.read_state(kind, unit, shard, read.data());
      const float* taken = snapshot.read(kind, unit, shard, buffer);
      require_same_bits(format("%s: %s of unit %d in a snapshot", name.c_str(), checkpoint_name(kind), unit),
                        {taken, taken + read.size()}, read);
      if (kind != StateKind::master) continue;
      for (const Slice& slice : trainer.layout().slices(unit, shard.first, shard.count)) {
        const float *saved = &read[slice.at], *whole = &weights.at(slice.tensor->name)[slice.first];
        require_same_bits<float>(name + ": what is saved of " + slice.tensor->name, {saved, saved + slice.count},
                                 {whole, whole + slice.count});
      }
    }
}

// Returns the elements of this rank's state that Muon gives no second moment: those of the blocks' matrices, and the
// padding after each of them.
size_t without_second_moment(const Training& training, bool sharded) {
  const ParameterLayout& layout = training.trainer->layout();
  size_t count = 0;
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    const size_t size = layout.units[size_t(unit)].size, part = sharded ? layout.part_size(unit) : size,
                 first = sharded ? part * size_t(training.mesh.rank) : 0;
    const std::span<const ParameterInfo> tensors = layout.tensors_of(unit);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const size_t next = i + 1 < tensors.size() ? tensors[i + 1].offset : size;
      const size_t begin = std::max(first, tensors[i].offset), end = std::min(first + part, next);
      if (is_block_matrix(tensors[i]) && begin < end) count += end - begin;
    }
  }
  return count;
}

void check_plan(const Training& training, const Choice& choice) {
  size_t device = 0, pinned = 0, weights = 0;
  for (const MemoryPlan::Buffer& b : training.trainer->plan().buffers()) {
    if (b.category == "weights" && (b.segment == Segment::pinned) == choice.weights_on_host) weights += b.bytes;
    if (b.category == "optimizer" && b.name != "weight decay of each range")
      (b.segment == Segment::pinned ? pinned : device) += b.bytes;
  }
  const size_t parts = choice.stage ? size_t(training.mesh.world_size) : 1,
               elements = training.trainer->layout().size / parts,
               master = choice.dtype == DType::bf16 && choice.master == DType::fp32 ? 4 : 0,
               moment = choice.moments == DType::fp32 ? 4 : 2;
  const size_t without = choice.muon ? without_second_moment(training, choice.stage > 0) : 0;
  REQUIRE(device + pinned == elements * (master + 2 * moment) - without * moment &&
              (choice.state_on_host ? device : pinned) == 0,
          "%s: %zu + %zu bytes are planned for %zu elements, %zu of them without a second moment",
          choice.name().c_str(), device, pinned, elements, without);
  const size_t kept = choice.stage >= (choice.weights_on_host ? 1 : 3) ? elements : training.trainer->layout().size;
  REQUIRE(weights == kept * bytes_of(choice.dtype), "%s: %zu bytes are planned for %zu weights", choice.name().c_str(),
          weights, kept);
}

Trained train(World& world, const Choice& choice) {
  const ModelConfig config = tiny({.tied = choice.tied});
  TrainerSettings settings = settings_in(dtype_name(choice.dtype), config);
  settings.zero_stage = choice.stage, settings.snapshot = true, settings.seed = 11, settings.muon = choice.muon;
  settings.state = {choice.master, choice.moments,        choice.state_on_host, choice.gradients_on_host,
                    choice.chunk,  choice.weights_on_host};
  Training training(world, config, settings);
  training.enqueue(), training.enqueue();
  training.finish(), training.finish();
  training.evaluate();
  training.train(1);
  training.end();
  check_saved(*training.trainer, choice.name(), training.trained.weights);
  training.require_planned(choice.name());
  check_plan(training, choice);
  return training.trained;
}

// All that must have the same bits as the first of them.
int compare(World& world, Choice choice, bool every) {
  std::optional<Trained> want;
  int same = 0;
  // Muon's sweeps are over one tensor each, and do not fill slots for all of the state.
  const size_t longest = choice.muon ? 1024 : 1 << 20;
  for (int on_host = 0; on_host < 8; ++on_host)
    for (const size_t chunk : {128, 1024, 1 << 20}) {
      choice.state_on_host = on_host & 1, choice.gradients_on_host = on_host & 2, choice.weights_on_host = on_host & 4;
      choice.chunk = chunk;
      // Some: state and weights alone in one chunk; gradients alone, gradients with the state, and all of them in many.
      if (!every && (on_host == 5 || on_host == 6)) continue;
      if (!every && chunk != (on_host == 1 || on_host == 4 ? longest : 128)) continue;
      if (chunk > longest || (on_host == 0 && chunk > 128)) continue;
      const Trained got = train(world, choice);
      if (!want) want = got;
      require_same(choice.name(), got, *want);
      ++same;
    }
  if (world.first())
    printf("ok   %s: %d with the same bits, each planned byte touched and no other\n", choice.types().c_str(), same);
  return same;
}

// Some: on two ranks each of the types with two of the stages, each stage with either head; Muon with the tied one.
void run(const Ranks& ranks, const Words& words) {
  World world(ranks);
  const bool every = words[0] == "every";
  int same = 0, types = 0;
  for (const auto& [dtype, master] :
       {std::pair(DType::fp32, DType::fp32), {DType::bf16, DType::fp32}, {DType::bf16, DType::bf16}})
    for (const DType moments : {DType::fp32, DType::bf16}) {
      for (const int stage : {0, 1, 2, 3})
        for (const bool tied : {false, true})
          for (const bool muon : {false, true}) {
            if (ranks.size == 1 && stage) continue;
            if (!every && (ranks.size > 1 && ((types + stage) % 2 || (muon && !tied)))) continue;
            if (!every && tied != ((types / 2 + stage / 2) % 2 == 1)) continue;
            same += compare(world, {dtype, master, moments, stage, tied, muon}, every);
          }
      ++types;
    }
  if (world.first()) printf("%d choices, with the same bits on the host as on the device\n", same);
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"state_choices some|every", run}}); }
