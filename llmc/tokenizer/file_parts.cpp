#include "llmc/tokenizer/file_parts.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"

void only_keys(const Json& part, std::initializer_list<const char*> known) {
  for (const auto& [key, value] : part.items()) {
    if (value.is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string list;
    for (const char* name : known) list += (list.empty() ? "" : ", ") + std::string(name);
    fail("%s is not supported\n  supported here: %s", value.where().c_str(), list.c_str());
  }
}

void refuse_type(const Json& part, const char* supported) {
  fail("%s has the type \"%s\", which is not supported\n  supported here: %s", part.where().c_str(),
       part.get_string("type").c_str(), supported);
}

void require_few_steps(const Json& part, size_t steps) {
  constexpr size_t kMost = 32;
  REQUIRE(steps < kMost, "%s is a step after %zu others\n  expected at most %zu", part.where().c_str(), steps, kMost);
}

void require_short(const Json& value) {
  constexpr size_t kMost = 256;
  REQUIRE(value.as_string().size() <= kMost, "%s has %zu bytes\n  expected at most %zu", value.where().c_str(),
          value.as_string().size(), kMost);
}

std::string beginning(std::string_view text) {
  return text.size() > 200 ? std::string(text.substr(0, 200)) + "…" : std::string(text);
}

std::string one_character(const Json& part, const char* key) {
  const Json& value = part.at(key);
  const std::string& text = value.as_string();
  REQUIRE(!text.empty() && utf8_start(text).bytes == text.size(), "%s is %s\n  expected one character",
          value.where().c_str(), value.found().c_str());
  return text;
}
