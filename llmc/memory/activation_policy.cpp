#include "llmc/memory/activation_policy.h"

#include <algorithm>
#include <vector>

#include "llmc/base/error.h"

namespace {

struct Rule {
  const char* name;
  Offload leaves_from;      // the lowest level that sends it to the host
  Recompute computed_from;  // the lowest level that recomputes it; none: no level does
};

constexpr Rule kRules[kSaved] = {{"x", Offload::input, Recompute::none},
                                 {"rstd1", Offload::attention, Recompute::block},
                                 {"norm1", Offload::attention, Recompute::norms},
                                 {"input of qkv", Offload::attention, Recompute::norms},
                                 {"input of qkv, factors", Offload::attention, Recompute::norms},
                                 {"qkv", Offload::attention, Recompute::block},
                                 {"attention", Offload::attention, Recompute::block},
                                 {"lse", Offload::attention, Recompute::block},
                                 {"middle", Offload::all, Recompute::block},
                                 {"rstd2", Offload::all, Recompute::block},
                                 {"norm2", Offload::all, Recompute::norms},
                                 {"input of gate_up", Offload::all, Recompute::norms},
                                 {"input of gate_up, factors", Offload::all, Recompute::norms},
                                 {"gate_up", Offload::all, Recompute::mlp},
                                 {"swiglu", Offload::all, Recompute::norms},
                                 {"input of down", Offload::all, Recompute::norms},
                                 {"input of down, factors", Offload::all, Recompute::norms}};

constexpr const char* kRecomputes[] = {"none", "norms", "mlp", "block"};
constexpr const char* kOffloads[] = {"none", "input", "attention", "all"};

// Returns "norms, mlp, block": the names from the first on.
template <size_t n>
std::string names_from(const char* const (&names)[n], int first) {
  std::string text;
  for (size_t i = size_t(first); i < n; ++i) text += (text.empty() ? "" : ", ") + std::string(names[i]);
  return text;
}

}  // namespace

Recompute recompute_named(const std::string& name) {
  for (int i = 0; i < 4; ++i)
    if (name == kRecomputes[i]) return Recompute(i);
  fail("--recompute %s: expected %s", name.c_str(), names_from(kRecomputes, 0).c_str());
}

Offload offload_named(const std::string& name) {
  for (int i = 0; i < 4; ++i)
    if (name == kOffloads[i]) return Offload(i);
  fail("--activation-offload %s: expected %s", name.c_str(), names_from(kOffloads, 0).c_str());
}

const char* name_of(Saved saved) { return kRules[int(saved)].name; }

Storage storage_of(Saved saved, int layer, const ActivationPolicy& policy, const LlamaConfig& config) {
  const Rule& rule = kRules[int(saved)];
  if (policy.recomputes(layer) && rule.computed_from != Recompute::none && policy.recompute >= rule.computed_from)
    return Storage::recomputed;
  return policy.offloads(config) && policy.offload >= rule.leaves_from ? Storage::offloaded : Storage::kept;
}

SavedSize size_of(Saved saved, int layer, const LlamaConfig& config, const Fp8Settings& fp8, size_t element_bytes,
                  SavedTokens tokens, bool backward) {
  const size_t N = tokens.tokens, R = tokens.rows;
  // Inputs that the tensor-parallel ranks gather are saved as bytes if they have one scale, else in T.
  const auto gathered = [&](Product product) {
    return tokens.shared() && (product == Product::qkv || product == Product::gate_up);
  };
  const auto wide = [&](Product product, size_t size) -> SavedSize {
    const bool needed =
        !fp8.quantizes(layer, product) || fp8.bf16_wgrad() || (gathered(product) && !fp8.per_tensor_scale());
    return {needed ? size : 0, element_bytes};
  };
  const auto operand = [&](Product product, bool factors) -> SavedSize {
    if (!backward || !fp8.quantizes(layer, product) || fp8.bf16_wgrad()) return {0, 1};
    const bool own_rows = gathered(product);
    if (own_rows && !fp8.per_tensor_scale()) return {0, 1};
    const QuantizedTensor t =
        fp8.operand(Role::input, !own_rows, int(own_rows ? R : N), product_shape(config, product).IC);
    return factors ? SavedSize{t.factor_count(), sizeof(float)} : SavedSize{t.bytes(), 1};
  };
  const size_t C = size_t(config.C), FF = size_t(config.FF);
  switch (saved) {
    case Saved::x:
    case Saved::middle:
      return {R * C, element_bytes};
    case Saved::rstd1:
    case Saved::rstd2:
      return {R, sizeof(float)};
    case Saved::norm1:
      return wide(Product::qkv, R * C);
    case Saved::qkv:
      return {N * size_t(config.qkv_width()), element_bytes};
    case Saved::attention:
      return {N * size_t(config.q_width()), element_bytes};
    case Saved::lse:
      return {N * size_t(config.NH), sizeof(float)};
    case Saved::norm2:
      return wide(Product::gate_up, R * C);
    case Saved::gate_up:
      return {N * 2 * FF, element_bytes};
    case Saved::swiglu:
      return wide(Product::down, N * FF);
    case Saved::qkv_input:
    case Saved::qkv_input_factors:
      return operand(Product::qkv, saved == Saved::qkv_input_factors);
    case Saved::gate_up_input:
    case Saved::gate_up_input_factors:
      return operand(Product::gate_up, saved == Saved::gate_up_input_factors);
    case Saved::down_input:
    case Saved::down_input_factors:
      return operand(Product::down, saved == Saved::down_input_factors);
  }
  return {0, 1};
}

std::string activation_table() {
  std::string text = format("%-48s  %-17s  %s\n", "of each block", "--recompute", "--activation-offload");
  bool listed[kSaved] = {};
  for (int s = 0; s < kSaved; ++s) {
    if (listed[s]) continue;
    const Rule& rule = kRules[s];
    std::string names;
    for (int other = s; other < kSaved; ++other) {
      if (kRules[other].leaves_from != rule.leaves_from || kRules[other].computed_from != rule.computed_from) continue;
      listed[other] = true;
      if (!std::string(kRules[other].name).ends_with("factors"))
        names += (names.empty() ? "" : ", ") + std::string(kRules[other].name);
    }
    const bool never = rule.computed_from == Recompute::none;
    text += format("%-48s  %-17s  %s\n", names.c_str(),
                   never ? "never" : names_from(kRecomputes, int(rule.computed_from)).c_str(),
                   names_from(kOffloads, int(rule.leaves_from)).c_str());
  }
  return text;
}

namespace {

std::string describe(int layer, const ActivationPolicy& policy, const LlamaConfig& config, const Fp8Settings& fp8,
                     SavedTokens tokens) {
  std::string lists[3];
  for (int s = 0; s < kSaved; ++s) {
    const std::string name = name_of(Saved(s));
    if (!size_of(Saved(s), layer, config, fp8, 2, tokens, true).count || name.ends_with("factors")) continue;
    std::string& list = lists[int(storage_of(Saved(s), layer, policy, config))];
    list += (list.empty() ? "" : ", ") + name;
  }
  std::string text = lists[int(Storage::kept)].empty() ? "" : "kept: " + lists[int(Storage::kept)];
  const auto add = [&](const char* what, const std::string& list) {
    if (!list.empty()) text += (text.empty() ? "" : "; ") + std::string(what) + list;
  };
  add("computed again: ", lists[int(Storage::recomputed)]);
  add("on the host: ", lists[int(Storage::offloaded)]);
  if (!lists[int(Storage::offloaded)].empty())
    text += format(", %d block%s on the device", policy.horizon, policy.horizon == 1 ? "'s" : "s'");
  return text;
}

// Returns "0-3, 6", or "0, 2, …, 30" for more than 4 layers in equal steps.
std::string numbers(const std::vector<int>& layers) {
  const size_t n = layers.size();
  const int step = n > 1 ? layers[1] - layers[0] : 1;
  bool even = n > 4 && step > 1;
  for (size_t i = 1; i < n; ++i) even = even && layers[i] - layers[i - 1] == step;
  if (even) return format("%d, %d, …, %d", layers[0], layers[1], layers[n - 1]);
  std::string text;
  for (size_t i = 0; i < n;) {
    size_t end = i + 1;
    while (end < n && layers[end] == layers[end - 1] + 1) ++end;
    text += (i ? ", " : "") + std::to_string(layers[i]);
    if (end > i + 1) text += format("-%d", layers[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

std::string describe_activations(const ActivationPolicy& policy, const LlamaConfig& config, const Fp8Settings& fp8,
                                 int tensor_degree) {
  std::vector<std::pair<std::string, std::vector<int>>> kinds;
  for (int layer = 0; layer < config.L; ++layer) {
    const std::string text = describe(layer, policy, config, fp8, {size_t(tensor_degree), 1});
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == text; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {text, {}});
    kind->second.push_back(layer);
  }
  if (kinds.size() == 1) return kinds[0].first;
  std::string text;
  for (const auto& [words, layers] : kinds)
    text += (text.empty() ? "" : "\n") +
            format("block%s %s: ", layers.size() == 1 ? "" : "s", numbers(layers).c_str()) + words;
  return text;
}
