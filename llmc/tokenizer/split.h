// Splits a text into words, each of which is then encoded separately, as the "pre_tokenizer" of a tokenizer.json says.
// Supported: Split, Digits, ByteLevel, Metaspace, and Sequences of them. ByteLevel must be the last, because the words
// after it are spelled in its alphabet.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/tokenizer/pattern.h"

// The whole text, or a part of it that an earlier step has split off.
struct TextPart {
  std::string_view text;  // never empty
  bool at_start;          // true if it begins the whole text that is being encoded
};
using PartVisitor = std::function<void(TextPart)>;

// Says to which word a newline belongs if a character other than white space follows it. A text can be cut at such a
// newline: the words of the two parts are then the words of the whole.
enum class Newline {
  kUnknown,  // nothing is proven
  kAnyWord,  // newlines make no difference to this step
  // GPT-2's expression: the newline is a word of its own, and the white space before it is another word.
  kOwnWord,
  // Llama 3's and Qwen 2's expressions: the newline ends a word, whatever comes before it.
  kEndsWord
};

// One step of splitting.
class Splitter {
 public:
  virtual ~Splitter() = default;
  virtual Newline newline() const { return Newline::kUnknown; }
  virtual void split(TextPart part, PatternScratch& scratch, const PartVisitor& visit) const = 0;
};

class PreTokenizer {
 public:
  explicit PreTokenizer(const Json* json);  // nullptr or null: the whole text is one word

  // Visits the words in order. A word is valid only during its visit.
  void split(TextPart part, PatternScratch& scratch, const PartVisitor& visit) const {
    split_from(0, part, scratch, visit);
  }

  // Returns kUnknown, kOwnWord or kEndsWord, for all steps together.
  Newline newline() const;

  // True if the words' bytes must be spelled in ByteLevel's alphabet before they are looked up in the vocabulary.
  bool ends_in_byte_level() const { return byte_level_; }

 private:
  void add(const Json& json);
  void split_from(size_t step, TextPart part, PatternScratch& scratch, const PartVisitor& visit) const;

  std::vector<std::unique_ptr<Splitter>> steps_;
  bool byte_level_ = false;
};
