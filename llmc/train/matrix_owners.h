// Which rank computes the update of which matrix, for an optimizer that needs whole matrices (Muon). This file is
// arithmetic only and communicates nothing. All ranks come to the same result.
//
// The ranks that keep one copy of the model share the matrices out: shard x context x tensor, with the tensor axis
// innermost. A rank here is a number in that group. Replicas do the same, each among its own ranks.
#pragma once

#include <vector>

#include "llmc/config/parameters.h"
#include "llmc/memory/placement.h"

// True for the tensors that such an optimizer updates: the matrices of the blocks' projections, each under its own name
// (q, k, v, o, gate, up, down). Not the embedding, the head, norms and biases.
inline bool is_block_matrix(const ParameterInfo& tensor) { return tensor.projection && tensor.is_matrix(); }

// Elements of a matrix that lie together in the shard of one rank, and in those of the ranks with the same elements.
struct MatrixPart {
  int unit;
  Shard shard;               // in the unit
  ShardWindow window;        // in the matrix
  size_t at;                 // in the owner's list of all parts, one after the other
  int source;                // the rank that sends the part to the owner
  std::vector<int> keepers;  // the ranks that update these elements, in ascending order
};

struct OwnedMatrix {
  const ParameterInfo* tensor;  // in the layout that was passed to share_matrices()
  int owner;
  int round;  // the matrices of a round have different owners
  std::vector<MatrixPart> parts;
  int64_t rows() const { return tensor->whole_rows; }
  int64_t columns() const { return tensor->whole_columns; }
  // True if the parts, one after the other, are not the matrix: tensor parallelism cut its columns.
  bool is_cut() const;
};

// `layout` and `placement` are those of this rank, `split` is its place in its tensor-parallel group. Owners get about
// equally many FLOPs: the largest matrix goes to the rank with the least so far (Graham 1969). The matrices are
// returned by round and owner.
std::vector<OwnedMatrix> share_matrices(const ModelConfig& config, const ParameterLayout& layout,
                                        const Placement& placement, TensorSplit split);
