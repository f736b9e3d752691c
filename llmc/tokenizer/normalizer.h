// What a tokenizer.json does to a text before it is split: "normalizer". Supported: Prepend and Replace (Llama 2's),
// and Sequences of them. Others (NFC, Lowercase, …) are refused by name.
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
    std::optional<Pattern> pattern;  // none: `text` goes before what is not empty
    std::string text;
  };
  void add(const Json& json);
  std::vector<Step> steps_;
};
