// Text and a model's tokens. With a tokenizer.json, as that says; a model of at most 256 tokens reads bytes; any other
// shows the tokens' numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/model/config.h"
#include "llmc/tokenizer/tokenizer.h"

class TextCodec {
 public:
  // The tokenizer that was asked for (a file or directory; may be empty), else the one beside the model's weights, else
  // the one beside the shards that match `data`. Throws on one that has more tokens than the model, and on one that was
  // asked for and asks for what is not supported; one that was found is then left out, and the description says why.
  static TextCodec open(const std::string& asked, const std::string& model, const std::string& data,
                        const LlamaConfig& config);

  bool reads_text() const { return tokenizer_ || bytes_; }
  bool has_tokenizer() const { return bool(tokenizer_); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }  // only with one
  // A text's tokens are other numbers than its bytes: there is a tokenizer, and it is not that of an export of bytes.
  bool cuts_text() const;
  // What begins each document where text is cut into tokens, as in dev/data/prepare: the begin-of-text that the files
  // beside the tokenizer name, else their end-of-text; where they name neither, the usual one that it has.
  std::optional<int32_t> document_token() const;
  // The tokenizer.json, by that or another name; empty without one.
  const std::string& file() const { return file_; }
  std::string description() const;
  // The same for two runs whose tokens have the same meaning: "bytes", or the checksum of tokenizer.json (as
  // `xxhsum -H64` prints it); empty where the tokenizer is not known.
  std::string identity() const;
  // Of a tokenizer.json that was found and is not supported; empty otherwise.
  const std::string& why_not() const { return why_not_; }
  // Throws if the shards that match `data` were made with another tokenizer: their numbers stand for other text.
  void require_made(const std::string& data) const;

  // The tokens of a text, with those that begin one by `begin`. Without a tokenizer or bytes: of numbers between
  // spaces. Throws on a number that is no token.
  std::vector<int32_t> encode(const std::string& text, bool begin) const;
  // How a sample begins: the prompt, or if that is empty what begins a text: begin-of-text, else a newline.
  std::vector<int32_t> prompt(const std::string& text) const;

  // Bytes of UTF-8 that a token stands for: 0 for special ones, and for all where text is not read.
  int64_t bytes_of(int32_t token) const;

  // Tokens that come one by one, as text that can be shown; what is no whole character yet waits.
  class Writer {
   public:
    explicit Writer(const TextCodec& codec);
    std::string take(int32_t token);
    std::string finish();

   private:
    const TextCodec& codec_;
    std::optional<StreamingDecoder> decoder_;
  };

 private:
  std::optional<Tokenizer> tokenizer_;
  std::string file_, why_not_;  // of the file that was found: why it is not read
  bool bytes_ = false;
  int V_ = 0;
  int32_t bos_ = -1;
};
