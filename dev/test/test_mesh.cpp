// Covers: the mesh: coordinates and groups of every rank of every mesh up to 24 ranks, impossible degrees
#include "llmc/comm/mesh.h"

#include <map>
#include <set>

#include "dev/test/test.h"

using Axis = Mesh::Axis;

TEST_CASE("one rank is a mesh of its own") {
  const Mesh mesh = Mesh::create(1, 0);
  CHECK(mesh.data_degree() == 1);
  CHECK(mesh.group({Axis::replicate, Axis::shard, Axis::context, Axis::tensor}) == std::vector<int>{0});
  CHECK(mesh.description() == "1 rank = 1 replicate x 1 shard x 1 context x 1 tensor");
}

TEST_CASE("a mesh by hand: 16 ranks, tensor 2, context 2, hybrid 2") {
  const Mesh mesh = Mesh::create(16, 11, 2, 2, 2);  // 11 = ((1*2 + 0)*2 + 1)*2 + 1
  using Numbers = std::vector<int>;
  CHECK(Numbers{mesh.replicate_degree, mesh.shard_degree, mesh.context_degree, mesh.tensor_degree} ==
        Numbers{2, 2, 2, 2});
  CHECK(Numbers{mesh.replicate_rank, mesh.shard_rank, mesh.context_rank, mesh.tensor_rank} == Numbers{1, 0, 1, 1});
  CHECK(mesh.data_degree() == 4);
  CHECK(mesh.data_rank() == 2);
  CHECK(mesh.group({Axis::tensor}) == std::vector<int>{10, 11});
  CHECK(mesh.group({Axis::context}) == std::vector<int>{9, 11});
  CHECK(mesh.group({Axis::shard}) == std::vector<int>{11, 15});
  CHECK(mesh.group({Axis::replicate}) == std::vector<int>{3, 11});
  CHECK(mesh.group({Axis::replicate, Axis::shard}) == std::vector<int>{3, 7, 11, 15});
  CHECK(mesh.group({Axis::context, Axis::shard}) == std::vector<int>{9, 11, 13, 15});
  CHECK(mesh.group({}) == std::vector<int>{11});
}

TEST_CASE("hybrid degrees: 0 shards over all data ranks, 1 over none") {
  CHECK(Mesh::create(8, 0, 2, 1, 0).shard_degree == 4);
  CHECK(Mesh::create(8, 0, 2, 1, 0).replicate_degree == 1);
  CHECK(Mesh::create(8, 0, 2, 1, 1).shard_degree == 1);
  CHECK(Mesh::create(8, 0, 2, 1, 1).replicate_degree == 4);
  CHECK(Mesh::create(8, 0, 1, 1, 2).replicate_degree == 4);
}

// Each property for every rank of a mesh; `meshes` are those of all its ranks.
static void check_mesh(const std::vector<Mesh>& meshes) {
  const int size = int(meshes.size());
  std::set<std::vector<int>> coordinates;
  std::map<int, int> of_data_rank;
  for (const Mesh& mesh : meshes) {
    CHECK(mesh.replicate_degree * mesh.shard_degree * mesh.context_degree * mesh.tensor_degree == size);
    for (Axis axis : {Axis::replicate, Axis::shard, Axis::context, Axis::tensor}) {
      CHECK(mesh.rank_along(axis) >= 0);
      CHECK(mesh.rank_along(axis) < mesh.degree(axis));
      const std::vector<int> group = mesh.group({axis});
      CHECK(int(group.size()) == mesh.degree(axis));
      for (int i = 0; i < int(group.size()); ++i) {
        const Mesh& peer = meshes[size_t(group[size_t(i)])];
        CHECK(peer.group({axis}) == group);  // all its members agree on the group
        CHECK(peer.rank_along(axis) == i);
        for (Axis other : {Axis::replicate, Axis::shard, Axis::context, Axis::tensor})
          if (other != axis) CHECK(peer.rank_along(other) == mesh.rank_along(other));
      }
    }
    coordinates.insert({mesh.replicate_rank, mesh.shard_rank, mesh.context_rank, mesh.tensor_rank});
    const std::vector<int> data_ranks = mesh.group({Axis::replicate, Axis::shard});
    CHECK(data_ranks[size_t(mesh.data_rank())] == mesh.rank);
    ++of_data_rank[mesh.data_rank()];
  }
  CHECK(int(coordinates.size()) == size);
  CHECK(int(of_data_rank.size()) == meshes[0].data_degree());
  for (const auto& [data_rank, count] : of_data_rank) CHECK(count * meshes[0].data_degree() == size);
}

TEST_CASE("every mesh of up to 24 ranks") {
  int meshes = 0;
  for (int size = 1; size <= 24; ++size)
    for (int tensor = 1; tensor <= size; ++tensor)
      for (int context = 1; size % tensor == 0 && context <= size / tensor; ++context)
        for (int shard = 0; size / tensor % context == 0 && shard <= size / tensor / context; ++shard) {
          if (shard && size / tensor / context % shard) continue;
          CAPTURE(size);
          CAPTURE(tensor);
          CAPTURE(context);
          CAPTURE(shard);
          std::vector<Mesh> ranks;
          for (int rank = 0; rank < size; ++rank) ranks.push_back(Mesh::create(size, rank, tensor, context, shard));
          check_mesh(ranks);
          ++meshes;
        }
  CHECK(meshes > 400);
}

TEST_CASE("impossible degrees name those that would do") {
  const std::string more = "\n  or start more ranks: scripts/run -n N";
  struct Case {
    std::vector<int> mesh;  // ranks, rank and degrees: tensor, context, hybrid
    std::string error;
  };
  for (const Case& c : std::vector<Case>{
           {{8, 0, 3, 1, 0},
            "--tensor-parallel-degree 3 does not divide the 8 ranks\n  choose one of: 1, 2, 4, 8" + more},
           {{1, 0, 2, 1, 0}, "--tensor-parallel-degree 2 does not divide the 1 rank\n  choose one of: 1" + more},
           {{12, 0, 2, 4, 0},
            "--context-parallel-degree 4 does not divide the 6 ranks that are left (12 ranks / 2 of each tensor "
            "group)\n"
            "  choose one of: 1, 2, 3, 6" +
                more},
           {{12, 0, 2, 1, 4},
            "--hybrid-shard-degree 4 does not divide the 6 data ranks (12 ranks / 2 tensor / 1 context)\n"
            "  choose 0 (shard over all of them), 1 (no sharding), or one of: 1, 2, 3, 6"},
           {{8, 0, 0, 1, 0}, "--tensor-parallel-degree 0 does not divide"},
           {{8, 0, -2, 1, 0}, "--tensor-parallel-degree -2 does not divide"},
           {{8, 0, 1, 0, 0}, "--context-parallel-degree 0 does not divide"},
           {{8, 0, 1, 1, -1}, "--hybrid-shard-degree -1 does not divide"},
           {{8, 0, 1, 1, 16}, "--hybrid-shard-degree 16 does not divide"},
           {{8, 8, 1, 1, 0}, "a mesh for rank 8 of 8: expected a rank from 0 to 7"},
           {{0, 0, 1, 1, 0}, "a mesh for rank 0 of 0"}})
    says(error_of([&] { Mesh::create(c.mesh[0], c.mesh[1], c.mesh[2], c.mesh[3], c.mesh[4]); }), c.error);
}
