// A text's tokens and back, as Hugging Face's tokenizer.json says: the ids are those of the `tokenizers` library.
//
//   const Tokenizer tokenizer = Tokenizer::open("models/llama3");    // a directory, or the tokenizer.json in it
//   std::vector<int32_t> ids = tokenizer.encode("Once upon", true);  // with the begin token, if there is one
//   std::string text = tokenizer.decode(ids, true);                  // without it
//
//   TextEncoder encoder(tokenizer);      // for many texts: remembers words; one a thread
//   StreamingDecoder decoder(tokenizer, true);
//   for (int32_t id : ids) print(decoder.take(id));
//   print(decoder.finish());
//
// Byte-pair encoding as Llama 2, Llama 3, GPT-2 and their like have it; parts that are not supported are refused when
// the file is opened, by name (bpe.h, normalizer.h, split.h, added_tokens.h, token_template.h, decoder.h say which
// are). Characters that the linked PCRE2's Unicode does not know may be split elsewhere than by the library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/json.h"

// Immutable; copies share what was read. Threads may use one at the same time.
class Tokenizer {
 public:
  // A file, or a directory that holds tokenizer.json. Fails with the file and the place in it.
  static Tokenizer open(const std::string& path);
  explicit Tokenizer(const Json& json);

  // The ids of a text. What is no UTF-8 in it is taken for U+FFFD, as Python's decode("utf-8", "replace") has it.
  // Added tokens are found in the text, special ones too; `add_special_tokens` puts those of the file's post-processor
  // before and behind. Fails on a text that no pattern splits within 2 GiB.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;

  // The text of ids, always UTF-8. Ids that no token has are passed over, as are special ones with
  // `skip_special_tokens` (also those that the normalizer spells otherwise, which the library lets pass).
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  int32_t vocabulary_size() const;  // the largest id, and one: the rows that an embedding needs
  std::optional<int32_t> id_of(const std::string& token) const;  // by its spelling in the file
  std::optional<std::string> token_of(int32_t id) const;
  bool is_special(int32_t id) const;
  // Bytes of text that a token stands for; 0 for special ones and ids that no token has.
  int64_t bytes_of(int32_t id) const;

  // The first place behind `from` where a long text may be cut: encoded part by part, with special tokens as letters
  // and without those around a text, it has the same ids. That is proven for GPT-2's, Llama 3's and Qwen 2's ways to
  // split a text, beside a newline that stands before a character other than white space; else the text's end is
  // returned.
  size_t next_cut(std::string_view text, size_t from) const;

  // What encode() puts before and behind a text.
  const std::vector<int32_t>& begin_tokens() const;
  const std::vector<int32_t>& end_tokens() const;

 private:
  friend class TextEncoder;
  friend class StreamingDecoder;
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

// Encodes texts one after the other and remembers the words it has seen, up to some megabytes of them.
class TextEncoder {
 public:
  // With `special_as_letters` the special tokens that a text spells are not found in it: text is only text, as in
  // shards that dev/data writes. Other added tokens are.
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

// Decodes tokens as they come. What take() has returned never changes; it holds back the beginning of a character and
// whatever else the decoder cannot decide yet. All that take() and finish() return together is decode() of all ids.
class StreamingDecoder {
 public:
  StreamingDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  ~StreamingDecoder();
  StreamingDecoder(StreamingDecoder&&) noexcept;

  std::string take(int32_t id);
  std::string finish();  // what was held back; the next token begins another text

 private:
  struct Work;
  std::shared_ptr<const Tokenizer::Parts> parts_;
  bool skip_special_tokens_;
  std::unique_ptr<Work> work_;
};
