#include "llmc/tokenizer/token_template.h"

#include "llmc/base/error.h"
#include "llmc/tokenizer/bpe.h"
#include "llmc/tokenizer/file_parts.h"

namespace {

constexpr size_t kMostTokens = 256;

}  // namespace

TokenTemplate::TokenTemplate(const Json* json) {
  if (json && !json->is_null()) add(*json);
}

void TokenTemplate::add(const Json& json) {
  const std::string& type = json.get_string("type");
  if (type == "Sequence") {
    only_keys(json, {"type", "processors"});
    for (const Json& step : json.at("processors").elements()) add(step);
  } else if (type == "ByteLevel") {
    only_keys(json, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type == "TemplateProcessing") {
    REQUIRE(!has_template_, "%s is a second TemplateProcessing\n  expected one at most", json.where().c_str());
    has_template_ = true;
    add_template(json);
  } else {
    refuse_type(json, "Sequence, TemplateProcessing, ByteLevel");
  }
}

// Reads "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]. The ids of "<s>" are in
// "special_tokens".
void TokenTemplate::add_template(const Json& json) {
  only_keys(json, {"type", "single", "pair", "special_tokens"});
  int texts = 0;
  for (const Json& element : json.at("single").elements()) {
    only_keys(element, {"Sequence", "SpecialToken"});
    if (element.contains("Sequence")) {
      ++texts;
      continue;
    }
    const std::string& name = element.at("SpecialToken").get_string("id");
    for (const Json& id : json.at("special_tokens").at(name).at("ids").elements()) {
      REQUIRE(id.as_int() >= 0 && id.as_int() < Vocabulary::kMostIds, "%s is %s\n  expected an id of the vocabulary",
              id.where().c_str(), id.found().c_str());
      REQUIRE(before.size() + after.size() < kMostTokens, "%s has more than %zu tokens around a text",
              json.at("single").where().c_str(), kMostTokens);
      (texts ? after : before).push_back(int32_t(id.as_int()));
    }
  }
  REQUIRE(texts == 1, "%s has %d places for the text\n  expected one", json.at("single").where().c_str(), texts);
}
