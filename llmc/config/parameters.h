// The table of tensors: one row for each weight of a model. Allocation, initialization, sharding, import and export,
// optimizer groups, test names, the memory plan and the counts of parameters and operations all follow from it.
//
// Rows with the same `fused` are the parts of one fused matrix. They lie in memory one after the other, so query, key
// and value (or gate and up) form one matrix with stacked rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llmc/config/config.h"
#include "llmc/config/projections.h"
#include "llmc/device/tensor.h"
#include "llmc/kernels/shard_window.h"

enum class UnitKind { embedding, block, head };         // a unit is gathered, computed and reduced as one
enum class Cut { none, rows, columns };                 // how tensor parallelism cuts the tensor
enum class InitRule { ones, zeros, normal, residual };  // residual: projections into the residual stream

struct ParameterRow {
  UnitKind unit;
  const char* name;   // Hugging Face's name; %d stands for the layer
  const char* fused;  // the fused matrix that it is a part of, or itself: the name by which the model looks it up
  int64_t (*rows)(const ModelConfig&);
  int64_t (*columns)(const ModelConfig&);  // null: the tensor is a vector
  Cut cut;
  InitRule init;
  // `layer` counts for blocks only. Null: every model has it, in every layer.
  bool (*present)(const ModelConfig&, int layer) = nullptr;

  bool is_in(const ModelConfig& config, int layer) const { return !present || present(config, layer); }
  int64_t size(const ModelConfig& config) const { return rows(config) * (columns ? columns(config) : 1); }
};

namespace parameter_table {

constexpr int64_t hidden(const ModelConfig& c) { return c.C; }
constexpr int64_t queries(const ModelConfig& c) { return int64_t(c.NH) * c.HD; }
constexpr int64_t keys(const ModelConfig& c) { return int64_t(c.NKV) * c.HD; }
constexpr int64_t ffn(const ModelConfig& c) { return c.FF; }
constexpr int64_t vocabulary(const ModelConfig& c) { return c.V; }
constexpr int64_t head_size(const ModelConfig& c) { return c.HD; }
constexpr bool untied(const ModelConfig& c, int) { return !c.tied; }
constexpr bool biased(const ModelConfig& c, int) { return c.family->qkv_bias; }
constexpr bool norms_before(const ModelConfig& c, int) { return !c.family->norm_after; }
constexpr bool norms_after(const ModelConfig& c, int) { return c.family->norm_after; }
constexpr bool norms_heads(const ModelConfig& c, int) { return c.family->qk_norm == QkNorm::head; }
constexpr bool norms_whole(const ModelConfig& c, int) { return c.family->qk_norm == QkNorm::whole; }

constexpr Cut whole = Cut::none, rows = Cut::rows, columns = Cut::columns;
constexpr InitRule ones = InitRule::ones, zeros = InitRule::zeros, normal = InitRule::normal,
                   residual = InitRule::residual;
constexpr UnitKind block = UnitKind::block;

// The rows are in the order in which the tensors lie in memory.
inline constexpr ParameterRow kRows[] = {
    {UnitKind::embedding, "model.embed_tokens.weight", "embedding", vocabulary, hidden, rows, normal},
    {block, "model.layers.%d.input_layernorm.weight", "norm1", hidden, nullptr, whole, ones, norms_before},
    {block, "model.layers.%d.post_attention_layernorm.weight", "norm1", hidden, nullptr, whole, ones, norms_after},
    {block, "model.layers.%d.self_attn.q_proj.weight", "qkv", queries, hidden, rows, normal},
    {block, "model.layers.%d.self_attn.k_proj.weight", "qkv", keys, hidden, rows, normal},
    {block, "model.layers.%d.self_attn.v_proj.weight", "qkv", keys, hidden, rows, normal},
    {block, "model.layers.%d.self_attn.q_proj.bias", "q bias", queries, nullptr, rows, zeros, biased},
    {block, "model.layers.%d.self_attn.k_proj.bias", "k bias", keys, nullptr, rows, zeros, biased},
    {block, "model.layers.%d.self_attn.v_proj.bias", "v bias", keys, nullptr, rows, zeros, biased},
    {block, "model.layers.%d.self_attn.q_norm.weight", "q norm", head_size, nullptr, whole, ones, norms_heads},
    {block, "model.layers.%d.self_attn.k_norm.weight", "k norm", head_size, nullptr, whole, ones, norms_heads},
    {block, "model.layers.%d.self_attn.q_norm.weight", "q norm", queries, nullptr, rows, ones, norms_whole},
    {block, "model.layers.%d.self_attn.k_norm.weight", "k norm", keys, nullptr, rows, ones, norms_whole},
    {block, "model.layers.%d.self_attn.o_proj.weight", "o", hidden, queries, columns, residual},
    {block, "model.layers.%d.post_attention_layernorm.weight", "norm2", hidden, nullptr, whole, ones, norms_before},
    {block, "model.layers.%d.post_feedforward_layernorm.weight", "norm2", hidden, nullptr, whole, ones, norms_after},
    {block, "model.layers.%d.mlp.gate_proj.weight", "gate_up", ffn, hidden, rows, normal},
    {block, "model.layers.%d.mlp.up_proj.weight", "gate_up", ffn, hidden, rows, normal},
    {block, "model.layers.%d.mlp.down_proj.weight", "down", hidden, ffn, columns, residual},
    {UnitKind::head, "model.norm.weight", "norm", hidden, nullptr, whole, ones},
    {UnitKind::head, "lm_head.weight", "head", vocabulary, hidden, rows, normal, untied},
};

}  // namespace parameter_table

inline constexpr const auto& kParameterRows = parameter_table::kRows;

// A weight of a model and its place in the flat buffers. Weights and gradients have this layout where they are whole.
struct ParameterInfo {
  const ParameterRow* row;
  std::string name;       // Hugging Face's name
  int unit;               // index into ParameterLayout::units
  int64_t rows, columns;  // of the part that is here; a vector has columns 1
  size_t offset;          // elements from the start of the unit
  // The shape of the whole tensor, and the place in it of the first element that is here.
  int64_t whole_rows, whole_columns;
  int64_t first_row = 0, first_column = 0;
  // `copies` ranks of the tensor-parallel group hold the same elements; this rank has number `copy` among them.
  int copies = 1, copy = 0;
  const LayerProjection* projection = nullptr;  // whose weight it is, or a part of it; null: no product of a block
  // Index among the unit's tensors that are never quantized, such as norms; -1 for the weight of a projection.
  int unquantized_index = -1;

  size_t size() const { return size_t(rows) * size_t(columns); }
  bool is_matrix() const { return row->columns != nullptr; }
  std::vector<int64_t> whole_shape() const {
    return is_matrix() ? std::vector<int64_t>{whole_rows, whole_columns} : std::vector<int64_t>{whole_rows};
  }
  // The place in the whole tensor of the elements that are here, from element `first` of them on.
  ShardWindow window(size_t first) const {
    return {uint64_t(first_row) * uint64_t(whole_columns) + uint64_t(first_column), first, uint64_t(columns),
            uint64_t(whole_columns)};
  }
};

// Consecutive tensors that are gathered and reduced as one.
struct Unit {
  UnitKind kind;
  int layer;            // number of the block; -1: the unit is no block
  size_t offset, size;  // elements from the start of the flat buffers, padding included
  int first_tensor, tensor_count;
  int parts;  // equal parts into which the ranks that shard cut it
};

// A range of a tensor: its elements first .. first+count-1.
struct Slice {
  const ParameterInfo* tensor;
  size_t first, count;
  size_t at;  // place of the first one, in elements from the start of the range that was asked for
  ShardWindow window() const { return tensor->window(first); }
};

// The size of a tensor-parallel group, and this rank's number in it.
struct TensorSplit {
  int degree = 1, rank = 0;
};

struct ParameterLayout {
  // Each fused matrix begins at a multiple of this many elements, so at a multiple of 256 bytes in every type.
  static constexpr size_t kAlignment = 256;

  // Lays out what one rank of a tensor-parallel group holds; `config` is that of the whole model. Each unit is padded
  // so that it can be cut into `parts` equal parts, and each part begins at a multiple of kAlignment. A unit has the
  // same size on every rank of the group.
  explicit ParameterLayout(const ModelConfig& config, int parts = 1, TensorSplit split = {});
  ParameterLayout(ParameterLayout&&) = default;  // no copies, because the tensors point to the projections

  LayerProjections projections;  // of this rank's part
  std::vector<ParameterInfo> tensors;
  std::vector<Unit> units;  // embedding, blocks 0 .. L-1, head
  size_t size = 0;          // elements of a flat buffer; padding is 0 and stays 0
  bool tied;                // the head computes with the embedding's weights

  int layers() const { return int(units.size()) - 2; }
  int embedding_unit() const { return 0; }
  int block_unit(int layer) const { return 1 + layer; }
  int head_unit() const { return int(units.size()) - 1; }
  const ParameterInfo& tensor(const std::string& name) const;
  std::span<const ParameterInfo> tensors_of(int unit) const {
    const Unit& u = units[size_t(unit)];
    return {tensors.data() + u.first_tensor, size_t(u.tensor_count)};
  }
  // Returns where a fused matrix begins, in elements from the start of its unit.
  size_t offset(int unit, const char* fused) const;

  // Returns the elements of one part of the unit.
  size_t part_size(int unit) const { return units[size_t(unit)].size / size_t(units[size_t(unit)].parts); }
  // Returns the ranges of tensors, without padding, that lie in elements first .. first+count-1 of the unit.
  std::vector<Slice> slices(int unit, size_t first, size_t count) const;
};

// The tensors of a unit by name, as views of a flat buffer with the unit's layout.
class UnitTensors {
 public:
  // `flat` has the layout of the unit; it is absent if the projections' weights are not here. `unquantized`
  // (n, widest): then, the unit's n tensors that are never quantized, by ParameterInfo::unquantized_index.
  UnitTensors(const ParameterLayout& layout, int unit, const Tensor& flat, const Tensor& unquantized = {})
      : layout_(layout), unit_(unit), flat_(flat), unquantized_(unquantized) {}

  // Returns the fused matrix: (rows, columns) with the rows of all its tensors, or (rows) of a vector. It is absent if
  // it is not here, or if this model has none. Throws if the table has no such row.
  Tensor operator[](const char* fused) const;
  // Returns the elements of one tensor, (size); absent if they are not here.
  Tensor of(const ParameterInfo& tensor) const;

 private:
  const ParameterLayout& layout_;
  int unit_;
  Tensor flat_, unquantized_;
};
