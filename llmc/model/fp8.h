// FP8 training: which of a block's products run in FP8, and how each recipe quantizes their operands.
//
//   recipe             input, weight           output gradient   weight gradient from
//   tensorwise         e4m3, one scale a       e5m2, the same    the same scales (torchao; TransformerEngine's
//                      tensor, of its amax                       current scaling)
//   delayed            the same, of earlier    e5m2, the same    the same scales (Micikevicius et al. 2022;
//                      steps' amaxes                             TransformerEngine)
//   rowwise            e4m3, one scale for what is summed up in an element of the product (torchao)
//   rowwise-hp-wgrad   the same, but dgrad's weight has one      bf16 (torchao: rowwise_with_gw_hp)
//   blockwise          e4m3, 1x128; weights 128x128              e4m3, 1x128 (DeepSeek-V3, 2024)
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "llmc/device/device.h"
#include "llmc/kernels/quantized_tensor.h"
#include "llmc/model/config.h"

enum class Fp8Recipe { off, tensorwise, delayed, rowwise, rowwise_hp_wgrad, blockwise };
const char* recipe_name(Fp8Recipe recipe);
Fp8Recipe recipe_named(const std::string& name);

enum class Product { qkv, o, gate_up, down };
inline constexpr int kProducts = 4;
inline constexpr Product kEachProduct[kProducts] = {Product::qkv, Product::o, Product::gate_up, Product::down};
const char* product_name(Product product);  // as in the table of tensors

// y[N, OC] = x[N, IC] Wᵀ
struct ProductShape {
  int OC, IC;
};
ProductShape product_shape(const LlamaConfig& config, Product product);

enum class Role { input, weight, output_gradient };
inline constexpr int kRoles = 3;
const char* role_name(Role role);

// A tensor that is quantized has a number: of its layer, product and role.
constexpr int fp8_number(int layer, Product product, Role role) {
  return (layer * kProducts + int(product)) * kRoles + int(role);
}
std::string fp8_tensor_name(int number);  // "the input of down in block 3"
// How a kernel reports that a tensor is not finite: of what comes earlier in a pass by a smaller word. Backward goes
// through the blocks and their products in the other direction. 0 stands for none, and so do large words, as memory
// has that is filled with kFiniteByte.
constexpr uint32_t kBackwardWord = 0x40000000;
constexpr unsigned char kFiniteByte = 0x7f;
constexpr uint32_t not_finite_word(int number) {
  const bool backward = Role(number % kRoles) == Role::output_gradient;
  return backward ? kBackwardWord - uint32_t(number) : uint32_t(number) + 1;
}
constexpr int not_finite_number(uint32_t word) {
  return word > kBackwardWord / 2 ? int(kBackwardWord - word) : int(word) - 1;
}
constexpr bool is_finite_word(uint32_t word) { return word == 0 || word > kBackwardWord; }

struct Fp8Settings {
  Fp8Recipe recipe = Fp8Recipe::off;
  Fp8Format gradient = Fp8Format::e5m2;  // of output gradients
  bool power_of_two = false;
  std::vector<bool> skipped;  // (L, kProducts): those that stay in bf16; empty: none
  // delayed
  int history = 1024;   // steps
  bool latest = false;  // the scale follows the last step's amax, not the history's largest
  int margin = 0;       // powers of two below the largest number
  // Sharded weights travel as FP8, with scales that all ranks agree on: all of a step's at once after the update, or
  // each unit's when it is gathered.
  bool all_gather = false, precompute_scales = true;

  bool on() const { return recipe != Fp8Recipe::off; }
  bool delayed() const { return recipe == Fp8Recipe::delayed; }
  bool quantizes(int layer, Product product) const {
    return on() && (skipped.empty() || !skipped[size_t(layer * kProducts + int(product))]);
  }
  // All of a block's products.
  bool quantizes_block(int layer) const;
  // The weight gradient's operands stay in bf16.
  bool wide_wgrad() const { return recipe == Fp8Recipe::rowwise_hp_wgrad; }
  // One scale a tensor, and the same in both orientations.
  bool has_one_scale() const { return recipe == Fp8Recipe::tensorwise || delayed(); }
  // An update leaves the largest number of each product's weight behind, from which its scale follows.
  bool finds_largest_weights() const { return recipe == Fp8Recipe::tensorwise; }
  // Of a product, as the table of tensors names it: its word among all products of all blocks; -1: it has none.
  int word_of_largest(int layer, const char* product) const;
  bool fast(bool forward) const { return forward && recipe != Fp8Recipe::blockwise; }
  Fp8Format format(Role role) const { return role == Role::output_gradient ? gradient : Fp8Format::e4m3; }
  // The operand that a matrix of rows x columns becomes, by rows or by columns (its transpose), without memory.
  QuantizedTensor operand(Role role, bool by_columns, int rows, int columns) const;
};

// Of the options: power-of-two scales and gradients as the recipe has them, unless asked for; `skip` names weights of
// which some part is in a product that stays in bf16: patterns of Hugging Face's names ("down_proj", "layers.0.*"),
// "first=N" and "last=N" blocks, with commas between them. Throws on a pattern that matches no product's weight and on
// what a recipe cannot do.
struct Fp8Choice {
  std::string recipe = "off", gradient = "auto", power_of_two = "auto", skip;
};
Fp8Settings fp8_settings(const Fp8Choice& choice, const LlamaConfig& config);

// Why a product of such operands cannot run; "" if it can: Matmul::refusal.
using ProductRefusal = std::function<std::string(const QuantizedTensor& a, const QuantizedTensor& b, DType result,
                                                 bool accumulate, bool fast)>;
// Throws if the device cannot run the recipe, with the reason and the recipes that it can.
void require_recipe_runs(const Fp8Settings& settings, const DeviceInfo& device, const ProductRefusal& refuses);

// For the banner: the recipe, and "blocks 0 to 3: qkv, o, gate_up in FP8, down in bf16" for each range of blocks that
// run alike.
std::vector<std::string> describe_products(const Fp8Settings& settings, const LlamaConfig& config);
