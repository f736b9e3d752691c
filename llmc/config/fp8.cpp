#include "llmc/config/fp8.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/config/parameters.h"

namespace {

constexpr const char* kRecipeNames[] = {"off", "tensorwise", "delayed", "rowwise", "rowwise-hp-wgrad", "blockwise"};

Projection projection_of(const ParameterRow& row) {
  for (const Projection projection : kEachProjection)
    if (strcmp(row.operand, projection_name(projection)) == 0) return projection;
  fail("the table of tensors calls %s fit for FP8, and no product has it", row.name);
}

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
    if (!tensor.row->linear) continue;
    const int layer = layout.units[size_t(tensor.unit)].layer;
    const bool named = first >= 0 ? layer < first
                       : last >= 0
                           ? layer >= config.L - last
                           : !pattern.empty() && fnmatch(("*" + pattern + "*").c_str(), tensor.name.c_str(), 0) == 0;
    if (named) settings.skipped[size_t(layer * kProjectionCount + int(projection_of(*tensor.row)))] = found = true;
  }
  REQUIRE(found,
          "--fp8-skip: %s matches no weight of a product that would run in FP8\n"
          "  names are as %s: down_proj, layers.0., first=2, last=1, with commas between them\n"
          "  the head and the embedding are never quantized",
          pattern.c_str(), layout.tensors[2].name.c_str());
}

}  // namespace

const char* recipe_name(Fp8Recipe recipe) { return kRecipeNames[int(recipe)]; }

Fp8Recipe recipe_named(const std::string& name) {
  for (int i = 0; i < int(std::size(kRecipeNames)); ++i)
    if (name == kRecipeNames[i]) return Fp8Recipe(i);
  fail("there is no FP8 recipe named %s", name.c_str());
}

const char* projection_name(Projection projection) {
  constexpr const char* names[] = {"qkv", "o", "gate_up", "down"};
  return names[int(projection)];
}

ProjectionShape projection_shape(const ModelConfig& c, Projection projection) {
  int64_t OC = 0, IC = 0;
  for (const ParameterRow& row : kParameterRows)
    if (strcmp(row.operand, projection_name(projection)) == 0) OC += row.rows(c), IC = row.columns(c);
  return {int(OC), int(IC)};
}

const char* role_name(Role role) {
  constexpr const char* names[] = {"input", "weight", "output gradient"};
  return names[int(role)];
}

std::string fp8_tensor_name(int number) {
  return format("the %s of %s in block %d", role_name(Role(number % kRoles)),
                projection_name(Projection(number / kRoles % kProjectionCount)), number / kRoles / kProjectionCount);
}

bool Fp8Settings::quantizes_block(int layer) const {
  return std::all_of(std::begin(kEachProjection), std::end(kEachProjection),
                     [&](Projection p) { return quantizes(layer, p); });
}

int Fp8Settings::weight_amax_index(int layer, const char* projection) const {
  if (!amax_from_update() || layer < 0) return -1;
  for (const Projection p : kEachProjection)
    if (strcmp(projection_name(p), projection) == 0)
      return quantizes(layer, p) ? layer * kProjectionCount + int(p) : -1;
  return -1;
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
  s.skipped.assign(size_t(config.L * kProjectionCount), false);
  const ParameterLayout layout(config);
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
  std::string why = refuses(x, w, DType::bf16, false, s.fast(true));
  if (why.empty()) why = refuses(dy, w_t, DType::bf16, false, s.fast(false));
  for (const bool accumulate : {false, true})  // the first micro-batch sets, the others add
    if (why.empty() && !s.bf16_wgrad()) why = refuses(dy_t, x_t, DType::fp32, accumulate, s.fast(false));
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
  const auto in_bf16 = [&](int layer) {
    std::string names;
    for (const Projection p : kEachProjection)
      if (!s.quantizes(layer, p)) names += (names.empty() ? "" : ", ") + std::string(projection_name(p));
    return names;
  };
  for (int first = 0; first < config.L;) {
    int last = first;
    while (last + 1 < config.L && in_bf16(last + 1) == in_bf16(first)) ++last;
    std::string quantized;
    for (const Projection p : kEachProjection)
      if (s.quantizes(first, p)) quantized += (quantized.empty() ? "" : ", ") + std::string(projection_name(p));
    const std::string blocks = first == last ? format("block %d", first) : format("blocks %d to %d", first, last);
    const std::string high_precision = in_bf16(first);
    lines.push_back(blocks + ": " + (quantized.empty() ? "" : quantized + " in FP8") +
                    (quantized.empty() || high_precision.empty() ? "" : ", ") +
                    (high_precision.empty() ? "" : high_precision + " in bf16"));
    first = last + 1;
  }
  lines.push_back(s.bf16_wgrad() ? "weight gradients, attention and head: bf16" : "attention and head: bf16");
  lines.insert(lines.begin(), format("--fp8 %s: inputs and weights e4m3, output gradients %s%s", recipe_name(s.recipe),
                                     format_name(s.gradient), s.power_of_two ? ", scales powers of two" : ""));
  return lines;
}
