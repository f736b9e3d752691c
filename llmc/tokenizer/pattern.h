// A pattern of a tokenizer.json, {"Regex": "…"} or {"String": "…"}, and where it matches a text.
//
// The files' expressions are written for Oniguruma's Ruby dialect, with which the `tokenizers` library reads them; here
// PCRE2 runs them. What means the same in both is passed on, what does not is rewritten (\s, \d, \v, the dot) or
// refused by name (anchors, \w, \b, \h, classes inside classes, scripts, case folding beyond ASCII words): nothing is
// matched a little differently. Differences that remain are those of two versions of Unicode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "llmc/base/json.h"

// PCRE2's working memory. One a thread; it serves all patterns in turn.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(PatternScratch&&) noexcept;

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

  // Fails, with the file and the place in it, on any other object and on an expression that is not supported.
  explicit Pattern(const Json& json);

  // An expression in PCRE2's own dialect, with UTF and Unicode properties; `name` is for messages.
  Pattern(const std::string& expression, const std::string& name);

  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // The first match that begins at `from` or later. `text` must be UTF-8, `from` the beginning of a character or the
  // end. Fails if the search takes more steps than any pattern needs that does not go back again and again.
  std::optional<Match> find(std::string_view text, size_t from, PatternScratch& scratch) const;

  // Calls visit(Match) for all matches, one after the other. An empty one counts only if it does not touch the end of
  // the one before, as in Oniguruma's own iteration.
  template <class Visit>
  void for_each(std::string_view text, PatternScratch& scratch, Visit&& visit) const;

  // Every match replaced; the replacement is taken as it is.
  void replace(std::string& text, const std::string& replacement, PatternScratch& scratch) const;

  // The literal of a {"String": …}, else empty.
  const std::string& literal() const { return literal_; }

 private:
  static size_t next_character(std::string_view text, size_t at);

  struct Compiled;
  std::string name_, literal_;
  std::unique_ptr<Compiled> compiled_;
};

// The version of Unicode whose properties the patterns know, as PCRE2 words it: "14.0.0".
std::string pattern_unicode_version();

// An expression in PCRE2's dialect that means what `expression` means to Oniguruma. Fails with `name` and the
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
