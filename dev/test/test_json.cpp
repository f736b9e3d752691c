// Covers: JSON: numbers keep their kind and bits, errors name file, key and kind, memory is in proportion to the text;
// names and links stay in their folder
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <sstream>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json.h"
#include "llmc/base/mapped_file.h"
#include "llmc/base/printable.h"
#include "llmc/base/text.h"

namespace fs = std::filesystem;

namespace {

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
  says(error_of([] { Json(uint64_t(INT64_MAX) + 1); }), "9223372036854775808");
}

TEST_CASE("dump: building, indenting, equality") {
  Json json = Json::object().set("b", true).set("a", Json::array());
  json.set("list", Json().push_back(1).push_back("two").push_back(3.5)).set("b", nullptr);
  CHECK(json.dump() == R"({"b":null,"a":[],"list":[1,"two",3.5]})");
  says(json.dump(2), "\n  \"list\": [\n    1,");
  CHECK(Json::parse(json.dump(2), "elsewhere") == json);
  CHECK(!(Json(1) == Json(1.0)));
  CHECK(Json("quote \" slash \\ line\n tab\t").dump() == R"("quote \" slash \\ line\n tab\t")");
}

TEST_CASE("dump: what JSON has no words for is refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const Json json = Json::object().set("steps", Json().push_back(1).push_back(Json::object().set("loss", nan)));
  says(error_of([&] { json.dump(); }), "\"steps[1].loss\" is nan", "finite");
  says(error_of([&] { Json(-inf).dump(); }), "-inf");
  says(error_of([&] { Json::object().set("text", "\xff\xfe").dump(); }), "UTF-8");
  says(error_of([&] { Json::object().set("\xff", 1).dump(); }), "UTF-8");
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

  using Getter = std::function<void()>;
  const std::pair<Getter, const char*> wrong[] = {
      {[&] { json.get_int("hidden_sizes"); },
       "model/config.json has no key \"hidden_sizes\"\n  the nearest key is \"hidden_size\""},
      {[&] { json.get_int("qwertyuiop"); }, "add it"},
      {[&] { json.at("rope_scaling").get_double("factor"); },
       "model/config.json: \"rope_scaling.factor\" is the string \"32\"\n  expected a number"},
      {[&] { json.get_int("eps"); }, "\"eps\" is the number 1e-05\n  expected an integer"},
      {[&] { json.get_int("eps", 3); }, "expected an integer"},
      {[&] { json.get_int("null"); }, "\"null\" is null"},
      {[&] { json.get_string("hidden_size"); }, "the integer 64"},
      {[&] { json.get_bool("hidden_size", true); }, "expected true or false"},
      {[&] { json.get_int("rope_scaling"); }, "an object of 2 keys"},
      {[&] { json.at("rope_scaling").at("list").at(1).get_string("x"); }, "\"rope_scaling.list[1].x\" is"},
      {[&] { json.at("rope_scaling").at("list").at(7); }, "no element 7"},
      {[&] { json.at("hidden_size").get_int("x"); }, "expected an object"},
      {[&] { json.elements(); }, "expected an array"},
      {[] { Json(3).set("x", 1); }, "expected an object"},
      {[] { Json(3).push_back(1); }, "expected an array"}};
  for (const auto& [get, error] : wrong) says(error_of(get), error);
}

TEST_CASE("parse: malformed texts name file, line and column") {
  says(parse_error("{\n  \"lr\": 1e-3,\n  \"steps\": 10O\n}"), "file.json, line 3, column 14", "not valid JSON",
       "near:   \"steps\": 10O");
  std::istringstream texts(R"(
{|}|[1,]|[1 2]|{"a":1,}|{a:1}|{'a':1}|{"a"}|{"a":}|nul|True|NaN|Infinity|-|01|1.|.5|+1|1e|1e999|"abc|"\x"|"\u12"|[1]]|{} {}|
{"a":1 "b":2}|["\ud800"])");
  std::vector<std::string> malformed = {"", " \n ", "\"\xff\"", "// c\n1", "\"tab\there\""};
  for (std::string text; std::getline(texts, text, '|');) malformed.push_back(text);
  CHECK(malformed.size() == 32);
  for (const std::string& text : malformed) says(parse_error(text), "file.json", "not valid JSON");
  says(parse_error(std::string("{}\0", 3)), "zero byte at offset 2");
  says(parse_error(R"({"a":{"b":1,"c":2,"b":3}})"), "file.json: \"a.b\" stands twice");
  says(parse_error(std::string(1000000, '[')), "more than 100 levels");
  CHECK(parse_error(std::string(100, '[') + std::string(100, ']')).empty());
  says(parse_error(std::string(101, '[') + std::string(101, ']')), "more than 100 levels");
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

TEST_CASE("parse: long keys and many values take memory for each once") {
  // 50 objects, one in the other, by keys of 1000 bytes, and 50,000 numbers in the innermost.
  std::string text, end;
  for (int i = 0; i < 50; ++i) text += "{\"" + std::string(1000, 'k') + "\":", end += "}";
  text += "[0";
  for (int i = 0; i < 50000; ++i) text += ",0";
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  const Json json = Json::parse(text + "]" + end, "file.json");
  const size_t bytes = mallinfo2().uordblks + mallinfo2().hblkhd - before;
  printf("%zu bytes of text took %zu bytes\n", text.size(), bytes);
  CHECK(bytes < 16 << 20);  // sanitizers count none
  const Json* inner = &json;
  while (inner->is_object()) inner = &inner->items()[0].second;
  const std::string where = inner->at(49999).where();
  says(where, "file.json: \"" + std::string(60, 'k') + "...\"");
  CHECK(where.size() < 100);
}

TEST_CASE("where: names a value's place also after it was copied or moved") {
  Json json = Json::parse(R"({"a":[[1,{"b":2}]],"":{"c":3},"[d":4})", "x");
  const Json copy = json.at("a").at(size_t(0));
  CHECK(copy.at(1).at("b").where() == "x: \"a[0][1].b\"");
  const Json moved = std::move(json);
  CHECK(moved.where() == "x");
  CHECK(moved.at("a").at(size_t(0)).at(size_t(0)).where() == "x: \"a[0][0]\"");
  CHECK(moved.at("").at("c").where() == "x: \".c\"");
  CHECK(Json(1).where() == "JSON");
}

TEST_CASE("input_file: names and links stay in their folder") {
  const TemporaryFolder folder;
  folder.write("id_rsa", "secret");
  folder.write("model/tokenizer.json", "{}");
  folder.write("hub/models--a--b/blobs/1234", "{}");
  folder.write("hub/models--c--d/blobs/5678", "{}");
  const std::string model = folder / "model", snapshot = folder / "hub/models--a--b/snapshots/main";
  fs::create_directories(snapshot);
  const auto link = [&](const std::string& to, const std::string& at) {
    fs::remove(at);
    fs::create_symlink(to, at);
    return error_of([&] { own_file(fs::path(at).parent_path(), fs::path(at).filename()); });
  };
  CHECK(own_file(model, "tokenizer.json") == fs::canonical(folder / "model/tokenizer.json"));
  CHECK(link("tokenizer.json", model + "/template").empty());
  CHECK(link("../model/tokenizer.json", model + "/template").empty());
  CHECK(link("../../blobs/1234", snapshot + "/template").empty());
  link(snapshot, folder / "linked");
  CHECK(own_file(folder / "linked", "template") == fs::canonical(folder / "hub/models--a--b/blobs/1234"));
  for (const std::string& to : {std::string("../id_rsa"), folder / "id_rsa", std::string("../model/../id_rsa"),
                                folder / "hub/models--a--b/blobs/1234"})
    says(link(to, model + "/template"), "template is a link to ", "outside of this folder");
  says(link("../../../models--c--d/blobs/5678", snapshot + "/template"), "outside of this folder");
  says(link("nothing", model + "/template"), "template: No such file");
  // A chain of links, and a folder that is called like the begin of the model's.
  link("../id_rsa", model + "/first");
  says(link("first", model + "/template"), "outside of this folder");
  folder.write("model2/file", "x");
  says(link("../model2/file", model + "/template"), "outside of this folder");

  CHECK(listed_file("m", "a.bin", "m/list") == "m/a.bin");
  CHECK(listed_file("m", "..a", "m/list") == "m/..a");
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../a.bin"), std::string("/a.bin"),
        std::string("b/a.bin"), std::string("a.bin\0x", 7), std::string(256, 'a')})
    says(error_of([&] { listed_file("m", name, "m/list"); }), "m/list: ", "is no name of a file in m");
}

TEST_CASE("read: a file") {
  const TemporaryFolder folder;
  const std::string path = folder.write("config.json", "{\"steps\": 12}\n");
  CHECK(Json::read(path).get_int("steps") == 12);
  says(error_of([&] { Json::read(path).get_int("lr"); }), path);
  says(error_of([&] { Json::read(folder.write("bad.json", "{\"steps\": \n 12")); }), "bad.json, line 2");
  says(error_of([&] { Json::read(path + ".none"); }), "No such file");
}

TEST_CASE("mapped_file: whole, moved, released") {
  const TemporaryFolder folder;
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
  CHECK(moved.path() == path);

  // The page is gone from this process once the owner is.
  { MappedFile last(std::move(moved)); }
  CHECK(msync(const_cast<std::byte*>(data), 1, MS_ASYNC) == -1);
}

TEST_CASE("mapped_file: what cannot be mapped") {
  const TemporaryFolder folder;
  says(error_of([&] { MappedFile(folder / "none"); }), "none: No such file");
  says(error_of([&] { MappedFile(folder.path()); }), "is a directory");
  says(error_of([&] { MappedFile(folder.write("empty", "")); }), "the file is empty");
  says(error_of([&] { MappedFile("/dev/null"); }), "expected an ordinary file");
  says(error_of([&] { MappedFile(""); }), "name is empty");
  says(error_of([&] { MappedFile(folder.write("f", "1") + "/below"); }), "Not a directory");
  const std::string locked = folder.write("locked", "secret");
  fs::permissions(locked, fs::perms::none);
  if (access(locked.c_str(), R_OK) != 0) {  // root may read everything
    says(error_of([&] { MappedFile{locked}; }), "Permission denied\n  make it readable");
  }
}

TEST_CASE("text: sizes, counts, durations") {
  const std::map<uint64_t, const char*> sizes = {{0, "0 B"},
                                                 {1023, "1023 B"},
                                                 {1024, "1.00 KiB"},
                                                 {1536, "1.50 KiB"},
                                                 {1048063, "1023 KiB"},
                                                 {1048064, "1.00 MiB"},
                                                 {65819951104, "61.3 GiB"},
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
  const std::pair<std::string, std::string> cases[] = {
      {"plain\ttext\n", "plain\ttext\n"},
      {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"},
      {"\x1b[31m\r\x7f", question + "[31m" + question + question},
      {"\xc2\x9b", question},                            // a C1 control: CSI
      {"\xc0\xaf", question + question},                 // overlong
      {"\xed\xa0\x80", question + question + question},  // a surrogate
      {"\xf4\x90\x80\x80", question + question + question + question},
      {"\xe2\x82z", question + question + "z"},
      {std::string(1, '\0') + "\xff", question + question}};
  for (const auto& [bytes, text] : cases) {
    PrintableText whole, bytewise;
    CHECK(whole.take(bytes) == text);
    std::string taken;
    for (char byte : bytes) taken += bytewise.take(std::string(1, byte));
    CHECK(taken == text);
  }
  PrintableText waiting;
  CHECK(waiting.take("\xe2\x82").empty());
  CHECK(waiting.take("\n") == question + question + "\n");
  CHECK(printable_message("short\x1b\n") == "short" + question + "\n");
  const std::string shown = printable_message("begin " + std::string(1 << 20, 'x') + " end");
  CHECK(shown.size() < 4100);
  says(shown, "begin x", "x … x", "x end");
}

TEST_CASE("text: nearest") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("setps", "steps") == 1);
  CHECK(edit_distance("same", "same") == 0);
  const std::pair<const char*, const char*> words[] = {{"setps", "steps"}, {"sed", "seed"},   {"seq-length", "seq-len"},
                                                       {"rl", "lr"},       {"attention", ""}, {"x", ""}};
  for (const auto& [word, near] : words) CHECK(nearest(word, {"steps", "seed", "seq-len", "lr"}) == near);
  CHECK(nearest("steps", {}) == "");
}

TEST_CASE("text: glob") {
  const TemporaryFolder folder;
  for (const char* name : {"b.bin", "a.bin", "B.bin", "c.txt", "odd[1].bin"}) folder.write(name, "1");
  const std::string at = folder.path() + "/";
  CHECK(glob(at + "?.bin") == std::vector<std::string>{at + "B.bin", at + "a.bin", at + "b.bin"});
  CHECK(glob(at + "{c,b}.*") == std::vector<std::string>{at + "b.bin", at + "c.txt"});
  CHECK(glob(at + "odd[1].bin") == std::vector<std::string>{at + "odd[1].bin"});
  CHECK(glob(at + "c.txt") == std::vector<std::string>{at + "c.txt"});
  CHECK(glob(at + "none*").empty());
  CHECK(glob(at + "none").empty());
  CHECK(glob("").empty());
}
