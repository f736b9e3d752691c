// The tokens that a tokenizer.json adds to its model's vocabulary. They are found in a text before it is split:
//
//   "added_tokens": [{"id": 128000, "content": "<|begin_of_text|>", "special": true, "normalized": false,
//                     "single_word": false, "lstrip": false, "rstrip": false}, …]
//
// Tokens that are not "normalized" are searched in the text as given. The others are normalized themselves and searched
// in the normalized rest of the text. If several tokens begin at one position, the longest wins.
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
  std::string text;  // searched for, and given to the decoder: the content, normalized if `normalized` is set
  int32_t id;
  bool special;      // may be left out of decoded text
  bool single_word;  // matches only if no word character is next to it
  bool lstrip;       // the token includes the white space on its left
  bool rstrip;
  bool normalized;
};

class AddedTokens {
 public:
  // Throws if the file gives an id that differs from the one that the `tokenizers` library assigns. The library ignores
  // the file's ids: it takes the id from the model's vocabulary, or else the next id after the model's. A token that is
  // listed twice has the flags of the last place, and is special if one of them says so.
  AddedTokens(const Json* json, const Vocabulary& model, const Normalizer& normalizer);

  // A token, or the text between two tokens.
  struct Section {
    std::string_view text;
    const AddedToken* token;  // nullptr: text
  };
  using SectionVisitor = std::function<void(Section)>;
  // The visit_ functions visit the sections of a text in order. They treat special tokens in the text as plain text,
  // unless `special_too` is true.
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
  // True if a text may be cut next to a newline where special tokens are plain text: none of the other tokens has a
  // newline, nor does what is around one of them matter.
  bool keep_newlines() const;

  const AddedToken* find(int64_t id) const;
  const AddedToken* find(const std::string& content) const;
  int32_t end() const { return end_; }  // the largest id + 1

 private:
  // The texts to search for: their lengths by first byte, longest first.
  struct Finder {
    std::unordered_map<std::string, const AddedToken*> tokens;
    std::array<std::vector<size_t>, 256> lengths;
    void add(const AddedToken* token);
    const AddedToken* longest_at(std::string_view text, size_t at, size_t* bytes) const;
  };

  void find_in_texts(AddedToken& token, const Normalizer& normalizer);
  void sections(const Finder& finder, std::string_view text, bool special_too, PatternScratch& scratch,
                const SectionVisitor& visit) const;
  bool is_single_word(std::string_view text, size_t begin, size_t end, PatternScratch& scratch) const;

  std::unordered_map<int32_t, AddedToken> by_id_;
  std::unordered_map<std::string, const AddedToken*> by_content_;
  Finder as_given_, normalized_;
  Pattern word_character_;
  int32_t end_ = 0;
  bool all_special_ = true;
  bool newline_ = false;  // one has a newline
  bool plain_ = true;     // what is around them matters to none that is not special
};
