#include "llmc/train/documents.h"

#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/kernels/classifier.h"

DocumentRule document_rule(const std::string& pattern, int64_t token, const LlamaConfig& config) {
  const std::vector<std::string> paths = glob(pattern);
  std::filesystem::path manifest;
  if (!paths.empty()) manifest = std::filesystem::path(paths[0]).parent_path() / "manifest.json";
  DocumentRule rule = {config.bos, true};
  if (token >= 0) rule.token = int32_t(token);
  else if (std::filesystem::exists(manifest)) {
    const Json content = Json::read(manifest.string());
    const Json& delimiter = content.at("delimiter");
    REQUIRE(
        !delimiter.is_null(),
        "%s: the shards were written with --delimiter none\n  --packed-documents needs to see where documents begin: "
        "write them again with --delimiter before",
        manifest.c_str());
    rule = {int32_t(delimiter.get_int("id")), delimiter.get_string("place") == "before"};
  }
  REQUIRE(rule.token >= 0 && rule.token < config.V,
          "--packed-documents: no token of this model's %d is known to begin a document of %s\n  name it with "
          "--document-token, or write the data with dev/data",
          config.V, pattern.c_str());
  return rule;
}

void cut_documents(const DocumentRule& rule, const int32_t* inputs, int32_t* labels, int32_t* positions, int T) {
  for (int t = 0; t < T; ++t) {
    const bool begins = t == 0 || (rule.begins ? inputs[t] == rule.token : inputs[t - 1] == rule.token);
    positions[t] = begins ? 0 : positions[t - 1] + 1;
  }
  for (int t = 0; t < T; ++t)
    if (rule.begins ? labels[t] == rule.token : inputs[t] == rule.token) labels[t] = kIgnoredLabel;
}
