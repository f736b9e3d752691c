// A JSON value: null, bool, 64-bit integer, double, string, array, object (in the order in which its keys came).
//
//   const Json config = Json::read("model/config.json");
//   const int64_t C = config.get_int("hidden_size");               // fails if it is missing or not an integer
//   const double eps = config.get_double("rms_norm_eps", 1e-6);    // 1e-6 if it is missing or null
//   Json line = Json::object().set("step", 12).set("loss", 3.14);  // line.dump() = {"step":12,"loss":3.14}
//
// An integer and a double stay what they were written as: 1e-5 is never truncated, 2^62 + 1 never rounded, and 5.0 is
// written as 5.0. Errors name the origin (a file), the key with its path, what was found and what was expected.
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

  // The whole text is one value. Fails with `origin`, line and column on anything else, on a key that stands twice in
  // one object, and on more than 100 levels. Integers that 64 bits cannot hold become doubles.
  static Json parse(std::string_view text, const std::string& origin);
  // parse() of a whole file, its path being the origin.
  static Json read(const std::string& path);

  // Compact, or on several lines with `indent` spaces a level. A double is written with the fewest digits that read
  // back as the same bits. Fails on NaN, infinity and strings that are not UTF-8: JSON has no words for them.
  std::string dump(int indent = -1) const;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // The value itself; fails if it is of another kind. An integer is a valid double, a double is no valid integer.
  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;
  const std::string& as_string() const;

  // An array's elements and an object's (key, value) pairs, in order; fails on any other kind.
  const Array& elements() const;
  const Object& items() const;
  size_t size() const;  // of an array or object
  const Json& at(size_t index) const;

  // An object's values.
  bool contains(const std::string& key) const { return find(key) != nullptr; }
  const Json* find(const std::string& key) const;  // nullptr if there is none
  const Json& at(const std::string& key) const;    // fails if there is none
  bool get_bool(const std::string& key) const { return at(key).as_bool(); }
  int64_t get_int(const std::string& key) const { return at(key).as_int(); }
  double get_double(const std::string& key) const { return at(key).as_double(); }
  const std::string& get_string(const std::string& key) const { return at(key).as_string(); }

  // The same, or `fallback` if the key is missing or null. A value of another kind still fails.
  bool get_bool(const std::string& key, bool fallback) const;
  int64_t get_int(const std::string& key, int64_t fallback) const;
  double get_double(const std::string& key, double fallback) const;
  std::string get_string(const std::string& key, const std::string& fallback) const;

  // An object's key becomes `value`, in its old place or at the end; an array grows by `value`. Null becomes an object
  // or an array first.
  Json& set(const std::string& key, Json value);
  Json& push_back(Json value);

  // For messages: "config.json: \"rope_scaling.factor\"", and what stands here: "the string \"abc\"".
  std::string where() const;
  std::string found() const;

  // Equal kinds and values, keys in the same order; where they were read does not matter.
  bool operator==(const Json& other) const { return value_ == other.value_; }

 private:
  friend struct JsonReader;
  explicit Json(Object value) : value_(std::move(value)) {}
  static int64_t checked(uint64_t value);
  [[noreturn]] void refuse(const char* expected) const;

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value_ = nullptr;
  std::shared_ptr<const std::string> origin_;  // null for a value that was not read
  std::string place_;                          // "rope_scaling.factor", "layers[3]"; empty at the root
};
