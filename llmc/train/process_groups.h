// The groups of ranks that a trainer communicates with. Groups that communicate at the same time have communicators of
// their own.
#pragma once

#include <algorithm>
#include <memory>

#include "llmc/base/error.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/config/config.h"
#include "llmc/memory/placement.h"
#include "llmc/model/context_parallel.h"
#include "llmc/model/tensor_parallel.h"

// Throws if the ranks cannot share sequences of T tokens as evenly as context parallelism requires.
inline void require_shareable_sequences(int T, const Mesh& mesh) {
  if (mesh.context_degree == 1) return;
  const int multiple = 2 * mesh.context_degree * mesh.tensor_degree, fewer = T / multiple * multiple;
  REQUIRE(T % multiple == 0,
          "--seq-len %d with --context-parallel-degree %d and --tensor-parallel-degree %d: not a multiple of %d, two "
          "chunks of a sequence for each rank\n  use --seq-len %s%d",
          T, mesh.context_degree, mesh.tensor_degree, multiple, fewer ? format("%d or ", fewer).c_str() : "",
          fewer + multiple);
}

struct ProcessGroups {
  using Group = std::unique_ptr<Communicator>;

  Group gather, reduce;  // the ranks that shard, on the gather stream and on the reduce stream
  Group replicate;       // the ranks that keep the same part
  // The tensor-parallel ranks, one communicator for each stream that uses one: NCCL serializes the collectives of a
  // communicator. `kv_replicas`: those of them with the same key and value heads. Null without tensor parallelism.
  Group tp_compute, tp_reduce, tp_gather, kv_replicas;
  Group ascending, descending;  // the context-parallel ranks in both orders (context_parallel.h); null without them
  Group owners;                 // the ranks that share matrices out (matrix_owners.h); null: `reduce`
  Group sequence_group;         // the ranks that compute the same sequences, context x tensor; null: this rank alone

  // `whole_matrices`: the optimizer shares matrices out. All ranks call.
  ProcessGroups(Communicator& all, const Mesh& mesh, const ModelConfig& config, bool whole_matrices) {
    using Axis = Mesh::Axis;
    gather = all.split(mesh.group({Axis::shard, Axis::context}));
    reduce = all.split(mesh.group({Axis::shard, Axis::context}));
    replicate = all.split(mesh.group({Axis::replicate}));
    if (mesh.tensor_degree > 1) {
      const std::vector<int> group = mesh.group({Axis::tensor});
      tp_compute = all.split(group), tp_reduce = all.split(group), tp_gather = all.split(group);
      const int copies = std::max(mesh.tensor_degree / config.NKV, 1), first = mesh.tensor_rank / copies * copies;
      kv_replicas = all.split({group.begin() + first, group.begin() + first + copies});
      if (whole_matrices) owners = all.split(mesh.group({Axis::shard, Axis::context, Axis::tensor}));
    }
    if (mesh.context_degree > 1) {
      std::vector<int> group = mesh.group({Axis::context});
      ascending = all.split(group);
      std::reverse(group.begin(), group.end());
      descending = all.split(group);
    }
    if (mesh.tensor_degree * mesh.context_degree > 1)
      sequence_group = all.split(mesh.group({Axis::context, Axis::tensor}));
  }

  // Counts the communicators of several ranks, `all` included: NCCL allocates buffers for each.
  int communicators(const Communicator& all) const {
    int count = all.size() > 1;
    for (const Group* group : {&gather, &reduce, &replicate, &tp_compute, &tp_reduce, &kv_replicas, &tp_gather, &owners,
                               &ascending, &descending, &sequence_group})
      count += *group && (*group)->size() > 1;
    return count;
  }

  Communicator& matrix_owners() const { return owners ? *owners : *reduce; }

  ShardGroup shard_group() const {
    return {*gather, *reduce, *replicate, tp_reduce.get(), kv_replicas.get(), tp_gather.get()};
  }
};

// Communication at the same time as products and attention: each kind has a stream of its own. The priority lets NCCL's
// blocks start between those of a product. They would otherwise wait for its last wave, and the ranks for the latest of
// them.
struct TensorStream {
  Stream stream;
  TensorParallel parallel;
  TensorStream(Device& device, const ProcessGroups& groups, int chunks, DType sums)
      : stream(device, "tensor", StreamPriority::highest), parallel(*groups.tp_compute, stream, chunks, sums, device) {}
};
struct ContextStream {
  Stream stream;
  ContextParallel parallel;
  ContextStream(Device& device, const ProcessGroups& groups)
      : stream(device, "context", StreamPriority::highest),
        parallel(*groups.ascending, *groups.descending, stream, device) {}
};
