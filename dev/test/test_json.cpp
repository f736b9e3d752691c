// Covers: JSON: numbers keep their kind and bits, errors name file, key and kind
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "dev/test/test.h"
#include "llmc/base/json.h"
#include "llmc/base/mapped_file.h"
#include "llmc/base/text.h"

namespace fs = std::filesystem;

namespace {

// A folder of its own, removed at the end of the test.
struct Folder {
  fs::path path = fs::temp_directory_path() / format("llmc_json_%d", int(getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name, std::ios::binary) << text;
    return (path / name).string();
  }
};

void has(const std::string& text, const std::string& part) {
  if (text.find(part) != text.npos) return;
  CAPTURE(text);
  CHECK(text == "... " + part + " ...");
}

std::string parse_error(const std::string& text) {
  return error_of([&] { Json::parse(text, "file.json"); });
}

}  // namespace

TEST_CASE("parse: kinds stay what they were written as") {
  const Json json = Json::parse(
      R"({"n":null,"t":true,"i":-7,"big":4611686018427387905,"d":1e-5,"whole":5.0,"s":"a\u00e9","a":[1,[2.5],{}]})",
      "x");
  CHECK(json.at("n").is_null());
  CHECK(json.get_bool("t"));
  CHECK(json.get_int("i") == -7);
  CHECK(json.get_int("big") == (int64_t(1) << 62) + 1);
  CHECK(json.get_double("d") == 1e-5);
  CHECK(json.at("whole").is_double());
  CHECK(json.get_double("i") == -7.0);
  CHECK(json.get_string("s") == "a\xc3\xa9");
  CHECK(json.at("a").size() == 3);
  CHECK(json.at("a").at(1).at(size_t(0)).as_double() == 2.5);
  CHECK(json.at("a").at(2).size() == 0);
  CHECK(Json::parse(" 9223372036854775807 ", "x").as_int() == INT64_MAX);
  CHECK(Json::parse("-9223372036854775808", "x").as_int() == INT64_MIN);
  CHECK(Json::parse("9223372036854775808", "x").as_double() == 9223372036854775808.0);
  CHECK(Json::parse("1000000000000000019884624838656", "x").is_double());
}

TEST_CASE("parse: keys keep their order") {
  std::string order;
  const Json json = Json::parse(R"({"z":1,"a":2,"m":3,"0":4})", "x");
  for (const auto& [key, value] : json.items()) order += key + std::to_string(value.as_int());
  CHECK(order == "z1a2m304");
  CHECK(json.dump() == R"({"z":1,"a":2,"m":3,"0":4})");
}

TEST_CASE("dump: doubles and integers read back as the same bits") {
  std::mt19937_64 random(1);
  std::vector<double> values = {1e-5, 0.1,    1.0 / 3, 5.0, 1e22, 5e-324, 1.7976931348623157e308,
                                -0.0, 2.9e-4, 1e15,    1e16};
  while (values.size() < 20000) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  int wrong = 0;
  for (double value : values) {
    const Json json = Json::parse(Json(value).dump(), "x");
    wrong += !json.is_double() || std::bit_cast<uint64_t>(json.as_double()) != std::bit_cast<uint64_t>(value);
  }
  CHECK(wrong == 0);
  CHECK(Json(1e-5).dump() == "1e-05");
  CHECK(Json(5.0).dump() == "5.0");
  for (int64_t value : {INT64_MIN, INT64_MAX, (int64_t(1) << 53) + 1, int64_t(0)}) {
    CHECK(Json::parse(Json(value).dump(), "x").as_int() == value);
  }
  CHECK(Json(uint64_t(7)).as_int() == 7);
  has(error_of([] { Json(uint64_t(INT64_MAX) + 1); }), "9223372036854775808");
}

TEST_CASE("dump: building, indenting, equality") {
  Json json = Json::object().set("b", true).set("a", Json::array());
  json.set("list", Json().push_back(1).push_back("two").push_back(3.5)).set("b", nullptr);
  CHECK(json.dump() == R"({"b":null,"a":[],"list":[1,"two",3.5]})");
  CHECK(json.dump(2).find("\n  \"list\": [\n    1,") != std::string::npos);
  CHECK(Json::parse(json.dump(2), "elsewhere") == json);
  CHECK(!(Json(1) == Json(1.0)));
  CHECK(Json("quote \" slash \\ line\n tab\t").dump() == R"("quote \" slash \\ line\n tab\t")");
}

TEST_CASE("dump: what JSON has no words for is refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const Json json = Json::object().set("steps", Json().push_back(1).push_back(Json::object().set("loss", nan)));
  const std::string message = error_of([&] { json.dump(); });
  has(message, "\"steps[1].loss\" is nan");
  has(message, "finite");
  has(error_of([&] { Json(-inf).dump(); }), "-inf");
  has(error_of([&] { Json::object().set("text", "\xff\xfe").dump(); }), "UTF-8");
  has(error_of([&] { Json::object().set("\xff", 1).dump(); }), "UTF-8");
}

TEST_CASE("getters: a missing key, another kind, a default") {
  const Json json =
      Json::parse(R"({"hidden_size":64,"eps":1e-5,"null":null,"rope_scaling":{"factor":"32","list":[1,{"x":2}]}})",
                  "model/config.json");
  CHECK(json.get_int("heads", 4) == 4);
  CHECK(json.get_int("null", 4) == 4);
  CHECK(json.get_int("hidden_size", 4) == 64);
  CHECK(json.get_double("null", 0.5) == 0.5);
  CHECK(json.get_double("hidden_size", 0.5) == 64.0);
  CHECK(json.get_bool("flag", true));
  CHECK(json.get_string("name", "llama") == "llama");
  CHECK(json.contains("null"));
  CHECK(!json.contains("rope"));
  CHECK(json.find("rope") == nullptr);

  const std::string missing = error_of([&] { json.get_int("hidden_sizes"); });
  has(missing, "model/config.json has no key \"hidden_sizes\"");
  has(missing, "nearest key is \"hidden_size\"");
  has(error_of([&] { json.get_int("qwertyuiop"); }), "add it");
  const std::string kind = error_of([&] { json.at("rope_scaling").get_double("factor"); });
  has(kind, "model/config.json: \"rope_scaling.factor\" is the string \"32\"");
  has(kind, "expected a number");
  has(error_of([&] { json.get_int("eps"); }), "\"eps\" is the number 1e-05");
  has(error_of([&] { json.get_int("eps", 3); }), "expected an integer");
  has(error_of([&] { json.get_int("null"); }), "\"null\" is null");
  has(error_of([&] { json.get_string("hidden_size"); }), "the integer 64");
  has(error_of([&] { json.get_bool("hidden_size", true); }), "expected true or false");
  has(error_of([&] { json.get_int("rope_scaling"); }), "an object of 2 keys");
  has(error_of([&] { json.at("rope_scaling").at("list").at(1).get_string("x"); }), "\"rope_scaling.list[1].x\" is");
  has(error_of([&] { json.at("rope_scaling").at("list").at(7); }), "no element 7");
  has(error_of([&] { json.at("hidden_size").get_int("x"); }), "expected an object");
  has(error_of([&] { json.elements(); }), "expected an array");
  has(error_of([&] { Json(3).set("x", 1); }), "expected an object");
  has(error_of([&] { Json(3).push_back(1); }), "expected an array");
}

TEST_CASE("parse: malformed texts name file, line and column") {
  const std::string message = parse_error("{\n  \"lr\": 1e-3,\n  \"steps\": 10O\n}");
  has(message, "file.json, line 3, column 14");
  has(message, "not valid JSON");
  has(message, "near:   \"steps\": 10O");
  for (const char* text : {"",
                           " \n ",
                           "{",
                           "}",
                           "[1,]",
                           "[1 2]",
                           "{\"a\":1,}",
                           "{a:1}",
                           "{'a':1}",
                           "{\"a\"}",
                           "{\"a\":}",
                           "nul",
                           "True",
                           "NaN",
                           "Infinity",
                           "-",
                           "01",
                           "1.",
                           ".5",
                           "+1",
                           "1e",
                           "1e999",
                           "\"abc",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\xff\"",
                           "[1]]",
                           "{} {}",
                           "// c\n1",
                           "{\"a\":1 \"b\":2}",
                           "\"tab\there\"",
                           "[\"\\ud800\"]"}) {
    CAPTURE(text);
    const std::string error = parse_error(text);
    CHECK(error.find("file.json") != std::string::npos);
    CHECK(error.find("not valid JSON") != std::string::npos);
  }
  has(parse_error(std::string("{}\0", 3)), "zero byte at offset 2");
  has(parse_error(R"({"a":{"b":1,"c":2,"b":3}})"), "the key \"a.b\" stands twice");
  has(parse_error(std::string(1000000, '[')), "more than 100 levels");
  CHECK(parse_error(std::string(100, '[') + std::string(100, ']')).empty());
  has(parse_error(std::string(101, '[') + std::string(101, ']')), "more than 100 levels");
}

TEST_CASE("parse: every cut of a text is refused, every changed byte is refused or harmless") {
  const std::string text = R"({"a": [1, -2.5e-3, "x\n\u20ac"], "b": {"c": null, "d": [true, false]}})";
  CHECK(parse_error(text).empty());
  for (size_t n = 0; n < text.size(); ++n) CHECK(!parse_error(text.substr(0, n)).empty());
  std::mt19937 random(2);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string broken = text;
    for (int k = 0; k < 1 + i % 3; ++k) broken[random() % broken.size()] = char(random());
    refused += !parse_error(broken).empty();  // anything but an Error ends the test
  }
  CHECK(refused > 10000);
}

TEST_CASE("read: a file") {
  const Folder folder;
  const std::string path = folder.write("config.json", "{\"steps\": 12}\n");
  CHECK(Json::read(path).get_int("steps") == 12);
  has(error_of([&] { Json::read(path).get_int("lr"); }), path);
  has(error_of([&] { Json::read(folder.write("bad.json", "{\"steps\": \n 12")); }), "bad.json, line 2");
  has(error_of([&] { Json::read(path + ".none"); }), "No such file");
}

TEST_CASE("mapped_file: whole, moved, released") {
  const Folder folder;
  const std::string path = folder.write("file", std::string(5000, 'x') + "end");
  MappedFile file(path);
  CHECK(file.size() == 5003);
  CHECK(file.path() == path);
  CHECK(std::memcmp(file.data() + 4999, "xend", 4) == 0);
  const std::byte* data = file.data();
  MappedFile moved(std::move(file));
  CHECK(moved.data() == data);
  CHECK(file.data() == nullptr);
  CHECK(file.size() == 0);
  MappedFile other(folder.write("other", "o"));
  other = std::move(moved);
  CHECK(other.data() == data);
  CHECK(other.path() == path);

  // The page is gone from this process once the owner is.
  { MappedFile last(std::move(other)); }
  CHECK(msync(const_cast<std::byte*>(data), 1, MS_ASYNC) == -1);
}

TEST_CASE("mapped_file: what cannot be mapped") {
  const Folder folder;
  has(error_of([&] { MappedFile(folder.path / "none"); }), "none: No such file");
  has(error_of([&] { MappedFile(folder.path); }), "is a directory");
  has(error_of([&] { MappedFile(folder.write("empty", "")); }), "the file is empty");
  has(error_of([&] { MappedFile("/dev/null"); }), "expected an ordinary file");
  has(error_of([&] { MappedFile(""); }), "name is empty");
  has(error_of([&] { MappedFile(folder.write("f", "1") + "/below"); }), "Not a directory");
  const std::string locked = folder.write("locked", "secret");
  fs::permissions(locked, fs::perms::none);
  if (access(locked.c_str(), R_OK) != 0) {  // root may read everything
    has(error_of([&] { MappedFile{locked}; }), "Permission denied\n  make it readable");
  }
}

TEST_CASE("text: sizes, counts, durations") {
  const std::pair<uint64_t, const char*> sizes[] = {{0, "0 B"},
                                                    {1023, "1023 B"},
                                                    {1024, "1.00 KiB"},
                                                    {1536, "1.50 KiB"},
                                                    {65819951104, "61.3 GiB"},
                                                    {1048064, "1.00 MiB"},
                                                    {1048063, "1023 KiB"},
                                                    {UINT64_MAX, "16.0 EiB"}};
  for (const auto& [bytes, text] : sizes) CHECK(human_bytes(bytes) == text);
  const std::pair<double, const char*> counts[] = {
      {0, "0"},         {950, "950"},       {999, "999"},     {1000, "1.00k"},   {9994, "9.99k"},   {9996, "10.0k"},
      {79512, "79.5k"}, {850e3, "850k"},    {999499, "999k"}, {999500, "1.00M"}, {8.03e9, "8.03B"}, {2e12, "2.00T"},
      {0.125, "0.125"}, {-79512, "-79.5k"}, {1.0 / 0.0, "?"}, {3e15, "3000T"}};
  for (const auto& [count, text] : counts) CHECK(human_count(count) == text);
  const std::pair<double, const char*> durations[] = {{0, "0.0s"},
                                                      {0.42, "0.4s"},
                                                      {9.96, "10s"},
                                                      {42.4, "42s"},
                                                      {59.6, "1m00s"},
                                                      {185, "3m05s"},
                                                      {780, "13m"},
                                                      {3599, "59m"},
                                                      {3599.7, "1h00m"},
                                                      {7500, "2h05m"},
                                                      {86400 * 3 + 4 * 3600, "3d04h"},
                                                      {-1, "?"},
                                                      {0.0 / 0.0, "?"}};
  for (const auto& [seconds, text] : durations) CHECK(human_duration(seconds) == text);
  CHECK(counted(1, "step") == "1 step");
  CHECK(counted(0, "step") == "0 steps");
  CHECK(counted(2, "micro-batch", "es") == "2 micro-batches");
  CHECK(shortest(0.1) == "0.1");
  CHECK(shortest(1e-8) == "1e-08");
  CHECK(shortest(1) == "1");
}

TEST_CASE("text: printable") {
  const std::string question = "\xef\xbf\xbd";
  struct Case {
    std::string bytes, text;
  };
  const Case cases[] = {{"plain\ttext\n", "plain\ttext\n"},
                        {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"},
                        {"\x1b[31m\r\x7f", question + "[31m" + question + question},
                        {"\xc2\x9b", question},                            // a C1 control: CSI
                        {"\xc0\xaf", question + question},                 // overlong
                        {"\xed\xa0\x80", question + question + question},  // a surrogate
                        {"\xf4\x90\x80\x80", question + question + question + question},
                        {"\xe2\x82z", question + question + "z"},
                        {std::string(1, '\0') + "\xff", question + question}};
  for (const Case& c : cases) {
    PrintableText whole, bytewise;
    CHECK(whole.take(c.bytes) == c.text);
    std::string text;
    for (char byte : c.bytes) text += bytewise.take(std::string(1, byte));
    CHECK(text == c.text);
  }
  PrintableText waiting;
  CHECK(waiting.take("\xe2\x82").empty());
  CHECK(waiting.take("\n") == question + question + "\n");
}

TEST_CASE("text: nearest") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("setps", "steps") == 1);
  CHECK(edit_distance("same", "same") == 0);
  const std::vector<std::string> words = {"steps", "seed", "seq-len", "lr"};
  CHECK(nearest("setps", words) == "steps");
  CHECK(nearest("sed", words) == "seed");
  CHECK(nearest("seq-length", words) == "seq-len");
  CHECK(nearest("rl", words) == "lr");
  CHECK(nearest("attention", words) == "");
  CHECK(nearest("x", words) == "");
  CHECK(nearest("steps", {}) == "");
}

TEST_CASE("text: glob") {
  const Folder folder;
  for (const char* name : {"b.bin", "a.bin", "B.bin", "c.txt", "odd[1].bin"}) folder.write(name, "1");
  const std::string at = folder.path.string() + "/";
  CHECK(glob(at + "?.bin") == std::vector<std::string>{at + "B.bin", at + "a.bin", at + "b.bin"});
  CHECK(glob(at + "{c,b}.*") == std::vector<std::string>{at + "b.bin", at + "c.txt"});
  CHECK(glob(at + "odd[1].bin") == std::vector<std::string>{at + "odd[1].bin"});
  CHECK(glob(at + "c.txt") == std::vector<std::string>{at + "c.txt"});
  CHECK(glob(at + "none*").empty());
  CHECK(glob(at + "none").empty());
  CHECK(glob("").empty());
}
