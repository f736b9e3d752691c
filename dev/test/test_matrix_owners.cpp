// Covers: promise 2: on every mesh of up to 12 ranks, in each ZeRO stage, Muon's owners get each element of their
// matrices once, from a rank that keeps it; each rank that keeps an element gets its update; the owners of a round
// differ, their FLOPs are balanced, and all ranks come to the same result
#include "llmc/train/matrix_owners.h"

#include <algorithm>
#include <memory>
#include <set>

#include "dev/test/test.h"
#include "llmc/comm/mesh.h"
#include "llmc/comm/recording_communicator.h"
#include "llmc/kernels/newton_schulz.h"

namespace {

// Small, with biases, an odd vocabulary, and fewer heads of keys and values than some meshes have tensor ranks.
ModelConfig small(int NKV) {
  ModelConfig config = ModelConfig::preset("tiny");
  config.family = find_family("qwen2");
  config.C = 20, config.L = 3, config.NH = 12, config.NKV = NKV, config.HD = 4, config.FF = 36, config.V = 183;
  return config;
}

struct Way {
  int world, tensor, context, hybrid, stage, NKV;
  std::string text() const {
    return format("%d ranks, tensor %d, context %d, shards over %d, stage %d, %d heads of keys and values", world,
                  tensor, context, hybrid, stage, NKV);
  }
};

// Calls f for each mesh and stage.
template <class F>
void for_each_way(F&& f) {
  for (int world = 1; world <= 12; ++world)
    for (int tensor = 1; tensor <= world; ++tensor)
      for (int context = 1; world % tensor == 0 && context <= world / tensor; ++context) {
        const int data = world / tensor / context;
        for (int hybrid = 1; world / tensor % context == 0 && hybrid <= data; ++hybrid)
          for (const int NKV : {2, 3})
            for (int stage = 0; stage <= 3; ++stage)
              if (data % hybrid == 0 && 12 % tensor == 0 && (NKV % tensor == 0 || tensor % NKV == 0))
                f(Way{world, tensor, context, hybrid, stage, NKV});
      }
}

// One rank of a mesh, and how it shares the matrices out.
struct Rank {
  Mesh mesh;
  ModelConfig config;
  TensorSplit split;
  ParameterLayout layout;
  RecordingCommunicator gather, replicate;
  ShardGroup group{gather, gather, replicate};
  Placement placement;
  std::vector<OwnedMatrix> matrices;
  Rank(const Way& way, int rank)
      : mesh(Mesh::create(way.world, rank, way.tensor, way.context, way.hybrid)),
        config(small(way.NKV)),
        split{mesh.tensor_degree, mesh.tensor_rank},
        layout(config, mesh.state_shards(), split),
        gather(mesh.shard_rank * mesh.context_degree + mesh.context_rank,
               Communicator::first_ranks(mesh.state_shards())),
        replicate(mesh.replicate_rank, Communicator::first_ranks(mesh.replicate_degree)),
        placement(place_units(layout, mesh.effective_stage(way.stage), group, [](int) { return false; })),
        matrices(share_matrices(config, layout, placement, split)) {}
  // This rank's number among those that share.
  int number() const {
    using Axis = Mesh::Axis;
    const std::vector<int> ranks = mesh.group({Axis::shard, Axis::context, Axis::tensor});
    return int(std::find(ranks.begin(), ranks.end(), mesh.rank) - ranks.begin());
  }
  int ranks() const { return mesh.state_shards() * mesh.tensor_degree; }
};

// Returns the elements of the whole matrix that lie in this part of a rank's unit; none if the rank does not keep it.
std::vector<size_t> elements(const Rank& rank, const OwnedMatrix& m, const MatrixPart& part) {
  const ParameterInfo& t = rank.layout.tensor(m.tensor->name);
  std::vector<size_t> result;
  if (t.unit != part.unit || !rank.placement[size_t(t.unit)].state.contains(part.shard)) return result;
  const ShardWindow window = t.window(part.shard.first - t.offset);
  for (size_t i = 0; i < part.shard.count; ++i) result.push_back(size_t(window[i]));
  return result;
}
// Returns the elements of the whole matrix that this rank keeps.
std::vector<size_t> kept_elements(const Rank& rank, const OwnedMatrix& m) {
  const ParameterInfo& t = rank.layout.tensor(m.tensor->name);
  const Shard& state = rank.placement[size_t(t.unit)].state;
  std::vector<size_t> result;
  for (size_t i = 0; i < t.size(); ++i)
    if (state.contains({t.offset + i, 1})) result.push_back(size_t(t.window(0)[i]));
  return result;
}

// All that a rank plans, without what is its own.
std::string text_of(const Rank& rank) {
  std::string text;
  for (const OwnedMatrix& m : rank.matrices) {
    text += format("%s of %d in round %d:", m.tensor->name.c_str(), m.owner, m.round);
    for (const MatrixPart& p : m.parts) {
      text += format(" %d+%zu+%zu at %zu from %d (%llu %llu %llu %llu) to", p.unit, p.shard.first, p.shard.count, p.at,
                     p.source, (unsigned long long)p.window.start, (unsigned long long)p.window.skip,
                     (unsigned long long)p.window.columns, (unsigned long long)p.window.stride);
      for (const int keeper : p.keepers) text += format(" %d", keeper);
    }
    text += "\n";
  }
  return text;
}

// Returns what is wrong with the parts of a matrix; "" if nothing is. `ranks` are those that share, by number.
std::string fault_of(const OwnedMatrix& m, const std::vector<const Rank*>& ranks) {
  const size_t size = size_t(m.rows() * m.columns());
  std::vector<size_t> order;                               // the elements in the owner's list
  std::vector<std::vector<size_t>> updated(ranks.size());  // by rank
  std::set<int> sources;
  for (const MatrixPart& part : m.parts) {
    const std::vector<size_t> here = elements(*ranks[size_t(part.source)], m, part);
    if (here.empty()) return "a rank sends what it does not keep";
    if (!sources.insert(part.source).second) return "a rank sends two parts";
    if (part.at != order.size()) return "the parts do not follow one another";
    for (size_t i = 0; i < here.size(); ++i)
      if (size_t(part.window[i]) != here[i]) return "a window is another rank's";
    order.insert(order.end(), here.begin(), here.end());
    if (!std::is_sorted(part.keepers.begin(), part.keepers.end())) return "keepers are not in order";
    if (!std::count(part.keepers.begin(), part.keepers.end(), part.source)) return "the source is no keeper";
    // A part that all shards have is sent from the owner's own shard.
    const int tensor_ranks = ranks[0]->mesh.tensor_degree;
    if (!ranks[0]->placement[size_t(part.unit)].updates_part() && part.source / tensor_ranks != m.owner / tensor_ranks)
      return "a matrix is sent from another's shard";
    for (const int keeper : part.keepers) {
      if (elements(*ranks[size_t(keeper)], m, part) != here) return "a rank updates what it does not keep";
      if (!updated[size_t(keeper)].empty()) return "a rank has two parts";
      updated[size_t(keeper)] = here;
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r)
    if (updated[r] != kept_elements(*ranks[r], m)) return format("rank %zu does not update all that it keeps", r);
  const bool in_order = std::is_sorted(order.begin(), order.end());
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < size; ++i)
    if (order.size() != size || order[i] != i) return "an element comes not once";
  return m.is_cut() == in_order ? "what is cut and what is not" : "";
}

}  // namespace

TEST_CASE("every owner gets each element of its matrices once, and every rank the updates of what it keeps") {
  int64_t ways = 0, cut = 0, copied = 0;
  for_each_way([&](const Way& way) {
    CAPTURE(way.text());
    std::vector<std::unique_ptr<Rank>> all;
    for (int rank = 0; rank < way.world; ++rank) all.push_back(std::make_unique<Rank>(way, rank));
    const std::string first = text_of(*all[0]);
    std::vector<const Rank*> ranks(size_t(all[0]->ranks()));  // those of the last replica
    for (const auto& rank : all) {
      CHECK(text_of(*rank) == first);
      ranks[size_t(rank->number())] = rank.get();
    }
    for (const OwnedMatrix& m : all[0]->matrices) {
      CAPTURE(m.tensor->name);
      CHECK(fault_of(m, ranks) == "");
      cut += m.is_cut();
      for (const MatrixPart& part : m.parts) copied += way.stage > 0 && part.keepers.size() > 1;
    }
    ++ways;
  });
  CHECK(ways > 500);
  CHECK(cut > 0);
  CHECK(copied > 0);  // ranks with the same heads of keys and values
}

TEST_CASE("the matrices are those of the blocks, each by itself; owners differ in a round, and have equal loads") {
  for_each_way([&](const Way& way) {
    CAPTURE(way.text());
    const Rank rank(way, way.world - 1);
    std::multiset<std::string> names, want;
    for (int layer = 0; layer < rank.config.L; ++layer)
      for (const char* name :
           {"self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"})
        want.insert(format("model.layers.%d.%s_proj.weight", layer, name));
    std::vector<double> load(size_t(rank.ranks()));
    std::vector<int> rounds(load.size());
    double largest = 0, sum = 0;
    int round = 0, owner = -1;
    for (const OwnedMatrix& m : rank.matrices) {
      names.insert(m.tensor->name);
      CHECK(std::pair(m.round, m.owner) > std::pair(round, owner));  // in order, no owner twice in a round
      CHECK(m.round <= round + 1);
      round = m.round, owner = m.owner;
      CHECK(m.round == rounds[size_t(m.owner)]++);  // no owner rests before it has no matrix left
      const double flops = newton_schulz_flops(m.rows(), m.columns());
      load[size_t(m.owner)] += flops, sum += flops, largest = std::max(largest, flops);
    }
    CHECK(names == want);
    // Each matrix went to the rank with the least so far. So no rank has more than any other one by more than the
    // largest matrix, nor more than the mean by as much.
    const auto [least, most] = std::minmax_element(load.begin(), load.end());
    CHECK(*most - *least <= largest);
    CHECK(*most <= sum / double(load.size()) + largest);
  });
}
