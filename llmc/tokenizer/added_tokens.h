// The tokens that a tokenizer.json adds beside its model's vocabulary, found in a text before anything is split:
//
//   "added_tokens": [{"id": 128000, "content": "<|begin_of_text|>", "special": true, "normalized": false,
//                     "single_word": false, "lstrip": false, "rstrip": false}, …]
//
// Those that are not "normalized" are looked for in the text as it came, the others, themselves normalized, in what the
// normalizer made of the rest. Of several that begin at one place the longest counts.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/tokenizer/bpe.h"
#include "llmc/tokenizer/normalizer.h"
#include "llmc/tokenizer/pattern.h"

struct AddedToken {
  std::string content;
  std::string text;  // what a text is searched for and a decoder is given: the content, normalized if it says so
  int32_t id;
  bool special;      // may be left out of a decoded text
  bool single_word;  // only where no word character is beside it
  bool lstrip;       // takes the white space on its left with it
  bool rstrip;
  bool normalized;
};

class AddedTokens {
 public:
  // Fails on an id other than the one that the `tokenizers` library gives (it does not read the file's): the model's,
  // or the next one behind the model's.
  AddedTokens(const Json* json, const Vocabulary& model, const Normalizer& normalizer);

  // A token, or the text between two.
  struct Section {
    std::string_view text;
    const AddedToken* token;  // nullptr: text
  };
  using SectionVisitor = std::function<void(Section)>;
  // Special tokens that the text spells are letters in it, unless `special_too`.
  void visit_as_given(std::string_view text, bool special_too, PatternScratch& scratch,
                      const SectionVisitor& visit) const {
    sections(as_given_, text, special_too, scratch, visit);
  }
  void visit_normalized(std::string_view text, bool special_too, PatternScratch& scratch,
                        const SectionVisitor& visit) const {
    sections(normalized_, text, special_too, scratch, visit);
  }
  bool any_normalized() const { return !normalized_.tokens.empty(); }
  bool all_special() const { return all_special_; }

  const AddedToken* find(int64_t id) const;
  const AddedToken* find(const std::string& content) const;
  int32_t end() const { return end_; }  // the largest id, and one

 private:
  // Texts to look for, by their first byte, longest first.
  struct Finder {
    std::unordered_map<std::string, const AddedToken*> tokens;
    std::array<std::vector<size_t>, 256> lengths;
    void add(const AddedToken* token);
    const AddedToken* longest_at(std::string_view text, size_t at, size_t* bytes) const;
  };

  void sections(const Finder& finder, std::string_view text, bool special_too, PatternScratch& scratch,
                const SectionVisitor& visit) const;
  bool is_single_word(std::string_view text, size_t begin, size_t end, PatternScratch& scratch) const;

  std::unordered_map<int32_t, AddedToken> by_id_;
  std::unordered_map<std::string, const AddedToken*> by_content_;
  Finder as_given_, normalized_;
  Pattern word_character_;
  int32_t end_ = 0;
  bool all_special_ = true;
};
