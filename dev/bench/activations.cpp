// Prints what a block keeps for its backward pass, in bytes a token, in bf16 and in each FP8 recipe, as the memory plan
// has it.
//
//   build/cpu/bench/activations [MODEL] [TOKENS]        (llama3-8b, 8192)
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/number.h"
#include "llmc/memory/activation_policy.h"

namespace {

// By tensor's name; scale_inv counts with the numbers it belongs to.
std::map<std::string, size_t> activations(const ModelConfig& config, const Fp8Settings& fp8, size_t tokens) {
  std::map<std::string, size_t> bytes;
  const LayerProjections projections(config);
  const SavedSizes sizes{config, projections, fp8, DType::bf16, int64_t(tokens), int64_t(tokens), false, true};
  for (const SavedRow& row : saved_rows()) {
    const std::string name = row.name;
    if (const Tensor t = row.tensor(sizes, 0)) bytes[name.substr(0, name.find(','))] += t.span_bytes();
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) try {
  ModelConfig config = ModelConfig::preset(argc > 1 ? argv[1] : "llama3-8b");
  const size_t tokens = argc > 2 ? size_t(atoll(argv[2])) : 8192;
  REQUIRE(tokens > 0, "usage: %s [MODEL] [TOKENS]", argv[0]);
  config.L = 1;
  const std::vector<std::string> recipes = {"off", "tensorwise", "delayed", "rowwise", "rowwise-hp-wgrad", "blockwise"};
  std::vector<std::map<std::string, size_t>> columns;
  std::map<std::string, bool> names;
  for (const std::string& recipe : recipes) {
    columns.push_back(activations(config, fp8_settings({recipe, "auto", "auto", ""}, config), tokens));
    for (const auto& [name, bytes] : columns.back()) names[name] = true;
  }
  printf("What a block of %s keeps for backward, %zu tokens, in bytes a token\n\n%-18s", config.name.c_str(), tokens,
         "");
  for (const std::string& recipe : recipes) printf(" %16s", recipe == "off" ? "bf16" : recipe.c_str());
  printf("\n");
  const auto row = [&](const std::string& name, auto&& value) {
    printf("%-18s", name.c_str());
    for (const auto& column : columns) printf(" %16.1f", value(column));
    printf("\n");
  };
  for (const auto& [name, seen] : names)
    row(name, [&](const auto& column) { return column.count(name) ? double(column.at(name)) / double(tokens) : 0.0; });
  const auto total = [&](const auto& column) {
    double sum = 0;
    for (const auto& [name, bytes] : column) sum += double(bytes) / double(tokens);
    return sum;
  };
  row("all", total);
  row("% of bf16", [&](const auto& column) { return 100 * total(column) / total(columns[0]); });
  printf(
      "\nPublished: 34 bytes a token and hidden size for a block of GPT with an FFN of 4 hidden, attention's matrices\n"
      "apart (Korthikanti et al. 2022, eq. 2): %d here. The largest of ours, gate_up, stays bf16 for SwiGLU's "
      "backward;\n"
      "what else is bf16 are the residual stream, queries, keys, values and attention's output. COAT (Xi et al. 2024)\n"
      "keeps those in FP8 too, and so loses bits that no product would have lost.\n",
      34 * config.C);
  return 0;
} catch (const Error& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
