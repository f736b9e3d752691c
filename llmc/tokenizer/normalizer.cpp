#include "llmc/tokenizer/normalizer.h"

#include <algorithm>
#include <iterator>

#include "llmc/base/error.h"
#include "llmc/tokenizer/file_parts.h"

Normalizer::Normalizer(const Json* json) {
  if (json && !json->is_null()) add(*json);
}

void Normalizer::add(const Json& json) {
  static constexpr const char* kForms[] = {"NFC", "NFD", "NFKC", "NFKD"};  // in the order of UnicodeForm
  require_few_steps(json, steps_.size());
  const std::string& type = json.get_string("type");
  const auto* form = std::find(std::begin(kForms), std::end(kForms), type);
  if (type == "Sequence") {
    only_keys(json, {"type", "normalizers"});
    for (const Json& step : json.at("normalizers").elements()) add(step);
  } else if (type == "Prepend") {
    only_keys(json, {"type", "prepend"});
    steps_.push_back({Step::kPrepend, json.where(), json.get_string("prepend")});
  } else if (type == "Replace") {
    only_keys(json, {"type", "pattern", "content"});
    steps_.push_back({Step::kReplace, json.where(), json.get_string("content"), Pattern(json.at("pattern"))});
  } else if (form != std::end(kForms)) {
    only_keys(json, {"type"});
    steps_.push_back({.kind = Step::kForm, .name = json.where(), .form = UnicodeForm(form - kForms)});
  } else if (type == "Lowercase") {
    only_keys(json, {"type"});
    steps_.push_back({Step::kLowercase, json.where()});
  } else {
    refuse_type(json, "Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase");
  }
}

bool Normalizer::keeps_newlines() const {
  return std::ranges::all_of(
      steps_, [](const Step& step) { return step.kind == Step::kForm && step.form == UnicodeForm::kNFC; });
}

void Normalizer::apply(std::string& text, PatternScratch& scratch) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::kPrepend:
        if (text.empty()) break;
        scratch.grow(step.text.size(), step.name);
        text.insert(0, step.text);
        break;
      case Step::kReplace:
        step.pattern->replace(text, step.text, scratch);
        break;
      case Step::kForm:
        to_form(step.form, text, scratch, step.name);
        break;
      case Step::kLowercase:
        to_lowercase(text, scratch, step.name);
        break;
    }
  }
}
