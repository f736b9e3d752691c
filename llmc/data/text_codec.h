// Converts between text and a model's tokens. It follows a tokenizer.json, if there is one. Otherwise a model of at
// most 256 tokens reads bytes, and any other model shows the numbers of its tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llmc/config/config.h"
#include "llmc/tokenizer/tokenizer.h"

// Returns the path of the tokenizer.json that --tokenizer names: itself, or the one in the folder.
std::string tokenizer_file(const std::string& asked);
// Opens it. Throws, with what to fetch, if there is none.
Tokenizer open_tokenizer(const std::string& asked);

class TextCodec {
 public:
  // Opens the tokenizer that was asked for (a file or directory; may be empty), else the one in the folder of
  // the model's weights, else the one in the folder of the shards that match `data`. It may have more tokens than the
  // model: some files add tokens that no model was trained on. Throws if one that was asked for needs something that is
  // not supported. One that was only found is then left out, and the description says why.
  static TextCodec open(const std::string& asked, const std::string& model, const std::string& data,
                        const ModelConfig& config);

  bool reads_text() const { return tokenizer_ || bytes_; }
  bool has_tokenizer() const { return bool(tokenizer_); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }  // only if has_tokenizer()
  // True if a text's tokens are other numbers than its bytes: there is a tokenizer, and it is not the one that the
  // export of a model of bytes has.
  bool tokenizes_text() const { return tokenizes_; }
  bool reads_bytes() const { return reads_text() && !tokenizes_; }  // each byte of a text is a token
  // Returns the spellings of the tokens that begin and end a text, as tokenizer_config.json, else
  // special_tokens_map.json names them; "" if it names none. If neither names one of the two, they are the first ones
  // that the tokenizer has in a list of usual names.
  std::pair<std::string, std::string> begin_and_end() const;
  // Returns the token that begins each document if text is tokenized, as in dev/data/prepare: the first of
  // begin_and_end(), else the second one.
  std::optional<int32_t> document_token() const;
  // From now on this token begins each document. A run that goes on keeps the token, whatever files the tokenizer's
  // folder has by then.
  void keep_document_token(std::optional<int32_t> token) { kept_token_ = token; }
  // Returns the path of the tokenizer.json, whatever its name; empty without one.
  const std::string& file() const { return file_; }
  std::string checksum() const;  // of that file's bytes, as `xxhsum -H64` prints it; empty without one
  std::string description() const;
  // Returns the same text for two runs whose tokens have the same meaning: "bytes", or the checksum of tokenizer.json;
  // empty if the tokenizer is not known.
  std::string identity() const;
  // Returns why a tokenizer.json that was found is not supported; empty if that did not happen.
  const std::string& why_not() const { return why_not_; }
  // Returns "the model has no tokenizer here", or that the one that was found is not supported, and why.
  std::string why_none() const;
  // Throws if the shards that match `data` were made with another tokenizer: their numbers then stand for other text.
  void require_made(const std::string& data) const;

  // Throws, with the token and the way out, if one of these tokens of the tokenizer is beyond the model's vocabulary.
  // `what` names it in the message.
  void require_in_model(std::span<const int32_t> tokens, const char* what = "the text's token") const;

  // Returns the tokens of a text; `begin` adds those that begin one. Without a tokenizer or bytes, the text is token
  // numbers between spaces. Throws on a number that is not a token, and if the text has a token that the model lacks.
  std::vector<int32_t> encode(const std::string& text, bool begin) const;
  // Returns how a sample begins: with the tokens of the prompt. If it is empty, with the token `start` if that is not
  // negative, else with those that begin a text, else with the one that ends it, else with a newline. A prompt that
  // spells the tokens that begin a text has them once.
  std::vector<int32_t> prompt(const std::string& text, int32_t start = -1) const;

  // Returns the bytes of UTF-8 text that a token stands for: 0 for special tokens, and for all tokens if text is not
  // read. If the token `begins` a text, the space that some tokenizers put before a text is not counted.
  int64_t bytes_of(int32_t token, bool begins) const;
  bool is_special(int32_t token) const { return tokenizer_ && tokenizer_->is_special(token); }

  // Converts tokens, which come one by one, to text that can be shown. It holds back bytes that are not a whole
  // character yet.
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
  std::string file_, why_not_;  // the path; why a file that was found is not read
  std::optional<std::optional<int32_t>> kept_token_;
  bool bytes_ = false, tokenizes_ = false;
  bool puts_space_ = false;  // the tokenizer puts a space before a text, as SentencePiece does
  int V_ = 0;
  int32_t bos_ = -1;  // after which the model's texts begin
};
