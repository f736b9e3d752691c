// Trains a small model with what may become of activations (activation_policy.h), on one rank, or on several that share
// it out by stage 3, and compares with the plain training, to the bit. Ends with an error where it is not the same.
//
//   activation_policies every       all combinations that mean something
//   activation_policies pairs       some, in which each two settings of two options meet
//   activation_policies slots       prints what slots grow by with the horizon, and checks it
//
// Of each combination: the weights after some steps and the losses; memory of the device is overwritten as soon as its
// copy has left; each planned byte is touched and no other, and none is allocated after the start; the plan differs
// from the plain one's as theory says.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dev/test/touched.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/trainer.h"

namespace {

constexpr int kSteps = 5, kMicroSteps = 2, kB = 2, kT = 64;
constexpr size_t kTokens = kB * kT;

LlamaConfig small() {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.C = 40, c.L = 5, c.NH = 6, c.NKV = 2, c.HD = 16, c.FF = 52, c.V = 97, c.tied = false;
  return c;
}

struct Combination {
  Recompute recompute;
  int every;
  Offload offload;
  int horizon;
  std::string precision;  // fp32, bf16, or FP8's recipe

  bool fp8() const { return precision != "fp32" && precision != "bf16"; }
  // Products' inputs are kept in FP8.
  bool keeps_fp8() const { return fp8() && precision != "rowwise-hp-wgrad"; }
  std::string name() const {
    const char* const recomputes[] = {"none", "norms", "mlp", "block"};
    const char* const offloads[] = {"none", "input", "attention", "all"};
    return format("%-16s --recompute %-5s of every %d --activation-offload %-9s horizon %d", precision.c_str(),
                  recomputes[int(recompute)], every, offloads[int(offload)], horizon);
  }
  std::vector<int> settings() const {
    return {int(recompute), every, int(offload), horizon, int(std::hash<std::string>()(precision))};
  }
};

std::vector<Combination> every() {
  std::vector<Combination> all;
  for (const char* precision : {"fp32", "bf16", "tensorwise", "delayed", "rowwise", "rowwise-hp-wgrad", "blockwise"})
    for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::block})
      for (const int each : {1, 2})
        for (const Offload offload : {Offload::none, Offload::input, Offload::attention, Offload::all})
          for (const int horizon : {1, 2, 3, small().L}) {
            if (recompute == Recompute::none && each > 1) continue;
            if (offload == Offload::none && horizon != 2) continue;
            all.push_back({recompute, each, offload, horizon, precision});
          }
  return all;
}

// The first of `all` that brings a pair of settings which was not there.
std::vector<Combination> pairs(const std::vector<Combination>& all) {
  std::set<std::array<int, 4>> seen;
  std::vector<Combination> chosen;
  // Those that bring many new pairs first.
  for (int least = 10; least >= 1; --least)
    for (const Combination& c : all) {
      std::vector<std::array<int, 4>> added;
      const std::vector<int> s = c.settings();
      for (int i = 0; i < int(s.size()); ++i)
        for (int j = 0; j < i; ++j)
          if (const std::array<int, 4> pair{i, s[size_t(i)], j, s[size_t(j)]}; !seen.count(pair)) added.push_back(pair);
      if (int(added.size()) < least) continue;
      seen.insert(added.begin(), added.end());
      chosen.push_back(c);
    }
  return chosen;
}

struct World {
  const Ranks& ranks;
  Device device;
  std::unique_ptr<Communicator> communicator;

  explicit World(const Ranks& ranks)
      : ranks(ranks),
        device(ranks.local_rank, CpuWorld::from_environment(ranks.local_size)),
        communicator(make_communicator(device, ranks, "")) {}

  std::unique_ptr<Trainer> trainer(const Combination& c) {
    TrainerSettings settings;
    settings.dtype = c.precision == "fp32" ? DType::fp32 : DType::bf16;
    settings.B = kB, settings.T = kT, settings.micro_steps = kMicroSteps;
    settings.zero_stage = ranks.size > 1 ? 3 : 0;
    Fp8Choice fp8;
    if (c.fp8()) fp8.recipe = c.precision;
    settings.fp8 = fp8_settings(fp8, small());
    settings.activations = {c.recompute, c.every, c.offload, c.horizon, true};
    return Trainer::create(device, *communicator, small(), settings, Mesh::create(ranks.size, ranks.rank, 1, 1, 0));
  }
};

// What a training ends with.
struct End {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> weights;
  bool operator==(const End&) const = default;
};

End train(World& world, Trainer& trainer) {
  trainer.allocate();
  trainer.initialize(Init::normal, 7);
  const size_t allocations = world.device.allocations();
  const size_t tokens = kMicroSteps * kTokens;
  End end;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int32_t> inputs, labels;
    for (size_t i = 0; i < tokens; ++i) {
      const size_t number = i + tokens * (size_t(step) * size_t(world.ranks.size) + size_t(world.ranks.rank));
      inputs.push_back(int(number * 2654435761u % 9973 % 97)), labels.push_back(int(number * 40503u % 7919 % 97));
    }
    trainer.enqueue_step({step, 1e-2, inputs, labels});
    if (step % 2)
      trainer.evaluate({inputs.begin(), inputs.begin() + kTokens}, {labels.begin(), labels.begin() + kTokens});
    end.losses.push_back(trainer.wait_for_step().loss);
  }
  REQUIRE(world.device.allocations() == allocations, "%zu allocations after the start",
          world.device.allocations() - allocations);
  for (const Tensor& tensor : trainer.layout().tensors) end.weights[tensor.name] = trainer.weights(tensor.name);
  return end;
}

// What a plan keeps for backward. `rest`: all else on the device.
struct Memory {
  size_t kept = 0, slots = 0, workspace = 0, pinned = 0, rest = 0;
  bool operator==(const Memory&) const = default;
  std::string text() const {
    return format("%zu bytes kept, %zu of slots, %zu of workspace, %zu pinned", kept, slots, workspace, pinned);
  }
};

Memory planned(const MemoryPlan& plan) {
  Memory m;
  for (const MemoryPlan::Buffer& b : plan.buffers())
    if (b.segment == Segment::pinned) m.pinned += b.category == "activations" ? b.bytes : 0;
    else
      (b.name.starts_with("block ")    ? m.kept
       : b.category == "offload slots" ? m.slots
       : b.category == "recompute"     ? m.workspace
                                       : m.rest) += b.bytes;
  return m;
}

// The same on paper: what a block leaves of a token, by what sends it to the host and whether the block computes again.
Memory theory(const Combination& c, size_t rest) {
  const LlamaConfig config = small();
  const size_t N = kTokens, e = c.precision == "fp32" ? 4 : 2;
  const auto wide = [&](int width) { return N * size_t(width) * e; };
  // Inputs of products, in FP8: by columns, which are padded to a multiple of 16, or of blocks' 128, with one scale, or
  // one a column (a block is as long as there are tokens).
  const auto input = [&](int width) {
    const int unit = c.precision == "blockwise" ? 128 : 16;
    const size_t columns = size_t((width + unit - 1) / unit * unit);
    const bool one = c.precision == "tensorwise" || c.precision == "delayed";
    return c.keeps_fp8() ? N * columns + (one ? 1 : columns) * sizeof(float) : wide(width);
  };
  const auto set = [&](Offload part, bool recomputes) -> size_t {
    const Recompute again = recomputes ? c.recompute : Recompute::none;
    const bool norms = again == Recompute::none, gate_up = again < Recompute::mlp, block = again < Recompute::block;
    size_t bytes = part >= Offload::input ? wide(config.C) : 0;
    if (part >= Offload::attention && block)  // rstd1 and lse, qkv, attention's output
      bytes +=
          N * size_t(1 + config.NH) * 4 + wide((config.NH + 2 * config.NKV) * config.HD) + wide(config.NH * config.HD);
    if (part >= Offload::attention && norms) bytes += input(config.C);
    if (part >= Offload::all && block) bytes += wide(config.C) + N * 4;  // middle, rstd2
    if (part >= Offload::all && norms) bytes += input(config.C) + input(config.FF);
    if (part >= Offload::all && gate_up) bytes += wide(2 * config.FF);
    return bytes;
  };
  const bool travels = c.offload != Offload::none && c.horizon < config.L;
  const Offload leaving = travels ? c.offload : Offload::none;
  Memory m;
  m.rest = rest;
  for (int layer = 0; layer < config.L; ++layer) {
    const bool again = c.recompute != Recompute::none && layer % c.every == 0;
    m.kept += set(Offload::all, again) - set(leaving, again);
    if (again) m.workspace = set(Offload::all, false) - set(Offload::all, true);
    if (travels && layer < config.L - c.horizon) m.pinned += set(leaving, again);
  }
  for (int slot = 0; travels && slot < c.horizon; ++slot) {
    size_t largest = 0;
    for (int layer = slot; layer < config.L; layer += c.horizon)
      largest = std::max(largest, set(leaving, c.recompute != Recompute::none && layer % c.every == 0));
    m.slots += largest;
  }
  return m;
}

// The slots grow by a block's travelling tensors with each step of the horizon, and the pinned memory shrinks by them.
void print_slots(const Ranks& ranks) {
  World world(ranks);
  const int L = small().L;
  for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::block})
    for (const Offload offload : {Offload::input, Offload::attention, Offload::all}) {
      const auto memory = [&](int horizon) {
        return planned(world.trainer({recompute, 1, offload, horizon, "bf16"})->plan());
      };
      const size_t block = memory(1).slots;
      printf("%s\n", Combination{recompute, 1, offload, 1, "bf16"}.name().c_str());
      printf("  a block's travelling tensors: %zu bytes\n", block);
      for (int horizon = 1; horizon < L; ++horizon) {
        const Memory m = memory(horizon);
        printf("  horizon %d: slots %zu, pinned %zu\n", horizon, m.slots, m.pinned);
        REQUIRE(m.slots == size_t(horizon) * block && m.pinned == size_t(L - horizon) * block,
                "horizon %d: %zu bytes of slots and %zu pinned, expected %d and %d times %zu", horizon, m.slots,
                m.pinned, horizon, L - horizon, block);
      }
      const Memory whole = memory(L);
      printf("  horizon %d, all blocks: nothing travels\n", L);
      REQUIRE(whole.slots == 0 && whole.pinned == 0, "%zu bytes of slots where nothing travels", whole.slots);
    }
}

// The plain training of a precision, and what it plans beside activations.
struct Plain {
  End end;
  size_t rest = 0;
};

// Trains as the combination has it; ends with an error where something is not as it should be.
Memory compare(World& world, const Combination& c, const Plain& plain) {
  const auto trainer = world.trainer(c);
  const End got = train(world, *trainer);
  REQUIRE(got.losses == plain.end.losses, "%s: other losses", c.name().c_str());
  for (const auto& [name, weights] : plain.end.weights)
    REQUIRE(got.weights.at(name) == weights, "%s: other weights of %s", c.name().c_str(), name.c_str());
  const Touched touched = look_at(trainer->plan(), trainer->arena());
  REQUIRE(touched.untouched.empty() && touched.outside == 0,
          "%s: %zu bytes outside of buffers were touched, not touched:\n%s", c.name().c_str(), touched.outside,
          touched.untouched.c_str());
  const Memory memory = planned(trainer->plan()), expected = theory(c, plain.rest);
  REQUIRE(memory == expected, "%s: the plan has %s and %zu others, theory %s and %zu", c.name().c_str(),
          memory.text().c_str(), memory.rest, expected.text().c_str(), expected.rest);
  return memory;
}

// A line a combination, or a precision if it is every one.
void run(const Ranks& ranks, bool whole) {
  World world(ranks);
  const std::vector<Combination> combinations = whole ? every() : pairs(every());
  std::map<std::string, Plain> plain;
  std::map<std::string, int> same;
  for (const Combination& c : combinations) {
    Plain& base = plain[c.precision];
    if (base.end.losses.empty()) {
      const auto trainer = world.trainer({Recompute::none, 1, Offload::none, 2, c.precision});
      base = {train(world, *trainer), planned(trainer->plan()).rest};
    }
    const Memory memory = compare(world, c, base);
    ++same[c.precision];
    if (ranks.rank == 0 && !whole) printf("ok   %s: the same bits; %s\n", c.name().c_str(), memory.text().c_str());
  }
  if (ranks.rank > 0) return;
  for (const auto& [precision, count] : same)
    printf(
        "%-16s %3d combinations: the bits of the plain training, each planned byte touched and no other, memory as "
        "theory has it\n",
        precision.c_str(), count);
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    REQUIRE(argc == 2, "activation_policies: see the head of its source for what it takes");
    const std::string what = argv[1];
    if (what == "slots") print_slots(ranks);
    else run(ranks, what == "every");
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}
