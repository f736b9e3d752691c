// JSON documents that differ from a sound one in structure: for fuzz_readers.cpp. A document is a tree that can be
// written even if it is no sound JSON: with a key that stands twice, or a number of 400 digits.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/json.h"

// A source of choices that gives the same ones for a seed and a number on every machine.
class Chance {
 public:
  Chance(uint64_t seed, uint64_t number) : bits_(seed * 0x9E3779B97F4A7C15u + number) {}
  uint64_t bits() { return bits_(); }
  size_t below(size_t n) { return size_t(bits_() % n); }  // 0 if n is 1
  bool one_in(size_t n) { return below(n) == 0; }
  template <class T>
  const T& of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 bits_;
};

// A value with its children: those of an object have keys.
struct Document {
  enum Kind { text, array, object };
  Kind kind = text;
  std::string value;                                         // of a text: as it is written, "3" or "\"abc\""
  std::vector<std::pair<std::string, Document>> children{};  // keys as they are written

  Document(std::string written = "null") : value(std::move(written)) {}
  Document(const Json& json) {
    if (json.is_array()) {
      kind = array;
      for (const Json& child : json.elements()) children.emplace_back("", Document(child));
    } else if (json.is_object()) {
      kind = object;
      for (const auto& [key, child] : json.items()) children.emplace_back(Json(key).dump(), Document(child));
    } else {
      value = json.dump();
    }
  }

  std::string written() const {
    std::string text;
    write(text);
    return text;
  }
  size_t size() const {
    size_t nodes = 1;
    for (const auto& child : children) nodes += child.second.size();
    return nodes;
  }
  // The values in the order in which they are written: 0 is the whole.
  Document& at(size_t index) { return *find(index); }

 private:
  void write(std::string& text) const {
    if (kind == Document::text) {
      text += value;
      return;
    }
    text += kind == object ? '{' : '[';
    for (size_t i = 0; i < children.size(); ++i) {
      if (i > 0) text += ',';
      if (kind == object) text += children[i].first + ":";
      children[i].second.write(text);
    }
    text += kind == object ? '}' : ']';
  }
  Document* find(size_t& index) {
    if (index == 0) return this;
    --index;
    for (auto& child : children)
      if (Document* found = child.second.find(index)) return found;
    return nullptr;
  }
};

inline std::string odd_number(Chance& chance) {
  static const std::vector<std::string> values = {"0",
                                                  "-1",
                                                  "1",
                                                  "2",
                                                  "3",
                                                  "4",
                                                  "7",
                                                  "8",
                                                  "16",
                                                  "255",
                                                  "256",
                                                  "65535",
                                                  "65536",
                                                  "1e3",
                                                  "0.5",
                                                  "-0.0",
                                                  "1e308",
                                                  "-1e308",
                                                  "1e-320",
                                                  "1e999",
                                                  "2147483646",
                                                  "2147483647",
                                                  "2147483648",
                                                  "-2147483648",
                                                  "-2147483649",
                                                  "4294967295",
                                                  "4294967296",
                                                  "4294967297",
                                                  "1099511627776",
                                                  "9007199254740993",
                                                  "4611686018427387904",
                                                  "9223372036854775807",
                                                  "9223372036854775808",
                                                  "-9223372036854775808",
                                                  "18446744073709551615",
                                                  "18446744073709551616"};
  return chance.one_in(4) ? std::to_string(int64_t(chance.bits()) >> chance.below(64)) : chance.of(values);
}

inline std::string odd_string(Chance& chance) {
  static const std::vector<std::string> values = {"\"\"",
                                                  "\"a\"",
                                                  "\" \"",
                                                  "\".\"",
                                                  "\"..\"",
                                                  "\"../x\"",
                                                  "\"/etc/passwd\"",
                                                  "\"a/b\"",
                                                  "\"\\u0000\"",
                                                  "\"a\\u0000b\"",
                                                  "\"\\ud800\"",
                                                  "\"\xc3\xa9\"",
                                                  "\"\xef\xbf\xbd\"",
                                                  "\"\\u001b[2J\"",
                                                  "\"\xff\"",
                                                  "\"%s%n%d\"",
                                                  "\"\\r\\n\"",
                                                  "\"\xe2\x96\x81\"",
                                                  "\"\xf0\x9f\x91\x8d\""};
  if (!chance.one_in(4)) return chance.of(values);
  return "\"" + std::string(size_t(1) << (4 + chance.below(14)), chance.one_in(2) ? 'a' : ' ') + "\"";
}

// Values that stand where a reader does not expect them.
inline std::string odd_value(Chance& chance) {
  static const std::vector<std::string> values = {
      "null",     "true",  "false",  "NaN",   "Infinity",
      "01",       "[]",    "{}",     "[[]]",  "[{}]",
      "{\"\":0}", "[0,1]", "[-1,1]", "[1,0]", "[9223372036854775807,9223372036854775807]",
      "[null]",   "[\"\"]"};
  const size_t kind = chance.below(8), many = size_t(1) << chance.below(14);
  std::string text;
  switch (kind) {
    case 0:
      return odd_number(chance);
    case 1:
      return odd_string(chance);
    case 2:  // very deep
      return std::string(many, '[') + std::string(many, ']');
    case 3:
      for (size_t i = 0; i < many; ++i) text += "{\"a\":";
      return text + "0" + std::string(many, '}');
    case 4:  // very many
      for (size_t i = 0; i < many; ++i) text += ",0";
      return "[0" + text + "]";
    default:
      return chance.of(values);
  }
}

// Returns those of the words that are of the same kind as the document as it is written: numbers for a number, and
// objects with the same first key.
inline std::vector<std::string> words_like(const Document& document, const std::vector<std::string>& words) {
  const auto kind = [](const std::string& text) {
    const size_t end = text[0] == '{' ? text.find(':') : text[0] == '-' || isdigit((unsigned char)text[0]) ? 0 : 1;
    return text.substr(0, end);
  };
  const std::string written = document.kind == Document::text ? document.value : document.written();
  std::vector<std::string> like;
  for (const std::string& word : words)
    if (kind(word) == kind(written)) like.push_back(word);
  return like;
}

// Puts another value of the same kind in the place of this one.
inline void replace_alike(Document& node, const std::vector<std::string>& words, Chance& chance) {
  const std::vector<std::string> like = words_like(node, words);
  if (!like.empty() && chance.one_in(2)) {
    node = Document(chance.of(like));
  } else if (node.kind == Document::text && node.value[0] == '"') {
    node.value = odd_string(chance);
  } else if (node.kind == Document::text && (node.value == "true" || node.value == "false")) {
    node.value = node.value == "true" ? "false" : "true";
  } else if (node.kind == Document::text) {
    char* end = nullptr;
    const auto number = uint64_t(strtoll(node.value.c_str(), &end, 10));
    static const std::vector<uint64_t> multipliers = {uint64_t(-1), 0, 2, 3, 8, 256, 65536, uint64_t(1) << 32};
    if (*end != 0 || chance.one_in(2)) node.value = odd_number(chance);
    else
      node.value =
          std::to_string(int64_t(chance.one_in(2) ? number + chance.below(5) - 2 : number * chance.of(multipliers)));
  } else if (!node.children.empty()) {  // another order
    std::shuffle(node.children.begin(), node.children.end(), std::mt19937_64(chance.bits()));
  }
}

// Makes one change. `words` are values that this reader knows. Two of three changes keep the kind of a value: else a
// reader would refuse nearly all inputs for the first value that it looks at.
inline void change(Document& document, const std::vector<std::string>& words, Chance& chance) {
  Document& node = document.at(chance.below(document.size()));
  auto& children = node.children;
  const size_t i = children.empty() ? 0 : chance.below(children.size()), kind = chance.below(27);
  if (kind >= 9) {
    replace_alike(node, words, chance);
  } else if (kind == 0 || children.empty()) {
    node = Document(words.empty() || chance.one_in(2) ? odd_value(chance) : chance.of(words));
  } else if (kind == 1) {
    children.erase(children.begin() + int64_t(i));
  } else if (kind == 2) {
    children[i].first = odd_string(chance);
  } else if (kind == 3) {  // stands twice
    children.push_back(children[i]);
  } else if (kind == 4) {  // two values change places
    std::swap(children[i].second, children[chance.below(children.size())].second);
  } else if (kind == 5 || kind == 6) {  // many times, under keys of their own
    for (size_t times = chance.below(40); times > 0 && document.size() < 20000; --times) {
      children.insert(children.begin() + int64_t(i), children[i]);
      if (node.kind == Document::object) children[i].first = "\"" + std::to_string(chance.below(100000)) + "\"";
    }
  } else if (kind == 7) {  // a part of the document stands in another part
    const Document copy = document.at(chance.below(document.size()));
    if (copy.size() + document.size() < 20000) children[i].second = copy;
  } else {  // another kind of container
    node.kind = node.kind == Document::array ? Document::object : Document::array;
    for (size_t k = 0; k < children.size(); ++k) children[k].first = "\"" + std::to_string(k) + "\"";
  }
}

// Returns the document with one change or several.
inline Document changed(Document document, const std::vector<std::string>& words, Chance& chance) {
  for (size_t changes = chance.one_in(3) ? 1 + chance.below(5) : 1; changes > 0; --changes)
    change(document, words, chance);
  return document;
}

inline Json parsed(const std::string& text) { return Json::parse(text, "a sound input"); }
inline std::string json_string(const std::string& text) { return Json(text).dump(); }

// Returns the document with changes, as it is written: less than 1 MB.
inline std::string changed_text(const Document& document, const std::vector<std::string>& words, Chance& chance) {
  for (;;)
    if (std::string text = changed(document, words, chance).written(); text.size() < 1'000'000) return text;
}
