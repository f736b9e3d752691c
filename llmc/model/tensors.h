// The table of tensors: one row for each weight of a Llama. Allocation, initialization, sharding, import and export,
// optimizer groups, test names and the memory plan all follow from it.
//
// Rows of one `product` are the parts of one fused matrix: they lie one after the other, so that query, key and value
// (gate and up) are one operand with stacked rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/kernels/tensor_window.h"
#include "llmc/model/config.h"

enum class UnitKind { embedding, block, head };      // what is gathered, computed and reduced as one
enum class ShardRule { replicated, rows, columns };  // how tensor parallelism cuts it
enum class InitRule { ones, normal, residual };      // residual: projections into the residual stream

struct TensorRow {
  UnitKind unit;
  const char* name;     // Hugging Face's; %d is the layer
  const char* product;  // the fused operand that it is a part of
  int64_t (*rows)(const LlamaConfig&);
  int64_t (*columns)(const LlamaConfig&);  // nullptr: a vector
  ShardRule shard;
  InitRule init;
  bool fp8;  // its product may run in FP8
};

// In the order in which they lie in memory. lm_head.weight is left out when it is tied to the embedding.
inline constexpr TensorRow kTensorRows[] = {
    {UnitKind::embedding, "model.embed_tokens.weight", "embedding", [](const LlamaConfig& c) -> int64_t { return c.V; },
     [](const LlamaConfig& c) -> int64_t { return c.C; }, ShardRule::rows, InitRule::normal, false},
    {UnitKind::block, "model.layers.%d.input_layernorm.weight", "norm1",
     [](const LlamaConfig& c) -> int64_t { return c.C; }, nullptr, ShardRule::replicated, InitRule::ones, false},
    {UnitKind::block, "model.layers.%d.self_attn.q_proj.weight", "qkv",
     [](const LlamaConfig& c) -> int64_t { return c.q_width(); }, [](const LlamaConfig& c) -> int64_t { return c.C; },
     ShardRule::rows, InitRule::normal, true},
    {UnitKind::block, "model.layers.%d.self_attn.k_proj.weight", "qkv",
     [](const LlamaConfig& c) -> int64_t { return c.kv_width(); }, [](const LlamaConfig& c) -> int64_t { return c.C; },
     ShardRule::rows, InitRule::normal, true},
    {UnitKind::block, "model.layers.%d.self_attn.v_proj.weight", "qkv",
     [](const LlamaConfig& c) -> int64_t { return c.kv_width(); }, [](const LlamaConfig& c) -> int64_t { return c.C; },
     ShardRule::rows, InitRule::normal, true},
    {UnitKind::block, "model.layers.%d.self_attn.o_proj.weight", "o",
     [](const LlamaConfig& c) -> int64_t { return c.C; }, [](const LlamaConfig& c) -> int64_t { return c.q_width(); },
     ShardRule::columns, InitRule::residual, true},
    {UnitKind::block, "model.layers.%d.post_attention_layernorm.weight", "norm2",
     [](const LlamaConfig& c) -> int64_t { return c.C; }, nullptr, ShardRule::replicated, InitRule::ones, false},
    {UnitKind::block, "model.layers.%d.mlp.gate_proj.weight", "gate_up",
     [](const LlamaConfig& c) -> int64_t { return c.FF; }, [](const LlamaConfig& c) -> int64_t { return c.C; },
     ShardRule::rows, InitRule::normal, true},
    {UnitKind::block, "model.layers.%d.mlp.up_proj.weight", "gate_up",
     [](const LlamaConfig& c) -> int64_t { return c.FF; }, [](const LlamaConfig& c) -> int64_t { return c.C; },
     ShardRule::rows, InitRule::normal, true},
    {UnitKind::block, "model.layers.%d.mlp.down_proj.weight", "down",
     [](const LlamaConfig& c) -> int64_t { return c.C; }, [](const LlamaConfig& c) -> int64_t { return c.FF; },
     ShardRule::columns, InitRule::residual, true},
    {UnitKind::head, "model.norm.weight", "norm", [](const LlamaConfig& c) -> int64_t { return c.C; }, nullptr,
     ShardRule::replicated, InitRule::ones, false},
    {UnitKind::head, "lm_head.weight", "head", [](const LlamaConfig& c) -> int64_t { return c.V; },
     [](const LlamaConfig& c) -> int64_t { return c.C; }, ShardRule::rows, InitRule::normal, false},
};

// A weight of a model and its place in the flat buffers: weights and gradients have this layout, where they are whole.
struct Tensor {
  const TensorRow* row;
  std::string name;       // Hugging Face's
  int unit;               // of TensorLayout::units
  int64_t rows, columns;  // that are here; a vector has columns 1
  size_t offset;          // elements from the start of the unit
  // The whole tensor, and where in it the first element lies that is here.
  int64_t whole_rows, whole_columns;
  int64_t first_row = 0, first_column = 0;
  int copies = 1, copy = 0;  // ranks of the tensor-parallel group that have the same elements; which of them this is

  size_t size() const { return size_t(rows) * size_t(columns); }
  bool is_matrix() const { return row->columns != nullptr; }
  std::vector<int64_t> whole_shape() const {
    return is_matrix() ? std::vector<int64_t>{whole_rows, whole_columns} : std::vector<int64_t>{whole_rows};
  }
  // Of the elements from `first` on, of those that are here.
  TensorWindow window(size_t first) const {
    return {uint64_t(first_row) * uint64_t(whole_columns) + uint64_t(first_column), first, uint64_t(columns),
            uint64_t(whole_columns)};
  }
};

// Consecutive tensors that are gathered and reduced as one.
struct Unit {
  UnitKind kind;
  int layer;            // of a block, else -1
  size_t offset, size;  // elements from the start of the flat buffers, padding included
  int first_tensor, tensor_count;
};

// A stretch of a tensor: elements first .. first+count-1 of it.
struct Piece {
  const Tensor* tensor;
  size_t first, count;
  size_t at;  // of the first one, in elements from the start of what was asked for
  TensorWindow window() const { return tensor->window(first); }
};

// Which rank of how many of a tensor-parallel group.
struct TensorSplit {
  int degree = 1, rank = 0;
};

struct TensorLayout {
  // Each product begins at a multiple of this many elements: 256 bytes in every type.
  static constexpr size_t kAlignment = 256;

  // Of the whole model's config, what a rank of a tensor-parallel group holds. Each unit is padded so that it can be
  // cut into `parts` equal ones, which all begin at such a multiple; it is as large on each rank of the group.
  explicit TensorLayout(const LlamaConfig& config, int parts = 1, TensorSplit split = {});

  std::vector<Tensor> tensors;
  std::vector<Unit> units;  // embedding, blocks 0 .. L-1, head
  size_t size = 0;          // elements of a flat buffer; padding is 0 and stays 0
  int parts;

  int embedding_unit() const { return 0; }
  int block_unit(int layer) const { return 1 + layer; }
  int head_unit() const { return int(units.size()) - 1; }
  const Tensor& tensor(const std::string& name) const;
  // Where a unit's product begins, in elements from the start of the unit.
  size_t offset(int unit, const char* product) const;

  // Elements of a part of the unit. The same part of all units, one behind the other, is a shard of size() / parts
  // elements; the unit's lies at unit.offset / parts in it.
  size_t part_size(int unit) const { return units[size_t(unit)].size / size_t(parts); }
  // The pieces of tensors, without padding, in elements first .. first+count-1 of the unit.
  std::vector<Piece> pieces(int unit, size_t first, size_t count) const;
};
