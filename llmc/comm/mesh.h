// The mesh of ranks: world = replicate x shard x context x tensor. The tensor axis is innermost, so the ranks of a
// tensor group are neighbours (on one machine if they fit). The context axis comes next, then the shard axis.
//
//   rank = ((replicate_rank * shard_degree + shard_rank) * context_degree + context_rank) * tensor_degree + tensor_rank
//
// Data ranks are replicate x shard: each of them trains on its own sequences. The shard axis holds the data ranks over
// which ZeRO shards; in stage 0 they replicate, too (DDP). torchtitan calls the axes dp_replicate, dp_shard, cp and tp.
// This file is arithmetic only and communicates nothing.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

struct Mesh {
  enum class Axis { replicate, shard, context, tensor };

  int world_size = 1, rank = 0;
  int replicate_degree = 1, shard_degree = 1, context_degree = 1, tensor_degree = 1;
  int replicate_rank = 0, shard_rank = 0, context_rank = 0, tensor_rank = 0;

  // Shards over `hybrid_shard_degree` data ranks and replicates over the rest. 0 means all data ranks, 1 means no
  // sharding. Throws on degrees that do not fit and names those that would.
  static Mesh create(int world_size, int rank, int tensor_degree = 1, int context_degree = 1,
                     int hybrid_shard_degree = 0);

  int data_degree() const { return replicate_degree * shard_degree; }
  // Returns the number of ranks over which ZeRO shards one copy of the state. The ranks that split a sequence shard it
  // too.
  int state_shards() const { return shard_degree * context_degree; }
  // Returns the ZeRO stage that has an effect: 0 where one rank keeps all of a copy.
  int effective_stage(int64_t zero_stage) const { return state_shards() > 1 ? int(zero_stage) : 0; }
  int data_rank() const { return replicate_rank * shard_degree + shard_rank; }

  int degree(Axis axis) const;
  int rank_along(Axis axis) const;
  // Returns the world ranks that differ from this rank only along `axes`, in ascending order, including this rank.
  // {tensor} is the tensor group; {replicate, shard} are the ranks that hold the same part of the model and train on
  // other data.
  std::vector<int> group(std::initializer_list<Axis> axes) const;

  // Returns "8 ranks = 2 replicate x 2 shard x 1 context x 2 tensor"
  std::string description() const;
};
