#include "llmc/tokenizer/added_tokens.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/file_parts.h"

namespace {

// The characters that \w matches in Rust's regular expressions: Unicode's Alphabetic property (letters, letter numbers,
// and the blocks of circled and squared letters), marks, digits, connectors and joiners.
constexpr char kWordCharacter[] =
    R"([\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}])";

std::string_view character_at(std::string_view text, size_t at) {
  return text.substr(at, utf8_start(text.substr(at)).bytes);
}

size_t skip_space_left(std::string_view text, size_t at, size_t least) {
  while (at > least) {
    const std::string_view character = last_character(text.substr(0, at));
    if (!is_white_space(code_point(character))) break;
    at -= character.size();
  }
  return std::max(at, least);
}

size_t skip_space_right(std::string_view text, size_t at) {
  while (at < text.size()) {
    const std::string_view character = character_at(text, at);
    if (!is_white_space(code_point(character))) break;
    at += character.size();
  }
  return at;
}

AddedToken read(const Json& json) {
  only_keys(json, {"id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"});
  const int64_t id = json.get_int("id");
  REQUIRE(id >= 0 && id < Vocabulary::kMostIds, "%s is %ld\n  expected an id from 0 to %ld",
          json.at("id").where().c_str(), long(id), long(Vocabulary::kMostIds - 1));
  require_short(json.at("content"));
  return {.content = json.get_string("content"),
          .text = json.get_string("content"),
          .id = int32_t(id),
          .special = json.get_bool("special"),
          .single_word = json.get_bool("single_word"),
          .lstrip = json.get_bool("lstrip"),
          .rstrip = json.get_bool("rstrip"),
          .normalized = json.get_bool("normalized")};
}

}  // namespace

AddedTokens::AddedTokens(const Json* json, const Vocabulary& model, const Normalizer& normalizer)
    : word_character_(kWordCharacter, "word characters") {
  if (!json || json->is_null()) return;
  int32_t next_id = model.count();
  std::vector<AddedToken*> in_order;
  for (const Json& element : json->elements()) {
    AddedToken token = read(element);
    if (token.content.empty()) continue;  // as the `tokenizers` library does
    const std::optional<int32_t> in_model = model.id_of(token.content);
    if (const AddedToken* known = find(token.content)) {
      REQUIRE(token.id == known->id,
              "%s: the token \"%s\" has the id %d\n  expected %d, which it was added with before",
              element.where().c_str(), token.content.c_str(), token.id, known->id);
      token.special = token.special || known->special;
    } else {
      const int32_t expected = in_model.value_or(next_id);
      REQUIRE(token.id == expected, "%s: the token \"%s\" has the id %d\n  expected %d: %s", element.where().c_str(),
              token.content.c_str(), token.id, expected, in_model ? "the model's vocabulary says so" : "the next one");
      REQUIRE(in_model || !model.token_of(expected), "%s: the token \"%s\" has the id %d of the model's \"%s\"",
              element.where().c_str(), token.content.c_str(), token.id, model.token_of(expected)->c_str());
      if (!in_model) ++next_id;
      in_order.push_back(&by_id_[token.id]);
    }
    end_ = std::max(end_, token.id + 1);
    AddedToken& kept = by_id_[token.id];
    kept = std::move(token);
    by_content_[kept.content] = &kept;
  }
  for (AddedToken* token : in_order) find_in_texts(*token, normalizer);
}

void AddedTokens::find_in_texts(AddedToken& token, const Normalizer& normalizer) {
  PatternScratch scratch;
  scratch.begin_text(token.text.size());
  if (token.normalized) normalizer.apply(token.text, scratch);
  (token.normalized ? normalized_ : as_given_).add(&token);
  all_special_ = all_special_ && token.special;
  newline_ = newline_ || token.text.find('\n') != std::string::npos;
  plain_ = plain_ && (token.special || !(token.single_word || token.lstrip || token.rstrip));
}

bool AddedTokens::keep_newlines() const { return all_special_ || (plain_ && !newline_); }

const AddedToken* AddedTokens::find(int64_t id) const {
  const auto found = id >= 0 && id < end_ ? by_id_.find(int32_t(id)) : by_id_.end();
  return found == by_id_.end() ? nullptr : &found->second;
}

const AddedToken* AddedTokens::find(const std::string& content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : found->second;
}

void AddedTokens::Finder::add(const AddedToken* token) {
  const std::string& text = token->text;
  if (text.empty()) return;
  tokens.emplace(text, token);
  std::vector<size_t>& sizes = lengths[(unsigned char)text[0]];
  if (std::find(sizes.begin(), sizes.end(), text.size()) == sizes.end()) sizes.push_back(text.size());
  std::sort(sizes.rbegin(), sizes.rend());
}

const AddedToken* AddedTokens::Finder::longest_at(std::string_view text, size_t at, size_t* bytes) const {
  for (size_t size : lengths[(unsigned char)text[at]]) {
    if (at + size > text.size()) continue;
    const auto found = tokens.find(std::string(text.substr(at, size)));
    if (found == tokens.end()) continue;
    *bytes = size;
    return found->second;
  }
  return nullptr;
}

bool AddedTokens::is_single_word(std::string_view text, size_t begin, size_t end, PatternScratch& scratch) const {
  const auto is_word = [&](std::string_view character) {
    return word_character_.find(character, 0, scratch).has_value();
  };
  if (begin > 0 && is_word(last_character(text.substr(0, begin)))) return false;
  return end == text.size() || !is_word(character_at(text, end));
}

// With rstrip, the white space of a token may overlap the next token, which still counts.
void AddedTokens::sections(const Finder& finder, std::string_view text, bool special_too, PatternScratch& scratch,
                           const SectionVisitor& visit) const {
  size_t done = 0;
  for (size_t at = 0, bytes = 0; at < text.size();) {
    const AddedToken* token = finder.longest_at(text, at, &bytes);
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + bytes;
    at = end;
    if (token->special && !special_too) continue;
    if (token->single_word && !is_single_word(text, begin, end, scratch)) continue;
    if (token->lstrip) begin = skip_space_left(text, begin, std::min(done, begin));
    // A token within the white space that the last one took has the same end: a text of white space takes no square.
    if (token->rstrip) end = end < done ? done : skip_space_right(text, end);
    if (done < begin) visit({text.substr(done, begin - done), nullptr});
    visit({text.substr(begin, end - begin), token});
    done = end;
  }
  if (done < text.size()) visit({text.substr(done), nullptr});
}
