// The linear layers of blocks, which FP8 quantizes and tensor parallelism cuts: a table with one row for each kind, and
// the list of those that the layers of a model have. A layer need not have each kind.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llmc/config/config.h"

// How tensor parallelism cuts W (OC, IC). A column-parallel layer has some of its rows and gathers inputs; a
// row-parallel layer has some of its columns and gathers output gradients (linear.h).
enum class Parallel { column, row };

struct ProjectionRow {
  const char* name;  // ParameterRow::fused of its weight (parameters.h), and its name in messages
  Parallel parallel;
  // The saved tensors (activations.h) that hold its input in FP8, and the scales. Null: backward quantizes the input
  // again, because attention's backward needs it in the model's type anyway.
  const char *saved_input = nullptr, *saved_scales = nullptr;
};

// The rows are in the order of forward, on which the codes of tensors that are not finite depend (fp8.h).
inline constexpr ProjectionRow kProjections[] = {
    {"qkv", Parallel::column, "input of qkv", "input of qkv, factors"},
    {"o", Parallel::row},
    {"gate_up", Parallel::column, "input of gate_up", "input of gate_up, factors"},
    {"down", Parallel::row, "input of down", "input of down, factors"},
};

// Names a row of kProjections. Arrays of one block are indexed by it, but nothing that is stored.
enum class Projection { qkv, o, gate_up, down };
inline constexpr int kProjectionCount = std::size(kProjections);

// Returns the projection whose weight has this name. None: it is no weight of a block's product, so it is never
// quantized.
std::optional<Projection> projection_of(const char* name);

// The tensors of a product that FP8 quantizes.
enum class Role { input, weight, output_gradient };
inline constexpr Role kEachRole[] = {Role::input, Role::weight, Role::output_gradient};
inline constexpr int kRoles = std::size(kEachRole);
const char* role_name(Role role);

// One linear layer: y[N, OC] = x[N, IC] Wᵀ.
struct LayerProjection {
  int layer;
  Projection which;
  int index;   // in LayerProjections::all()
  int OC, IC;  // of this rank's part

  const ProjectionRow& row() const { return kProjections[int(which)]; }
  const char* name() const { return row().name; }
  // Number of a tensor among all that FP8 quantizes.
  int id(Role role) const { return index * kRoles + int(role); }
};

// The linear layers of all blocks of the model, in the order of forward. So an id is the same on every rank and in
// every checkpoint.
class LayerProjections {
 public:
  // `config` is that of this rank's part of the model.
  explicit LayerProjections(const ModelConfig& config);

  const std::vector<LayerProjection>& all() const { return all_; }
  int count() const { return int(all_.size()); }
  // Those of `layers` layers. A layer of -1 is no block and has none.
  std::span<const LayerProjection> of(int layer, int layers = 1) const;
  // Null: the layer has none.
  const LayerProjection* find(int layer, Projection which) const;

  double weights() const;  // elements of all of them

  int ids() const { return count() * kRoles; }
  // Number of a tensor of the head's product. It follows those of the blocks, and no scale of it is remembered.
  int head_id(Role role) const { return ids() + int(role); }
  Role role(int id) const { return Role(id % kRoles); }
  std::string name(int id) const;  // for example "the input of down in block 3"

 private:
  std::vector<LayerProjection> all_;
  std::vector<size_t> first_;  // (L + 1) index of each layer's first one, and the end
};
