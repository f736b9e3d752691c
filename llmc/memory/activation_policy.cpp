#include "llmc/memory/activation_policy.h"

#include <algorithm>
#include <vector>

#include "llmc/base/error.h"

namespace {

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

Storage storage_of(const SavedRow& row, int layer, const ActivationPolicy& policy, const ModelConfig& config) {
  if (policy.recomputes(layer) && row.recomputes_from != Recompute::none && policy.recompute >= row.recomputes_from)
    return Storage::recomputed;
  return policy.offloads(config) && policy.offload >= row.offloads_from ? Storage::offloaded : Storage::kept;
}

std::string activation_table() {
  std::string text = format("%-62s  %-17s  %s\n", "of each block", "--recompute", "--activation-offload");
  const std::span<const SavedRow> rows = saved_rows();
  const auto alike = [](const SavedRow& a, const SavedRow& b) {
    return a.offloads_from == b.offloads_from && a.recomputes_from == b.recomputes_from;
  };
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    if (std::any_of(rows.begin(), row, [&](const SavedRow& earlier) { return alike(earlier, *row); })) continue;
    std::string names;
    for (const SavedRow& other : rows)
      if (alike(other, *row) && other.trait != SavedTrait::scales)
        names += (names.empty() ? "" : ", ") + std::string(other.name);
    const bool never = row->recomputes_from == Recompute::none;
    text += format("%-62s  %-17s  %s\n", names.c_str(),
                   never ? "never" : names_from(kRecomputes, int(row->recomputes_from)).c_str(),
                   names_from(kOffloads, int(row->offloads_from)).c_str());
  }
  return text;
}

namespace {

std::string describe(int layer, const ActivationPolicy& policy, const SavedSizes& sizes) {
  std::string lists[3];
  for (const SavedRow& row : saved_rows()) {
    if (!row.tensor(sizes, layer) || row.trait == SavedTrait::scales) continue;
    std::string& list = lists[int(storage_of(row, layer, policy, sizes.config))];
    list += (list.empty() ? "" : ", ") + std::string(row.name);
  }
  const std::string& kept = lists[int(Storage::kept)];
  std::string text = "kept: " + (kept.empty() ? "nothing" : kept);
  const auto add = [&](const char* what, const std::string& list) {
    if (!list.empty()) text += "; " + std::string(what) + list;
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

std::string describe_activations(const ActivationPolicy& policy, const ModelConfig& config, const Fp8Settings& fp8,
                                 int tensor_degree) {
  std::vector<std::pair<std::string, std::vector<int>>> kinds;
  const LayerProjections projections(config);
  for (int layer = 0; layer < config.L; ++layer) {
    const std::string text =
        describe(layer, policy, {config, projections, fp8, DType::bf16, tensor_degree, 1, tensor_degree > 1, true});
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
