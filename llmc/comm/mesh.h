// The mesh of ranks: world = replicate x shard x context x tensor, tensor innermost, so that the ranks of a tensor
// group are neighbours (on one machine where they fit), then those of a context group, then those that shard together.
//
//   rank = ((replicate_rank * shard_degree + shard_rank) * context_degree + context_rank) * tensor_degree + tensor_rank
//
// Data ranks are replicate x shard: each trains on sequences of its own. Arithmetic alone: no rank speaks to another
// here.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

struct Mesh {
  enum class Axis { replicate, shard, context, tensor };

  int world_size = 1, rank = 0;
  int replicate_degree = 1, shard_degree = 1, context_degree = 1, tensor_degree = 1;
  int replicate_rank = 0, shard_rank = 0, context_rank = 0, tensor_rank = 0;

  // `hybrid_shard_degree` N shards over N data ranks and replicates over the rest: 0 = over all of them, 1 = no
  // sharding. Throws on degrees that do not fit, naming those that would.
  static Mesh create(int world_size, int rank, int tensor_degree = 1, int context_degree = 1,
                     int hybrid_shard_degree = 0);

  int data_ranks() const { return replicate_degree * shard_degree; }
  int data_rank() const { return replicate_rank * shard_degree + shard_rank; }

  int degree(Axis axis) const;
  int rank_along(Axis axis) const;
  // The world ranks that differ from this one along `axes` only, this one included, in ascending order: {tensor} is the
  // tensor group, {replicate, shard} those that share this rank's part of the model on other data.
  std::vector<int> group(std::initializer_list<Axis> axes) const;
  // This rank's place in group(axes).
  int rank_in_group(std::initializer_list<Axis> axes) const;

  // "8 ranks = 2 replicate x 2 shard x 1 context x 2 tensor"
  std::string description() const;
};
