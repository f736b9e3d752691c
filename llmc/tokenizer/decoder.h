// How a tokenizer.json makes text of tokens: "decoder". Supported: ByteLevel, Replace, ByteFallback, Fuse, Strip,
// Metaspace, and Sequences of them; none at all joins the tokens by spaces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/tokenizer/pattern.h"

class DecodeStage;

// What a decoder is made of, read once.
struct DecoderStep {
  enum Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace, kJoin };
  Kind kind;
  std::optional<Pattern> pattern = {};  // Replace
  std::string text = {};                // Replace's content, Strip's and Metaspace's character
  int64_t left = 0, right = 0;          // Strip: how many of it at most
  bool drops_first = false;             // Metaspace: in the first token
};

class Decoder {
 public:
  explicit Decoder(const Json* json);
  const std::vector<DecoderStep>& steps() const { return steps_; }

 private:
  void add(const Json& json);
  std::vector<DecoderStep> steps_;
};

// Decodes tokens one after the other: a chain of stages, each of which passes on what it can decide and holds back the
// rest. The decoder must outlive it.
class DecodeChain {
 public:
  explicit DecodeChain(const Decoder& decoder);
  ~DecodeChain();
  DecodeChain(DecodeChain&&) noexcept;

  void take(std::string_view token, std::string& text);  // appends to `text` what is decided
  void finish(std::string& text);                        // and the rest; ready for the next text

 private:
  void build();

  const Decoder* decoder_;
  std::unique_ptr<PatternScratch> scratch_;
  std::unique_ptr<std::string> out_;
  std::unique_ptr<DecodeStage> first_;
};
