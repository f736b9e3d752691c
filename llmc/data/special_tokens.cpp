#include "llmc/data/special_tokens.h"

#include <algorithm>

namespace {

bool stands_alone(const Tokenizer& tokenizer, const std::string& token, int32_t id) {
  const auto ids = [&](const std::string& text) { return tokenizer.encode(text, false); };
  const std::vector<int32_t> in_word = ids("a" + token + "b");
  return std::ranges::find(in_word, id) != in_word.end() && ids("a " + token) != ids("a" + token) &&
         ids(token + " b") != ids(token + "b");
}

}  // namespace

SpecialTokens::SpecialTokens(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    const std::string text = *tokenizer.token_of(id);
    const bool alone = stands_alone(tokenizer, text, id);
    all_alone_ = all_alone_ && alone;
    longest_ = std::max(longest_, text.size());
    by_first_byte_[static_cast<unsigned char>(text[0])].push_back({text, id, alone});
  }
  for (std::vector<Token>& tokens : by_first_byte_)
    std::ranges::stable_sort(tokens, [](const Token& a, const Token& b) { return a.text.size() > b.text.size(); });
}

std::optional<SpecialTokens::Found> SpecialTokens::next(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at)
    for (const Token& token : by_first_byte_[static_cast<unsigned char>(text[at])])
      if (text.substr(at, token.text.size()) == token.text) return Found{at, token.text.size(), token.id};
  return {};
}

std::vector<SpecialTokens::Found> SpecialTokens::all(std::string_view text) const {
  std::vector<Found> tokens;
  for (std::optional<Found> found = next(text, 0); found; found = next(text, found->at + found->bytes))
    tokens.push_back(*found);
  return tokens;
}

size_t SpecialTokens::next_cut(std::string_view text, size_t from) const {
  size_t plain = all_alone_ ? tokenizer_.next_cut(text, from) : text.size();
  for (size_t at = from < longest_ ? 0 : from - longest_;;) {
    const std::optional<Found> found = next(text.substr(0, plain + 1 + longest_), at);  // no later one counts
    if (!found || plain + 1 < found->at) return plain;  // a newline before a token is a word of its own kind
    const auto& same = by_first_byte_[static_cast<unsigned char>(text[found->at])];
    const bool alone = std::ranges::find(same, found->id, &Token::id)->alone;
    if (found->at > from && alone) return found->at;
    at = found->at + found->bytes;
    if (plain < at + 1) plain = all_alone_ ? tokenizer_.next_cut(text, at) : text.size();
  }
}
