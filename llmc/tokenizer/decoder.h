// Turns tokens into text as the "decoder" of a tokenizer.json says. Supported: ByteLevel, Replace, ByteFallback, Fuse,
// Strip, Metaspace, and Sequences of them. If there is no decoder, the tokens are joined by spaces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/tokenizer/pattern.h"

class DecodeStage;

// One step of a decoder, as read from the file.
struct DecoderStep {
  enum Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace, kJoin };
  Kind kind;
  std::optional<Pattern> pattern = {};  // Replace
  std::string text = {};                // Replace's content, Strip's and Metaspace's character
  int64_t left = 0, right = 0;          // Strip: the most to remove at each end
  bool drops_first = false;             // Metaspace: removes the character from the first token
};

class Decoder {
 public:
  explicit Decoder(const Json* json);
  const std::vector<DecoderStep>& steps() const { return steps_; }

 private:
  void add(const Json& json);
  std::vector<DecoderStep> steps_;
};

// Decodes tokens one after the other with a chain of stages. Each stage passes on what it can decide and holds back the
// rest. The decoder must outlive the chain.
class DecodeChain {
 public:
  explicit DecodeChain(const Decoder& decoder);
  ~DecodeChain();
  DecodeChain(DecodeChain&&) noexcept;

  void take(std::string_view token, std::string& text);  // appends the text that is decided
  void finish(std::string& text);                        // appends the rest; the chain is then ready for the next text

 private:
  void build();

  const Decoder* decoder_;
  std::unique_ptr<PatternScratch> scratch_;
  std::unique_ptr<std::string> out_;
  std::unique_ptr<DecodeStage> first_;
};
