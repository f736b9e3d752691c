// Translates Oniguruma's Ruby dialect to PCRE2's: pcre2_expression().
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/file_parts.h"
#include "llmc/tokenizer/pattern.h"

namespace {

// Unicode's White_Space, which is Oniguruma's \s. PCRE2's own \s also matches U+180E.
constexpr char kSpace[] =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr char kNotSpace[] =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

constexpr const char* kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
                                       "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
                                       "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn"};

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Dialect {
 public:
  Dialect(std::string_view expression, const std::string& name) : text_(expression), name_(name) {}

  std::string translate() {
    while (!done()) term();
    REQUIRE(caseless_.empty(), "%s: a group of the pattern is not closed\n  pattern: %s", name_.c_str(),
            beginning(text_).c_str());
    return out_;
  }

 private:
  bool done() const { return at_ == text_.size(); }
  bool next_is(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool take(std::string_view word) {
    if (!next_is(word)) return false;
    at_ += word.size();
    return true;
  }
  char32_t take_character() {
    if (done()) refuse("an end in the middle of a construct", at_);
    const std::string_view character = text_.substr(at_, utf8_start(text_.substr(at_)).bytes);
    at_ += character.size();
    return code_point(character);
  }

  [[noreturn]] void refuse(const std::string& what, size_t at) const {
    fail(
        "%s: the pattern has %s at byte %zu, which is not supported\n  pattern: %s\n"
        "  supported: literals, classes, $ . \\s \\S \\d \\D, \\p and \\P of general categories, groups (?: (?> (?i:, "
        "(?= (?! (?<= (?<!, alternatives, quantifiers",
        name_.c_str(), what.c_str(), at, beginning(text_).c_str());
  }

  // Writes letters and digits as themselves and all other characters by number, so that none has a second meaning.
  void put_literal(char32_t c) {
    if (is_letter(c) || is_digit(c)) {
      out_ += char(c);
    } else {
      out_ += format("\\x{%x}", unsigned(c));
    }
  }

  void term() {
    const size_t begin = at_;
    const char32_t before = std::exchange(literal_before_, 0);
    const char32_t c = take_character();
    switch (c) {
      case '|':
        out_ += '|';
        break;
      case '.':
        out_ += "[^\\n]";
        break;
      case '(':
        open_group(begin);
        break;
      case ')':
        close_group(begin);
        break;
      case '[':
        character_class(begin);
        break;
      case '*':
      case '+':
      case '?':
        quantifier(char(c));
        break;
      case '^':
        refuse("the anchor ^", begin);
      case '$':  // the end of a line, or of the text
        out_ += "(?=\\n|\\z)";
        if (!done() && std::strchr("*+?{", text_[at_])) refuse("a repeated anchor $", begin);
        break;
      case '{':
        if (interval(begin)) break;
        [[fallthrough]];
      default:
        if (c == '\\') {
          if (const auto literal = escape(begin, false)) literal_outside_class(*literal, before, begin);
        } else {
          literal_outside_class(c, before, begin);
        }
    }
  }

  bool caseless() const { return !caseless_.empty() && caseless_.back(); }

  // Oniguruma folds some pairs of letters into one character ("st" matches U+FB06). PCRE2 does not.
  void literal_outside_class(char32_t c, char32_t before, size_t at) {
    if (caseless()) {
      require_simple_folding(c, at);
      const char pair[] = {char(before | 0x20), char(c | 0x20), 0};
      for (const char* folded : {"ff", "fi", "fl", "ss", "st"}) {
        if (before && std::strcmp(pair, folded) == 0) refuse("\"" + std::string(pair) + "\" inside (?i:", at);
      }
      literal_before_ = c;
    }
    put_literal(c);
  }
  void require_simple_folding(char32_t c, size_t at) const {
    if (c >= 0x80) refuse("a character beyond ASCII inside (?i:", at);
  }

  void open_group(size_t begin) {
    bool folds = caseless();
    static constexpr const char* kOpenings[] = {"?:", "?=", "?!", "?<=", "?<!", "?>"};
    const auto* opening = std::find_if(std::begin(kOpenings), std::end(kOpenings), [&](auto* o) { return take(o); });
    if (opening != std::end(kOpenings)) {
      out_ += "(" + std::string(*opening);
    } else if (take("?i:")) {
      out_ += "(?i:";
      folds = true;
    } else if (next_is("?")) {
      refuse("\"(" + std::string(text_.substr(at_, 3)) + "\"", begin);
    } else {
      out_ += "(?:";  // a plain group, because no supported construct refers to a group by its number
    }
    caseless_.push_back(folds);
  }
  void close_group(size_t begin) {
    if (caseless_.empty()) refuse("a ) without its (", begin);
    caseless_.pop_back();
    out_ += ')';
  }

  // Copies one of * + ? and, if present, the following ? (lazy) or + (possessive).
  void quantifier(char c) {
    out_ += c;
    if (take("?")) {
      out_ += '?';
    } else if (take("+")) {
      out_ += '+';
    }
  }

  // Translates {2}, {2,}, {2,5} or {,5}. Returns false on anything else; the brace is then a literal.
  bool interval(size_t begin) {
    const size_t end = text_.find('}', at_);
    if (end == text_.npos) return false;
    const std::string inside(text_.substr(at_, end - at_));
    const size_t comma = inside.find(',');
    const std::string least = inside.substr(0, comma), most = comma == inside.npos ? "" : inside.substr(comma + 1);
    const auto digits = [](const std::string& s) { return std::all_of(s.begin(), s.end(), is_digit); };
    if (!digits(least) || !digits(most) || (least.empty() && most.empty())) return false;
    at_ = end + 1;
    out_ += "{" + (least.empty() ? "0" : least) + (comma == inside.npos ? "" : "," + most) + "}";
    if (next_is("+")) refuse("a + after an interval", begin);
    if (take("?")) {
      if (comma == inside.npos) refuse("a ? after {" + inside + "}", begin);
      out_ += '?';
    }
    return true;
  }

  void character_class(size_t begin) {
    const bool negated = take("^");
    if (negated && caseless()) refuse("a negated class inside (?i:", begin);
    out_ += negated ? "[^" : "[";
    for (bool first = true; first || !next_is("]"); first = false) {
      if (done()) refuse("a class without its end", begin);
      if (first && next_is("]")) refuse("a class that begins with ]", begin);
      class_element(first);
    }
    at_ += 1;
    out_ += ']';
  }

  void class_element(bool first) {
    const size_t begin = at_;
    const bool hyphen = next_is("-");
    const std::optional<char32_t> low = class_literal();
    if (!low) {
      if (next_is("-") && !next_is("-]")) refuse("a - after a set inside a class", at_);
      return;
    }
    if (hyphen && !first && !next_is("]")) refuse("a - between others inside a class", begin);
    if (!next_is("-") || next_is("-]")) return;
    at_ += 1;
    out_ += '-';
    if (!class_literal()) refuse("a range up to a set", begin);
  }

  // Writes one literal and returns it, or writes the set that an escape stands for and returns nothing.
  std::optional<char32_t> class_literal() {
    const size_t begin = at_;
    if (next_is("&&")) refuse("&& inside a class", begin);
    char32_t c = take_character();
    if (c == '[') refuse("[ inside a class", begin);
    if (c == '\\') {
      const std::optional<char32_t> escaped = escape(begin, true);
      if (!escaped) return {};
      c = *escaped;
    }
    if (caseless()) require_simple_folding(c, begin);
    put_literal(c);
    return c;
  }

  // Reads the rest of an escape after the backslash. Returns the literal that it stands for, or writes a set and
  // returns nothing.
  std::optional<char32_t> escape(size_t begin, bool in_class) {
    const char32_t c = take_character();
    const auto put_set = [&](const char* set) {
      if (caseless()) refuse("a set inside (?i:", begin);
      out_ += in_class ? set : "[" + std::string(set) + "]";
      return std::nullopt;
    };
    switch (c) {
      case 'a':
        return '\a';
      case 'e':
        return 0x1b;
      case 'f':
        return '\f';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'v':
        return '\v';
      case 's':
        return put_set(kSpace);
      case 'S':
        return put_set(kNotSpace);
      case 'd':
        return put_set("\\p{Nd}");
      case 'D':
        return put_set("\\P{Nd}");
      case 'p':
      case 'P':
        return put_set(property(begin, c == 'P').c_str());
      case 'u':
        return number(begin, 4);
      case 'x':
        return number(begin, 2);
      default:
        break;
    }
    if (c >= 0x80 || is_letter(c) || is_digit(c)) {
      refuse("\"" + std::string(text_.substr(begin, at_ - begin)) + "\"", begin);
    }
    return c;
  }

  // Reads {L} or {^L}.
  std::string property(size_t begin, bool negated) {
    const size_t end = text_.find('}', at_);
    const std::string whole(text_.substr(begin, end == text_.npos ? end : end + 1 - begin));
    if (!take("{") || end == text_.npos) refuse("\"" + whole.substr(0, 3) + "\"", begin);
    if (take("^")) negated = !negated;
    const std::string category(text_.substr(at_, end - at_));
    at_ = end + 1;
    if (std::find(std::begin(kCategories), std::end(kCategories), category) == std::end(kCategories)) {
      refuse("\"" + whole + "\"", begin);
    }
    return (negated ? "\\P{" : "\\p{") + category + "}";
  }

  // Reads \x{10ffff}, or as many hexadecimal digits as this escape has. Without braces, \x80 and above are rejected,
  // because Oniguruma takes them for single bytes.
  char32_t number(size_t begin, size_t digits) {
    const bool braces = digits == 2 && take("{");
    const size_t end = braces ? text_.find('}', at_) : at_ + digits;
    const std::string hex(text_.substr(at_, end - at_));
    const bool good = end <= text_.size() && !hex.empty() && hex.size() <= 6 &&
                      hex.find_first_not_of("0123456789abcdefABCDEF") == hex.npos;
    const auto value = char32_t(good ? std::strtoul(hex.c_str(), nullptr, 16) : 0);
    if (!good || value > 0x10ffff || (value >= 0xd800 && value < 0xe000) || (digits == 2 && !braces && value >= 0x80)) {
      refuse("\"" + std::string(text_.substr(begin, 10)) + "\"", begin);
    }
    at_ = end + (braces ? 1 : 0);
    return value;
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  std::string out_;
  std::vector<bool> caseless_;   // for each open group
  char32_t literal_before_ = 0;  // the literal just before, if inside (?i:; else 0
};

}  // namespace

std::string pcre2_expression(std::string_view expression, const std::string& name) {
  return Dialect(expression, name).translate();
}
