// A JSON value: null, bool, 64-bit integer, double, string, array, or object (which keeps the order of its keys).
//
//   const Json config = Json::read("model/config.json");
//   const int64_t C = config.get_int("hidden_size");               // throws if it is missing or not an integer
//   const double eps = config.get_double("rms_norm_eps", 1e-6);    // 1e-6 if it is missing or null
//   Json line = Json::object().set("step", 12).set("loss", 3.14);  // line.dump() = {"step":12,"loss":3.14}
//
// Integers and doubles keep their kind and value: 1e-5 is never truncated, 2^62 + 1 is never rounded, and 5.0 is
// written as 5.0. Error messages name the origin (a file), the key with its path, what was found and what was expected.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(std::same_as<bool> auto value) : value_(value) {}
  Json(std::signed_integral auto value) : value_(int64_t(value)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) Json(T value) : value_(checked(value)) {}
  Json(std::floating_point auto value) : value_(double(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  static Json object() { return Json(Object()); }
  static Json array() { return Json(Array()); }

  // Parses a text that must be exactly one value. Throws with `origin`, line and column if the text is anything else,
  // if a key occurs twice in one object, or if the nesting is deeper than 100 levels. Integers that do not fit in 64
  // bits become doubles.
  static Json parse(std::string_view text, const std::string& origin);
  // Parses a whole file; the origin is its path.
  static Json read(const std::string& path);

  // Returns compact text, or several lines with `indent` spaces per level. A double is written with the fewest digits
  // that parse back to the same bits. Throws on NaN, infinity and strings that are not UTF-8, because JSON cannot
  // represent them.
  std::string dump(int indent = -1) const;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // These return the value itself and throw if it is of another kind. as_double accepts an integer; as_int rejects a
  // double.
  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;
  const std::string& as_string() const;

  // These return an array's elements and an object's (key, value) pairs in order. They throw on any other kind.
  const Array& elements() const;
  const Object& items() const;
  size_t size() const;  // of an array or an object
  const Json& at(size_t index) const;

  // These look up an object's values by key.
  bool contains(const std::string& key) const { return find(key) != nullptr; }
  const Json* find(const std::string& key) const;  // nullptr if the key is missing
  const Json& at(const std::string& key) const;    // throws if the key is missing
  bool get_bool(const std::string& key) const { return at(key).as_bool(); }
  int64_t get_int(const std::string& key) const { return at(key).as_int(); }
  double get_double(const std::string& key) const { return at(key).as_double(); }
  const std::string& get_string(const std::string& key) const { return at(key).as_string(); }

  // The same, but these return `fallback` if the key is missing or null. They still throw on a value of another kind.
  bool get_bool(const std::string& key, bool fallback) const;
  int64_t get_int(const std::string& key, int64_t fallback) const;
  double get_double(const std::string& key, double fallback) const;
  std::string get_string(const std::string& key, const std::string& fallback) const;

  // set() replaces an object's value in its old place, or appends a new key. push_back() appends to an array. A null
  // value first becomes an object or an array.
  Json& set(const std::string& key, Json value);
  Json& push_back(Json value);

  // These return text for messages: where() the place, as in "config.json: \"rope_scaling.factor\"", and found() the
  // value, as in "the string \"abc\"". Of a long text they show the first 60 bytes.
  std::string where() const;
  std::string found() const;

  // Two values are equal if their kinds and contents are equal and their keys are in the same order. The origin is not
  // compared.
  bool operator==(const Json& other) const { return value_ == other.value_; }

 private:
  friend struct JsonReader;
  explicit Json(Object value) : value_(std::move(value)) {}
  static int64_t checked(uint64_t value);
  [[noreturn]] void refuse(const char* expected) const;

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value_ = nullptr;
  // The place from which the value was read: the array or object (null for a value that was not read), and the number
  // in it. All values of a container share its place, so that long keys do not multiply.
  struct Container;
  std::shared_ptr<const Container> in_;
  size_t number_ = 0;
};
