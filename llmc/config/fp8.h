// FP8 training: which of a block's products run in FP8, and how each recipe quantizes their operands.
//
//   recipe             input, weight             output gradient   weight gradient from
//   tensorwise         e4m3, one scale per       e5m2, the same    the same scales (torchao; TransformerEngine's
//                      tensor, of its amax                         current scaling)
//   delayed            the same, of the amaxes   e5m2, the same    the same scales (Micikevicius et al. 2022;
//                      of earlier steps                            TransformerEngine)
//   rowwise            e4m3, one scale per row of each product's operands; K runs along the row (torchao)
//   rowwise-hp-wgrad   the same, but dgrad's weight has one scale  bf16 (torchao: rowwise_with_gw_hp)
//   blockwise          e4m3, one per 1x128; weights 128x128        e4m3, 1x128 (DeepSeek-V3, 2024)
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "llmc/config/config.h"
#include "llmc/device/device.h"
#include "llmc/kernels/quantized_tensor.h"
#include "llmc/kernels/step_state.h"

enum class Fp8Recipe { off, tensorwise, delayed, rowwise, rowwise_hp_wgrad, blockwise };
const char* recipe_name(Fp8Recipe recipe);
Fp8Recipe recipe_named(const std::string& name);

enum class Projection { qkv, o, gate_up, down };
inline constexpr int kProjectionCount = 4;
inline constexpr Projection kEachProjection[kProjectionCount] = {Projection::qkv, Projection::o, Projection::gate_up,
                                                                 Projection::down};
// True if the product's inputs are gathered under tensor parallelism; otherwise its output gradients are (linear.h).
constexpr bool gathers_inputs(Projection projection) {
  return projection == Projection::qkv || projection == Projection::gate_up;
}
const char* projection_name(Projection projection);  // its name in the table of tensors

// y[N, OC] = x[N, IC] Wᵀ
struct ProjectionShape {
  int OC, IC;
};
ProjectionShape projection_shape(const ModelConfig& config, Projection projection);

enum class Role { input, weight, output_gradient };
inline constexpr int kRoles = 3;
const char* role_name(Role role);

// Numbers each tensor that is quantized, by its layer, product and role.
constexpr int fp8_tensor_id(int layer, Projection projection, Role role) {
  return (layer * kProjectionCount + int(projection)) * kRoles + int(role);
}
std::string fp8_tensor_name(int number);  // for example "the input of down in block 3"
// A kernel reports a tensor with an infinity or NaN by an atomic min of its code (step_state.h). Tensors computed
// earlier have smaller codes. Backward runs in reverse, so its codes count down from the largest.
constexpr uint32_t nonfinite_code(int number) {
  const bool backward = Role(number % kRoles) == Role::output_gradient;
  return backward ? kLargestCode - uint32_t(number) : uint32_t(number) + 1;
}
constexpr int not_finite_number(uint32_t word) {
  return word > kLargestCode / 2 ? int(kLargestCode - word) : int(word) - 1;
}

struct Fp8Settings {
  Fp8Recipe recipe = Fp8Recipe::off;
  Fp8Format gradient = Fp8Format::e5m2;  // of output gradients
  bool power_of_two = false;
  std::vector<bool> skipped;  // (L, kProjectionCount): products that stay in bf16; empty: none
  // For the recipe `delayed`:
  int history = 1024;   // number of steps
  bool latest = false;  // the scale follows from the last step's amax, not from the largest one in the history
  int margin = 0;       // headroom: powers of two below the largest number of the format
  // all_gather: sharded weights travel in FP8, with scales that all ranks agree on. precompute_scales: the ranks agree
  // on all scales of a step at once, after the update; otherwise on those of a unit when it is gathered.
  bool all_gather = false, precompute_scales = true;

  bool on() const { return recipe != Fp8Recipe::off; }
  bool delayed() const { return recipe == Fp8Recipe::delayed; }
  bool quantizes(int layer, Projection projection) const {
    return on() && (skipped.empty() || !skipped[size_t(layer * kProjectionCount + int(projection))]);
  }
  // True if all products of the block run in FP8.
  bool quantizes_block(int layer) const;
  // True if a block's weights are gathered as FP8 bytes (fp8_weights.h). A layer of -1 is no block.
  bool gathers_bytes(int layer) const {
    return all_gather && per_tensor_scale() && layer >= 0 && quantizes_block(layer);
  }
  // True if the operands of the weight gradient stay in bf16.
  bool bf16_wgrad() const { return recipe == Fp8Recipe::rowwise_hp_wgrad; }
  // True if each tensor has one scale, and the same in both orientations.
  bool per_tensor_scale() const { return recipe == Fp8Recipe::tensorwise || delayed(); }
  // True if an update must leave the amax of each product's weight, from which its scale follows.
  bool amax_from_update() const { return recipe == Fp8Recipe::tensorwise; }
  // Returns the index of a product's amax among all products of all blocks; -1: it has none. `product` is its name in
  // the table of tensors.
  int weight_amax_index(int layer, const char* projection) const;
  bool fast(bool forward) const { return forward && recipe != Fp8Recipe::blockwise; }
  Fp8Format format(Role role) const { return role == Role::output_gradient ? gradient : Fp8Format::e4m3; }
  // Returns the operand that a matrix (rows, columns) becomes, without memory: by rows, or by columns (its transpose).
  QuantizedTensor operand(Role role, bool columnwise, int rows, int columns) const;
};

// The choices of the options. `gradient` and `power_of_two` are what the recipe has unless they are set. `skip` lists
// patterns of Hugging Face's weight names ("down_proj", "layers.0.*") and "first=N" or "last=N" blocks, separated by
// commas. A product stays in bf16 if a pattern matches any weight that is a part of it. fp8_settings() throws on a
// pattern that matches no product's weight, and on choices that a recipe does not have.
struct Fp8Choice {
  std::string recipe = "off", gradient = "auto", power_of_two = "auto", skip;
};
Fp8Settings fp8_settings(const Fp8Choice& choice, const ModelConfig& config);

// Returns why a product of such operands cannot run, "" if it can: Matmul::unsupported_reason.
using ProductRefusal = std::function<std::string(const QuantizedTensor& a, const QuantizedTensor& b, DType result,
                                                 bool accumulate, bool fast)>;
// Throws if the device cannot run the recipe. The message gives the reason and the recipes that the device can run.
void require_recipe_runs(const Fp8Settings& settings, const DeviceInfo& device, const ProductRefusal& refuses);

// Returns lines for the banner: the recipe, and "blocks 0 to 3: qkv, o, gate_up in FP8, down in bf16" for each range of
// blocks whose products run alike.
std::vector<std::string> describe_products(const Fp8Settings& settings, const ModelConfig& config);
