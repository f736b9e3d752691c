// Covers: the tokenizer's normalizer: Unicode's forms and lowercase, steps one after the other, cuts next to a newline,
// limits
#include <map>
#include <random>

#include "dev/test/test.h"
#include "llmc/base/clock.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/normalizer.h"

namespace {

// Returns the text as a normalizer with these steps, a list of objects, changes it.
std::string normal(const std::string& steps, std::string text) {
  const Json json = Json::parse(R"({"type":"Sequence","normalizers":[)" + steps + "]}", "steps");
  PatternScratch scratch;
  scratch.begin_text(text.size());
  Normalizer(&json).apply(text, scratch);
  return text;
}
std::string step(const std::string& type) { return R"({"type":")" + type + "\"}"; }
std::string in_form(const std::string& form, std::string text) {
  static const std::map<std::string, Json> forms = [] {
    std::map<std::string, Json> all;
    for (const char* type : {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}) all[type] = Json::parse(step(type), type);
    return all;
  }();
  static PatternScratch scratch;
  scratch.begin_text(text.size());
  Normalizer(&forms.at(form)).apply(text, scratch);
  return text;
}

std::string utf8(std::u32string_view characters) {
  std::string text;
  for (char32_t c : characters) append_utf8(text, c);
  return text;
}

// Calls visit(code point, its UTF-8) for each character.
template <class Visit>
void for_all_characters(Visit visit) {
  for (char32_t c = 0; c < 0x110000; ++c)
    if (c < 0xd800 || c >= 0xe000) visit(c, utf8(std::u32string_view(&c, 1)));
}

// Starters, marks of several classes, Hangul, and pairs that compose without a mark.
const std::u32string kAwkward =
    U"aeq\n =<\u00e9\u1e0b\u0301\u0323\u0307\u0345\u0338\u0327\u09c7\u09be\u1100\u1161\u11a8\uac00\u212b\u2126\u0f71"
    U"\u0f72\u0344\u0958\ufb01\U0001d15e\U000110b9\U000110ba\u4e2d\u2000\ufdfa";

}  // namespace

TEST_CASE("the forms of Unicode's examples, and of what composes in other ways") {
  struct Case {
    std::string text, nfc, nfd, nfkc, nfkd;
  };
  for (const Case& c : std::vector<Case>{
           {"cafe\u0301", "caf\u00e9", "cafe\u0301", "caf\u00e9", "cafe\u0301"},
           {"\u212b", "\u00c5", "A\u030a", "\u00c5", "A\u030a"},  // a character that only ever decomposes
           {"\ufb01\u00bd", "\ufb01\u00bd", "\ufb01\u00bd", "fi1\u20442", "fi1\u20442"},
           {"\u1e0b\u0323", "\u1e0d\u0307", "d\u0323\u0307", "\u1e0d\u0307", "d\u0323\u0307"},  // marks in their order
           {"q\u0307\u0323", "q\u0323\u0307", "q\u0323\u0307", "q\u0323\u0307", "q\u0323\u0307"},
           {"\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8"},  // Hangul
           {"\u09c7\u09be", "\u09cb", "\u09c7\u09be", "\u09cb", "\u09c7\u09be"},        // the second one is no mark
           {"\u0958", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c"},  // excluded from composition
           {"a\u0301\u0301b\u0301", "\u00e1\u0301b\u0301", "a\u0301\u0301b\u0301", "\u00e1\u0301b\u0301",
            "a\u0301\u0301b\u0301"},
           {"\u0301", "\u0301", "\u0301", "\u0301", "\u0301"}}) {
    CAPTURE(c.text);
    CHECK(in_form("NFC", c.text) == c.nfc);
    CHECK(in_form("NFD", c.text) == c.nfd);
    CHECK(in_form("NFKC", c.text) == c.nfkc);
    CHECK(in_form("NFKD", c.text) == c.nfkd);
  }
  CHECK(in_form("NFC", "").empty());
  CHECK(in_form("NFKD", utf8(U"\ufdfa")).size() == 33);  // the longest of all: 18 characters
}

TEST_CASE("lowercase is that of each character alone") {
  CHECK(in_form("Lowercase", "ÀΣΑΣ Ⅷ Ⓐ ǅ ẞ") == "àσασ ⅷ ⓐ ǆ ß");
  CHECK(in_form("Lowercase", "\u0130") == "i\u0307");
}

TEST_CASE("steps follow one another") {
  const std::string replace = R"({"type":"Replace","pattern":{"String":"é"},"content":"E\u0301"})";
  CHECK(normal(step("NFC") + "," + replace + "," + step("Lowercase") + "," + step("NFC"), "e\u0301") == "\u00e9");
  CHECK(normal(replace + "," + step("NFD"), "e\u0301") == "e\u0301");
  CHECK(normal(R"({"type":"Prepend","prepend":"e"},)" + step("NFC"), "\u0301") == "\u00e9");
}

TEST_CASE("each form of a form is itself, and composing undoes decomposing") {
  std::mt19937 random(4);
  for (int round = 0; round < 20000; ++round) {
    std::u32string characters;
    for (size_t i = random() % 8; i > 0; --i) characters += kAwkward[random() % kAwkward.size()];
    const std::string text = utf8(characters), nfc = in_form("NFC", text), nfkc = in_form("NFKC", text);
    CAPTURE(text);
    CHECK(in_form("NFC", nfc) == nfc);
    CHECK(in_form("NFC", in_form("NFD", text)) == nfc);
    CHECK(in_form("NFD", nfc) == in_form("NFD", text));
    CHECK(in_form("NFKC", in_form("NFKD", nfc)) == nfkc);
  }
}

TEST_CASE("NFC: a text may be cut before and after a newline, and white space stays what it is") {
  const auto is_digit = [](char32_t c) { return c >= '0' && c <= '9'; };
  std::vector<unsigned> composed_with_it, other_white_space, other_digits;
  for_all_characters([&](char32_t c, const std::string& text) {
    const std::string alone = in_form("NFC", text);
    if (in_form("NFC", "\n" + text) != "\n" + alone || in_form("NFC", text + "\n") != alone + "\n")
      composed_with_it.push_back(c);
    const char32_t first = code_point(std::string_view(alone).substr(0, utf8_start(alone).bytes));
    for (char32_t end : {first, code_point(last_character(alone))})
      if (is_white_space(c) != is_white_space(end)) other_white_space.push_back(c);
    if (is_digit(c) != is_digit(first)) other_digits.push_back(c);
  });
  using None = std::vector<unsigned>;
  CHECK(composed_with_it == None{});
  CHECK(other_white_space == None{});
  CHECK(other_digits == None{});
  std::mt19937 random(9);
  for (int round = 0; round < 20000; ++round) {
    std::u32string characters;
    for (size_t i = random() % 12; i > 0; --i) characters += kAwkward[random() % kAwkward.size()];
    const std::string text = utf8(characters), whole = in_form("NFC", text);
    CAPTURE(text);
    for (size_t at = 0; (at = text.find('\n', at)) != text.npos; ++at)
      for (size_t cut : {at, at + 1})
        CHECK(in_form("NFC", text.substr(0, cut)) + in_form("NFC", text.substr(cut)) == whole);
  }
}

TEST_CASE("work and memory are limited") {
  const double begin = seconds();
  // A megabyte of marks in an awkward order after one letter, of one character, and of what grows most.
  for (const char* unit : {"\u0301\u0323", "\u4e2d", "\ufdfa", "\u1e0b\u0323"}) {
    std::string text = "a";
    while (text.size() < (1 << 20)) text += unit;
    for (const char* form : {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}) CHECK(!in_form(form, text).empty());
  }
  printf("forms of 1 MB took %.1f s\n", seconds() - begin);
  CHECK(seconds() - begin < 60);
  std::string forms;
  for (int i = 0; i < 15; ++i) forms += step(i % 2 ? "NFC" : "NFD") + ",";
  CHECK(normal(forms + step("NFC"), std::string(3000, 'a') + utf8(std::u32string(3000, U'\u0390'))).size() == 9000);
  const std::string grows = R"({"type":"Replace","pattern":{"String":"a"},"content":"\ufdfa\ufdfa"},)" + step("NFKD");
  says(error_of([&] { normal(grows, std::string(50000, 'a')); }), "normalizers[1]", "grows to more than 16 times");
}
