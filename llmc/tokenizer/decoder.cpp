#include "llmc/tokenizer/decoder.h"

#include <algorithm>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/byte_level.h"
#include "llmc/tokenizer/file_parts.h"

// ---- the file -----------------------------------------------------------------------------------------------------

namespace {

constexpr int kMostStripped = 256;  // characters of an end, which are held back

}  // namespace

Decoder::Decoder(const Json* json) {
  if (json && !json->is_null()) {
    add(*json);
  } else {
    steps_.push_back({DecoderStep::kJoin});
  }
}

void Decoder::add(const Json& json) {
  require_few_steps(json, steps_.size());
  const std::string& type = json.get_string("type");
  if (type == "Sequence") {
    only_keys(json, {"type", "decoders"});
    for (const Json& step : json.at("decoders").elements()) add(step);
  } else if (type == "ByteLevel") {
    only_keys(json, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    steps_.push_back({DecoderStep::kByteLevel});
  } else if (type == "Replace") {
    only_keys(json, {"type", "pattern", "content"});
    steps_.push_back({DecoderStep::kReplace, Pattern(json.at("pattern")), json.get_string("content")});
  } else if (type == "ByteFallback") {
    only_keys(json, {"type"});
    steps_.push_back({DecoderStep::kByteFallback});
  } else if (type == "Fuse") {
    only_keys(json, {"type"});
    steps_.push_back({DecoderStep::kFuse});
  } else if (type == "Strip") {
    only_keys(json, {"type", "content", "start", "stop"});
    for (const char* end : {"start", "stop"})
      REQUIRE(json.get_int(end) >= 0 && json.get_int(end) <= kMostStripped, "%s is %s\n  expected 0 to %d",
              json.at(end).where().c_str(), json.at(end).found().c_str(), kMostStripped);
    steps_.push_back(
        {DecoderStep::kStrip, {}, one_character(json, "content"), json.get_int("start"), json.get_int("stop")});
  } else if (type == "Metaspace") {
    only_keys(json, {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    const bool drops_first = json.get_string("prepend_scheme", "always") != "never";
    steps_.push_back({DecoderStep::kMetaspace, {}, one_character(json, "replacement"), 0, 0, drops_first});
  } else {
    refuse_type(json, "Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace");
  }
}

// ---- stages -------------------------------------------------------------------------------------------------------

// A stage receives tokens in parts of whole characters; `last` marks the last part of a token. A stage that joins
// tokens (Fuse, ByteLevel) turns all of them into a single token that ends with the text.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void take(std::string_view part, bool last) = 0;
  virtual void finish() = 0;
};

namespace {

class Output : public DecodeStage {
 public:
  explicit Output(std::string& text) : text_(text) {}
  void take(std::string_view part, bool) override { text_ += part; }
  void finish() override {}

 private:
  std::string& text_;
};

class Stage : public DecodeStage {
 public:
  explicit Stage(std::unique_ptr<DecodeStage> next) : next_(std::move(next)) {}
  void finish() override { next_->finish(); }

 protected:
  void give(std::string_view part, bool last) { next_->take(part, last); }

 private:
  std::unique_ptr<DecodeStage> next_;
};

// Base class of the stages that need a token as a whole.
class TokenStage : public Stage {
 public:
  using Stage::Stage;
  void take(std::string_view part, bool last) override {
    token_ += part;
    if (!last) return;
    token(token_);
    token_.clear();
  }

 protected:
  virtual void token(std::string& token) = 0;

 private:
  std::string token_;
};

class Replace : public TokenStage {
 public:
  Replace(const DecoderStep& step, PatternScratch& scratch, std::unique_ptr<DecodeStage> next)
      : TokenStage(std::move(next)), step_(step), scratch_(scratch) {
    const std::string& literal = step.pattern->literal();
    one_character_ = !literal.empty() && utf8_start(literal).bytes == literal.size();
  }
  // A single character can be replaced part by part. Anything longer could begin in one part and end in the next.
  void take(std::string_view part, bool last) override {
    if (!one_character_) return TokenStage::take(part, last);
    std::string text(part);
    step_.pattern->replace(text, step_.text, scratch_);
    give(text, last);
  }

 protected:
  void token(std::string& token) override {
    step_.pattern->replace(token, step_.text, scratch_);
    give(token, true);
  }

 private:
  const DecoderStep& step_;
  PatternScratch& scratch_;
  bool one_character_;
};

// Decodes "<0xE2>" and the like. A run of such tokens becomes text if all of it is UTF-8; otherwise each of them
// becomes U+FFFD. A run is therefore held back until it ends.
class ByteFallback : public TokenStage {
 public:
  using TokenStage::TokenStage;
  void finish() override {
    flush();
    Stage::finish();
  }

 protected:
  void token(std::string& token) override {
    if (const int byte = byte_of(token); byte >= 0) {
      run_ += char(byte);
    } else {
      flush();
      give(token, true);
    }
  }

 private:
  static int byte_of(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const std::string digits = token.substr(3, 2);
    if (digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) return -1;
    return std::stoi(digits, nullptr, 16);
  }
  void flush() {
    if (is_utf8(run_)) {
      if (!run_.empty()) give(run_, true);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) give(kReplacementCharacter, true);
    }
    run_.clear();
  }
  std::string run_;
};

class Fuse : public Stage {
 public:
  using Stage::Stage;
  void take(std::string_view part, bool) override { give(part, false); }
  void finish() override {
    give("", true);
    Stage::finish();
  }
};

class ByteLevel : public TokenStage {
 public:
  using TokenStage::TokenStage;
  void finish() override {
    std::string text;
    repair_.finish(text);
    give(text, true);
    Stage::finish();
  }

 protected:
  void token(std::string& token) override {
    std::string bytes, text;
    append_bytes_of_token(token, bytes);
    repair_.take(bytes, text);
    if (!text.empty()) give(text, false);
  }

 private:
  Utf8Repair repair_;
};

// Removes a character from both ends of each token, up to `left` and `right` times. Characters that may be at the right
// end are held back.
class Strip : public Stage {
 public:
  Strip(const DecoderStep& step, std::unique_ptr<DecodeStage> next)
      : Stage(std::move(next)), step_(step), leading_(step.left) {}
  void take(std::string_view part, bool last) override {
    while (leading_ > 0 && !part.empty()) {
      const bool starts = part.starts_with(step_.text);
      if (starts) part.remove_prefix(step_.text.size());
      leading_ = starts ? leading_ - 1 : 0;
    }
    std::string text = std::exchange(trailing_, "") + std::string(part);
    for (int64_t i = 0; i < step_.right && text.ends_with(step_.text); ++i) {
      text.resize(text.size() - step_.text.size());
      trailing_ += step_.text;
    }
    give(text, last);
    if (!last) return;
    trailing_.clear();
    leading_ = step_.left;
  }

 private:
  const DecoderStep& step_;
  int64_t leading_;  // how many may still be removed
  std::string trailing_;
};

class Metaspace : public Stage {
 public:
  Metaspace(const DecoderStep& step, std::unique_ptr<DecodeStage> next) : Stage(std::move(next)), step_(step) {}
  // As in the `tokenizers` library, the first token loses every replacement character, not only the one that encoding
  // put there.
  void take(std::string_view part, bool last) override {
    std::string text;
    while (!part.empty()) {
      const size_t at = std::min(part.find(step_.text), part.size());
      text += part.substr(0, at);
      part.remove_prefix(at);
      if (part.empty()) break;
      if (!first_ || !step_.drops_first) text += ' ';
      part.remove_prefix(step_.text.size());
    }
    give(text, last);
    if (last) first_ = false;
  }

 private:
  const DecoderStep& step_;
  bool first_ = true;
};

class Join : public Stage {
 public:
  using Stage::Stage;
  void take(std::string_view part, bool last) override {
    if (between_) give(" ", false);
    give(part, last);
    between_ = last;
  }

 private:
  bool between_ = false;
};

std::unique_ptr<DecodeStage> make_stage(const DecoderStep& step, PatternScratch& scratch,
                                        std::unique_ptr<DecodeStage> next) {
  switch (step.kind) {
    case DecoderStep::kByteLevel:
      return std::make_unique<ByteLevel>(std::move(next));
    case DecoderStep::kReplace:
      return std::make_unique<Replace>(step, scratch, std::move(next));
    case DecoderStep::kByteFallback:
      return std::make_unique<ByteFallback>(std::move(next));
    case DecoderStep::kFuse:
      return std::make_unique<Fuse>(std::move(next));
    case DecoderStep::kStrip:
      return std::make_unique<Strip>(step, std::move(next));
    case DecoderStep::kMetaspace:
      return std::make_unique<Metaspace>(step, std::move(next));
    case DecoderStep::kJoin:
      return std::make_unique<Join>(std::move(next));
  }
  return next;
}

}  // namespace

DecodeChain::DecodeChain(const Decoder& decoder)
    : decoder_(&decoder), scratch_(std::make_unique<PatternScratch>()), out_(std::make_unique<std::string>()) {
  build();
}
DecodeChain::~DecodeChain() = default;
DecodeChain::DecodeChain(DecodeChain&&) noexcept = default;

void DecodeChain::build() {
  scratch_->begin_text(0);
  first_ = std::make_unique<Output>(*out_);
  const std::vector<DecoderStep>& steps = decoder_->steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    first_ = make_stage(*step, *scratch_, std::move(first_));
  }
}

void DecodeChain::take(std::string_view token, std::string& text) {
  scratch_->more_text(token.size());
  first_->take(token, true);
  text += *out_;
  out_->clear();
}

void DecodeChain::finish(std::string& text) {
  first_->finish();
  text += *out_;
  out_->clear();
  build();
}
