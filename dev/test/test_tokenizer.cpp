// Covers: the tokenizer: ids and texts of the tokenizers library, streaming, files that it refuses and why, runs of 1
// MB, limits of what a file makes of a text
#include <algorithm>
#include <filesystem>
#include <random>
#include <tuple>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/clock.h"
#include "llmc/base/json.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/pattern.h"
#include "llmc/tokenizer/tokenizer.h"

namespace fs = std::filesystem;

namespace {

const std::string kFolder = "dev/test/tokenizers/";

using Ids = std::vector<int32_t>;

// A case of expected.json: a text, or bytes that are none.
std::string text_of(const Json& json) {
  if (json.contains("text")) return json.get_string("text");
  const std::string& hex = json.get_string("bytes");
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += char(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip) {
  StreamingDecoder decoder(tokenizer, skip);
  std::string text;
  for (int32_t id : ids) {
    text += decoder.take(id);
    CHECK(is_utf8(text));
  }
  return text + decoder.finish();
}

// A small file: a, b, ab, aab and what `changes` says.
Json small_file() {
  return Json::parse(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
    "pre_tokenizer":null,"post_processor":null,"decoder":null,
    "model":{"type":"BPE","dropout":null,"unk_token":null,"fuse_unk":false,"byte_fallback":false,
      "vocab":{"a":0,"b":1," ":2,"ab":3,"aab":4},"merges":["a b",["a","ab"]]}})",
                     "small.json");
}

// An added token, whose flags are those that `flags` names.
Json added_token(int64_t id, const std::string& content, const std::string& flags) {
  Json token = Json::object().set("id", id).set("content", content);
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"})
    token.set(flag, flags.find(flag) != flags.npos);
  return token;
}

// Returns the error of opening the file, with this value for `key` of the file or of its model.
std::string refusal(const std::string& part, const std::string& key, const std::string& value) {
  const auto json_of = [](const std::string& s) { return Json::parse(s, "small.json"); };
  Json json = small_file(), inner = part.empty() ? json : json.at(part);
  inner.set(key, json_of(value));
  json = part.empty() ? inner : json.set(part, inner);
  return error_of([&] { Tokenizer(json_of(json.dump())); });
}

}  // namespace

TEST_CASE("ids and texts are those of the tokenizers library") {
  const Json expected = Json::read(kFolder + "expected.json");
  for (const auto& [name, cases] : expected.items()) {
    CAPTURE(name);
    const Tokenizer tokenizer = Tokenizer::open(kFolder + name + ".json");
    TextEncoder encoder(tokenizer);
    for (const Json& json : cases.elements()) {
      const std::string text = text_of(json);
      CAPTURE(text);
      Ids want;
      for (const Json& id : json.at("ids").elements()) want.push_back(int32_t(id.as_int()));
      CHECK(tokenizer.encode(text, true) == want);
      CHECK(encoder.encode(text, true) == want);  // which has seen other texts before
      for (bool skip : {false, true}) {
        const std::string decoded = json.get_string(skip ? "without_special" : "decoded");
        CHECK(tokenizer.decode(want, skip) == decoded);
        CHECK(streamed(tokenizer, want, skip) == decoded);
      }
    }
    CHECK(cases.size() > 100);
  }
}

TEST_CASE("tokens, ids, what is special, begin and end") {
  const Tokenizer tokenizer = Tokenizer::open(kFolder + "llama3.json");
  const int32_t begin = *tokenizer.id_of("<|begin_of_text|>");
  CHECK(tokenizer.token_of(begin) == "<|begin_of_text|>");
  CHECK(tokenizer.is_special(begin));
  CHECK(!tokenizer.is_special(*tokenizer.id_of("<|added|>")));
  CHECK(!tokenizer.is_special(*tokenizer.id_of("a")));
  CHECK(!tokenizer.is_special(-1));
  CHECK(tokenizer.begin_tokens() == Ids{begin});
  CHECK(tokenizer.encode("", true) == Ids{begin});
  CHECK(tokenizer.token_of(tokenizer.vocabulary_size() - 1) == "<|right|>");
  CHECK(!tokenizer.token_of(tokenizer.vocabulary_size()));
  CHECK(!tokenizer.token_of(-1));
  CHECK(!tokenizer.id_of("no such token"));
  CHECK(tokenizer.encode("Ab", false).front() != begin);
  CHECK(tokenizer.encode("Ab", true).front() == begin);
  CHECK(tokenizer.encode("", true) == Ids{begin});
  CHECK(tokenizer.encode("<|begin_of_text|>", false) == Ids{begin});
  CHECK(tokenizer.decode(Ids{begin, 1 << 20, -5, *tokenizer.id_of("a")}, true) == "a");
  // Whole words that no merges reach.
  CHECK(tokenizer.encode(" unreachable", false) == Ids{*tokenizer.id_of("Ġunreachable")});
  CHECK(tokenizer.encode(" unreachable", false).size() + 1 < tokenizer.encode(" unreachables", false).size());
}

TEST_CASE("streaming: what is decided comes at once, the rest waits for the end of its bytes, also of a first space") {
  const Tokenizer bytes = Tokenizer::open(kFolder + "llama3.json");
  StreamingDecoder first(bytes, true);
  CHECK(first.take(*bytes.id_of("a")) == "a");
  CHECK(first.take(*bytes.id_of("ð")).empty());  // f0 9f 98 80
  CHECK(first.take(*bytes.id_of("Ł")).empty() == !bytes.id_of("ðŁĺ").has_value());

  const Tokenizer llama2 = Tokenizer::open(kFolder + "llama2.json");
  StreamingDecoder decoder(llama2, true);
  const std::string no = "\ufffd", end = "";  // the last one of a text, and what finish() gives
  const std::pair<std::string, std::string> steps[] = {
      {"▁", ""},      {"▁", " "},           {"<0xE2>", ""}, {"<0x82>", ""}, {"<0xAC>", ""}, {"a", "€a"}, {"<0xE2>", ""},
      {"<0x82>", ""}, {"b", no + no + "b"}, {"<0x41>", ""}, {end, "A"},     {"▁", ""},      {end, ""}};
  for (const auto& [token, text] : steps) {
    CAPTURE(token);
    CHECK((token == end ? decoder.finish() : decoder.take(llama2.id_of(token).value())) == text);
  }
}

TEST_CASE("streaming equals decoding whole, for ids by chance") {
  std::mt19937 random(3);
  for (const char* name : {"llama3.json", "llama2.json"}) {
    const Tokenizer tokenizer = Tokenizer::open(kFolder + name);
    for (int round = 0; round < 300; ++round) {
      Ids ids(random() % 40);
      const int32_t most = round % 2 ? 300 : tokenizer.vocabulary_size() + 3;  // the first ones are mostly bytes
      for (int32_t& id : ids) id = int32_t(random() % uint32_t(most));
      for (bool skip : {false, true}) CHECK(streamed(tokenizer, ids, skip) == tokenizer.decode(ids, skip));
    }
  }
}

TEST_CASE("long runs of one character take no more than seconds") {
  for (const char* name : {"llama3.json", "llama2.json"}) {
    const Tokenizer tokenizer = Tokenizer::open(kFolder + name);
    for (const char* unit : {"a", " ", "7", "\n", "é", "中", "👍", "'", "\xff", "<|", " a", "<s>"}) {
      CAPTURE(name);
      CAPTURE(unit);
      std::string text;
      while (text.size() < (1 << 20)) text += unit;
      const double begin = seconds();
      const Ids ids = tokenizer.encode(text, false);
      CHECK(seconds() - begin < 20);
      const bool same = tokenizer.decode(ids, false) == repaired_utf8(text);  // not a MB of it in a message
      CHECK(same);
    }
  }
}

TEST_CASE("merges: the first of the list, then the leftmost") {
  const Tokenizer tokenizer((small_file()));
  CHECK(tokenizer.encode("aab", false) == Ids{4});
  CHECK(tokenizer.encode("aaab", false) == Ids{0, 4});
  CHECK(tokenizer.encode("abaabb", false) == Ids{3, 4, 1});
  CHECK(tokenizer.encode("axb", false) == Ids{3});  // x is unknown and there is no token for that: it is dropped
  CHECK(tokenizer.decode(Ids{3, 4, 7}, false) == "ab aab");
  CHECK(tokenizer.vocabulary_size() == 5);

  Json json = small_file();
  Json model = json.at("model");
  Json vocabulary = model.at("vocab");
  model.set("vocab", vocabulary.set("b a", 5)).set("ignore_merges", true);
  const Tokenizer whole(json.set("model", model));
  CHECK(whole.encode("b a", false) == Ids{5});
  CHECK(whole.encode("b ab", false) == Ids{1, 2, 3});
}

TEST_CASE("added tokens: of several at one place the longest, and text between them") {
  Json tokens = Json::array();
  for (const char* content : {"<s>", "<s>b", "<"})
    tokens.push_back(added_token(5 + int64_t(tokens.size()), content, ""));
  const Tokenizer tokenizer(small_file().set("added_tokens", tokens));
  CHECK(tokenizer.encode("<s>b<s>ab<sa<s", false) == Ids{6, 5, 3, 7, 0, 7});
}

TEST_CASE("added tokens: one that is listed twice has the last flags, and is special if either says so") {
  const Json twice =
      Json().push_back(added_token(5, "<s>", "lstrip special")).push_back(added_token(5, "<s>", "rstrip"));
  const Tokenizer tokenizer(small_file().set("added_tokens", twice));
  CHECK(tokenizer.encode("a <s> b", false) == Ids{0, 2, 5, 1});
  CHECK(tokenizer.is_special(5));
}

TEST_CASE("unknown characters: their bytes, one token, fused or not, or nothing") {
  const auto encode = [](const std::string& options, const std::string& text) {
    Json json = small_file();
    json.set("model", Json::parse(R"({"type":"BPE","merges":["a b"],"vocab":{"<unk>":0,"a":1,"b":2,"ab":3,"<0xC3>":4,
                                  "<0xA9>":5},)" +
                                      options + "}",
                                  "model"));
    return Tokenizer(json).encode(text, false);
  };
  const std::string fused = R"("unk_token":"<unk>","fuse_unk":true)";
  CHECK(encode(fused, "aèéab") == Ids{1, 0, 3});
  CHECK(encode(R"("unk_token":"<unk>","fuse_unk":false)", "aèéab") == Ids{1, 0, 0, 3});
  CHECK(encode(R"("unk_token":null)", "aèéab") == Ids{1, 3});
  // Only é has both its bytes in the vocabulary; what is unknown comes after them, as it does in the library.
  CHECK(encode(fused + R"(,"byte_fallback":true)", "aèéab") == Ids{1, 4, 5, 0, 3});
  CHECK(encode(fused + R"(,"byte_fallback":true)", "zézab") == Ids{4, 5, 0, 3});
}

TEST_CASE("splits: what becomes of the delimiter") {
  const auto encode = [](const std::string& pattern, const std::string& behavior, const std::string& text) {
    Json json = Json::parse(R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"aa":3,"ba":4},
                                "merges":["a b","b a","a a"]}})",
                            "split.json");
    Json split = Json::object().set("type", "Split").set("behavior", behavior).set("invert", pattern == "[^a]");
    json.set("pre_tokenizer", split.set("pattern", Json::object().set("Regex", pattern)));
    return Tokenizer(json).encode(text, false);
  };
  for (const char* a : {"a", "[^a]"}) {  // the same delimiters, the second one inverted
    CHECK(encode(a, "Isolated", "abab") == Ids{0, 1, 0, 1});
    CHECK(encode(a, "Removed", "aabab") == Ids{1, 1});
    CHECK(encode(a, "MergedWithPrevious", "baab") == Ids{4, 0, 1});
    CHECK(encode(a, "MergedWithNext", "baab") == Ids{1, 0, 2});
    CHECK(encode(a, "Contiguous", "baab") == Ids{1, 3, 1});
  }
  CHECK(encode("x", "Isolated", "baab") == Ids{4, 2});
}

TEST_CASE("decoders: each step sees the tokens, or after Fuse one text") {
  const auto decode = [](const std::string& steps, const Ids& ids) {
    const Json json =
        Json::parse(R"({"model":{"type":"BPE","merges":[],"vocab":{"_a_":0,"_b":1,"__":2,"c":3,"<0x5f>":4}},
                                     "decoder":{"type":"Sequence","decoders":[)" +
                        steps + "]}}",
                    "decoder.json");
    const Tokenizer tokenizer(json);
    CHECK(streamed(tokenizer, ids, false) == tokenizer.decode(ids, false));
    return tokenizer.decode(ids, false);
  };
  const auto strip = [](int start, int stop) {
    return format(R"({"type":"Strip","content":"_","start":%d,"stop":%d})", start, stop);
  };
  const std::string fuse = R"({"type":"Fuse"},)", bytes = R"({"type":"ByteFallback"},)";
  const std::string replace = R"({"type":"Replace","pattern":{"String":"_b"},"content":"B"})";
  CHECK(decode(strip(1, 0), {0, 1, 2, 3}) == "a_b_c");
  CHECK(decode(strip(0, 1), {0, 1, 3, 0}) == "_a_bc_a");
  CHECK(decode(fuse + strip(1, 0), {2, 0, 3}) == "__a_c");
  CHECK(decode(fuse + strip(3, 0), {2, 0, 3}) == "a_c");
  CHECK(decode(fuse + strip(0, 2), {3, 0, 2}) == "c_a_");
  CHECK(decode(fuse + strip(0, 2), {3, 2, 3, 0}) == "c__c_a");
  CHECK(decode(replace, {0, 1, 2, 1}) == "_a_B__B");
  CHECK(decode(fuse + replace, {2, 3, 1}) == "__cB");
  CHECK(decode(fuse + R"({"type":"Replace","pattern":{"Regex":"_c+"},"content":"C"})", {2, 3, 3}) == "_C");
  CHECK(decode(bytes + fuse + strip(1, 0), {4, 4, 3}) == "_c");
  CHECK(decode(R"({"type":"Metaspace","replacement":"_"})", {0, 1}) == "a b");
  CHECK(decode(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"never"})", {0, 1}) == " a  b");
}

TEST_CASE("many words: the cache is full and begins anew") {
  const Tokenizer tokenizer = Tokenizer::open(kFolder + "llama3.json");
  TextEncoder encoder(tokenizer);
  std::string text;
  for (int i = 0; i < 150000; ++i)
    text += " w" + std::string(1, char('a' + i % 26)) +
            format("%c%c%c", 'a' + i / 26 % 26, 'a' + i / 676 % 26, 'a' + i / 17576 % 26);
  CHECK(tokenizer.decode(encoder.encode(text, false), false) == text);
  CHECK(encoder.encode(text, false) == tokenizer.encode(text, false));
}

TEST_CASE("files: what is not supported is refused by name and place") {
  const std::string split = R"({"type":"Split","pattern":)", isolated = R"(,"behavior":"Isolated"})",
                    metaspace = R"({"type":"Metaspace","replacement":"_",)",
                    around = R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}})";
  const auto sequence = [](const char* steps) { return format(R"({"type":"Sequence","pretokenizers":[%s]})", steps); };
  const std::tuple<const char*, const char*, std::string, const char*> cases[] = {
      {"", "normalizer", R"({"type":"Precompiled","precompiled_charsmap":"AA=="})",
       "small.json: \"normalizer\" has the type \"Precompiled\", which is not supported\n  supported here: "
       "Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase"},
      {"", "normalizer",
       R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"x"},{"type":"StripAccents"}]})",
       "\"normalizer.normalizers[1]\" has the type \"StripAccents\""},
      {"", "normalizer", R"({"type":"NFC","form":"D"})", "\"normalizer.form\" is not supported"},
      {"", "normalizer", R"({"type":"Replace","pattern":{"String":""},"content":"x"})", "empty string"},
      {"", "pre_tokenizer", sequence(R"({"type":"Punctuation"})"),
       "\"pre_tokenizer.pretokenizers[0]\" has the type \"Punctuation\""},
      {"", "pre_tokenizer", split + R"({"Regex":"a"},"behavior":"Some"})", "the string \"Some\""},
      {"", "pre_tokenizer", split + R"({"Regex":"a","String":"b"})" + isolated, "2 keys"},
      {"", "pre_tokenizer", split + R"({"Regex":"\\bx"})" + isolated,
       "\"pre_tokenizer.pattern.Regex\": the pattern has \"\\b\" at byte 0"},
      {"", "pre_tokenizer", split + R"({"Regex":"(?<=x+)y"})" + isolated, "PCRE2 does not take the pattern"},
      {"", "pre_tokenizer", sequence(R"({"type":"ByteLevel","add_prefix_space":false},
                        {"type":"Split","pattern":{"String":"x"},"behavior":"Isolated"})"),
       "\"pre_tokenizer.pretokenizers[1]\" stands after ByteLevel"},
      {"", "pre_tokenizer", R"({"type":"Metaspace","replacement":"__"})", "expected one character"},
      {"", "pre_tokenizer", metaspace + R"("add_prefix_space":false})", "never"},
      {"", "pre_tokenizer", metaspace + R"("prepend_scheme":"last"})", "always, first or never"},
      {"", "pre_tokenizer", metaspace + R"("cut":true})", "\"pre_tokenizer.cut\""},
      {"", "post_processor", R"({"type":"RobertaProcessing"})", "TemplateProcessing, ByteLevel"},
      {"", "post_processor", around + R"(],"special_tokens":{"<s>":{"ids":[1]}}})", "0 places for the text"},
      {"", "post_processor", around + R"(,{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[77]}}})",
       "puts the id 77 around a text"},
      {"", "decoder", R"({"type":"WordPiece"})", "\"decoder\" has the type \"WordPiece\""},
      {"", "version", "\"2.0\"", "expected \"1.0\""},
      {"", "spelling", "true", "\"spelling\" is not supported"},
      {"model", "type", "\"Unigram\"", "\"model\" has the type \"Unigram\""},
      {"model", "dropout", "0.1", "expected null"},
      {"model", "parallel", "true", "\"model.parallel\" is not supported"},
      {"model", "merges", R"(["a b c"])", "\"model.merges[0]\" is the string \"a b c\""},
      {"model", "merges", R"(["ab"])", "one space between them"},
      {"model", "merges", R"([["a"]])", "two tokens"},
      {"model", "merges", R"(["a x"])", "merges to or from \"x\""},
      {"model", "merges", R"(["b a"])", "merges to or from \"ba\""},
      {"model", "vocab", R"({"a":0,"b":0})", "\"model.vocab.b\" has the id 0, which the token \"a\" has already"},
      {"model", "vocab", R"({"a":-1})", "the id -1"},
      {"model", "vocab", R"({"a":99999999999})", "from 0 to 16777215"},
      {"model", "vocab", R"({"a":"0"})", "expected an integer"},
      {"model", "vocab", R"([])", "expected an object"},
      {"model", "unk_token", "7", "expected a string"}};
  for (const auto& [part, key, value, error] : cases) {
    CAPTURE(value);
    says(refusal(part, key, value), error);
  }
  CHECK(refusal("model", "dropout", "0.0").empty());
}

TEST_CASE("files: truncation and padding are left out: a text keeps all its tokens and gets no others") {
  Json json = small_file();
  json.set("truncation",
           Json::parse(R"({"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0})", ""));
  json.set("padding", Json::parse(R"({"strategy":{"Fixed":8},"direction":"Left","pad_to_multiple_of":null,"pad_id":0,
                                      "pad_type_id":0,"pad_token":"a"})",
                                  ""));
  CHECK(Tokenizer(json).encode("abaabb", false) == Ids{3, 4, 1});
}

TEST_CASE("files: what a file makes of a text is limited") {
  const auto sequence = [](const char* list, const std::string& step, int times) {
    std::string steps;
    for (int i = 0; i < times; ++i) steps += (i ? "," : "") + step;
    return format(R"({"type":"Sequence","%s":[%s]})", list, steps.c_str());
  };
  const auto made = [](const char* key, const std::string& value) {
    return Tokenizer(Json::parse(small_file().set(key, Json::parse(value, "")).dump(), "small.json"));
  };
  const std::string doubles = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})", text(50000, 'a'),
                    huge =
                        R"({"type":"Replace","pattern":{"String":"a"},"content":")" + std::string(1 << 20, 'b') + "\"}";
  const double begin = seconds();
  for (const std::string& steps : {sequence("normalizers", doubles, 30), huge}) {
    const Tokenizer tokenizer = made("normalizer", steps);
    says(error_of([&] { tokenizer.encode(text, false); }), "\"normalizer", "grows to more than 16 times its length");
  }
  says(error_of([&] {
         made("normalizer", sequence("normalizers", R"({"type":"Prepend","prepend":"aaaa"})", 4)).encode("", false);
       }),
       "");
  for (const std::string& steps : {sequence("decoders", doubles, 30), huge}) {
    const Tokenizer tokenizer = made("decoder", steps);
    says(error_of([&] { tokenizer.decode(Ids(50000, 0), false); }), "\"decoder", "grows to more than 16 times");
  }
  // Each of these cuts every character off and puts another one before it: twice as many words.
  std::string pairs;
  for (int i = 0; i < 15; ++i)
    pairs += format(
        R"(%s{"type":"Metaspace","replacement":"%c"},{"type":"Split","pattern":{"Regex":"."},"behavior":"Isolated"})",
        i ? "," : "", 'c' + i);
  const Tokenizer words = made("pre_tokenizer", R"({"type":"Sequence","pretokenizers":[)" + pairs + "]}");
  says(error_of([&] { words.encode(text, false); }), "Metaspace: the text grows to more than 16 times");

  // Searches that look at all that follows, from each character; and short ones that are exponential, in each word.
  const auto isolated = [](const char* expression) {
    return format(R"({"type":"Split","pattern":{"Regex":"%s"},"behavior":"Isolated"})", expression);
  };
  const Tokenizer quadratic = made("pre_tokenizer", isolated("(?=(?:[^c]|d)*c)a|b|."));
  says(error_of([&] { quadratic.encode(text, false); }), "gave up matching a text of 50000 bytes");
  std::string short_words;
  for (int i = 0; i < 3000; ++i) short_words += "aaaaaaaaaaaaaaaab ";
  const Tokenizer exponential = made("pre_tokenizer", R"({"type":"Sequence","pretokenizers":[)" + isolated(" ") + "," +
                                                          isolated("(?:a+)+[cd]") + "]}");
  says(error_of([&] { exponential.encode(short_words, false); }), "gave up matching a text of 17 bytes");
  printf("what a file makes of a text ended within %.1f s\n", seconds() - begin);
  CHECK(seconds() - begin < 60);

  // An added token of white space, which takes all the white space on its right, at each of 2^20 spaces.
  CHECK(made("added_tokens", Json().push_back(added_token(2, " ", "rstrip special")).dump())
            .encode(std::string(1 << 20, ' '), false) == Ids(1 << 20, 2));
  CHECK(seconds() - begin < 60);

  const std::string long_word = "\"" + std::string(300, 'x') + "\"", none = R"({"type":"Fuse"})";
  CHECK(refusal("", "decoder", sequence("decoders", none, 32)).empty());
  says(refusal("", "decoder", sequence("decoders", none, 33)), "\"decoder.decoders[32]\" is a step after 32 others");
  says(refusal("", "normalizer", sequence("normalizers", doubles, 33)), "is a step after 32 others");
  says(refusal("", "pre_tokenizer", sequence("pretokenizers", R"({"type":"Digits"})", 33)),
       "is a step after 32 others");
  says(refusal("model", "continuing_subword_prefix", long_word), "has 300 bytes\n  expected at most 256");
  says(refusal("", "added_tokens", Json().push_back(added_token(5, std::string(300, 'x'), "special")).dump()),
       "\"added_tokens[0].content\" has 300 bytes");
  says(refusal("", "pre_tokenizer", isolated(std::string(70000, 'x').c_str())),
       "has 70000 bytes\n  expected at most 65536");
  says(refusal("", "decoder", R"({"type":"Strip","content":"_","start":-1,"stop":0})"),
       "is the integer -1\n  expected 0 to 256");
  std::string ids = "0";
  for (int i = 0; i < 300; ++i) ids += ",0";
  says(refusal("", "post_processor",
               R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"a"}},{"Sequence":{"id":"A"}}],
                   "special_tokens":{"a":{"ids":[)" +
                   ids + "]}}}"),
       "more than 256 tokens around a text");
}

TEST_CASE("files: wrong added tokens") {
  // Each with an id and a content.
  const auto added = [](const std::vector<std::pair<int, std::string>>& tokens) {
    Json all = Json::array();
    for (const auto& [id, content] : tokens) all.push_back(added_token(id, content, "special"));
    return refusal("", "added_tokens", all.dump());
  };
  CHECK(added({{5, "<s>"}}).empty());
  CHECK(added({{3, "ab"}, {5, "<s>"}}).empty());
  says(added({{6, "<s>"}}), "has the id 6\n  expected 5: the next one");
  says(added({{5, "ab"}}), "expected 3: the model's vocabulary says so");
  CHECK(added({{5, "x"}, {5, "x"}, {6, "y"}}).empty());  // listed twice, as one of Yi's files does
  says(added({{5, "x"}, {6, "x"}}), "has the id 6\n  expected 5, which it was added with before");
  says(added({{5, "x"}, {7, "y"}}), "expected 6");
  says(refusal("", "added_tokens", R"([{"id":5}])"), "\"added_tokens[0]\" has no key \"content\"");

  Json json = small_file();
  Json model = json.at("model");
  const Tokenizer tokenizer(json.set("model", model.set("unk_token", "<unk>")));
  CHECK(tokenizer.encode("ab", false) == Ids{3});
  says(error_of([&] { tokenizer.encode("abx", false); }), "the unk_token \"<unk>\" is needed");
}

TEST_CASE("files: a directory, one that is missing, one that is cut short") {
  says(error_of([] { Tokenizer::open("dev/test/tokenizers/none.json"); }), "No such file");
  says(error_of([] { Tokenizer::open("dev/test/tokenizers"); }), "dev/test/tokenizers/tokenizer.json: No such file");
  const TemporaryFolder folder;
  fs::copy_file(kFolder + "llama2.json", folder / "tokenizer.json");
  CHECK(Tokenizer::open(folder.path()).vocabulary_size() == 1500);
  fs::resize_file(folder / "tokenizer.json", 20000);
  says(error_of([&] { Tokenizer::open(folder.path()); }), "tokenizer.json, line ");
}

TEST_CASE("no bytes end the program") {
  std::mt19937 random(11);
  for (const char* name : {"llama3.json", "llama2.json"}) {
    TextEncoder encoder(Tokenizer::open(kFolder + name));
    for (int round = 0; round < 3000; ++round) {
      std::string text(random() % 60, '\0');
      for (char& c : text) c = char(round % 2 ? random() : " \n'<|>s\xe2\x96\x81\xc3\xa9"[random() % 13]);
      const Ids ids = encoder.encode(text, false);
      CHECK(ids == encoder.encode(repaired_utf8(text), false));
    }
  }
}

TEST_CASE("special tokens that a text spells are letters where text is only text") {
  const Tokenizer tokenizer = Tokenizer::open(kFolder + "llama3.json");
  const auto has_id = [&](const Ids& ids, const char* token) {
    return std::find(ids.begin(), ids.end(), *tokenizer.id_of(token)) != ids.end();
  };
  const std::string text = "of <|end_of_text|> and <|added|> and  <|strips|>  end";
  const Ids found = tokenizer.encode(text, false), letters = TextEncoder(tokenizer, true).encode(text, false);
  for (const char* special : {"<|end_of_text|>", "<|strips|>"}) {
    CHECK(has_id(found, special));
    CHECK(!has_id(letters, special));
  }
  CHECK(has_id(found, "<|added|>"));
  CHECK(has_id(letters, "<|added|>"));
  CHECK(tokenizer.decode(letters, false) == text);
}
