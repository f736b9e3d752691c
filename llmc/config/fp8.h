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
#include "llmc/config/projections.h"
#include "llmc/device/device.h"
#include "llmc/kernels/quantized_tensor.h"
#include "llmc/kernels/step_state.h"

enum class Fp8Recipe { off, tensorwise, delayed, rowwise, rowwise_hp_wgrad, blockwise };
const char* recipe_name(Fp8Recipe recipe);
Fp8Recipe recipe_named(const std::string& name);

// A kernel reports a tensor with an infinity or NaN by an atomic min of its code (step_state.h). Tensors computed
// earlier have smaller codes. Backward runs in reverse, so its codes count down from the largest.
inline uint32_t nonfinite_code(int tensor_id, Role role) {
  return role == Role::output_gradient ? kLargestCode - uint32_t(tensor_id) : uint32_t(tensor_id) + 1;
}
constexpr int not_finite_id(uint32_t word) {
  return word > kLargestCode / 2 ? int(kLargestCode - word) : int(word) - 1;
}

// This says which of the head's three products run in FP8 (fp8_head.h): none, those of backward, or all.
enum class Fp8HeadProducts { off, backward, on };

struct Fp8Settings {
  Fp8Recipe recipe = Fp8Recipe::off;
  Fp8Format gradient = Fp8Format::e5m2;  // of output gradients
  bool power_of_two = false;
  Fp8HeadProducts head = Fp8HeadProducts::off;
  std::vector<bool> skipped;  // by LayerProjection::index: products that stay in bf16; empty: none
  // For the recipe `delayed`:
  int history = 1024;   // number of steps
  bool latest = false;  // the scale follows from the last step's amax, not from the largest one in the history
  int margin = 0;       // headroom: powers of two below the largest number of the format
  // all_gather: sharded weights travel in FP8, with scales that all ranks agree on. precompute_scales: the ranks agree
  // on all scales of a step at once, after the update; otherwise on those of a unit when it is gathered.
  bool all_gather = false, precompute_scales = true;
  // True if a block's weights are quantized wherever it computes, into memory that all blocks share; otherwise what was
  // made stays until the weights change.
  bool weights_on_use = false;

  bool on() const { return recipe != Fp8Recipe::off; }
  bool delayed() const { return recipe == Fp8Recipe::delayed; }
  bool quantizes(const LayerProjection& p) const { return on() && (skipped.empty() || !skipped[size_t(p.index)]); }
  // True if the weights of a unit are gathered as FP8 bytes (fp8_weights.h): those of a block whose products all run in
  // FP8. `products` are those of the unit.
  bool gathers_bytes(std::span<const LayerProjection> products) const;
  // True if a run has products of the head in FP8: one that only evaluates has forward's alone.
  bool computes_head(bool training) const {
    return on() && (head == Fp8HeadProducts::on || (training && head == Fp8HeadProducts::backward));
  }
  // The settings by which the head's operands are quantized, whatever the blocks' recipe is.
  Fp8Settings of_head() const {
    Fp8Settings settings;
    settings.recipe = Fp8Recipe::tensorwise, settings.power_of_two = power_of_two;
    return settings;
  }
  // True if the operands of the weight gradient stay in bf16.
  bool bf16_wgrad() const { return recipe == Fp8Recipe::rowwise_hp_wgrad; }
  // True if each tensor has one scale, and the same in both orientations.
  bool per_tensor_scale() const { return recipe == Fp8Recipe::tensorwise || delayed(); }
  // True if an update must leave the amax of each product's weight, from which its scale follows.
  bool amax_from_update() const { return recipe == Fp8Recipe::tensorwise; }
  // Returns the index of the amax that an update finds of this projection's weight; -1: it finds none.
  int weight_amax_index(const LayerProjection* p) const {
    return amax_from_update() && p && quantizes(*p) ? p->index : -1;
  }
  // True if a product's sums may stay in the tensor cores (cuBLASLt's FAST_ACCUM): in forward, as in
  // TransformerEngine, but not with blockwise scales.
  bool fast_accumulation(bool forward) const { return forward && recipe != Fp8Recipe::blockwise; }
  Fp8Format format(Role role) const { return role == Role::output_gradient ? gradient : Fp8Format::e4m3; }
  // Returns the operand that a matrix (rows, columns) becomes, without memory: by rows, or by columns (its transpose).
  QuantizedTensor operand(Role role, bool columnwise, int rows, int columns) const;
};

Fp8HeadProducts head_products_named(const std::string& name);

// The choices of the options. `gradient` and `power_of_two` are what the recipe has unless they are set. `skip` lists
// patterns of Hugging Face's weight names ("down_proj", "layers.0.*") and "first=N" or "last=N" blocks, separated by
// commas. A product stays in bf16 if a pattern matches any weight that is a part of it. fp8_settings() throws on a
// pattern that matches no product's weight, and on choices that a recipe does not have.
struct Fp8Choice {
  std::string recipe = "off", gradient = "auto", power_of_two = "auto", skip, head = "off";
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
