// How a tokenizer.json cuts a text into words, which are then encoded each by itself: "pre_tokenizer". Supported:
// Split, Digits, ByteLevel, Metaspace, and Sequences of them, ByteLevel only at the end (behind it words are spelled in
// its alphabet).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/tokenizer/pattern.h"

struct Piece {
  std::string_view text;  // never empty
  bool at_start;          // of the whole text that is being encoded
};
using PieceVisitor = std::function<void(Piece)>;

// Which word a newline belongs to that stands before a character other than white space. So a text can be cut there,
// and the words of the two parts are those of the whole.
enum class Newline {
  kUnknown,  // nothing is proven
  kAnyWord,  // this step does not look at it
  // GPT-2's expression: of several characters of white space the newline is a word of its own, behind one of all
  // others.
  kOwnWord,
  // Llama 3's and Qwen 2's: it ends a word, whatever stands before it.
  kEndsWord
};

// One kind of cut.
class Splitter {
 public:
  virtual ~Splitter() = default;
  virtual Newline newline() const { return Newline::kUnknown; }
  virtual void split(Piece piece, PatternScratch& scratch, const PieceVisitor& visit) const = 0;
};

class PreTokenizer {
 public:
  explicit PreTokenizer(const Json* json);  // nullptr or null: a text is one word

  // Visits the words in order; they are valid during the visit.
  void split(Piece piece, PatternScratch& scratch, const PieceVisitor& visit) const {
    split_from(0, piece, scratch, visit);
  }

  // kUnknown, kOwnWord or kEndsWord: of all steps together.
  Newline newline() const;

  // The words' bytes are to be spelled in ByteLevel's alphabet before the vocabulary is asked.
  bool ends_in_byte_level() const { return byte_level_; }

 private:
  void add(const Json& json);
  void split_from(size_t step, Piece piece, PatternScratch& scratch, const PieceVisitor& visit) const;

  std::vector<std::unique_ptr<Splitter>> steps_;
  bool byte_level_ = false;
};
