#include "llmc/base/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "llmc/base/error.h"
#include "llmc/base/mapped_file.h"
#include "llmc/base/text.h"

namespace {

constexpr size_t kMaxDepth = 100;

std::string child_place(const std::string& place, const std::string& key) {
  return place.empty() ? key : place + "." + key;
}

std::string child_place(const std::string& place, size_t index) { return place + format("[%zu]", index); }

// Cuts long strings and shows control bytes as "?", because a message must not send a binary file to the terminal.
std::string quotable(std::string_view text) {
  std::string shown(text.substr(0, 60));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text.size() > 60 ? shown + "..." : shown;
}

// Returns "line 3, column 17". `excerpt` becomes the line's text around the byte at `offset`.
std::string position(std::string_view text, size_t offset, std::string* excerpt) {
  offset = std::min(offset, text.size());
  const std::string_view before = text.substr(0, offset);
  const size_t line = 1 + size_t(std::count(before.begin(), before.end(), '\n'));
  const size_t begin = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  const size_t from = offset - begin > 40 ? offset - 40 : begin;
  *excerpt = quotable(text.substr(from, std::min(text.find('\n', from), text.size()) - from));
  return format("line %zu, column %zu", line, offset - begin + 1);
}

}  // namespace

// Builds the tree from nlohmann's SAX events, so that numbers keep their kind and duplicate keys are detected.
struct JsonReader {
  struct Level {
    Json* container;
    std::unordered_set<std::string> keys;
    std::string key;
  };

  std::string_view text;
  std::shared_ptr<const std::string> origin;
  Json root;
  std::vector<Level> levels;

  Json* add(Json value) {
    value.origin_ = origin;
    if (levels.empty()) return &(root = std::move(value));
    Level& level = levels.back();
    if (auto* array = std::get_if<Json::Array>(&level.container->value_)) {
      value.place_ = child_place(level.container->place_, array->size());
      return &array->emplace_back(std::move(value));
    }
    value.place_ = child_place(level.container->place_, level.key);
    auto& object = std::get<Json::Object>(level.container->value_);
    return &object.emplace_back(level.key, std::move(value)).second;
  }

  // Pointers to a container stay valid, because it grows only while none of its children is open.
  bool open(Json value) {
    Json* container = add(std::move(value));
    REQUIRE(levels.size() < kMaxDepth, "%s: more than %zu levels of arrays and objects", origin->c_str(), kMaxDepth);
    levels.push_back({container, {}, {}});
    return true;
  }

  bool close() {
    levels.pop_back();
    return true;
  }

  // The SAX events, under the names that nlohmann gives them.
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) {
    return value <= uint64_t(INT64_MAX) ? add(int64_t(value)) : add(double(value));
  }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(size_t) { return open(Json::object()); }
  bool end_object() { return close(); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = levels.back();
    REQUIRE(level.keys.insert(name).second, "%s: the key \"%s\" stands twice\n  keep one of them", origin->c_str(),
            quotable(child_place(level.container->place_, name)).c_str());
    level.key = std::move(name);
    return true;
  }

  bool parse_error(size_t offset, const std::string&, const nlohmann::json::exception& error) {
    std::string excerpt;
    const std::string place = position(text, offset > 0 ? offset - 1 : 0, &excerpt);
    // Keeps the end of "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while ...".
    std::string what = error.what();
    const size_t begin = what.find("column") == what.npos ? what.find("] ") : what.find(": ", what.find("column"));
    if (begin != what.npos) what = what.substr(begin + 2);
    fail("%s, %s: not valid JSON: %s\n  near: %s", origin->c_str(), place.c_str(), quotable(what).c_str(),
         excerpt.c_str());
  }
};

Json Json::parse(std::string_view text, const std::string& origin) {
  JsonReader reader{text, std::make_shared<const std::string>(origin), {}, {}};
  REQUIRE(text.find_first_not_of(" \t\r\n") != text.npos, "%s: not valid JSON: the text is empty", origin.c_str());
  // nlohmann would take a zero byte as the end of the text.
  REQUIRE(text.find('\0') == text.npos, "%s: not valid JSON: a zero byte at offset %zu", origin.c_str(),
          text.find('\0'));
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return std::move(reader.root);
}

Json Json::read(const std::string& path) {
  const MappedFile file(path);
  return parse({reinterpret_cast<const char*>(file.data()), file.size()}, path);
}

namespace {

nlohmann::ordered_json to_nlohmann(const Json& json, const std::string& place) {
  if (json.is_bool()) return json.as_bool();
  if (json.is_int()) return json.as_int();
  if (json.is_string()) return json.as_string();
  if (json.is_double()) {
    const double value = json.as_double();
    REQUIRE(std::isfinite(value), "cannot write %s as JSON: %s is %s\n  expected a finite number", json.where().c_str(),
            place.empty() ? "the value" : ("\"" + place + "\"").c_str(), shortest(value).c_str());
    return value;
  }
  if (json.is_array()) {
    auto array = nlohmann::ordered_json::array();
    for (size_t i = 0; i < json.size(); ++i) array.push_back(to_nlohmann(json.at(i), child_place(place, i)));
    return array;
  }
  if (json.is_object()) {
    // The pairs go straight into ordered_map's underlying vector: its own insert would search all keys each time.
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    auto& pairs = object.get_ref<nlohmann::ordered_json::object_t&>();
    for (const auto& [key, value] : json.items()) pairs.emplace_back(key, to_nlohmann(value, child_place(place, key)));
    return object;
  }
  return nullptr;
}

}  // namespace

std::string Json::dump(int indent) const {
  const nlohmann::ordered_json tree = to_nlohmann(*this, "");
  try {
    return tree.dump(indent);
  } catch (const nlohmann::json::exception&) {  // only type_error.316 is possible
    fail("cannot write %s as JSON: a key or string in it is not UTF-8\n  expected text", where().c_str());
  }
}

int64_t Json::checked(uint64_t value) {
  REQUIRE(value <= uint64_t(INT64_MAX), "cannot hold %zu in a JSON value\n  expected at most 2^63 - 1", size_t(value));
  return int64_t(value);
}

std::string Json::where() const {
  const std::string origin = origin_ ? *origin_ : "JSON";
  return place_.empty() ? origin : origin + ": \"" + quotable(place_) + "\"";
}

std::string Json::found() const {
  if (is_bool()) return as_bool() ? "true" : "false";
  if (is_int()) return format("the integer %ld", long(as_int()));
  if (is_double()) return "the number " + shortest(as_double());
  if (is_string()) return "the string \"" + quotable(as_string()) + "\"";
  if (is_array()) return format("an array of %zu", size());
  if (is_object()) return format("an object of %zu keys", size());
  return "null";
}

void Json::refuse(const char* expected) const {
  fail("%s is %s\n  expected %s", where().c_str(), found().c_str(), expected);
}

bool Json::as_bool() const {
  if (!is_bool()) refuse("true or false");
  return std::get<bool>(value_);
}

int64_t Json::as_int() const {
  if (!is_int()) refuse("an integer of at most 64 bits");
  return std::get<int64_t>(value_);
}

double Json::as_double() const {
  if (is_int()) return double(std::get<int64_t>(value_));
  if (!is_double()) refuse("a number");
  return std::get<double>(value_);
}

const std::string& Json::as_string() const {
  if (!is_string()) refuse("a string");
  return std::get<std::string>(value_);
}

const Json::Array& Json::elements() const {
  if (!is_array()) refuse("an array");
  return std::get<Array>(value_);
}

const Json::Object& Json::items() const {
  if (!is_object()) refuse("an object");
  return std::get<Object>(value_);
}

size_t Json::size() const {
  if (is_array()) return std::get<Array>(value_).size();
  return items().size();
}

const Json& Json::at(size_t index) const {
  const Array& array = elements();
  REQUIRE(index < array.size(), "%s has no element %zu\n  expected an index below %zu", where().c_str(), index,
          array.size());
  return array[index];
}

const Json* Json::find(const std::string& key) const {
  for (const auto& [name, value] : items()) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Json& Json::at(const std::string& key) const {
  if (const Json* value = find(key)) return *value;
  std::vector<std::string> keys;
  for (const auto& item : items()) keys.push_back(item.first);
  const std::string near = nearest(key, keys);
  fail("%s has no key \"%s\"%s%s", where().c_str(), key.c_str(),
       near.empty() ? "\n  add it" : "\n  the nearest key is ", near.empty() ? "" : ("\"" + near + "\"").c_str());
}

bool Json::get_bool(const std::string& key, bool fallback) const {
  const Json* value = find(key);
  return value && !value->is_null() ? value->as_bool() : fallback;
}

int64_t Json::get_int(const std::string& key, int64_t fallback) const {
  const Json* value = find(key);
  return value && !value->is_null() ? value->as_int() : fallback;
}

double Json::get_double(const std::string& key, double fallback) const {
  const Json* value = find(key);
  return value && !value->is_null() ? value->as_double() : fallback;
}

std::string Json::get_string(const std::string& key, const std::string& fallback) const {
  const Json* value = find(key);
  return value && !value->is_null() ? value->as_string() : fallback;
}

Json& Json::set(const std::string& key, Json value) {
  if (is_null()) value_ = Object();
  if (Json* old = const_cast<Json*>(find(key))) {
    *old = std::move(value);
  } else {
    std::get<Object>(value_).emplace_back(key, std::move(value));
  }
  return *this;
}

Json& Json::push_back(Json value) {
  if (is_null()) value_ = Array();
  if (!is_array()) refuse("an array");
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}
