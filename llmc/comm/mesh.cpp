#include "llmc/comm/mesh.h"

#include <algorithm>

#include "llmc/base/error.h"

namespace {

constexpr Mesh::Axis kAxes[] = {Mesh::Axis::replicate, Mesh::Axis::shard, Mesh::Axis::context, Mesh::Axis::tensor};

// Returns the divisors of n: "1, 2, 4".
std::string divisors(int n) {
  std::string text;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return text;
}

const char* plural(int n) { return n == 1 ? "" : "s"; }

}  // namespace

Mesh Mesh::create(int world_size, int rank, int tensor_degree, int context_degree, int hybrid_shard_degree) {
  REQUIRE(world_size >= 1 && rank >= 0 && rank < world_size, "a mesh for rank %d of %d: expected a rank from 0 to %d",
          rank, world_size, std::max(0, world_size - 1));
  REQUIRE(tensor_degree >= 1 && world_size % tensor_degree == 0,
          "--tensor-parallel-degree %d does not divide the %d rank%s\n  choose one of: %s\n"
          "  or start more ranks: scripts/run -n N",
          tensor_degree, world_size, plural(world_size), divisors(world_size).c_str());
  const int rest = world_size / tensor_degree;
  REQUIRE(
      context_degree >= 1 && rest % context_degree == 0,
      "--context-parallel-degree %d does not divide the %d rank%s that are left (%d ranks / %d of each tensor group)"
      "\n  choose one of: %s\n  or start more ranks: scripts/run -n N",
      context_degree, rest, plural(rest), world_size, tensor_degree, divisors(rest).c_str());
  const int data_ranks = rest / context_degree;
  REQUIRE(hybrid_shard_degree >= 0 && (hybrid_shard_degree == 0 || data_ranks % hybrid_shard_degree == 0),
          "--hybrid-shard-degree %d does not divide the %d data rank%s (%d ranks / %d tensor / %d context)"
          "\n  choose 0 (shard over all of them), 1 (no sharding), or one of: %s",
          hybrid_shard_degree, data_ranks, plural(data_ranks), world_size, tensor_degree, context_degree,
          divisors(data_ranks).c_str());

  Mesh mesh;
  mesh.world_size = world_size;
  mesh.rank = rank;
  mesh.tensor_degree = tensor_degree;
  mesh.context_degree = context_degree;
  mesh.shard_degree = hybrid_shard_degree == 0 ? data_ranks : hybrid_shard_degree;
  mesh.replicate_degree = data_ranks / mesh.shard_degree;
  mesh.tensor_rank = rank % tensor_degree;
  mesh.context_rank = rank / tensor_degree % context_degree;
  mesh.shard_rank = rank / (tensor_degree * context_degree) % mesh.shard_degree;
  mesh.replicate_rank = rank / (tensor_degree * context_degree * mesh.shard_degree);
  return mesh;
}

int Mesh::degree(Axis axis) const {
  const int degrees[] = {replicate_degree, shard_degree, context_degree, tensor_degree};
  return degrees[int(axis)];
}

int Mesh::rank_along(Axis axis) const {
  const int ranks[] = {replicate_rank, shard_rank, context_rank, tensor_rank};
  return ranks[int(axis)];
}

std::vector<int> Mesh::group(std::initializer_list<Axis> axes) const {
  // The outermost axis comes first, so that inner axes vary faster and the ranks are in ascending order.
  std::vector<int> ranks = {0};
  for (Axis axis : kAxes) {
    const bool varies = std::find(axes.begin(), axes.end(), axis) != axes.end();
    const int first = varies ? 0 : rank_along(axis), end = varies ? degree(axis) : first + 1;
    std::vector<int> longer;
    for (int outer : ranks)
      for (int i = first; i < end; ++i) longer.push_back(outer * degree(axis) + i);
    ranks = std::move(longer);
  }
  return ranks;
}

std::string Mesh::description() const {
  return format("%d rank%s = %d replicate x %d shard x %d context x %d tensor", world_size, plural(world_size),
                replicate_degree, shard_degree, context_degree, tensor_degree);
}
