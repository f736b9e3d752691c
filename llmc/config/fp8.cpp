#include "llmc/config/fp8.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/config/parameters.h"

namespace {

constexpr const char* kRecipeNames[] = {"off", "tensorwise", "delayed", "rowwise", "rowwise-hp-wgrad", "blockwise"};

constexpr const char* kHeadProducts[] = {"off", "backward", "on"};

// Returns the number N of "first=N" or "last=N", -1 for another pattern.
int64_t blocks_named(const std::string& pattern, const char* word) {
  const size_t length = strlen(word);
  if (pattern.compare(0, length, word) != 0 || pattern.size() == length) return -1;
  for (size_t i = length; i < pattern.size(); ++i)
    if (!isdigit(static_cast<unsigned char>(pattern[i]))) return -1;
  return std::stoll(pattern.substr(length, 9));
}

void skip(Fp8Settings& settings, const std::string& pattern, const ModelConfig& config, const ParameterLayout& layout) {
  const int64_t first = blocks_named(pattern, "first="), last = blocks_named(pattern, "last=");
  bool found = false;
  for (const ParameterInfo& tensor : layout.tensors) {
    if (!tensor.projection) continue;
    const int layer = tensor.projection->layer;
    const bool named = first >= 0 ? layer < first
                       : last >= 0
                           ? layer >= config.L - last
                           : !pattern.empty() && fnmatch(("*" + pattern + "*").c_str(), tensor.name.c_str(), 0) == 0;
    if (named) settings.skipped[size_t(tensor.projection->index)] = found = true;
  }
  REQUIRE(found,
          "--fp8-skip: %s matches no weight of a product that would run in FP8\n"
          "  names are as %s: down_proj, layers.0., first=2, last=1, with commas between them\n"
          "  the embedding is never quantized, and --fp8-head is for the head",
          pattern.c_str(), layout.tensors[2].name.c_str());
}

}  // namespace

const char* recipe_name(Fp8Recipe recipe) { return kRecipeNames[int(recipe)]; }

Fp8Recipe recipe_named(const std::string& name) {
  for (int i = 0; i < int(std::size(kRecipeNames)); ++i)
    if (name == kRecipeNames[i]) return Fp8Recipe(i);
  fail("there is no FP8 recipe named %s", name.c_str());
}

Fp8HeadProducts head_products_named(const std::string& name) {
  for (int i = 0; i < int(std::size(kHeadProducts)); ++i)
    if (name == kHeadProducts[i]) return Fp8HeadProducts(i);
  fail("--fp8-head %s: expected off, backward or on", name.c_str());
}

bool Fp8Settings::gathers_bytes(std::span<const LayerProjection> products) const {
  return all_gather && per_tensor_scale() && !products.empty() &&
         std::all_of(products.begin(), products.end(), [&](const LayerProjection& p) { return quantizes(p); });
}

QuantizedTensor Fp8Settings::operand(Role role, bool columnwise, int rows, int columns) const {
  QuantizedTensor t;
  t.rows = columnwise ? columns : rows;
  t.columns = columnwise ? rows : columns;
  t.format = format(role);
  switch (recipe) {
    case Fp8Recipe::off:
      fail("an FP8 operand was asked for, and --fp8 is off");
    case Fp8Recipe::tensorwise:
    case Fp8Recipe::delayed:
      t.scaling = Scaling::tensor;
      break;
    case Fp8Recipe::rowwise:
      t.scaling = Scaling::row;
      break;
    case Fp8Recipe::rowwise_hp_wgrad:
      t.scaling = Scaling::row;
      t.one_scale = role == Role::weight && columnwise;
      break;
    case Fp8Recipe::blockwise:
      t.scaling = role == Role::weight ? Scaling::block_128x128 : Scaling::block_1x128;
      break;
  }
  return t;
}

Fp8Settings fp8_settings(const Fp8Choice& choice, const ModelConfig& config) {
  Fp8Settings s;
  s.recipe = recipe_named(choice.recipe);
  s.head = head_products_named(choice.head);
  if (!s.on()) {
    REQUIRE(choice.skip.empty(), "--fp8-skip %s: --fp8 is off, so nothing is quantized", choice.skip.c_str());
    return s;
  }
  REQUIRE(choice.gradient != "e5m2" || s.per_tensor_scale(),
          "--fp8-grad e5m2: --fp8 %s has e4m3 everywhere\n  e5m2 goes with --fp8 tensorwise or delayed",
          choice.recipe.c_str());
  s.gradient = choice.gradient == "auto" ? (s.per_tensor_scale() ? Fp8Format::e5m2 : Fp8Format::e4m3)
                                         : (choice.gradient == "e5m2" ? Fp8Format::e5m2 : Fp8Format::e4m3);
  s.power_of_two = choice.power_of_two == "auto" ? !s.per_tensor_scale() : choice.power_of_two == "on";
  const ParameterLayout layout(config);
  s.skipped.assign(layout.projections.all().size(), false);
  for (size_t begin = 0; begin < choice.skip.size();) {
    const size_t end = std::min(choice.skip.find(',', begin), choice.skip.size());
    skip(s, choice.skip.substr(begin, end - begin), config, layout);
    begin = end + 1;
  }
  REQUIRE(std::find(s.skipped.begin(), s.skipped.end(), false) != s.skipped.end(),
          "--fp8-skip %s leaves no product in FP8\n  leave --fp8 away, or skip fewer", choice.skip.c_str());
  return s;
}

namespace {

// Returns why any of the recipe's three products cannot run, "" if all can. The matrices are large enough for every
// recipe.
std::string refusal_of(const Fp8Settings& s, const ProductRefusal& refuses) {
  constexpr int kSize = 256;
  alignas(256) static uint8_t nowhere[256];  // nobody reads it
  const auto operand = [&](Role role, bool columnwise) {
    QuantizedTensor t = s.operand(role, columnwise, kSize, kSize);
    t.data = nowhere, t.scale_inv = reinterpret_cast<float*>(nowhere);
    return t;
  };
  const QuantizedTensor x = operand(Role::input, false), w = operand(Role::weight, false),
                        dy = operand(Role::output_gradient, false), w_t = operand(Role::weight, true),
                        dy_t = operand(Role::output_gradient, true), x_t = operand(Role::input, true);
  std::string why = refuses(x, w, DType::bf16, false, s.fast_accumulation(true));
  if (why.empty()) why = refuses(dy, w_t, DType::bf16, false, s.fast_accumulation(false));
  for (const bool accumulate : {false, true})  // the first micro-batch sets, the others add
    if (why.empty() && !s.bf16_wgrad()) why = refuses(dy_t, x_t, DType::fp32, accumulate, s.fast_accumulation(false));
  return why;
}

}  // namespace

void require_recipe_runs(const Fp8Settings& settings, const DeviceInfo& device, const ProductRefusal& refuses) {
  const ProductRefusal asked = [&](const QuantizedTensor& a, const QuantizedTensor& b, DType result, bool accumulate,
                                   bool fast) -> std::string {
    if (device.gpu && device.compute_capability < 89)
      return "its tensor cores know no FP8 (those of compute capability 8.9 and later do)";
    return refuses(a, b, result, accumulate, fast);
  };
  const std::string why = refusal_of(settings, asked);
  if (why.empty() && settings.head != Fp8HeadProducts::off) {
    const std::string why_not = refusal_of(settings.of_head(), asked);
    REQUIRE(why_not.empty(), "--fp8-head %s cannot run on %s: %s\n  leave it away", kHeadProducts[int(settings.head)],
            device.name.c_str(), why_not.c_str());
  }
  if (why.empty()) return;
  std::string others;
  for (const Fp8Recipe recipe : {Fp8Recipe::tensorwise, Fp8Recipe::delayed, Fp8Recipe::rowwise,
                                 Fp8Recipe::rowwise_hp_wgrad, Fp8Recipe::blockwise}) {
    Fp8Settings other;
    other.recipe = recipe;
    if (!other.per_tensor_scale()) other.gradient = Fp8Format::e4m3;
    if (refusal_of(other, asked).empty()) others += std::string(others.empty() ? "" : ", ") + recipe_name(recipe);
  }
  fail("--fp8 %s cannot run on %s: %s\n  %s%s", recipe_name(settings.recipe), device.name.c_str(), why.c_str(),
       others.empty() ? "no recipe can: leave --fp8 away" : "those that can: --fp8 ", others.c_str());
}

std::vector<std::string> describe_products(const Fp8Settings& s, const ModelConfig& config) {
  std::vector<std::string> lines;
  const LayerProjections projections(config);
  const auto names = [&](int layer, bool quantized) {
    std::string names;
    for (const LayerProjection& p : projections.of(layer))
      if (s.quantizes(p) == quantized) names += (names.empty() ? "" : ", ") + std::string(p.name());
    return names;
  };
  const auto alike = [&](int a, int b) {
    return names(a, true) == names(b, true) && names(a, false) == names(b, false);
  };
  for (int first = 0; first < config.L;) {
    int last = first;
    while (last + 1 < config.L && alike(last + 1, first)) ++last;
    const std::string blocks = first == last ? format("block %d", first) : format("blocks %d to %d", first, last);
    const std::string quantized = names(first, true), high_precision = names(first, false);
    lines.push_back(blocks + ": " + (quantized.empty() ? "" : quantized + " in FP8") +
                    (quantized.empty() || high_precision.empty() ? "" : ", ") +
                    (high_precision.empty() ? "" : high_precision + " in bf16"));
    first = last + 1;
  }
  if (s.head != Fp8HeadProducts::off)
    lines.push_back(format("head: %s in FP8, one scale for each operand",
                           s.head == Fp8HeadProducts::on ? "all products" : "backward"));
  constexpr const char* kHeadInBf16[] = {" and head", " and the head's forward", ""};
  const bool head_in_bf16 = s.head == Fp8HeadProducts::off;
  std::string in_bf16 = "attention";
  if (s.bf16_wgrad())
    in_bf16 = head_in_bf16 ? "weight gradients, attention" : "weight gradients of blocks and attention";
  lines.push_back(in_bf16 + kHeadInBf16[int(s.head)] + ": bf16");
  lines.insert(lines.begin(), format("--fp8 %s: inputs and weights e4m3, output gradients %s%s", recipe_name(s.recipe),
                                     format_name(s.gradient), s.power_of_two ? ", scales powers of two" : ""));
  return lines;
}
