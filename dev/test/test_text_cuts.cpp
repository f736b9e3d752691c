// Covers: long texts cut into parts that have the ids of the whole, also of Qwen's files; digits as words of their own
#include <random>

#include "dev/test/test.h"
#include "llmc/base/json.h"
#include "llmc/tokenizer/tokenizer.h"

namespace {

const std::string kFolder = "dev/test/tokenizers/";

using Ids = std::vector<int32_t>;

// Llama 3's file, of which all added tokens are special, as in the published ones; with another pre-tokenizer.
Json all_special(const std::string& pre_tokenizer) {
  Json file = Json::read(kFolder + "llama3.json"), added = Json::array();
  for (const Json& token : file.at("added_tokens").elements())
    added.push_back(Json(token).set("special", true).set("normalized", false));
  file.set("added_tokens", added);
  if (!pre_tokenizer.empty()) file.set("pre_tokenizer", Json::parse(pre_tokenizer, "a pre-tokenizer"));
  return Json::parse(file.dump(), "a file");
}

// The same with NFC and two more added tokens, which are not special; one of them is normalized itself.
Json like_qwen(const std::string& pre_tokenizer) {
  Json file = all_special(pre_tokenizer), added = file.at("added_tokens");
  const auto id = int64_t(Tokenizer(file).vocabulary_size());
  const Json flags = Json(added.at(size_t(0))).set("special", false);
  added.push_back(Json(flags).set("content", "<|e\u0301|>").set("id", id).set("normalized", true));
  added.push_back(Json(flags).set("content", "word").set("id", id + 1));
  file.set("added_tokens", added).set("normalizer", Json::parse(R"({"type":"NFC"})", "NFC"));
  return Json::parse(file.dump(), "a file");
}

const std::string kGpt2 = R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
// OLMo 2 drops what is between the matches of Llama 3's expression; nothing is.
const std::string kRemoved =
    R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Removed","invert":true,"pattern":{"Regex":)"
    R"("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|)"
    R"(\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},)" +
    std::string(R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})");
const std::string kDigits = R"({"type":"Digits","individual_digits":true})";
std::string sequence(const std::string& a, const std::string& b) {
  return R"({"type":"Sequence","pretokenizers":[)" + a + "," + b + "]}";
}

}  // namespace

TEST_CASE("a long text is cut where the parts have the ids of the whole") {
  const std::vector<std::string> parts_of_texts = {
      "\n",  "\n", "\n",   "\r", " ", "  ",     "\t",     "a",      "B",          "7",
      "42",  ".",  "'s",   "é",  "½", "\u3000", "\u0085", "\xff",   "\xe2\x80",   "<|added|>",
      "ĊĊĊ", "。", "word", "Ⅳ",  "e", "\u0301", "\u0323", "\u2000", "<|e\u0301|>"};
  std::mt19937 random(5);
  // Those that change a text are as Qwen's files: they have NFC, and added tokens that are not special.
  const std::pair<std::string, bool> cases[] = {{"", false},       {kGpt2, false}, {sequence(kDigits, kGpt2), false},
                                                {kRemoved, false}, {"", true},     {kGpt2, true}};
  for (const auto& [pre_tokenizer, changes] : cases) {
    CAPTURE(pre_tokenizer);
    CAPTURE(changes);
    const Tokenizer tokenizer(changes ? like_qwen(pre_tokenizer) : all_special(pre_tokenizer));
    TextEncoder encoder(tokenizer, true);
    size_t cuts = 0;
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      for (size_t i = random() % 20; i > 0; --i) text += parts_of_texts[random() % parts_of_texts.size()];
      const Ids whole = encoder.encode(text, false);
      for (size_t cut = 0; (cut = tokenizer.next_cut(text, cut)) < text.size(); ++cuts) {
        Ids parts = encoder.encode(text.substr(0, cut), false);
        encoder.encode(text.substr(cut), false, parts);
        CAPTURE(text);
        CAPTURE(cut);
        CHECK(parts == whole);
      }
    }
    CHECK(cuts > 500);
    const std::string lines = "A line.\nAnother\n\nA paragraph.\r\nEnd\n";
    // GPT-2's newline is a word of its own: white space before it is another one, but before an added token.
    const bool own_word = pre_tokenizer.ends_with(kGpt2) || pre_tokenizer.ends_with(kGpt2 + "]}");
    CHECK(tokenizer.next_cut(lines, 0) == 8);
    CHECK(tokenizer.next_cut(lines, 8) == (!own_word ? 17 : changes ? 35 : 16));
    CHECK(tokenizer.next_cut(lines, 17) == (!own_word ? 31 : changes ? 35 : 30));
    CHECK(tokenizer.next_cut(lines, 31) == lines.size());
  }
  // Nothing is proven next to added tokens that are found, or where the pattern or the normalizer is another.
  for (const char* name : {"llama3.json", "llama2.json"})
    CHECK(Tokenizer::open(kFolder + name).next_cut("a\nb\nc", 0) == 5);
  for (const std::string other :
       {R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})",
        R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false})",
        R"({"type":"Split","pattern":{"Regex":"\\n+"},"behavior":"Isolated","invert":false})"})
    CHECK(Tokenizer(all_special(other)).next_cut("a\nb\nc", 0) == 5);
}

TEST_CASE("digits are words of their own, one by one or together") {
  const auto words_of = [](bool single) {
    return Tokenizer(all_special(sequence(single ? kDigits : R"({"type":"Digits","individual_digits":false})", kGpt2)));
  };
  const Tokenizer single = words_of(true), together = words_of(false), gpt2(all_special(kGpt2));
  const auto ids = [](const Tokenizer& tokenizer, const std::vector<std::string>& words) {
    Ids all;
    for (const std::string& word : words) TextEncoder(tokenizer).encode(word, false, all);
    return all;
  };
  CHECK(ids(single, {"of 1789½ and x5"}) == ids(gpt2, {"of", " ", "1", "7", "8", "9", "½", " and", " x", "5"}));
  CHECK(ids(together, {"of 1789½ and x5"}) == ids(gpt2, {"of", " ", "1789½", " and", " x", "5"}));
  CHECK(ids(gpt2, {"of 1789½ and x5"}) == ids(gpt2, {"of", " 1789½", " and", " x", "5"}));
}
