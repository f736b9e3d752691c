// Changes a text before it is split, as the "normalizer" of a tokenizer.json says. Supported: Prepend and Replace (as
// in Llama 2), and Sequences of them. Others (NFC, Lowercase, …) are rejected by name.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/tokenizer/pattern.h"

class Normalizer {
 public:
  explicit Normalizer(const Json* json);  // nullptr or null: changes nothing

  bool changes_nothing() const { return steps_.empty(); }
  void apply(std::string& text, PatternScratch& scratch) const;

 private:
  struct Step {
    std::optional<Pattern> pattern;  // empty: prepends `text`, unless the input is empty
    std::string text;
  };
  void add(const Json& json);
  std::vector<Step> steps_;
};
