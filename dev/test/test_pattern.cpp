// Covers: the tokenizer's patterns: Oniguruma's in PCRE2's words, searches without end; UTF-8 repaired as Python does
#include "dev/test/test.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/pattern.h"

TEST_CASE("patterns: what means the same is passed on or rewritten, the rest refused") {
  const auto spans = [](const std::string& expression, const std::string& text) {
    const Pattern pattern(pcre2_expression(expression, "p"), "p");
    PatternScratch scratch;
    std::string found;
    pattern.for_each(text, scratch, [&](Pattern::Match m) { found += format("%zu-%zu ", m.begin, m.end); });
    return found;
  };
  CHECK(spans("\\s", "a\u180e\u0085\v ") == "4-6 6-7 7-8 ");  // U+180E is no white space any more
  CHECK(spans("[\\S]", "\u180e ") == "0-3 ");
  CHECK(spans(".", "a\r\n") == "0-1 1-2 ");
  CHECK(spans("(?i:'s|k)", "'S'ſ\u212a") == "0-2 2-5 5-8 ");
  CHECK(spans("x*", "axb") == "0-0 1-2 3-3 ");
  CHECK(spans("x*|(?=b)", "\u00e9xb") == "0-0 2-3 4-4 ");
  CHECK(spans("a{,2}b", "aaab") == "1-4 ");
  CHECK(spans("a{b}", "a{b}") == "0-4 ");
  CHECK(spans("[\\]\\-a-c^]", "]-b^x") == "0-1 1-2 2-3 3-4 ");
  CHECK(spans("\\v\\x41\\x{1F44D}\\u0062", "\vA👍b") == "0-7 ");
  CHECK(spans("\\p{^L}+\\P{N}", "12a") == "0-3 ");
  CHECK(spans("\\s+$", "a \n b \n\n ") == "1-2 5-9 ");  // at the end of each line, too
  CHECK(spans("x?$", "ax\nb\n") == "1-2 4-4 5-5 ");
  const auto refused = [](const std::string& expression) {
    return error_of([&] { pcre2_expression(expression, "p"); });
  };
  for (const char* expression :
       {"^a",      "a$*",     "\\w",     "\\h",    "\\R",         "\\1",         "\\p{Han}", "\\pL",
        "(?<n>a)", "(?i)a",   "(?m:a)",  "[a[b]]", "[a&&b]",      "[[:alpha:]]", "[]a]",     "[a",
        "a{2}?",   "a{1,2}+", "(?i:st)", "(?i:é)", "(?i:\\s)",    "(?i:[^a])",   "[\\s-a]",  "[a-\\s]",
        "[a-c-e]", "(a",      "a)",      "\\",     "\\x{110000}", "\\xe9",       "\\u12",    "\\x{}"}) {
    CAPTURE(expression);
    CHECK(!refused(expression).empty());
  }
  says(refused("a\\Gb"), "p: the pattern has \"\\G\" at byte 1, which is not supported\n  pattern: a\\Gb");
}

TEST_CASE("patterns: one that goes back again and again ends with an error") {
  const Pattern pattern("(?:a+)+[bd]", "p");
  PatternScratch scratch;
  const std::string message = error_of([&] { pattern.find(std::string(60, 'a') + "c", 0, scratch); });
  says(message, "p: gave up matching a text of 61 bytes at byte 0: match limit exceeded");
  CHECK(pattern.find("aab", 0, scratch)->end == 3);
  // One that remembers each of a million steps outgrows the stack of PCRE2's machine code.
  std::string text;
  while (text.size() < 1 << 20) text += "ab";
  CHECK(Pattern("(?:a|b)*c", "p").find(text + "c", 0, scratch)->end == text.size() + 1);
  CHECK(Pattern("\\w", "p").find("\u00e9", 0, scratch));
}

TEST_CASE("utf8: repaired as Python repairs it, whole and in chunks") {
  const std::string x = "\ufffd";
  const std::pair<std::string, std::string> cases[] = {{"", ""},
                                                       {"plain é€👍", "plain é€👍"},
                                                       {"\x80", x},
                                                       {"a\xff\xfe z", "a" + x + x + " z"},
                                                       {"\xc0\xaf", x + x},
                                                       {"\xe2\x82", x},
                                                       {"\xe2\x82z", x + "z"},
                                                       {"\xe2\x28\xa1", x + "(" + x},
                                                       {"\xed\xa0\x80", x + x + x},
                                                       {"\xf0\x9f\x98z", x + "z"},
                                                       {"\xf0\x80\x80", x + x + x},
                                                       {"\xf4\x90\x80\x80", x + x + x + x},
                                                       {"\xc3\xc3\xa9", x + "é"}};
  for (const auto& [bytes, text] : cases) {
    CHECK(repaired_utf8(bytes) == text);
    CHECK(is_utf8(bytes) == (bytes == text));
    Utf8Repair repair;
    std::string repaired;
    for (char byte : bytes) repair.take(std::string_view(&byte, 1), repaired);
    repair.finish(repaired);
    CHECK(repaired == text);
  }
  for (char32_t c : {U'\0', U'\x7f', U'\x80', U'\u07ff', U'\u0800', U'\uffff', U'\U00010000', U'\U0010ffff'}) {
    std::string text;
    append_utf8(text, c);
    CHECK(is_utf8(text));
    CHECK(code_point(text) == c);
  }
}
