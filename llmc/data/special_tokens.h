// Finds the special tokens of a tokenizer that a text spells, such as "<|endoftext|>".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/tokenizer/tokenizer.h"

// What a special token that a text spells becomes: letters like the rest of the text, or the token itself.
enum class SpelledTokens { letters, tokens };

class SpecialTokens {
 public:
  explicit SpecialTokens(const Tokenizer& tokenizer);

  struct Found {
    size_t at, bytes;
    int32_t id;
  };
  // Returns the first one at or after `from`; of several at one position, the longest.
  std::optional<Found> next(std::string_view text, size_t from) const;
  // Returns all of them, in order; none overlaps another one.
  std::vector<Found> all(std::string_view text) const;

  // Returns a position after `from` at which a text may be cut so that its parts, encoded separately with their special
  // tokens, give the ids of the whole text: before such a token, or where Tokenizer::next_cut() cuts and none is near.
  // Returns the end of the text if there is none.
  size_t next_cut(std::string_view text, size_t from) const;

 private:
  struct Token {
    std::string text;
    int32_t id;
    bool alone;  // it takes no white space around it, and may stand within a word
  };

  Tokenizer tokenizer_;
  std::array<std::vector<Token>, 256> by_first_byte_;  // longest first
  size_t longest_ = 0;                                 // bytes
  bool all_alone_ = true;
};
