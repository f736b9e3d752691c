#include "llmc/tokenizer/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"

namespace {

size_t utf8_bytes(int32_t c) { return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4; }

int combining_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Appends the decomposed characters of `text`. Returns their bytes in UTF-8.
size_t decompose(std::string_view text, bool compatible, std::vector<int32_t>& characters, PatternScratch& scratch,
                 const std::string& name) {
  constexpr int kMost = 32;  // Unicode's longest decomposition has 18 characters, that of U+FDFA
  const auto options = utf8proc_option_t(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  int32_t parts[kMost];
  size_t all = 0;
  for (size_t bytes = 0; !text.empty(); text.remove_prefix(bytes)) {
    bytes = utf8_start(text).bytes;
    const auto c = int32_t(code_point(text.substr(0, bytes)));
    const utf8proc_ssize_t count = utf8proc_decompose_char(c, parts, kMost, options, nullptr);
    REQUIRE(count > 0 && count <= kMost, "utf8proc: U+%04X has no decomposition: %s", unsigned(c),
            utf8proc_errmsg(count));
    size_t grown = 0;
    for (int i = 0; i < count; ++i) grown += utf8_bytes(parts[i]);
    all += grown;
    if (grown > bytes) scratch.grow(grown - bytes, name);
    characters.insert(characters.end(), parts, parts + count);
  }
  return all;
}

// Sorts the marks after each character by their combining class, as Unicode's canonical order asks.
void order_marks(std::vector<int32_t>& characters) {
  const auto is_mark = [](int32_t c) { return combining_class(c) != 0; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), is_mark);
    const auto end = std::find_if_not(begin, characters.end(), is_mark);
    if (end - begin > 1)
      std::stable_sort(begin, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

// ASCII characters decompose to themselves, and none of them is the second one of a pair that composes. The
// substring from the ASCII character before others up to the next one is therefore changed by itself.
void to_form(UnicodeForm form, std::string& text, PatternScratch& scratch, const std::string& name) {
  const bool composes = form == UnicodeForm::kNFC || form == UnicodeForm::kNFKC;
  const bool compatible = form == UnicodeForm::kNFKC || form == UnicodeForm::kNFKD;
  const auto is_ascii = [](char c) { return (c & 0x80) == 0; };
  std::string changed;
  std::vector<int32_t> characters;
  auto copied = text.cbegin();
  for (auto at = text.cbegin(); (at = std::find_if_not(at, text.cend(), is_ascii)) != text.cend();) {
    const auto begin = at == copied ? at : at - 1;
    at = std::find_if(at, text.cend(), is_ascii);
    changed.append(copied, begin);
    copied = at;
    characters.clear();
    const size_t decomposed = decompose({begin, at}, compatible, characters, scratch, name);
    order_marks(characters);
    const utf8proc_ssize_t count =
        !composes ? utf8proc_ssize_t(characters.size())
                  : utf8proc_normalize_utf32(characters.data(), utf8proc_ssize_t(characters.size()),
                                             utf8proc_option_t(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    REQUIRE(count >= 0, "utf8proc: %s", utf8proc_errmsg(count));
    const size_t before = changed.size();
    for (int64_t i = 0; i < count; ++i) append_utf8(changed, char32_t(characters[size_t(i)]));
    scratch.shrink(decomposed - (changed.size() - before));
  }
  if (copied == text.cbegin()) return;  // all is ASCII
  changed.append(copied, text.cend());
  text = std::move(changed);
}

void to_lowercase(std::string& text, PatternScratch& scratch, const std::string& name) {
  constexpr char32_t kDottedI = 0x130, kDotAbove = 0x307;  // the only letter whose lowercase has two characters
  std::string changed;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t bytes = utf8_start(rest).bytes, before = changed.size();
    const char32_t c = code_point(rest.substr(0, bytes));
    append_utf8(changed, c == kDottedI ? U'i' : char32_t(utf8proc_tolower(int32_t(c))));
    if (c == kDottedI) append_utf8(changed, kDotAbove);
    if (changed.size() - before > bytes) scratch.grow(changed.size() - before - bytes, name);
    rest.remove_prefix(bytes);
  }
  text = std::move(changed);
}

std::string unicode_form_version() { return utf8proc_unicode_version(); }
