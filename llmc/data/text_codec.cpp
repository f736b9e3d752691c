#include "llmc/data/text_codec.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "llmc/base/checksum.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/shard_manifest.h"
#include "llmc/data/vocabulary.h"
#include "llmc/tokenizer/byte_level.h"

namespace fs = std::filesystem;

namespace {

// Returns whether a text's tokens are other numbers than its bytes.
bool tokenizes_text(const Tokenizer& tokenizer) {
  std::string ascii;
  for (int32_t b = 0; b < std::min(tokenizer.vocabulary_size(), 256); ++b) {
    if (tokenizer.token_of(b) != byte_level(std::string(1, char(b)))) return true;
    if (b < 128) ascii += char(b);
  }
  std::vector<int32_t> bytes(ascii.begin(), ascii.end());
  return tokenizer.vocabulary_size() > 256 || tokenizer.encode(ascii, true) != bytes;
}

// Returns whether a token begins with a space, as byte-level tokenizers and those of SentencePiece spell it.
bool begins_with_space(const Tokenizer& tokenizer, int32_t id) {
  const std::string token = tokenizer.token_of(id).value_or("");
  return token.starts_with(byte_level(" ")) || token.starts_with("\u2581");
}

// Returns the token after which the model's texts begin: the one that begins a text, else one that ends the text
// before it; -1 if it names none.
int32_t begin_token(const ModelConfig& config) {
  const Json* named = config.generation.is_null() ? nullptr : config.generation.find("bos_token_id");
  const std::vector<int> begin = named ? read_tokens(*named) : std::vector<int>(), end = config.end_tokens();
  if (!begin.empty()) return begin[0];
  if (config.bos >= 0 || end.empty()) return config.bos;
  return end[0];
}

}  // namespace

std::string tokenizer_file(const std::string& asked) {
  std::error_code error;
  return fs::is_directory(asked, error) ? (fs::path(asked) / "tokenizer.json").string() : asked;
}

Tokenizer open_tokenizer(const std::string& asked) {
  // Short names that people use for a tokenizer, and where the Hugging Face hub has it.
  constexpr std::pair<const char*, const char*> kHubNames[] = {{"gpt2", "openai-community/gpt2"}};
  std::error_code error;
  if (fs::exists(tokenizer_file(asked), error)) return Tokenizer::open(asked);
  std::string name = "OWNER/NAME";
  if (!download_command(asked).empty()) name = asked;
  for (const auto& [known, hub] : kHubNames)
    if (lower_case(asked) == known) name = hub;
  fail(
      "--tokenizer %s: there is no %s\n  expected a tokenizer.json, or the folder that has it; if it "
      "is one of the Hugging Face hub, fetch it first: %s --include '*.json', then --tokenizer %s",
      asked.c_str(), tokenizer_file(asked).c_str(), download_command(name).c_str(), fs::path(name).filename().c_str());
}

TextCodec TextCodec::open(const std::string& asked, const std::string& model, const std::string& data,
                          const ModelConfig& config) {
  TextCodec codec;
  codec.V_ = config.V;
  codec.bos_ = begin_token(config);
  std::error_code error;
  std::vector<fs::path> places = {asked};
  if (asked.empty()) {
    places = {model};
    for (const ShardFolder& folder : shard_folders(data)) places.push_back(folder.path);
  }
  for (const fs::path& place : places) {
    const bool directory = fs::is_directory(place, error);
    if (asked.empty() && !(directory && fs::exists(place / "tokenizer.json", error))) continue;
    codec.file_ = tokenizer_file(place.string());
    try {
      codec.tokenizer_ = open_tokenizer(place.string());
    } catch (const std::exception& refused) {
      if (!asked.empty()) throw;
      codec.why_not_ = refused.what();
      break;
    }
    codec.tokenizes_ = ::tokenizes_text(*codec.tokenizer_);
    const std::vector<int32_t> letter = codec.tokenizer_->encode("a", false);
    codec.puts_space_ = !letter.empty() && begins_with_space(*codec.tokenizer_, letter[0]);
    return codec;
  }
  codec.bytes_ = config.V <= 256 && codec.file_.empty();
  return codec;
}

std::pair<std::string, std::string> TextCodec::begin_and_end() const {
  Json begin, end;
  bool named = false;
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {  // the second one takes precedence
    const fs::path other = fs::path(file_).parent_path() / name;
    std::error_code error;
    if (!fs::is_regular_file(other, error)) continue;
    const Json config = Json::read(other.string());
    for (auto& [key, token] : {std::pair<const char*, Json&>{"bos_token", begin}, {"eos_token", end}}) {
      if (!config.is_object() || !config.contains(key)) continue;
      named = true;
      token = config.at(key).is_object() ? config.at(key).at("content") : config.at(key);
    }
  }
  const auto text = [](const Json& token) { return token.is_string() ? token.as_string() : std::string(); };
  if (named) return {text(begin), text(end)};
  const auto first = [&](std::initializer_list<const char*> usual) {
    const auto known = std::ranges::find_if(usual, [&](const char* token) { return bool(tokenizer_->id_of(token)); });
    return std::string(known == usual.end() ? "" : *known);
  };
  return {first({"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>"}),
          first({"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"})};
}

std::optional<int32_t> TextCodec::document_token() const {
  if (kept_token_) return *kept_token_;
  const auto [begin, end] = begin_and_end();
  const std::string& token = begin.empty() ? end : begin;
  return token.empty() ? std::nullopt : tokenizer_->id_of(token);
}

std::string TextCodec::description() const {
  if (tokenizer_)
    return format("%s, %d tokens%s", file_.c_str(), tokenizer_->vocabulary_size(),
                  tokenizer_->vocabulary_size() > V_ ? format(", of which the model has %d", V_).c_str() : "");
  if (!why_not_.empty()) return "none: samples are shown as numbers of tokens\n" + why_not_;
  return bytes_ ? "none: a token is a byte" : "none: samples are shown as numbers of tokens (--tokenizer DIR)";
}

std::string TextCodec::identity() const { return reads_bytes() ? "bytes" : checksum(); }

std::string TextCodec::checksum() const {
  if (file_.empty()) return "";
  std::ifstream file(file_, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  REQUIRE(file.is_open() && !bytes.empty(),
          "cannot read %s, which was read at the start\n  put it back, and start again", file_.c_str());
  Checksum checksum;
  checksum.add(bytes.data(), bytes.size());
  return checksum.text();
}

void TextCodec::require_made(const std::string& data) const {
  if (!tokenizer_) return;
  for (const ShardFolder& folder : shard_folders(data)) {
    const fs::path file = fs::path(folder.path) / "tokenizer.json";
    std::error_code error;
    if (!fs::exists(file, error)) {
      const Json* made = folder.manifest.is_null() ? nullptr : folder.manifest.find("tokenizer");
      REQUIRE(!made || !made->at("file").is_null(),
              "the shards in %s are bytes, and %s has tokens of its own\n  write them again with it: dev/data/prepare "
              "--tokenizer",
              folder.path.c_str(), file_.c_str());
      continue;
    }
    if (fs::equivalent(file, file_, error)) continue;
    std::optional<Tokenizer> theirs;
    try {
      theirs = Tokenizer::open(file.string());
    } catch (const std::exception&) {
      continue;  // a tokenizer that cannot be read is not compared
    }
    for (int32_t id = 0; id < std::max(theirs->vocabulary_size(), tokenizer_->vocabulary_size()); ++id) {
      const auto a = theirs->token_of(id), b = tokenizer_->token_of(id);
      const auto shown = [](const std::optional<std::string>& token) { return token ? "\"" + *token + "\"" : "none"; };
      REQUIRE(
          a == b,
          "the shards in %s were made with another tokenizer than %s: token %d is %s there and %s here\n  name data "
          "that was made with the model's: dev/data/prepare --tokenizer",
          folder.path.c_str(), file_.c_str(), id, shown(a).c_str(), shown(b).c_str());
    }
  }
}

void TextCodec::require_in_model(std::span<const int32_t> tokens, const char* what) const {
  const auto beyond = std::ranges::find_if(tokens, [&](int32_t token) { return token >= V_; });
  if (beyond == tokens.end()) return;
  fail_beyond_vocabulary(format("%s \"%s\"", what, tokenizer_->token_of(*beyond).value_or("").c_str()), *beyond, V_,
                         {tokenizer_->vocabulary_size(), file_});
}

std::vector<int32_t> TextCodec::encode(const std::string& text, bool begin) const {
  if (tokenizer_) {
    std::vector<int32_t> tokens = tokenizer_->encode(text, begin);
    require_in_model(tokens);
    return tokens;
  }
  std::vector<int32_t> tokens;
  if (bytes_) {
    for (char c : text) tokens.push_back(int32_t(static_cast<unsigned char>(c)));
    for (int32_t token : tokens) REQUIRE(token < V_, "byte %d of a text, and the model has %d tokens", token, V_);
    return tokens;
  }
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    size_t used = 0;
    long token = -1;
    try {
      token = std::stol(word, &used);
    } catch (const std::exception&) {
    }
    REQUIRE(used == word.size() && token >= 0 && token < V_,
            "\"%s\" is no token's number below %d, and %s\n  give numbers, as in '128000 9906', "
            "or name its tokenizer: --tokenizer DIR",
            word.c_str(), V_, why_none().c_str());
    tokens.push_back(int32_t(token));
  }
  return tokens;
}

std::string TextCodec::why_none() const {
  return why_not_.empty() ? "the model has no tokenizer here" : "the model's tokenizer is not supported:\n" + why_not_;
}

std::vector<int32_t> TextCodec::prompt(const std::string& text, int32_t start) const {
  if (!text.empty()) {
    std::vector<int32_t> tokens = encode(text, true);
    if (const size_t begin = tokenizer_ ? tokenizer_->begin_tokens().size() : 0;
        begin > 0 && tokens.size() >= 2 * begin) {
      const auto second = tokens.begin() + ptrdiff_t(begin);
      if (std::equal(tokens.begin(), second, second)) tokens.erase(tokens.begin(), second);
    }
    return tokens;
  }
  if (start >= 0) return {start};
  const auto tokens_of = [&](const char* few, bool begin) {
    std::vector<int32_t> tokens = tokenizer_ ? tokenizer_->encode(few, begin) : std::vector<int32_t>();
    std::erase_if(tokens, [&](int32_t token) { return token >= V_; });
    return tokens;
  };
  std::vector<int32_t> tokens = tokens_of("", true);
  if (!tokens.empty()) return tokens;
  if (bos_ >= 0 && bos_ < V_ && !bytes_) return {bos_};
  tokens = tokens_of("\n", false);
  return tokens.empty() ? std::vector<int32_t>{V_ > '\n' ? '\n' : 0} : tokens;
}

int64_t TextCodec::bytes_of(int32_t token, bool begins) const {
  if (!tokenizer_) return bytes_ ? 1 : 0;
  return tokenizer_->bytes_of(token) - (begins && puts_space_ && begins_with_space(*tokenizer_, token));
}

TextCodec::Writer::Writer(const TextCodec& codec) : codec_(codec) {
  if (codec.tokenizer_) decoder_.emplace(*codec.tokenizer_, true);
}
std::string TextCodec::Writer::take(int32_t token) {
  if (decoder_) return decoder_->take(token);
  return codec_.bytes_ ? std::string(1, char(token)) : std::to_string(token) + " ";
}
std::string TextCodec::Writer::finish() { return decoder_ ? decoder_->finish() : ""; }
