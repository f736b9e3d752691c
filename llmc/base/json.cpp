#include "llmc/base/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/input_file.h"
#include "llmc/base/mapped_file.h"
#include "llmc/base/text.h"

namespace {

constexpr size_t kMaxDepth = 100;

// Cuts long strings and shows control bytes as "?", because a message must not send a binary file to the terminal.
std::string quotable(std::string_view text) {
  std::string shown(text.substr(0, 60));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text.size() > 60 ? shown + "..." : shown;
}

// Puts the name of a container before the place of a value in it: "factor" becomes "rope_scaling.factor".
void put_before(std::string& place, const std::string& key) {
  const bool separated = !place.empty() && place[0] != '[';
  place = quotable(key) + (separated ? "." : "") + place;
}
void put_before(std::string& place, size_t index) {
  const bool separated = !place.empty() && place[0] != '[';
  place = format("[%zu]", index) + (separated ? "." : "") + place;
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

// The file has neither a container around it nor keys; an array has no keys.
struct Json::Container {
  std::shared_ptr<const Container> in;
  size_t number;                  // in `in`
  std::vector<std::string> keys;  // of an object, by number
  std::string origin;             // of the file
};

// Builds the tree from nlohmann's SAX events, so that numbers keep their kind and duplicate keys are detected.
struct JsonReader {
  struct Level {
    Json* json;
    std::shared_ptr<Json::Container> place;
  };

  std::string_view text;
  std::shared_ptr<Json::Container> file;
  Json root;
  std::vector<Level> levels;

  Json* add(Json value) {
    if (levels.empty()) {
      value.in_ = file;
      return &(root = std::move(value));
    }
    const Level& level = levels.back();
    value.in_ = level.place;
    if (auto* array = std::get_if<Json::Array>(&level.json->value_)) {
      value.number_ = array->size();
      return &array->emplace_back(std::move(value));
    }
    auto& object = std::get<Json::Object>(level.json->value_);
    value.number_ = object.size();
    return &object.emplace_back(level.place->keys.back(), std::move(value)).second;
  }

  // Pointers to a container stay valid, because it grows only while none of its children is open.
  bool open(Json value) {
    Json* json = add(std::move(value));
    REQUIRE(levels.size() < kMaxDepth, "%s: more than %zu levels of arrays and objects", file->origin.c_str(),
            kMaxDepth);
    levels.push_back({json, std::make_shared<Json::Container>(Json::Container{json->in_, json->number_, {}, {}})});
    return true;
  }

  bool close() {
    levels.pop_back();
    return true;
  }

  // Throws if a key of the innermost object stands twice.
  bool close_object() {
    const std::vector<std::string>& keys = levels.back().place->keys;
    std::vector<std::string_view> sorted(keys.begin(), keys.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice == sorted.end()) return close();
    const Json::Object& object = levels.back().json->items();
    const auto value =
        std::find_if(object.begin(), object.end(), [&](const auto& item) { return item.first == *twice; });
    fail("%s stands twice\n  keep one of them", value->second.where().c_str());
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
  bool end_object() { return close_object(); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    levels.back().place->keys.push_back(std::move(name));
    return true;
  }

  bool parse_error(size_t offset, const std::string&, const nlohmann::json::exception& error) {
    std::string excerpt;
    const std::string place = position(text, offset > 0 ? offset - 1 : 0, &excerpt);
    // Keeps the end of "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while ...".
    std::string what = error.what();
    const size_t begin = what.find("column") == what.npos ? what.find("] ") : what.find(": ", what.find("column"));
    if (begin != what.npos) what = what.substr(begin + 2);
    fail("%s, %s: not valid JSON: %s\n  near: %s", file->origin.c_str(), place.c_str(), quotable(what).c_str(),
         excerpt.c_str());
  }
};

Json Json::parse(std::string_view text, const std::string& origin) {
  JsonReader reader{text, std::make_shared<Json::Container>(Json::Container{{}, 0, {}, origin}), {}, {}};
  REQUIRE(text.find_first_not_of(" \t\r\n") != text.npos, "%s: not valid JSON: the text is empty", origin.c_str());
  // nlohmann would take a zero byte as the end of the text.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    const std::string foreign = foreign_file(text);
    fail("%s: not valid JSON: a zero byte at offset %zu%s%s", origin.c_str(), zero, foreign.empty() ? "" : "\n  ",
         foreign.c_str());
  }
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return std::move(reader.root);
}

Json Json::read(const std::string& path) {
  const MappedFile file(path);
  require_readable_whole(path, file.size());
  return parse({reinterpret_cast<const char*>(file.data()), file.size()}, path);
}

namespace {

// A number that JSON cannot represent, and its place.
struct NotFinite {
  double value;
  std::string place;
};

template <class Name>
nlohmann::ordered_json to_nlohmann(const Json& json, const Name& name);

nlohmann::ordered_json to_nlohmann(const Json& json) {
  if (json.is_bool()) return json.as_bool();
  if (json.is_int()) return json.as_int();
  if (json.is_string()) return json.as_string();
  if (json.is_double()) {
    if (!std::isfinite(json.as_double())) throw NotFinite{json.as_double(), ""};
    return json.as_double();
  }
  if (json.is_array()) {
    auto array = nlohmann::ordered_json::array();
    for (size_t i = 0; i < json.size(); ++i) array.push_back(to_nlohmann(json.at(i), i));
    return array;
  }
  if (json.is_object()) {
    // The pairs go straight into ordered_map's underlying vector: its own insert would search all keys each time.
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    auto& pairs = object.get_ref<nlohmann::ordered_json::object_t&>();
    for (const auto& [key, value] : json.items()) pairs.emplace_back(key, to_nlohmann(value, key));
    return object;
  }
  return nullptr;
}

// The same for an element of a container, by its key or index.
template <class Name>
nlohmann::ordered_json to_nlohmann(const Json& json, const Name& name) {
  try {
    return to_nlohmann(json);
  } catch (NotFinite& found) {
    put_before(found.place, name);
    throw;
  }
}

}  // namespace

std::string Json::dump(int indent) const {
  try {
    return to_nlohmann(*this).dump(indent);
  } catch (const NotFinite& found) {
    fail("cannot write %s as JSON: %s is %s\n  expected a finite number", where().c_str(),
         found.place.empty() ? "the value" : ("\"" + quotable(found.place) + "\"").c_str(),
         shortest(found.value).c_str());
  } catch (const nlohmann::json::exception&) {  // only type_error.316 is possible
    fail("cannot write %s as JSON: a key or string in it is not UTF-8\n  expected text", where().c_str());
  }
}

int64_t Json::checked(uint64_t value) {
  REQUIRE(value <= uint64_t(INT64_MAX), "cannot hold %zu in a JSON value\n  expected at most 2^63 - 1", size_t(value));
  return int64_t(value);
}

std::string Json::where() const {
  if (!in_) return "JSON";
  std::string place;
  size_t number = number_;
  const Container* container = in_.get();
  for (; container->in; container = container->in.get()) {
    if (container->keys.empty()) put_before(place, number);
    else put_before(place, container->keys[number]);
    number = container->number;
  }
  return place.empty() ? container->origin : container->origin + ": \"" + quotable(place) + "\"";
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
