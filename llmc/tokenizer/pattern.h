// A pattern of a tokenizer.json, {"Regex": "…"} or {"String": "…"}, that finds its matches in a text.
//
// The files' expressions are written for Oniguruma's Ruby dialect, because the `tokenizers` library uses Oniguruma.
// PCRE2 runs them here. Constructs with the same meaning in both pass unchanged, and \s, \d, \v, $ and the dot are
// rewritten. Other constructs are rejected by name (^, \w, \b, \h, classes inside classes, scripts, case folding
// beyond ASCII words), so that nothing matches slightly differently. The only remaining differences are those between
// two versions of Unicode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "llmc/base/json.h"

// PCRE2's working memory. Each thread needs one; it serves all patterns in turn. It also limits what a file from a
// stranger may make of a text: a search that is repeated at each byte, or replacements that each double the text.
class PatternScratch {
 public:
  PatternScratch();  // for texts of 1 MiB together
  ~PatternScratch();
  PatternScratch(PatternScratch&&) noexcept;

  // Begins a text, which may take about 1000 steps of searches for each of its bytes, and may grow by 16 bytes for each
  // of them. The tokenizers of known models take less than 50 steps, and grow a text by 3 bytes.
  void begin_text(size_t bytes);
  void more_text(size_t bytes);
  // Counts bytes by which the text grows. Throws with `name` if they are too many.
  void grow(size_t bytes, const std::string& name);
  void shrink(size_t bytes);  // counts bytes by which it shrinks

 private:
  friend class Pattern;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

class Pattern {
 public:
  struct Match {
    size_t begin, end;
  };

  // Throws, with the file and the place in it, on any other object and on an unsupported expression.
  explicit Pattern(const Json& json);

  // Compiles an expression in PCRE2's own dialect, with UTF and Unicode properties. `name` is used in messages.
  Pattern(const std::string& expression, const std::string& name);

  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // Returns the first match that begins at `from` or later. `text` must be UTF-8, and `from` must be the beginning of a
  // character or the end. Throws if the search takes more than about 10 million steps plus 8 per byte of text, or more
  // than `scratch` has left, which only a pattern with excessive backtracking does.
  std::optional<Match> find(std::string_view text, size_t from, PatternScratch& scratch) const;

  // Calls visit(Match) for all matches in order. As in Oniguruma's own iteration, an empty match is skipped if it
  // touches the end of the previous match.
  template <class Visit>
  void for_each(std::string_view text, PatternScratch& scratch, Visit&& visit) const;

  // Replaces every match. The replacement is literal text. Throws if the text grows by more than `scratch` has left.
  void replace(std::string& text, const std::string& replacement, PatternScratch& scratch) const;

  // Returns the literal of a {"String": …}, or an empty string.
  const std::string& literal() const { return literal_; }

 private:
  static size_t next_character(std::string_view text, size_t at);

  struct Compiled;
  std::string name_, literal_;
  std::unique_ptr<Compiled> compiled_;
};

// Returns the version of Unicode whose properties the patterns use, in PCRE2's notation: "14.0.0".
std::string pattern_unicode_version();
std::string pattern_library();  // "PCRE2 10.42"

// Returns an expression in PCRE2's dialect that means what `expression` means in Oniguruma. Throws with `name` and the
// construct if there is none.
std::string pcre2_expression(std::string_view expression, const std::string& name);

template <class Visit>
void Pattern::for_each(std::string_view text, PatternScratch& scratch, Visit&& visit) const {
  size_t from = 0, last_end = SIZE_MAX;
  while (from <= text.size()) {
    const std::optional<Match> match = find(text, from, scratch);
    if (!match) return;
    if (match->begin == match->end && match->end == last_end) {
      from = next_character(text, from);
      continue;
    }
    from = last_end = match->end;
    visit(*match);
  }
}
