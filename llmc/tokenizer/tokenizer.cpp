#include "llmc/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/added_tokens.h"
#include "llmc/tokenizer/bpe.h"
#include "llmc/tokenizer/byte_level.h"
#include "llmc/tokenizer/decoder.h"
#include "llmc/tokenizer/file_parts.h"
#include "llmc/tokenizer/normalizer.h"
#include "llmc/tokenizer/split.h"
#include "llmc/tokenizer/token_template.h"

// ---- the file -----------------------------------------------------------------------------------------------------

struct Tokenizer::Parts {
  Bpe bpe;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  TokenTemplate around;
  Decoder decoder;

  Newline newline = Newline::kUnknown;  // how a long text can be cut

  explicit Parts(const Json& json)
      : bpe(json.at("model")),
        normalizer(json.find("normalizer")),
        pre_tokenizer(json.find("pre_tokenizer")),
        added(json.find("added_tokens"), bpe.vocabulary(), normalizer),
        around(json.find("post_processor")),
        decoder(json.find("decoder")) {
    if (normalizer.keeps_newlines() && added.keep_newlines()) newline = pre_tokenizer.newline();
  }

  const std::string* token_of(int32_t id) const {
    const AddedToken* token = added.find(id);
    return token ? &token->content : bpe.vocabulary().token_of(id);
  }
  // Returns the text that the decoder receives for a token.
  const std::string* spelling_of(int32_t id) const {
    const AddedToken* token = added.find(id);
    return token ? &token->text : bpe.vocabulary().token_of(id);
  }
  bool is_special(int32_t id) const {
    const AddedToken* token = added.find(id);
    return token && token->special;
  }
};

Tokenizer Tokenizer::open(const std::string& path) {
  const bool directory = std::filesystem::is_directory(path);
  return Tokenizer(Json::read(directory ? (std::filesystem::path(path) / "tokenizer.json").string() : path));
}

Tokenizer::Tokenizer(const Json& json) {
  only_keys(json, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  REQUIRE(json.get_string("version", "1.0") == "1.0", "%s is %s\n  expected \"1.0\"",
          json.at("version").where().c_str(), json.at("version").found().c_str());
  const auto parts = std::make_shared<const Parts>(json);
  for (const std::vector<int32_t>* ids : {&parts->around.before, &parts->around.after}) {
    for (int32_t id : *ids) {
      REQUIRE(parts->token_of(id), "%s puts the id %d around a text, and no token has it",
              json.at("post_processor").where().c_str(), id);
    }
  }
  parts_ = parts;
}

int32_t Tokenizer::vocabulary_size() const { return std::max(parts_->bpe.vocabulary().end(), parts_->added.end()); }

std::optional<int32_t> Tokenizer::id_of(const std::string& token) const {
  if (const AddedToken* added = parts_->added.find(token)) return added->id;
  return parts_->bpe.vocabulary().id_of(token);
}

std::optional<std::string> Tokenizer::token_of(int32_t id) const {
  const std::string* token = parts_->token_of(id);
  return token ? std::optional(*token) : std::nullopt;
}

bool Tokenizer::is_special(int32_t id) const { return parts_->is_special(id); }

int64_t Tokenizer::bytes_of(int32_t id) const {
  const std::string* token = parts_->token_of(id);
  if (!token || is_special(id)) return 0;
  if (parts_->added.find(id)) return int64_t(token->size());
  const auto decodes = [&](DecoderStep::Kind kind) {
    return std::ranges::any_of(parts_->decoder.steps(), [&](const DecoderStep& step) { return step.kind == kind; });
  };
  if (decodes(DecoderStep::kByteLevel))  // each character spells one byte
    return std::ranges::count_if(*token, [](char c) { return (c & 0xc0) != 0x80; });
  if (decodes(DecoderStep::kByteFallback) && token->size() == 6 && token->starts_with("<0x")) return 1;
  const int32_t ids[] = {id, id};  // measures what the id adds to a text that is not empty
  return int64_t(decode(ids, true).size()) - int64_t(decode(std::span(ids, 1), true).size());
}

const std::vector<int32_t>& Tokenizer::begin_tokens() const { return parts_->around.before; }

namespace {

// True if the text ends in white space. Invalid bytes become U+FFFD, which is not white space.
bool ends_in_white_space(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 && (text[begin] & 0xc0) == 0x80) --begin;
  const Utf8Start start = utf8_start(text.substr(begin));
  return start.kind == Utf8Start::kCharacter && begin + start.bytes == text.size() &&
         is_white_space(code_point(text.substr(begin)));
}

}  // namespace

// If several white-space characters precede a word, GPT-2's `\s+(?!\S)` leaves the last one to `\s+`. A part that ended
// after that character would have all of them in one word. The cut is therefore before a newline that has white space
// on its left. If digits are split off first, this does not hold before a digit, so there is no cut there, nor before a
// character beyond ASCII, which may be a digit. Nor does it hold before an added token.
size_t Tokenizer::next_cut(std::string_view text, size_t from) const {
  if (parts_->newline == Newline::kUnknown) return text.size();
  for (size_t at = from; (at = text.find('\n', at)) != text.npos && at + 1 < text.size(); ++at) {
    const std::string_view after = text.substr(at + 1, 4);
    const Utf8Start start = utf8_start(after);
    if (start.kind == Utf8Start::kCharacter && is_white_space(code_point(after.substr(0, start.bytes)))) continue;
    const bool before = parts_->newline == Newline::kOwnWord && at > 0 && ends_in_white_space(text.substr(0, at));
    if (before && ((after[0] & 0x80) || (after[0] >= '0' && after[0] <= '9') || !parts_->added.all_special())) continue;
    if (const size_t cut = before ? at : at + 1; cut > from) return cut;
  }
  return text.size();
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return TextEncoder(*this).encode(text, add_special_tokens);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  StreamingDecoder decoder(*this, skip_special_tokens);
  std::string text;
  for (int32_t id : ids) text += decoder.take(id);
  return text + decoder.finish();
}

// ---- encoding -----------------------------------------------------------------------------------------------------

namespace {

// Caches the ids of words seen before. A full cache is emptied; frequent words soon return.
class WordCache {
 public:
  static constexpr size_t kLongestWord = 64, kMostWords = 1 << 16;

  const std::vector<int32_t>* find(std::string_view word) const {
    const auto found = ids_.find(word);
    return found == ids_.end() ? nullptr : &found->second;
  }
  void keep(std::string_view word, std::span<const int32_t> ids) {
    if (ids_.size() == kMostWords) ids_.clear();
    ids_.emplace(word, std::vector<int32_t>(ids.begin(), ids.end()));
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> ids_;
};

}  // namespace

struct TextEncoder::Work {
  PatternScratch pattern;
  Bpe::Scratch bpe;
  WordCache cache;
};

TextEncoder::TextEncoder(const Tokenizer& tokenizer, bool special_as_letters)
    : parts_(tokenizer.parts_), special_too_(!special_as_letters), work_(std::make_unique<Work>()) {}
TextEncoder::~TextEncoder() = default;
TextEncoder::TextEncoder(TextEncoder&&) noexcept = default;

std::vector<int32_t> TextEncoder::encode(std::string_view text, bool add_special_tokens) {
  std::vector<int32_t> ids;
  encode(text, add_special_tokens, ids);
  return ids;
}

void TextEncoder::encode(std::string_view text, bool add_special_tokens, std::vector<int32_t>& ids) {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = repaired_utf8(text);
  work_->pattern.begin_text(text.size());
  const auto append = [&](const std::vector<int32_t>& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  if (add_special_tokens) append(parts_->around.before);
  parts_->added.visit_as_given(text, special_too_, work_->pattern, [&](AddedTokens::Section part) {
    if (part.token) {
      ids.push_back(part.token->id);
    } else {
      section(part.text, part.text.data() == text.data(), ids);
    }
  });
  if (add_special_tokens) append(parts_->around.after);
}

// Encodes a text that contains none of the tokens searched for before normalization.
void TextEncoder::section(std::string_view text, bool at_start, std::vector<int32_t>& ids) {
  std::string normal;
  if (!parts_->normalizer.changes_nothing()) {
    normal = text;
    parts_->normalizer.apply(normal, work_->pattern);
    text = normal;
  }
  if (!parts_->added.any_normalized()) return words(text, at_start, ids);
  parts_->added.visit_normalized(text, special_too_, work_->pattern, [&](AddedTokens::Section part) {
    if (part.token) {
      ids.push_back(part.token->id);
    } else {
      words(part.text, at_start && part.text.data() == text.data(), ids);
    }
  });
}

// Encodes a text without any added tokens.
void TextEncoder::words(std::string_view text, bool at_start, std::vector<int32_t>& ids) {
  if (text.empty()) return;
  parts_->pre_tokenizer.split({text, at_start}, work_->pattern, [&](TextPart part) { word(part.text, ids); });
}

// After ByteLevel, words are not split further: they are short, and their characters are not yet those of the
// vocabulary.
void TextEncoder::word(std::string_view text, std::vector<int32_t>& ids) {
  if (parts_->pre_tokenizer.ends_in_byte_level()) return part(text, ids);
  while (!text.empty()) {
    const size_t bytes = parts_->bpe.first_part(text);
    part(text.substr(0, bytes), ids);
    text.remove_prefix(bytes);
  }
}

void TextEncoder::part(std::string_view text, std::vector<int32_t>& ids) {
  if (text.size() > WordCache::kLongestWord) return new_part(text, ids);
  if (const std::vector<int32_t>* known = work_->cache.find(text)) {
    ids.insert(ids.end(), known->begin(), known->end());
    return;
  }
  const size_t before = ids.size();
  new_part(text, ids);
  work_->cache.keep(text, std::span(ids).subspan(before));
}

void TextEncoder::new_part(std::string_view text, std::vector<int32_t>& ids) {
  if (parts_->pre_tokenizer.ends_in_byte_level()) {
    parts_->bpe.encode(byte_level(text), work_->bpe, ids);
  } else {
    parts_->bpe.encode(text, work_->bpe, ids);
  }
}

// ---- decoding -----------------------------------------------------------------------------------------------------

struct StreamingDecoder::Work {
  DecodeChain chain;
};

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : parts_(tokenizer.parts_),
      skip_special_tokens_(skip_special_tokens),
      work_(std::make_unique<Work>(Work{DecodeChain(parts_->decoder)})) {}
StreamingDecoder::~StreamingDecoder() = default;
StreamingDecoder::StreamingDecoder(StreamingDecoder&&) noexcept = default;

std::string StreamingDecoder::take(int32_t id) {
  std::string text;
  if (skip_special_tokens_ && parts_->is_special(id)) return text;
  if (const std::string* token = parts_->spelling_of(id)) work_->chain.take(*token, text);
  return text;
}

std::string StreamingDecoder::finish() {
  std::string text;
  work_->chain.finish(text);
  return text;
}
