#include "llmc/data/choices.h"

#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/utf8.h"

namespace {

// ---------------------------------------------------------------------------------------------- Python's strings

std::u32string code_points(std::string_view utf8) {
  std::u32string text;
  while (!utf8.empty()) {
    const size_t bytes = utf8_start(utf8).bytes;
    text += code_point(utf8.substr(0, bytes));
    utf8.remove_prefix(bytes);
  }
  return text;
}

std::string utf8(const std::u32string& text) {
  std::string bytes;
  for (const char32_t c : text) append_utf8(bytes, c);
  return bytes;
}

// str.isspace()
bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::u32string strip(std::u32string text, bool left = true) {
  while (!text.empty() && is_space(text.back())) text.pop_back();
  size_t first = 0;
  while (left && first < text.size() && is_space(text[first])) ++first;
  return text.substr(first);
}

// str.capitalize(): the first character becomes upper case, the rest lower case.
std::u32string capitalized(std::u32string text) {
  static const locale_t unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  REQUIRE(unicode,
          "the C library has no locale C.UTF-8, by which lm-eval's questions are capitalized\n  install it, or "
          "take --eval-format llm.c");
  for (size_t i = 0; i < text.size(); ++i)
    text[i] = char32_t(i ? towlower_l(wint_t(text[i]), unicode) : towupper_l(wint_t(text[i]), unicode));
  return text;
}

std::u32string replaced(const std::u32string& text, const std::u32string& what, const std::u32string& by) {
  std::u32string result;
  size_t done = 0;
  for (size_t at; (at = text.find(what, done)) != text.npos; done = at + what.size())
    result.append(text, done, at - done) += by;
  return result.append(text, done);
}

// Removes WikiHow's marks, as lm-eval's hellaswag does in queries and endings.
std::u32string without_marks(std::u32string text) {
  text = replaced(strip(std::move(text)), U" [title]", U". ");
  std::u32string outside;
  size_t done = 0;
  for (size_t open; (open = text.find(U'[', done)) != text.npos;) {
    const size_t close = text.find_first_of(U"]\n", open);
    if (close == text.npos) break;
    const bool pair = text[close] == U']';  // a pair of brackets lies within one line
    outside.append(text, done, (pair ? open : close) - done);
    done = pair ? close + 1 : close;
  }
  return replaced(outside.append(text, done), U"  ", U" ");
}

// ---------------------------------------------------------------------------------------------- items

constexpr size_t kMostCharacters = size_t(1) << 22;  // of an item, whose context stands before each of its endings

struct ChoiceText {
  std::u32string context;
  std::vector<std::u32string> endings;
  int gold;
};

// Returns what an item has under a name, "choices.text" in the object "choices"; null if it has nothing.
const Json* value_of(const Json& json, const std::string& name) {
  if (!json.is_object()) return nullptr;
  if (const Json* whole = json.find(name)) return whole;
  const size_t dot = name.find('.');
  const Json* outer = dot == name.npos ? nullptr : json.find(name.substr(0, dot));
  return outer ? value_of(*outer, name.substr(dot + 1)) : nullptr;
}

const Json& required(const Json& json, const char* key, const std::string& name) {
  const Json* value = value_of(json, name);
  if (value) return *value;
  std::string there;
  for (const auto& member : json.items()) there += (there.empty() ? "" : ", ") + member.first;
  fail("%s has no key \"%s\"; it has %s\n  say which of them is the %s: --eval-keys %s=NAME", json.where().c_str(),
       name.c_str(), there.empty() ? "none" : there.c_str(), key, key);
}

// Returns the values of "sol1+sol2", or the elements of the one list that the name stands for.
std::vector<std::string> endings_of(const Json& json, const std::string& name) {
  std::vector<std::string> endings;
  if (name.find('+') == name.npos || value_of(json, name)) {
    for (const Json& ending : required(json, "endings", name).elements()) endings.push_back(ending.as_string());
    return endings;
  }
  std::istringstream names(name);
  for (std::string one; std::getline(names, one, '+');) endings.push_back(required(json, "endings", one).as_string());
  return endings;
}

int number_of(const Json& label) {
  if (!label.is_string() || label.as_string().size() != 1) return int(label.as_int());
  const char c = label.as_string()[0];
  return c >= 'A' && c <= 'Z' ? c - 'A' : c - '0';
}

ChoiceText read_item(const Json& json, ChoiceFormat format, const ChoiceKeys& keys) {
  ChoiceText item;
  const Json *activity = value_of(json, keys.activity_label), *first = value_of(json, keys.ctx_a);
  const bool marked = format == ChoiceFormat::lm_eval && activity && first;
  if (marked)
    item.context = without_marks(code_points(activity->as_string() + ": " + first->as_string() + " ") +
                                 capitalized(code_points(required(json, "ctx_b", keys.ctx_b).as_string())));
  else item.context = code_points(required(json, "ctx", keys.ctx).as_string());
  for (const std::string& ending : endings_of(json, keys.endings)) {
    item.endings.push_back(code_points(ending));
    if (marked) item.endings.back() = without_marks(item.endings.back());
  }
  size_t characters = 0;
  for (const std::u32string& ending : item.endings) characters += item.context.size() + ending.size();
  REQUIRE(characters <= kMostCharacters,
          "%s: a context of %zu characters and %zu endings are %zu characters\n"
          "  expected at most %zu: each ending has the context before it",
          json.where().c_str(), item.context.size(), item.endings.size(), characters, kMostCharacters);
  item.gold = number_of(required(json, "label", keys.label));
  REQUIRE(item.endings.size() >= 2, "%s: %zu endings, expected at least 2", json.where().c_str(), item.endings.size());
  REQUIRE(item.gold >= 0 && item.gold < int(item.endings.size()),
          "%s: label %d, and there are %zu endings\n  expected the number of the right ending, from 0 to %zu, or its "
          "letter "
          "from A",
          json.where().c_str(), item.gold, item.endings.size(), item.endings.size() - 1);
  return item;
}

ChoiceItem::Ending tokens_of(std::u32string context, const std::u32string& ending, ChoiceFormat format,
                             const TextCodec& codec) {
  ChoiceItem::Ending result;
  result.characters = int64_t(ending.size());
  if (format == ChoiceFormat::llmc) {
    result.tokens = codec.encode(utf8(context), false);
    result.first = int(result.tokens.size());
    const std::vector<int32_t> more = codec.encode(utf8(U" " + ending), false);
    result.tokens.insert(result.tokens.end(), more.begin(), more.end());
  } else {
    const std::u32string stripped = strip(context, false);  // the context's last spaces belong to the ending
    result.tokens = codec.encode(utf8(context + U" " + ending), true);
    result.first = int(codec.encode(utf8(stripped), true).size());
  }
  const int count = int(result.tokens.size());
  REQUIRE(
      result.first >= 1 && result.first < count,
      "%d tokens, of which the ending begins with number %d\n  expected a context and an ending of at least 1 token",
      count, result.first);
  return result;
}

}  // namespace

ChoiceKeys ChoiceKeys::parse(const std::string& text) {
  ChoiceKeys keys;
  const std::pair<const char*, std::string*> known[] = {
      {"ctx", &keys.ctx},     {"endings", &keys.endings},
      {"label", &keys.label}, {"activity_label", &keys.activity_label},
      {"ctx_a", &keys.ctx_a}, {"ctx_b", &keys.ctx_b}};
  std::istringstream pairs(text);
  for (std::string pair; std::getline(pairs, pair, ',');) {
    const size_t equals = pair.find('=');
    const auto key = std::ranges::find_if(known, [&](const auto& one) { return pair.substr(0, equals) == one.first; });
    REQUIRE(equals != pair.npos && equals + 1 < pair.size() && key != std::end(known),
            "--eval-keys: \"%s\" names no key of a question\n  expected KEY=NAME, with ctx, endings, label, "
            "activity_label, ctx_a or ctx_b as the key: ctx=question,endings=choices,label=answer",
            pair.c_str());
    *key->second = pair.substr(equals + 1);
  }
  return keys;
}

std::vector<ChoiceItem> read_choices(const std::string& path, ChoiceFormat format, const ChoiceKeys& keys,
                                     const TextCodec& codec) {
  REQUIRE(codec.reads_text(), "--eval-choices %s: %s\n  name its tokenizer: --tokenizer DIR", path.c_str(),
          codec.why_none().c_str());
  std::ifstream file(path);
  REQUIRE(file, "cannot read the choices %s\n  expected a file of JSON lines, as HellaSwag's hellaswag_val.jsonl",
          path.c_str());
  std::vector<ChoiceItem> items;
  int line = 0;
  for (std::string text; std::getline(file, text);) {
    ++line;
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    const std::string place = path + ":" + std::to_string(line);
    const ChoiceText item = read_item(Json::parse(text, place), format, keys);
    ChoiceItem choice{{}, item.gold, line};
    try {
      for (const std::u32string& ending : item.endings)
        choice.endings.push_back(tokens_of(item.context, ending, format, codec));
    } catch (const Error& error) {
      fail("%s: %s", place.c_str(), error.what());
    }
    items.push_back(std::move(choice));
  }
  REQUIRE(!items.empty(), "%s has no items", path.c_str());
  return items;
}

int64_t ChoiceItem::longest() const {
  int64_t tokens = 0;
  for (const Ending& ending : endings) tokens = std::max(tokens, int64_t(ending.tokens.size()));
  return tokens;
}

int64_t cut_choices(std::vector<ChoiceItem>& items, const std::string& path, int T) {
  int64_t cut = 0;
  for (ChoiceItem& item : items) {
    cut += item.longest() > T + 1;
    for (auto& [tokens, first, characters] : item.endings) {
      const int count = int(tokens.size()), dropped = std::max(0, count - (T + 1));
      REQUIRE(count - first <= T, "%s:%d: an ending of %d tokens\n  expected an ending of 1 to %d tokens: --seq-len N",
              path.c_str(), item.line, count - first, T);
      tokens.erase(tokens.begin(), tokens.begin() + dropped);
      first -= dropped;
    }
  }
  return cut;
}

void ChoiceScore::add(const ChoiceItem& item, const std::vector<float>& log_likelihoods) {
  for (const float log_likelihood : log_likelihoods)
    if (!std::isfinite(log_likelihood))
      fail_as(ExitCode::not_finite,
              "the question in line %d: an ending has the log-likelihood %g\n  the model computes no finite "
              "numbers, so it cannot be scored: look at its weights",
              item.line, double(log_likelihood));
  const auto right = [&](auto&& weight) {
    int best = 0;
    double highest = -INFINITY;
    for (size_t i = 0; i < item.endings.size(); ++i) {
      const double score = double(log_likelihoods[i]) / double(weight(item.endings[i]));
      if (score > highest) highest = score, best = int(i);
    }
    return best == item.gold;
  };
  using Ending = ChoiceItem::Ending;
  ++items;
  acc += right([](const Ending&) { return 1; });
  acc_norm += right([](const Ending& e) { return e.characters; });
  acc_norm_tokens += right([](const Ending& e) { return int64_t(e.tokens.size()) - e.first; });
}
