#include "llmc/data/data_chat.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/data/shard_manifest.h"

namespace {

// Returns what the manifest says of the folder's conversations; null if its shards are none.
const Json* chat_in(const ShardFolder& folder) {
  const Json* chat = folder.manifest.is_null() ? nullptr : folder.manifest.find("chat");
  return chat && !chat->is_null() ? chat : nullptr;
}

std::vector<int> end_of_turn(const ShardFolder& folder, const Json& chat, int V) {
  const std::vector<int> tokens = read_tokens(chat.at("end_of_turn"));
  for (const int token : tokens)
    REQUIRE(token < V,
            "%s/manifest.json: token %d ends a turn, and the model has %d\n  name data that was made with "
            "the model's tokenizer: dev/data/prepare --tokenizer",
            folder.path.c_str(), token, V);
  return tokens;
}

void add_missing(std::vector<int>& tokens, const std::vector<int>& more) {
  for (const int token : more)
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
}

}  // namespace

std::optional<std::string> default_template(const Json& chat_template) {
  if (chat_template.is_string()) return chat_template.as_string();
  for (const Json& named : chat_template.elements())
    if (named.get_string("name") == "default") return named.get_string("template");
  return {};
}

std::optional<DataChat> chat_of_data(const std::string& pattern, int V) {
  std::optional<DataChat> found;
  for (const ShardFolder& folder : shard_folders(pattern)) {
    const Json* chat = chat_in(folder);
    if (!chat) continue;
    const std::string name = chat->get_string("template");
    listed_file(folder.path, name, folder.path + "/manifest.json");  // throws if it is a path
    REQUIRE(
        std::filesystem::exists(std::filesystem::path(folder.path) / name),
        "%s/%s: it is not there, and it rendered the conversations of this folder\n  bring it along with the shards: "
        "dev/data/prepare wrote it next to them, and the export has it",
        folder.path.c_str(), name.c_str());
    const std::string source = content_of(own_file(folder.path, name));
    if (!found) found = DataChat{folder.path, source, {}, ""};
    else if (source != found->source && found->remark.empty())
      found->remark = found->folder + " and " + folder.path +
                      " were rendered by different chat templates: the export "
                      "has that of " +
                      found->folder;
    add_missing(found->end_of_turn, end_of_turn(folder, *chat, V));
  }
  return found;
}

std::vector<int32_t> beginning_of_conversation(const TokenDataset& data, const std::optional<DocumentRule>& rule,
                                               int64_t most) {
  std::vector<uint8_t> mask(size_t(std::min<int64_t>(data.size(), 1 << 20)));
  data.read_mask(0, int64_t(mask.size()), mask.data());
  const auto first = std::ranges::find(mask, 1);
  if (first == mask.end()) return {};
  const int64_t end = first - mask.begin(), begin = std::max<int64_t>(0, end - most);
  std::vector<int32_t> tokens(static_cast<size_t>(end - begin));
  data.read(begin, end - begin, tokens.data());
  if (!rule) return tokens;
  const auto last = std::ranges::find(tokens.rbegin(), tokens.rend(), int32_t(rule->token)).base();  // after it
  if (last != tokens.begin()) tokens.erase(tokens.begin(), last - rule->begins);
  return tokens;
}

void end_at_turns(const DataChat& chat, ModelConfig& config) {
  if (chat.end_of_turn.empty()) return;
  std::vector<int> tokens = chat.end_of_turn;
  add_missing(tokens, config.end_tokens());
  Json ids = Json::array();
  for (const int token : tokens) ids.push_back(token);
  if (config.generation.is_null()) config.generation = Json::object();
  config.generation.set("eos_token_id", tokens.size() == 1 ? Json(tokens[0]) : ids);
}
