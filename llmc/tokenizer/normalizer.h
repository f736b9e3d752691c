// Changes a text before it is split, as the "normalizer" of a tokenizer.json says. Supported: Prepend and Replace (as
// in Llama 2), NFC (as in Qwen), NFD, NFKC, NFKD, Lowercase, and Sequences of them. Others (Precompiled,
// BertNormalizer, …) are rejected by name.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/tokenizer/pattern.h"
#include "llmc/tokenizer/unicode_form.h"

class Normalizer {
 public:
  explicit Normalizer(const Json* json);  // nullptr or null: changes nothing

  bool changes_nothing() const { return steps_.empty(); }
  // True if a text may be cut before and after a newline: the parts, changed one by one, are the whole, changed, and
  // what is next to the newline stays white space, a digit or neither. This is so for NFC: a newline composes with
  // nothing, and the only white space that NFC changes becomes other white space.
  bool keeps_newlines() const;
  void apply(std::string& text, PatternScratch& scratch) const;

 private:
  struct Step {
    enum Kind { kPrepend, kReplace, kForm, kLowercase };
    Kind kind;
    std::string name;                     // its place in the file, for messages
    std::string text = {};                // what is prepended, unless the input is empty; what replaces
    std::optional<Pattern> pattern = {};  // what is replaced
    UnicodeForm form = {};
  };
  void add(const Json& json);
  std::vector<Step> steps_;
};
