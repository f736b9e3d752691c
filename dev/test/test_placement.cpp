// Covers: promise 4: in every ZeRO stage, on every mesh of up to 12 ranks that shard and replicate, the ranks' parts
// partition each unit and what they save partitions each part; a buffer of shards finds each of them, and no other; the
// shards with some of the tensors are the longest runs of these, wherever a shard begins
#include "llmc/memory/placement.h"

#include <array>
#include <memory>

#include "dev/test/error_of.h"
#include "dev/test/test.h"
#include "llmc/comm/mesh.h"
#include "llmc/comm/recording_communicator.h"

namespace {

ModelConfig small() {
  ModelConfig config = ModelConfig::preset("tiny");
  config.C = 40, config.L = 2, config.NH = 6, config.HD = 16, config.FF = 52, config.V = 97;
  return config;
}

// The placement of one rank of a mesh without tensor parallelism.
struct Placed {
  Mesh mesh;
  ParameterLayout layout;
  RecordingCommunicator gather, replicate;
  ShardGroup group{gather, gather, replicate};
  Placement placement;
  Placed(const Mesh& m, int stage, bool in_bytes, bool weights_on_host = false)
      : mesh(m),
        layout(small(), m.state_shards()),
        gather(m.shard_rank * m.context_degree + m.context_rank, Communicator::first_ranks(m.state_shards())),
        replicate(m.replicate_rank, Communicator::first_ranks(m.replicate_degree)),
        placement(place_units(
            layout, m.effective_stage(stage), group,
            [&](int unit) { return in_bytes && layout.units[size_t(unit)].layer >= 0; }, weights_on_host)) {}
};

// Calls f(world, rank 0's mesh, shard) for each mesh of up to 12 ranks.
template <class F>
void for_each_mesh(F&& f) {
  for (int world = 1; world <= 12; ++world)
    for (int context = 1; context <= world; ++context)
      for (int hybrid = 1; world % context == 0 && hybrid <= world / context; ++hybrid)
        if (world / context % hybrid == 0) f(world, context, hybrid);
}

}  // namespace

TEST_CASE("own partitions a unit among the ranks that shard, and saved partitions own among the replicas") {
  int64_t checked = 0;
  for_each_mesh([&](int world, int context, int hybrid) {
    for (int stage = 0; stage <= 3; ++stage) {
      std::vector<std::vector<int>> owners, savers;  // for each unit and element: how many ranks have it
      for (int rank = 0; rank < world; ++rank) {
        const Placed r(Mesh::create(world, rank, 1, context, hybrid), stage, false);
        owners.resize(r.placement.size()), savers.resize(r.placement.size());
        for (size_t unit = 0; unit < r.placement.size(); ++unit) {
          const UnitPlacement& p = r.placement[unit];
          owners[unit].resize(p.whole.count), savers[unit].resize(p.whole.count);
          CHECK(p.whole.contains(p.own));
          if (!p.whole.contains(p.own)) return;
          CHECK(p.own.contains(p.saved));
          for (size_t i = p.own.first; i < p.own.end(); ++i) ++owners[unit][i];
          for (size_t i = p.saved.first; i < p.saved.end(); ++i) ++savers[unit][i];
        }
      }
      const int replicas = Mesh::create(world, 0, 1, context, hybrid).replicate_degree;
      for (size_t unit = 0; unit < owners.size(); ++unit) {
        CHECK(owners[unit] == std::vector<int>(owners[unit].size(), replicas));
        CHECK(savers[unit] == std::vector<int>(savers[unit].size(), 1));
        checked += int64_t(owners[unit].size());
      }
    }
  });
  CHECK(checked > 0);
}

TEST_CASE("a stage is a row of the table, and stage 0 where one rank shards") {
  // For state, gradients, weights of the embedding, and of a block that is gathered as bytes: whether they are whole.
  constexpr std::array<std::array<bool, 4>, 4> kWhole = {{{true, true, true, true},
                                                          {false, true, true, false},
                                                          {false, false, true, false},
                                                          {false, false, false, false}}};
  for_each_mesh([&](int world, int context, int hybrid) {
    for (int stage = 0; stage <= 3; ++stage) {
      const Placed r(Mesh::create(world, world - 1, 1, context, hybrid), stage, true);
      const auto& whole = kWhole[size_t(r.mesh.state_shards() > 1 ? stage : 0)];
      const UnitPlacement &embedding = r.placement.front(), &block = r.placement[1];
      CHECK(embedding.state == (whole[0] ? embedding.whole : embedding.own));
      CHECK(embedding.gradients == (whole[1] ? embedding.whole : embedding.own));
      CHECK(embedding.weights == (whole[2] ? embedding.whole : embedding.own));
      CHECK(block.weights == (whole[3] ? block.whole : block.own));
      CHECK(block.updates_part() == !whole[0]);
      CHECK(block.reduces_each_micro_batch() == !whole[1]);
      CHECK(embedding.needs_slot() == !whole[2]);
      CHECK(block.in_bytes == !whole[3]);
      CHECK(updates_contiguous(r.placement) == (whole[0] == whole[1] && whole[0] == whole[2]));
      // Weights on the host are shared out wherever the state is, and all units are copied into slots.
      const Placed host(r.mesh, stage, true, true);
      for (const UnitPlacement& p : host.placement) {
        CHECK(p.weights == p.state);
        CHECK(p.needs_slot());
        CHECK(p.in_bytes == (&p != &host.placement.front() && &p != &host.placement.back()));
      }
    }
  });
}

TEST_CASE("a buffer of shards finds what lies in one of them") {
  FlatShards shards;
  shards.add(0, {8, 4});
  shards.add(2, {0, 6});
  shards.add(2, {10, 5});
  CHECK(shards.size() == 15);
  CHECK(shards.at(0, {8, 4}) == 0);
  CHECK(shards.at(2, {2, 4}) == 6);
  CHECK(shards.at(2, {11, 1}) == 11);
  for (const auto& [unit, shard] : {std::pair{0, Shard{7, 2}}, {1, Shard{0, 1}}, {2, Shard{4, 8}}, {2, Shard{15, 1}}})
    CHECK(error_of([&, unit = unit, shard = shard] { shards.at(unit, shard); }).find("not kept here") !=
          std::string::npos);
}

namespace {

bool is_block_matrix(const ParameterInfo& tensor) {
  return tensor.row->unit == UnitKind::block && tensor.row->columns != nullptr;
}

// Returns for each element of a unit whether the tensor in front of it, or over it, satisfies `has`.
template <class Has>
std::vector<bool> elements_with(const ParameterLayout& layout, int unit, Has&& has) {
  std::vector<bool> with(layout.units[size_t(unit)].size);
  for (const ParameterInfo& t : layout.tensors_of(unit))
    for (size_t i = t.offset; i < with.size(); ++i) with[i] = has(t);  // up to the end: the next tensor overwrites it
  return with;
}

}  // namespace

TEST_CASE("the shards with some of the tensors are the longest runs of their elements and of the padding after them") {
  int64_t cut_inside = 0, several = 0;
  for_each_mesh([&](int world, int context, int hybrid) {
    if (world > 6) return;  // what follows looks at each element
    for (const int stage : {0, 3})
      for (int rank = 0; rank < world; ++rank) {
        const Placed r(Mesh::create(world, rank, 1, context, hybrid), stage, false);
        const auto is_qkv = [](const ParameterInfo& t) { return std::string(t.row->fused) == "qkv"; };
        const auto is_other = [](const ParameterInfo& t) { return !is_block_matrix(t); };
        for (const std::function<bool(const ParameterInfo&)>& has :
             {std::function<bool(const ParameterInfo&)>(is_block_matrix), {is_other}, {is_qkv}})
          for (Shard UnitPlacement::*const of : {&UnitPlacement::state, &UnitPlacement::saved}) {
            const FlatShards shards = shards_with(r.layout, r.placement, of, has);
            std::vector<Shard> want;
            for (int unit = 0; unit < int(r.placement.size()); ++unit) {
              const std::vector<bool> with = elements_with(r.layout, unit, has);
              const Shard& shard = r.placement[size_t(unit)].*of;
              const size_t before = want.size();
              for (size_t i = shard.first; i < shard.end(); ++i)
                if (with[i] && (i == shard.first || !with[i - 1])) want.push_back({i, 1});
                else if (with[i]) ++want.back().count;
              several += want.size() > before + 1;
            }
            std::vector<Shard> got;
            size_t at = 0;
            for (const FlatShards::Entry& entry : shards.entries()) {
              got.push_back(entry.shard);
              CHECK(entry.at == at);
              at += entry.shard.count;
              for (const ParameterInfo& t : r.layout.tensors_of(entry.unit))
                cut_inside += (t.offset < entry.shard.first && entry.shard.first < t.offset + t.size()) +
                              (t.offset < entry.shard.end() && entry.shard.end() < t.offset + t.size());
            }
            CHECK(got == want);
            CHECK(shards.size() == at);
          }
      }
  });
  CHECK(cut_inside > 0);
  CHECK(several > 0);
}

TEST_CASE("the shards with all of the tensors are the shards, and those with none are none") {
  for_each_mesh([&](int world, int context, int hybrid) {
    const Placed r(Mesh::create(world, world - 1, 1, context, hybrid), 1, false);
    const auto all = [](const ParameterInfo&) { return true; };
    std::vector<Shard> got, want;
    for (const UnitPlacement& p : r.placement) want.push_back(p.state);
    const FlatShards shards = shards_with(r.layout, r.placement, &UnitPlacement::state, all);
    for (const FlatShards::Entry& entry : shards.entries()) got.push_back(entry.shard);
    CHECK(got == want);
    CHECK(shards_with(r.layout, r.placement, &UnitPlacement::saved, std::not_fn(all)).entries().empty());
  });
}
