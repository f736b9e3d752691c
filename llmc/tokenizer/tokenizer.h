// Encodes text to tokens and decodes tokens to text, as Hugging Face's tokenizer.json says. The ids equal those of the
// `tokenizers` library.
//
//   const Tokenizer tokenizer = Tokenizer::open("models/llama3");    // a directory, or the tokenizer.json in it
//   std::vector<int32_t> ids = tokenizer.encode("Once upon", true);  // with the begin token, if there is one
//   std::string text = tokenizer.decode(ids, true);                  // without it
//
//   TextEncoder encoder(tokenizer);      // for many texts: caches words; one per thread
//   StreamingDecoder decoder(tokenizer, true);
//   for (int32_t id : ids) print(decoder.take(id));
//   print(decoder.finish());
//
// Implements byte-pair encoding as in Llama 2, Llama 3, GPT-2 and similar models. Unsupported parts are rejected by
// name when the file is opened (see bpe.h, normalizer.h, split.h, added_tokens.h, token_template.h and decoder.h).
// encode() and decode() throw if the file's patterns or replacements take far more work than those of known models
// (see pattern.h).
// Characters that the Unicode versions of the linked PCRE2 and utf8proc do not know may be split, or normalized,
// differently than by the library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/json.h"

// Immutable. Copies share the data. Several threads may use one tokenizer at the same time.
class Tokenizer {
 public:
  // Opens a file, or a directory that holds tokenizer.json. Throws with the file and the place in it.
  static Tokenizer open(const std::string& path);
  explicit Tokenizer(const Json& json);

  // Returns the ids of a text. Invalid UTF-8 is replaced by U+FFFD, as Python's decode("utf-8", "replace") does. Added
  // tokens are found in the text, including special ones. `add_special_tokens` adds those of the file's post-processor
  // before and after the text. Throws if a single unsplit word has 2 GiB or more.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;

  // Returns the text of ids, always as UTF-8. Ids without a token are skipped. With `skip_special_tokens`, special
  // tokens are skipped too, including those that the normalizer spells differently, which the library does not skip.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // Returns the largest id + 1, which is the number of rows that an embedding needs.
  int32_t vocabulary_size() const;
  std::optional<int32_t> id_of(const std::string& token) const;  // by its spelling in the file
  std::optional<std::string> token_of(int32_t id) const;
  bool is_special(int32_t id) const;
  // Returns the bytes of text that a token stands for; 0 for special tokens and for ids without a token.
  int64_t bytes_of(int32_t id) const;

  // Returns the first position after `from` at which a long text may be cut. Encoding the parts separately gives the
  // same ids, if special tokens are read as plain text and none are added around a text. Positions are known only for
  // the splitting of GPT-2, Llama 3 and Qwen 2, also after NFC, next to a newline that is followed by a character other
  // than white space. Otherwise the end of the text is returned.
  size_t next_cut(std::string_view text, size_t from) const;

  // The ids that encode() adds before a text.
  const std::vector<int32_t>& begin_tokens() const;

 private:
  friend class TextEncoder;
  friend class StreamingDecoder;
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

// Encodes texts one after the other and caches the ids of words, up to a few megabytes.
class TextEncoder {
 public:
  // With `special_as_letters`, special tokens in a text are plain text, as in the shards that dev/data writes. Other
  // added tokens are still found.
  explicit TextEncoder(const Tokenizer& tokenizer, bool special_as_letters = false);
  ~TextEncoder();
  TextEncoder(TextEncoder&&) noexcept;

  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens);
  void encode(std::string_view text, bool add_special_tokens, std::vector<int32_t>& ids);  // appends to `ids`

 private:
  struct Work;
  void section(std::string_view text, bool at_start, std::vector<int32_t>& ids);
  void words(std::string_view text, bool at_start, std::vector<int32_t>& ids);
  void word(std::string_view text, std::vector<int32_t>& ids);
  void part(std::string_view text, std::vector<int32_t>& ids);
  void new_part(std::string_view text, std::vector<int32_t>& ids);

  std::shared_ptr<const Tokenizer::Parts> parts_;
  bool special_too_;
  std::unique_ptr<Work> work_;
};

// Decodes tokens as they arrive. Text returned by take() never changes. An incomplete character, and anything else that
// the decoder cannot decide yet, is held back. The results of all take() calls and finish() together equal decode() of
// all ids.
class StreamingDecoder {
 public:
  StreamingDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  ~StreamingDecoder();
  StreamingDecoder(StreamingDecoder&&) noexcept;

  std::string take(int32_t id);
  std::string finish();  // returns what was held back; the next token begins another text

 private:
  struct Work;
  std::shared_ptr<const Tokenizer::Parts> parts_;
  bool skip_special_tokens_;
  std::unique_ptr<Work> work_;
};
