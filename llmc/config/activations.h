// The tensors that a block's forward saves for its backward: one row of a table for each. The memory plan, the choice
// between memory, recomputation and the host, and their documentation follow from the table. A block finds its tensors
// by their names.
#pragma once

#include <span>
#include <vector>

#include "llmc/config/fp8.h"
#include "llmc/device/tensor.h"

// How much of a block backward recomputes instead of keeping it. Each level includes the one before:
//   norms   the outputs of norms before products, and of SwiGLU
//   mlp     all of the MLP: also the output of its first product
//   block   all but the block's input
enum class Recompute { none, norms, mlp, block };

// How much of a block is sent to the host, unless it is recomputed. Each level includes the one before:
//   input      the block's input
//   attention  all up to attention's output
//   all        all
enum class Offload { none, input, attention, all };

// The properties of a run on which the size of a saved tensor depends.
struct SavedSizes {
  const ModelConfig& config;
  const LayerProjections& projections;
  const Fp8Settings& fp8;
  DType type;            // of the model
  int64_t N, R;          // the largest micro-batch: tokens, and rows between products (pass.h)
  bool tensor_parallel;  // ranks share products out
  bool backward;         // false: only forward passes run

  // True if tensor-parallel ranks gather this product's input.
  bool gathers(const LayerProjection& p) const { return tensor_parallel && p.row().parallel == Parallel::column; }
};

// A property of a row, beyond its levels, that the code that stores or lists the tensors must know.
enum class SavedTrait {
  none,
  key_cache,   // it holds keys and values, from which a sequence can be continued
  next_block,  // the next block's forward reads it, too
  scales,      // it holds the scales of the row before, and lists for people leave it out
};

struct SavedRow {
  const char* name;
  Tensor (*tensor)(const SavedSizes& sizes, int layer);  // its type and shape; absent if the block does not save it
  Offload offloads_from;                                 // the lowest level that sends it to the host
  Recompute recomputes_from;                             // the lowest level that recomputes it; none: no level does
  SavedTrait trait = SavedTrait::none;
};

// The rows are in the order in which forward writes the tensors. Under tensor parallelism, NH, NKV and FF count what
// this rank holds.
std::span<const SavedRow> saved_rows();
// Throws if the table has no row of this name.
const SavedRow& saved_row(const char* name);

// The saved tensors of one block by name, for the largest micro-batch.
class SavedTensors {
 public:
  explicit SavedTensors(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}
  // Returns the tensor, which is absent if the block does not save it. Throws if the table has no such row.
  Tensor operator[](const char* name) const { return tensors_[size_t(&saved_row(name) - saved_rows().data())]; }

 private:
  std::vector<Tensor> tensors_;  // in the order of the rows
};
