#include "llmc/tokenizer/normalizer.h"

#include "llmc/base/error.h"
#include "llmc/tokenizer/file_parts.h"

Normalizer::Normalizer(const Json* json) {
  if (json && !json->is_null()) add(*json);
}

void Normalizer::add(const Json& json) {
  require_few_steps(json, steps_.size());
  const std::string& type = json.get_string("type");
  if (type == "Sequence") {
    only_keys(json, {"type", "normalizers"});
    for (const Json& step : json.at("normalizers").elements()) add(step);
  } else if (type == "Prepend") {
    only_keys(json, {"type", "prepend"});
    steps_.push_back({{}, json.get_string("prepend")});
  } else if (type == "Replace") {
    only_keys(json, {"type", "pattern", "content"});
    steps_.push_back({Pattern(json.at("pattern")), json.get_string("content")});
  } else {
    refuse_type(json, "Sequence, Prepend, Replace");
  }
}

void Normalizer::apply(std::string& text, PatternScratch& scratch) const {
  for (const Step& step : steps_) {
    if (step.pattern) {
      step.pattern->replace(text, step.text, scratch);
    } else if (!text.empty()) {
      scratch.grow(step.text.size(), "normalizer");
      text.insert(0, step.text);
    }
  }
}
