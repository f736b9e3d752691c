#include "llmc/data/data_identity.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/checksum.h"
#include "llmc/base/error.h"
#include "llmc/data/shard_manifest.h"

namespace {

constexpr int64_t kChunk = 1 << 14, kChunks = 1 << 11, kChunksOfShard = 1 << 6;
constexpr int kNamedShards = 64;

struct ShardSums {
  Checksum contents, masks;
};

void add_chunk(const TokenDataset& data, int shard, int64_t start, int64_t count, ShardSums& sums) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::vector<uint8_t> mask(data.has_masks() ? size_t(count) : 0);
  data.read(shard, start, count, tokens.data());
  if (!mask.empty()) data.read_mask(data.shard_begin(shard) + start, count, mask.data());
  sums.contents.add(tokens.data(), tokens.size() * sizeof tokens[0]);
  sums.masks.add(mask.data(), mask.size());
}

// Returns checksums of the whole shard, or of up to `chunks` chunks of it, from its first token to its last.
ShardSums sums_of(const TokenDataset& data, int shard, int64_t chunks) {
  ShardSums sums;
  const int64_t size = data.shard_size(shard), whole = (size + kChunk - 1) / kChunk;
  for (int64_t i = 0; i < std::min(chunks, whole); ++i) {
    const int64_t start = whole <= chunks ? i * kChunk : chunks == 1 ? 0 : (size - kChunk) * i / (chunks - 1);
    add_chunk(data, shard, start, std::min(kChunk, size - start), sums);
  }
  return sums;
}

Json identity_of(const TokenDataset& data, int64_t windows, const std::optional<DocumentRule>& documents) {
  const int64_t files = data.shards();
  // Reads all data, or up to `chunks` chunks of each file. If there are more than kChunks files, it reads only some of
  // them: each `every`-th.
  const bool whole = data.size() <= kChunk * kChunks;
  const int64_t chunks = whole ? kChunks : std::clamp<int64_t>(kChunks / files, 1, kChunksOfShard);
  const int64_t every = whole ? 1 : (files + kChunks - 1) / kChunks;
  const auto text_if_masked = [&](const Checksum& sum) { return data.has_masks() ? Json(sum.text()) : Json(); };
  Checksum sizes, contents, masks;
  Json shards = Json::array();
  for (int i = 0; i < files; ++i) {
    const int64_t size = data.shard_size(i);
    sizes.add(&size, sizeof size);
    const ShardSums sums = i % every == 0 ? sums_of(data, i, chunks) : ShardSums();
    const std::string own_contents = sums.contents.text(), own_masks = sums.masks.text();
    contents.add(own_contents.data(), own_contents.size());
    masks.add(own_masks.data(), own_masks.size());
    if (files <= kNamedShards)
      shards.push_back(Json::object()
                           .set("name", std::filesystem::path(data.shard_path(i)).filename().string())
                           .set("tokens", size)
                           .set("contents", own_contents)
                           .set("masks", text_if_masked(sums.masks)));
  }
  const std::string listed = whole ? "" : listed_checksum(data);
  return Json::object()
      .set("files", files)
      .set("windows", windows)
      .set("sizes", sizes.text())
      .set("contents", contents.text())
      .set("masks", text_if_masked(masks))
      .set("listed", listed.empty() ? Json() : Json(listed))
      .set("documents", json_of(documents))
      .set("shards", shards);
}

// Returns the first file that differs in `key`, by its current name.
std::string first_file(const Json& was, const Json& is, const char* key) {
  const Json &before = was.at("shards"), &now = is.at("shards");
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i)
    if (before.at(i).at(key) != now.at(i).at(key)) return now.at(i).get_string("name");
  return "one of its files";
}

// Returns the identity of data that is no mixture, or of all sources of one.
Json identity_of(const DataSources& data, const std::vector<int64_t>& windows) {
  Json sources = Json::array();
  for (size_t i = 0; i < data.size(); ++i) {
    const Json own = identity_of(data[i].tokens, i < windows.size() ? windows[i] : 0, data[i].documents);
    if (data[i].name.empty()) return own;
    Json named = Json::object().set("name", data[i].name);
    if (i < windows.size()) named.set("weight", data[i].weight);
    for (const auto& [key, value] : own.items()) named.set(key, value);
    sources.push_back(named);
  }
  return data.empty() ? Json() : Json::object().set("sources", sources);
}

// Returns how a source, or data that is no mixture, differs from what it was; "" if it is the same.
std::string difference_of_source(const Json& was, const Json& is) {
  const auto differs = [&](const char* key) { return was.at(key) != is.at(key); };
  const auto numbers = [&](const char* key) {
    return format("%lld %s, and there were %lld", (long long)is.get_int(key), key, (long long)was.get_int(key));
  };
  if (differs("files")) return "it has " + numbers("files");
  if (differs("sizes")) return first_file(was, is, "tokens") + " has another number of tokens";
  if (was.at("masks").is_null() != is.at("masks").is_null())
    return is.at("masks").is_null() ? "its masks are gone: every token is learnt" : "it has masks, and had none";
  if (differs("contents")) return first_file(was, is, "contents") + " has other tokens";
  if (differs("masks")) return "the mask of " + first_file(was, is, "masks") + " is another";
  if (differs("listed") && !was.at("listed").is_null() && !is.at("listed").is_null())
    return "manifest.json lists other checksums of its files";
  if (differs("windows")) return "it has " + numbers("windows");
  // --packed-documents may be switched; with it, the same tokens must be the same documents.
  const auto before = rule_of(was.at("documents")), now = rule_of(is.at("documents"));
  const auto text = [](const DocumentRule& rule) {
    return format("%s token %lld", rule.begins ? "begins with" : "ends with", (long long)rule.token);
  };
  if (before && now && (before->token != now->token || before->begins != now->begins))
    return format("each document %s, and where the run began each %s", text(*now).c_str(), text(*before).c_str());
  return "";
}

// "web 0.7, code 0.25, books 0.05", of held-out data without shares.
std::string sources_text(const Json& data) {
  const Json* sources = data.find("sources");
  if (!sources) return "no mixture";
  double sum = 0;
  for (const Json& source : sources->elements()) sum += double(source.get_int("weight", 0));
  std::string text;
  for (const Json& source : sources->elements()) {
    text += (text.empty() ? "" : ", ") + source.get_string("name");
    if (sum > 0) text += format(" %.6g", double(source.get_int("weight")) / sum);
  }
  return text;
}

// The same of all data. The order of the samples follows from names, weights and their order.
std::string difference(const Json& was, const Json& is) {
  const Json *before = was.find("sources"), *now = is.find("sources");
  if (!before && !now) return difference_of_source(was, is);
  bool same = before && now && before->size() == now->size();
  for (size_t i = 0; same && i < now->size(); ++i)
    same = before->at(i).get_string("name") == now->at(i).get_string("name") &&
           before->at(i).get_int("weight", 0) == now->at(i).get_int("weight", 0);
  if (!same) return "it is " + sources_text(is) + ", and was " + sources_text(was);
  for (size_t i = 0; i < now->size(); ++i)
    if (const std::string how = difference_of_source(before->at(i), now->at(i)); !how.empty())
      return "of the source " + now->at(i).get_string("name") + ": " + how;
  return "";
}

}  // namespace

const Json& DataIdentity::json() {
  if (json_.is_null())
    json_ = Json::object().set("train", identity_of(train_, windows_)).set("held_out", identity_of(held_out_, {}));
  return json_;
}

const Json* source_identity(const Json& is, const std::string& name) {
  const Json* sources = is.is_null() ? nullptr : is.find("sources");
  if (!sources) return is.is_null() || !name.empty() ? nullptr : &is;
  for (const Json& source : sources->elements())
    if (source.get_string("name") == name) return &source;
  return nullptr;
}

std::vector<std::string> changed_data(const std::string& checkpoint, const Json& was, const Json& is) {
  const std::string train = difference(was.at("train"), is.at("train"));
  REQUIRE(
      train.empty(),
      "--resume %s: the training data is not what it was: %s\n  name the same --train-data, or begin a stage of the "
      "training (--stage NAME), or a new run with its weights (scripts/consolidate, then --model)",
      checkpoint.c_str(), train.c_str());
  const Json &held_out = is.at("held_out"), &before = was.at("held_out");
  std::string how;
  if (held_out.is_null() != before.is_null()) how = held_out.is_null() ? "there is none now" : "there was none";
  else if (!held_out.is_null()) how = difference(before, held_out);
  if (how.empty()) return {};
  return {"the held-out data is not what it was: " + how + "; its losses do not continue those before"};
}
