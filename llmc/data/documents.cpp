#include "llmc/data/documents.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/shard_manifest.h"
#include "llmc/kernels/classifier.h"

namespace {

// Returns the rule of the folders' manifests; nothing if there is no manifest.
std::optional<DocumentRule> rule_of_manifests(const std::vector<ShardFolder>& folders) {
  std::optional<DocumentRule> rule;
  const ShardFolder* first = nullptr;
  for (const ShardFolder& folder : folders) {
    if (folder.manifest.is_null()) continue;
    const Json& delimiter = folder.manifest.at("delimiter");
    REQUIRE(!delimiter.is_null(),
            "%s/manifest.json: the shards were written with --delimiter none\n  --packed-documents needs to see where "
            "documents begin: write them again with a --delimiter (and for some chats a --delimiter-token)",
            folder.path.c_str());
    // If there is a token before each document and another one after it, the one before it marks the beginning.
    const DocumentRule one{delimiter.get_int("id"), delimiter.get_string("place") != "after"};
    REQUIRE(!rule || (rule->token == one.token && rule->begins == one.begins),
            "%s and %s were written with different --delimiter\n  write one of them again like the other, or name the "
            "token that begins each document of both: --document-token",
            first->path.c_str(), folder.path.c_str());
    rule = one;
    first = &folder;
  }
  return rule;
}

// Returns whether the token occurs in chunks of the data that begin `stride` apart. Reads at most `most` tokens and
// adds how many it read to `read`. The first token of the data does not count.
bool occurs(int64_t token, const TokenDataset& data, int64_t stride, int64_t most, int64_t& read) {
  constexpr int64_t kChunk = 4096;
  std::vector<int32_t> tokens(kChunk);
  for (int shard = 0; shard < data.shards(); ++shard)
    for (int64_t start = 0; start < data.shard_size(shard); start += std::max(stride, kChunk)) {
      if (most <= 0) return false;
      const int64_t count = std::min(kChunk, data.shard_size(shard) - start);
      data.read(shard, start, count, tokens.data());
      most -= count, read += count;
      const auto begin = tokens.begin() + (shard == 0 && start == 0), end = tokens.begin() + count;
      if (std::find(begin, end, int32_t(token)) != end) return true;
    }
  return false;
}

}  // namespace

Json json_of(const std::optional<DocumentRule>& rule) {
  return rule ? Json::object().set("token", rule->token).set("begins", rule->begins) : Json();
}

std::optional<DocumentRule> rule_of(const Json& json) {
  if (json.is_null()) return {};
  return DocumentRule{json.get_int("token"), json.get_bool("begins")};
}

Delimiter delimiter_of(const std::string& pattern, int V) {
  for (const ShardFolder& folder : shard_folders(pattern)) {
    const Json* named = folder.manifest.is_null() ? nullptr : folder.manifest.find("delimiter");
    if (!named || named->is_null()) continue;
    const bool after = named->get_string("place") == "after";
    const int64_t id = named->get_int("id"), before_id = after ? -1 : id,
                  after_id = after ? id : named->get_int("end_id", -1);
    return {before_id < V ? int(before_id) : -1, after_id < V ? int(after_id) : -1};
  }
  return {};
}

void end_at_documents(const Delimiter& delimiter, ModelConfig& config) {
  if (!delimiter.known() || !config.end_tokens().empty()) return;
  if (config.generation.is_null()) config.generation = Json::object();
  config.generation.set("eos_token_id", delimiter.ends_text());
  const Json* begin = config.generation.find("bos_token_id");
  if (delimiter.before >= 0 && config.bos < 0 && (!begin || begin->is_null()))
    config.generation.set("bos_token_id", delimiter.before);
}

std::optional<DocumentRule> find_document_rule(const std::string& pattern, int64_t token, const ModelConfig& config,
                                               const std::optional<DocumentRule>& before) {
  std::optional<DocumentRule> rule;
  if (token >= 0) rule = {token, true};
  else rule = rule_of_manifests(shard_folders(pattern));
  if (!rule) rule = before;
  if (!rule && config.bos >= 0) rule = {config.bos, true};
  REQUIRE(!rule || rule->token < config.V,
          "--packed-documents: token %lld tells the documents of %s apart, and the model has %d",
          (long long)rule->token, pattern.c_str(), config.V);
  return rule;
}

DocumentRule document_rule(const std::string& pattern, int64_t token, const ModelConfig& config,
                           const std::optional<DocumentRule>& before) {
  const std::optional<DocumentRule> rule = find_document_rule(pattern, token, config, before);
  REQUIRE(rule,
          "--packed-documents: no token is known to begin a document of %s\n  name it with --document-token, or write "
          "the data with dev/data, whose manifest.json says which",
          pattern.c_str());
  return *rule;
}

std::string different_rules(const std::string& pattern) {
  const auto rule_of = [](const ShardFolder& folder) -> std::string {
    const Json* delimiter = folder.manifest.is_null() ? nullptr : folder.manifest.find("delimiter");
    if (!delimiter) return "has no manifest.json that says how its documents are told apart";
    if (delimiter->is_null()) return "has no token between its documents (--delimiter none)";
    std::string text = format("has token %lld %s each document", (long long)delimiter->get_int("id"),
                              delimiter->get_string("place") == "after" ? "after" : "before");
    if (const Json* end = delimiter->find("end_id"))
      text += format(" and token %lld after it", (long long)end->as_int());
    return text;
  };
  const std::vector<ShardFolder> folders = shard_folders(pattern);
  for (size_t i = 1; i < folders.size(); ++i)
    if (rule_of(folders[i]) != rule_of(folders[0]))
      return format("%s %s, and %s %s: they were not prepared for one training", folders[0].path.c_str(),
                    rule_of(folders[0]).c_str(), folders[i].path.c_str(), rule_of(folders[i]).c_str());
  return "";
}

std::string missing_documents(const DocumentRule& rule, const TokenDataset& data) {
  constexpr int64_t kFirst = 1 << 20, kSpread = 1 << 22;
  int64_t read = 0;
  if (occurs(rule.token, data, 1, kFirst, read)) return "";
  if (data.size() > kFirst && occurs(rule.token, data, data.size() / (kSpread / 4096), kSpread, read)) return "";
  int32_t first = -1;
  if (data.size() > 0) data.read(0, 0, 1, &first);
  return format("token %lld, which should %s each document, %s the %s tokens that were looked at in %s%s",
                (long long)rule.token, rule.begins ? "begin" : "end",
                first == rule.token ? "is the first and no other of" : "is not among",
                human_count(double(read)).c_str(), data.shard_path(0).c_str(),
                data.shards() > 1 ? " and the files after it" : "");
}

void split_documents(const DocumentRule& rule, const int32_t* inputs, int32_t* labels, int32_t* positions, int T) {
  for (int t = 0; t < T; ++t) {
    const bool begins = t == 0 || (rule.begins ? inputs[t] == rule.token : inputs[t - 1] == rule.token);
    positions[t] = begins ? 0 : positions[t - 1] + 1;
  }
  for (int t = 0; t < T; ++t)
    if (rule.begins ? labels[t] == rule.token : inputs[t] == rule.token) labels[t] = kIgnoredLabel;
}

void split_rows(const std::optional<DocumentRule>& rule, const std::vector<int32_t>& inputs,
                std::vector<int32_t>& labels, std::vector<int32_t>& positions, int T) {
  positions.resize(rule ? inputs.size() : 0);
  for (size_t row = 0; row < positions.size(); row += size_t(T))
    split_documents(*rule, &inputs[row], &labels[row], &positions[row], T);
}
