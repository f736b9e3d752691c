// Trains a small model with what may become of activations (activation_policy.h) and of the state, on one rank, or on
// several, and compares with the plain training, to the bit. Ends with an error where it is not the same.
//
//   activation_policies every       all that mean something of activations, each with some way to keep the state
//   activation_policies pairs       some, in which each two settings of two options meet
//   activation_policies slots       prints what slots grow by with the horizon, and checks it
//
// Each combination: the losses, norms, gradients and weights after some steps; memory of the device is overwritten as
// soon as its copy has left; each planned byte is touched and no other, and none is allocated after the start; the plan
// differs from the plain one's as theory says.
#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <tuple>

#include "dev/test/tiny_trainer.h"

namespace {

constexpr size_t kTokens = 2 * 64;

constexpr int kLayers = 5;

// A model of this family; its bias, norms and windows are what kFamilyModels says.
ModelConfig small(const std::string& family) {
  for (TinyModel model : kFamilyModels)
    if (model.family == family) return model.L = kLayers, tiny(model);
  fail("no small model of %s", family.c_str());
}

// This says where a block's weights and state are between its uses. With fp8_on_use its FP8 operands are made again.
enum class Kept { on_device, fp8_on_use, weights_on_host, all_on_host };

struct Combination {
  Recompute recompute;
  int every;
  Offload offload;
  int horizon;
  std::string precision;  // fp32, bf16, or FP8's recipe
  std::string family = "llama";
  Kept kept = Kept::on_device;
  int stage = 0;
  bool graphs = false;

  bool fp8() const { return precision != "fp32" && precision != "bf16"; }
  // Products' inputs are kept in FP8.
  bool keeps_fp8() const { return fp8() && precision != "rowwise-hp-wgrad"; }
  std::string name() const {
    const char* const recomputes[] = {"none", "norms", "mlp", "block"};
    const char* const offloads[] = {"none", "input", "attention", "all"};
    const char* const keeps[] = {"", ", FP8 weights on use", ", weights on the host",
                                 ", weights and state on the host"};
    return format("%-9s %-16s stage %d --recompute %-5s of every %d --activation-offload %-9s horizon %d%s%s",
                  family.c_str(), precision.c_str(), stage, recomputes[int(recompute)], every, offloads[int(offload)],
                  horizon, keeps[int(kept)], graphs ? ", graphs" : "");
  }
  // The one whose bits this one must have.
  Combination plain() const { return {Recompute::none, 1, Offload::none, 2, precision, family, {}, stage}; }
  std::vector<int> settings() const {
    const std::hash<std::string> hash;
    return {int(recompute),    every,     int(offload), horizon, int(hash(precision)),
            int(hash(family)), int(kept), stage,        graphs};
  }
};

std::vector<Combination> every(const std::vector<std::string>& precisions, const std::string& family) {
  std::vector<Combination> all;
  for (const std::string& precision : precisions)
    for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::block})
      for (const int each : {1, 2})
        for (const Offload offload : {Offload::none, Offload::input, Offload::attention, Offload::all})
          for (const int horizon : {1, 2, 3, kLayers}) {
            if (recompute == Recompute::none && each > 1) continue;
            if (offload == Offload::none && horizon != 2) continue;
            all.push_back({recompute, each, offload, horizon, precision, family});
          }
  return all;
}

// Returns `all`, each with all ways to keep the state, or if they are `few` each with one of them in turn.
std::vector<Combination> with_states(const std::vector<Combination>& all, const std::vector<int>& stages, bool few) {
  std::vector<std::tuple<Kept, int, bool>> states;
  for (const Kept kept : {Kept::on_device, Kept::fp8_on_use, Kept::weights_on_host, Kept::all_on_host})
    for (const int stage : stages)
      for (const bool graphs : {false, true}) states.push_back({kept, stage, graphs});
  std::vector<Combination> some;
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t k = 0; k < (few ? 1 : states.size()); ++k) {
      some.push_back(all[i]);
      std::tie(some.back().kept, some.back().stage, some.back().graphs) = states[(i + k) % states.size()];
    }
  return some;
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

// The bytes that a plan keeps for backward. `rest`: all else on the device.
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
  const ModelConfig config = small(c.family);
  const bool after = config.family->norm_after, whole = config.family->qk_norm == QkNorm::whole;
  const size_t N = kTokens, e = c.precision == "fp32" ? 4 : 2;
  const auto high_precision = [&](int width) { return N * size_t(width) * e; };
  // Inputs of products, in FP8: by columns, which are padded to a multiple of 16, or of blocks' 128, with one scale, or
  // one a column (a block is as long as there are tokens).
  const auto input = [&](int width) {
    const int unit = c.precision == "blockwise" ? 128 : 16;
    const size_t columns = size_t((width + unit - 1) / unit * unit);
    const bool one = c.precision == "tensorwise" || c.precision == "delayed";
    return c.keeps_fp8() ? N * columns + (one ? 1 : columns) * sizeof(float) : high_precision(width);
  };
  // The input of qkv or gate_up, which is the residual stream if norms come after the layers.
  const auto norm_output = [&] { return after && !c.keeps_fp8() ? 0 : input(config.C); };
  const auto set = [&](Offload part, bool recomputes) -> size_t {
    const Recompute again = recomputes ? c.recompute : Recompute::none;
    const bool norms = again == Recompute::none, gate_up = again < Recompute::mlp, block = again < Recompute::block;
    size_t bytes = part >= Offload::input ? high_precision(config.C) : 0;
    if (part >= Offload::attention && block)  // rstd1 and lse, qkv, attention's output
      bytes += N * size_t(1 + config.NH) * 4 + high_precision((config.NH + 2 * config.NKV) * config.HD) +
               high_precision(config.NH * config.HD);
    if (part >= Offload::attention && block) bytes += (whole ? N * 2 * 4 : 0) + (after ? high_precision(config.C) : 0);
    if (part >= Offload::attention && norms) bytes += norm_output();
    if (part >= Offload::all && block)
      bytes += high_precision(config.C) * (after ? 2 : 1) + N * 4;  // middle, down's output, rstd2
    if (part >= Offload::all && norms) bytes += norm_output() + input(config.FF);
    if (part >= Offload::all && gate_up) bytes += high_precision(2 * config.FF);
    return bytes;
  };
  const bool offloads = c.offload != Offload::none && c.horizon < config.L;
  const Offload leaving = offloads ? c.offload : Offload::none;
  Memory m;
  m.rest = rest;
  for (int layer = 0; layer < config.L; ++layer) {
    const bool again = c.recompute != Recompute::none && layer % c.every == 0;
    m.kept += set(Offload::all, again) - set(leaving, again);
    if (again) m.workspace = set(Offload::all, false) - set(Offload::all, true);
    if (offloads && layer < config.L - c.horizon) m.pinned += set(leaving, again);
  }
  for (int slot = 0; offloads && slot < c.horizon; ++slot) {
    size_t largest = 0;
    for (int layer = slot; layer < config.L; layer += c.horizon)
      largest = std::max(largest, set(leaving, c.recompute != Recompute::none && layer % c.every == 0));
    m.slots += largest;
  }
  return m;
}

TrainerSettings settings_of(const Combination& c) {
  TrainerSettings settings = settings_in(c.precision, small(c.family));
  settings.zero_stage = c.stage, settings.graphs = c.graphs;
  settings.activations = {c.recompute, c.every, c.offload, c.horizon, true};
  settings.fp8.weights_on_use = c.kept == Kept::fp8_on_use;
  settings.state.weights_on_host = c.kept >= Kept::weights_on_host;
  settings.state.on_host = settings.state.gradients_on_host = c.kept == Kept::all_on_host;
  settings.state.chunk = 1024;  // less than any unit has
  return settings;
}

// The slots grow by a block's offloaded tensors with each step of the horizon, and the pinned memory shrinks by them.
void print_slots(const Ranks& ranks, const Words&) {
  World world(ranks);
  const int L = kLayers;
  for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::block})
    for (const Offload offload : {Offload::input, Offload::attention, Offload::all}) {
      const auto memory = [&](int horizon) {
        return planned(world.trainer(small("llama"), settings_of({recompute, 1, offload, horizon, "bf16"}))->plan());
      };
      const size_t block = memory(1).slots;
      printf("%s\n  a block's offloaded tensors: %zu bytes\n",
             Combination{recompute, 1, offload, 1, "bf16"}.name().c_str(), block);
      for (int horizon = 1; horizon <= L; ++horizon) {
        const Memory m = memory(horizon);
        const size_t slots = horizon < L ? size_t(horizon) : 0, left = size_t(L - horizon);  // L: nothing is offloaded
        printf("  horizon %d: slots %zu, pinned %zu\n", horizon, m.slots, m.pinned);
        REQUIRE(m.slots == slots * block && m.pinned == left * block,
                "horizon %d: %zu bytes of slots and %zu pinned, expected %zu and %zu times %zu", horizon, m.slots,
                m.pinned, slots, left, block);
      }
    }
}

// Returns what a training leaves and the memory that it keeps.
std::pair<Trained, Memory> train(World& world, const Combination& c) {
  Training training(world, small(c.family), settings_of(c));
  const size_t launches = world.device.graph_launches();
  training.train(1);
  training.enqueue();
  training.evaluate();  // while the step runs
  training.finish();
  training.train(c.precision == "delayed" ? 2 : 1);  // whose steps are captured from the third on
  training.end();
  REQUIRE((world.device.graph_launches() > launches) == c.graphs, "%s: %zu launches of a graph", c.name().c_str(),
          world.device.graph_launches() - launches);
  training.require_planned(c.name());
  return {training.trained, planned(training->plan())};
}

// A line a combination, or a family and precision if it is every one.
void run(const Ranks& ranks, const Words& words) {
  World world(ranks);
  const bool whole = words[0] == "every";
  std::vector<std::string> precisions = {"fp32", "bf16"};
  precisions.insert(precisions.end(), std::begin(kRecipes), std::end(kRecipes));
  // Ranks that share move weights and gradients, whatever an input's scales are.
  if (!whole && ranks.size > 1) precisions = {"fp32", "bf16", "delayed", "rowwise-hp-wgrad"};
  std::vector<Combination> all;
  for (const TinyModel& model : kFamilyModels) {
    const std::vector<Combination> of_family = every(precisions, model.family);
    all.insert(all.end(), of_family.begin(), of_family.end());
  }
  all = with_states(all, ranks.size > 1 ? std::vector<int>{0, 3} : std::vector<int>{0}, whole);
  std::map<std::string, Trained> plain;
  std::map<std::string, int> same;
  for (const Combination& c : whole ? all : pairs(all)) {
    const std::string kind = format("%s %s stage %d", c.family.c_str(), c.precision.c_str(), c.stage);
    if (!plain.count(kind)) plain[kind] = train(world, c.plain()).first;
    const auto [got, memory] = train(world, c);
    require_same(c.name(), got, plain[kind]);
    Combination device_only = c;
    device_only.recompute = Recompute::none, device_only.offload = Offload::none;
    const Memory expected = theory(c, planned(world.trainer(small(c.family), settings_of(device_only))->plan()).rest);
    REQUIRE(memory == expected, "%s: the plan has %s and %zu others, theory %s and %zu", c.name().c_str(),
            memory.text().c_str(), memory.rest, expected.text().c_str(), expected.rest);
    ++same[kind];
    if (world.first() && !whole) printf("ok   %s: the same bits; %s\n", c.name().c_str(), memory.text().c_str());
  }
  for (const auto& [kind, count] : same)
    if (world.first())
      printf("%-26s %3d combinations: the plain training's bits, the planned bytes, memory as theory has it\n",
             kind.c_str(), count);
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(argc, argv, {{"activation_policies every|pairs", run}, {"activation_policies slots", print_slots}});
}
