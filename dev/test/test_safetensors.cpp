// Covers: promise 6: safetensors round trip bit for bit, one file and shards; malformed files are refused
#include <sys/resource.h>
#include <unistd.h>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "dev/test/crashing_disk.h"
#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/json.h"
#include "llmc/base/new_file.h"
#include "llmc/base/safetensors.h"

namespace fs = std::filesystem;
using namespace std::string_view_literals;  // write_file of a string_view is NewFile's

namespace {

// A file by hand: the length, the header as given, the data.
std::string image(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string floats(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float)};
}

std::string refusal(const std::string& path) {
  return error_of([&] { Safetensors file(path); });
}

// A tensor's bytes that depend on its name and the position.
std::string filling(const std::string& name, uint64_t bytes) {
  std::mt19937 random{uint32_t(std::hash<std::string>()(name))};
  std::string data(bytes, 0);
  for (char& c : data) c = char(random());
  return data;
}

std::string bytes_of_tensor(const StoredTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), tensor.data_bytes};
}

template <class Writer>
void fill(Writer& writer, const std::vector<TensorSpec>& tensors, std::mt19937& random, uint64_t largest_chunk) {
  for (const TensorSpec& tensor : tensors) {
    const std::string data = filling(tensor.name, tensor.bytes());
    for (uint64_t at = 0; at < data.size();) {
      const uint64_t chunk = std::min<uint64_t>(data.size() - at, 1 + random() % largest_chunk);
      writer.write(tensor.name, data.data() + at, chunk);
      at += chunk;
    }
  }
}

// A file, or with the bytes of a shard a folder, of these tensors.
template <class Writer = SafetensorsWriter, class... Shard>
void write_all(const std::string& path, const std::vector<TensorSpec>& tensors, uint64_t largest_chunk,
               Shard... shard) {
  static std::mt19937 random(5);  // each file is written in other chunks
  Writer writer(path, tensors, shard...);
  fill(writer, tensors, random, largest_chunk);
  writer.finish();
}

const std::vector<TensorSpec> kFour = {{"a", StoredType::F32, {2, 3}},
                                       {"b", StoredType::F32, {4}},
                                       {"c", StoredType::BF16, {3, 1}},
                                       {"d", StoredType::U8, {5}}};

}  // namespace

TEST_CASE("read: a file made by hand") {
  const TemporaryFolder folder;
  // Keys not in the order of the data, a scalar, an empty tensor, unaligned data (the header is not padded).
  const std::string header =
      R"({"two":{"shape":[2,1],"dtype":"F32","data_offsets":[4,12]},"__metadata__":{"format":"pt"},)"
      R"("empty":{"dtype":"BF16","shape":[0,7],"data_offsets":[12,12]},)"
      R"("one":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("byte":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[12,13]}})";
  const std::string path = folder.write("x.safetensors", image(header, floats({1.5f, 2.5f, -3.0f}) + "\x7e"));
  const Safetensors file(path);
  CHECK(file.tensors().size() == 4);
  CHECK(file.tensors()[0].name == "two");
  CHECK(file.at("two").shape == Shape{2, 1});
  CHECK(file.at("two").type == StoredType::F32);
  CHECK(bytes_of_tensor(file.at("two")) == floats({2.5f, -3.0f}));
  CHECK(bytes_of_tensor(file.at("one")) == floats({1.5f}));
  CHECK(file.at("one").elements() == 1);
  CHECK(file.at("empty").elements() == 0);
  CHECK(file.at("empty").data_bytes == 0);
  CHECK(file.at("byte").type == StoredType::F8_E4M3);
  CHECK(bytes_of_tensor(file.at("byte")) == "\x7e");
  CHECK(file.find("three") == nullptr);
  CHECK(file.path() == path);
  CHECK(file.at("two").file == path);

  const StoredTensor& two = file.at("two");
  CHECK(Safetensors::range(two, 4, 4) == two.data + 4);
  CHECK(Safetensors::range(two, 8, 0) == two.data + 8);
  says(error_of([&] { Safetensors::range(two, 4, 5); }), "tensor two has 8 bytes, not 5 from byte 4 on");
  says(error_of([&] { Safetensors::range(two, 9, 0); }), "8 bytes");
  says(error_of([&] { Safetensors::range(two, 4, UINT64_MAX); }), "8 bytes");
  CHECK(&file.at("two", {2, 1}) == &two);
  says(error_of([&] { file.at("two", {1, 2}); }), "tensor two has the shape [2, 1]\n  expected [1, 2]");
  says(error_of([&] { file.at("twp"); }), "has no tensor twp\n  it holds 4 tensors; the nearest name is two");
}

TEST_CASE("write: the bytes of a small file") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x", {{"w", StoredType::F32, {2}}, {"a", StoredType::U8, {3}}});
  CHECK(!fs::exists(folder / "x"));
  CHECK(fs::exists(folder / "x.partial"));
  writer.write("w", floats({1, 2}).data(), 8);
  writer.write("a", "xyz", 3);
  writer.finish();
  CHECK(folder.count() == 1);
  std::string header = R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("a":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  while (header.size() % 8) header += ' ';
  CHECK(folder.read("x") == image(header, floats({1, 2}) + "xyz"));
}

TEST_CASE("round trip: every type, ugly shapes, chunks of any size") {
  const TemporaryFolder folder;
  std::mt19937 random(5);
  const StoredType types[] = {
      StoredType::C64,     StoredType::F64,     StoredType::I64, StoredType::U64, StoredType::F32, StoredType::I32,
      StoredType::U32,     StoredType::BF16,    StoredType::F16, StoredType::I16, StoredType::U16, StoredType::F8_E8M0,
      StoredType::F8_E5M2, StoredType::F8_E4M3, StoredType::I8,  StoredType::U8,  StoredType::BOOL};
  for (int round = 0; round < 20; ++round) {
    std::vector<TensorSpec> tensors;
    for (StoredType type : types) {
      Shape shape;
      for (uint32_t axes = random() % 4; axes > 0; --axes) shape.push_back(random() % 40);
      tensors.push_back({format("\xc3\xa9.\"%d\"", int(tensors.size())), type, shape});
    }
    tensors.push_back({"large", StoredType::U8, {round % 5 == 0 ? 3000001u : 3u}});
    const std::string path = folder / format("%d.safetensors", round);
    write_all(path, tensors, round % 2 ? 7 * 13 * 997 : 2500000);
    const Safetensors file(path);
    CHECK(file.tensors().size() == tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const StoredTensor& tensor = file.tensors()[i];
      CHECK(tensor.name == tensors[i].name);
      CHECK(tensor.type == tensors[i].type);
      CHECK(tensor.shape == tensors[i].shape);
      CHECK((bytes_of_tensor(tensor) == filling(tensor.name, tensors[i].bytes())));
      CHECK(reinterpret_cast<uintptr_t>(tensor.data) % bytes_of(tensor.type) == 0);
    }
  }
}

TEST_CASE("read: damaged headers") {
  const TemporaryFolder folder;
  const std::string eight(8, 0);
  // The header of one tensor of F32, and that of two tensors.
  const auto one = [](const char* shape, const char* offsets) {
    return format(R"({"a":{"dtype":"F32","shape":%s,"data_offsets":%s}})", shape, offsets);
  };
  const auto two = [](const char* b) {
    return format(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},%s})", b);
  };
  const std::pair<std::string, const char*> headers[] = {
      {"not json", "(header), line 1, column 2: not valid JSON"},
      {"", "the text is empty"},
      {"[]", "expected an object"},
      {R"({"a":3})", "\"a\" is the integer 3\n  expected an object"},
      {R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})",
       "\"a.dtype\" is the string \"F33\", a number type that this program does not know\n  expected one of BOOL, U8"},
      {R"({"a":{"dtype":32,"shape":[2],"data_offsets":[0,8]}})", "expected a string"},
      {R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "\"a\" has no key \"dtype\""},
      {R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", "no key \"shape\""},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "no key \"data_offsets\""},
      {one("2", "[0,8]"), "expected an array"},
      {one("[-2]", "[0,8]"), "expected at least 0"},
      {one("[2.0]", "[0,8]"), "expected an integer"},
      {one("[2]", "[0]"), "expected [begin, end]"},
      {one("[2]", "[8,0]"), "ends at 0, before it begins at 8"},
      {one("[3]", "[0,8]"), "tensor a has the shape [3] of F32, 12 bytes, but 8 bytes of data"},
      {one("[4294967296,4294967296]", "[0,8]"), "the shape [4294967296, 4294967296] of F32, more than 2^64 bytes"},
      {one("[4611686018427387906]", "[0,8]"), "more than 2^64 bytes"},
      {one("[1]", "[4,8]"), "4 bytes between the header and tensor a"},
      {two(R"("b":{"dtype":"U8","shape":[2],"data_offsets":[6,8]})"), "2 bytes between a and tensor b"},
      {two(R"("b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]})"), "tensors a and b overlap"},
      {two(R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "overlap"},
      {two(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "\"a\" stands twice"},
      {one("[3]", "[0,12]"),
       "header says 12 bytes of tensors, file holds 8\n  expected 75 bytes, found 71: the copy was cut short; fetch it "
       "again"},
      {one("[1]", "[0,4]"), "header says 4 bytes of tensors, file holds 8"},
      {R"({"__metadata__":{"format":3}})", "expected a string"}};
  for (const auto& [header, error] : headers)
    says(refusal(folder.write("x.safetensors", image(header, eight))), "x.safetensors", error);

  const std::string good = image(one("[2]", "[0,8]"), eight);
  const std::pair<std::string, const char*> files[] = {
      {good.substr(0, 5), "5 bytes are no safetensors file"},
      {good.substr(0, 20),
       "header of 54 bytes, file holds 12\n  expected at least 62 bytes, found 20: the copy was cut short"},
      {"PK\x03\x04 this is a zip file", "not a safetensors file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "git lfs pull"},
      {std::string(8, '\xff') + good, "18446744073709551615 bytes"},
      {"", "the file is empty"}};
  for (const auto& [bytes, error] : files) says(refusal(folder.write("x", bytes)), error);
  says(refusal(folder / "none.safetensors"), "none.safetensors: No such file");
}

TEST_CASE("read: every cut of a file is refused, no changed header byte does harm") {
  const TemporaryFolder folder;
  std::mt19937 random(7);
  write_all(folder / "good", kFour, 100);
  const std::string good = folder.read("good");
  for (size_t n = 0; n < good.size(); ++n) CHECK(!refusal(folder.write("x", good.substr(0, n))).empty());
  CHECK(!refusal(folder.write("x", good + "1")).empty());

  const size_t data = good.size() - (24 + 16 + 6 + 5);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string broken = good;
    broken[random() % data] = char(random());
    const std::string path = folder.write("x", broken);
    // A tensor that passes all checks is read to its last byte: it must lie inside the mapping.
    const std::string message = error_of([&] {
      const Safetensors file(path);
      size_t bytes = 0;
      for (const StoredTensor& tensor : file.tensors()) bytes += bytes_of_tensor(tensor).size();
      CHECK(bytes == 24 + 16 + 6 + 5);
    });
    refused += !message.empty();
  }
  CHECK(refused > 1500);
}

TEST_CASE("read: offsets beyond 4 GiB") {
  const TemporaryFolder folder;
  const uint64_t large = (uint64_t(5) << 30) + 4;
  const std::string header = format(R"({"big":{"dtype":"F32","shape":[%zu],"data_offsets":[0,%zu]},)"
                                    R"("end":{"dtype":"F32","shape":[1],"data_offsets":[%zu,%zu]}})",
                                    size_t(large / 4), size_t(large), size_t(large), size_t(large + 4));
  const std::string path = folder.write("x", image(header, ""));
  fs::resize_file(path, 8 + header.size() + large);  // a hole: it takes no room on the disk
  std::ofstream(path, std::ios::binary | std::ios::app) << floats({42});
  const Safetensors file(path);
  CHECK(file.at("big").data_bytes == large);
  CHECK(bytes_of_tensor(file.at("end")) == floats({42}));
  CHECK(*Safetensors::range(file.at("big"), large - 1, 1) == std::byte(0));
}

TEST_CASE("directory: one file, shards, round trip") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, uint64_t shard_bytes, const std::vector<TensorSpec>& tensors) {
    write_all<SafetensorsDirectoryWriter>(folder / name, tensors, 10, shard_bytes);
    return Safetensors(folder / name);
  };
  const auto check = [&](const Safetensors& read, const std::vector<TensorSpec>& tensors) {
    CHECK(read.tensors().size() == tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      CHECK(read.tensors()[i].name == tensors[i].name);
      CHECK((bytes_of_tensor(read.at(tensors[i].name, tensors[i].shape)) ==
             filling(tensors[i].name, tensors[i].bytes())));
    }
  };
  check(write("one", 51, kFour), kFour);
  CHECK(fs::exists(folder / "one/model.safetensors"));
  CHECK(!fs::exists(folder / "one/model.safetensors.index.json"));

  check(write("three", 25, kFour), kFour);  // 24 | 16 + 6 | 5
  CHECK(fs::exists(folder / "three/model-00003-of-00003.safetensors"));
  CHECK(!fs::exists(folder / "three/model.safetensors"));
  const Json index = Json::read(folder / "three/model.safetensors.index.json");
  CHECK(index.at("metadata").get_int("total_size") == 51);
  CHECK(index.at("weight_map").dump() ==
        R"({"a":"model-00001-of-00003.safetensors","b":"model-00002-of-00003.safetensors",)"
        R"("c":"model-00002-of-00003.safetensors","d":"model-00003-of-00003.safetensors"})");

  check(write("four", 1, kFour), kFour);
  CHECK(fs::exists(folder / "four/model-00004-of-00004.safetensors"));

  // Empty tensors, also alone at the end, which nobody writes to.
  const std::vector<TensorSpec> empties = {{"e", StoredType::F32, {0}},
                                           {"a", StoredType::F32, {1}},
                                           {"b", StoredType::F32, {1}},
                                           {"f", StoredType::F32, {0}}};
  check(write("empties", 4, empties), empties);
  CHECK(write("nothing", 4, {}).tensors().empty());
}

TEST_CASE("directory: what does not fit together") {
  const TemporaryFolder folder;
  write_all<SafetensorsDirectoryWriter>(folder / "m", kFour, 100, uint64_t(25));
  const std::string index_path = folder / "m/model.safetensors.index.json",
                    index = folder.read("m/model.safetensors.index.json");
  const std::string second = folder / "m/model-00002-of-00003.safetensors";
  const auto with_index = [&](const std::string& from, const std::string& to) {
    std::string changed = index;
    changed.replace(changed.find(from), from.size(), to);
    folder.write("m/model.safetensors.index.json", changed);
    const std::string message = refusal(folder / "m");
    folder.write("m/model.safetensors.index.json", index);
    return message;
  };
  CHECK(refusal(folder / "m").empty());
  says(with_index("\"b\": \"model-00002", "\"b\": \"model-00003"), "tensor b is not in", "it is in ");
  says(with_index("\"b\":", "\"bb\":"), "tensor bb is not in", "different models");
  says(with_index("\"c\": \"model-00002-of-00003.safetensors\",", ""), "tensor c in ");
  for (const char* name : {"../m/model-00002-of-00003.safetensors", "..", "model-00002-of-00003.safetensors\\u0000"})
    says(with_index("model-00002-of-00003.safetensors", name), "is no name of a file in",
         std::string(name).substr(0, 2));
  says(with_index("\"model-00002", "\"model-00007"), "shard model-00007-of-00003.safetensors is missing");
  says(with_index("weight_map", "weight_mop"), "has no key \"weight_map\"\n  the nearest key is \"weight_mop\"");
  says(with_index("{", ""), "not valid JSON");
  folder.write("m/model.safetensors.index.json", "{\"weight_map\": {}}");
  says(refusal(folder / "m"), "the index names no tensor");
  folder.write("m/model.safetensors.index.json", index);

  const std::string shard = folder.read("m/model-00002-of-00003.safetensors");
  folder.write("m/model-00002-of-00003.safetensors", shard.substr(0, shard.size() - 1));
  says(refusal(folder / "m"), "model-00002-of-00003.safetensors: header says 22 bytes of tensors, file holds 21");
  fs::copy_file(folder / "m/model-00001-of-00003.safetensors", second, fs::copy_options::overwrite_existing);
  says(refusal(folder / "m"), "tensor a is in two files");
  fs::remove(second);
  says(refusal(folder / "m"), "shard model-00002-of-00003.safetensors is missing in", "promises 2 tensors in it");
  fs::remove(index_path);
  says(refusal(folder / "m"), "holds neither model.safetensors nor model.safetensors.index.json");
  folder.write("m/pytorch_model.bin", "1");
  says(refusal(folder / "m"), "load the pytorch_model.bin in transformers");
}

TEST_CASE("write: calls that do not fit the declaration") {
  const TemporaryFolder folder;
  const std::string data(100, 'x');
  {
    SafetensorsWriter writer(folder / "x", kFour);
    says(error_of([&] { writer.write("b", data.data(), 4); }), "cannot write tensor b",
         "expected the next bytes of a, 0 of 24 are written");
    writer.write("a", data.data(), 20);
    says(error_of([&] { writer.write("a", data.data(), 5); }), "cannot write 5 bytes of tensor a",
         "only 4 of its 24 are missing");
    says(error_of([&] { writer.finish(); }), "tensor a has 20 of its 24 bytes");
    writer.write("a", data.data(), 4);
    writer.write("b", data.data(), 16);
    writer.write("c", data.data(), 6);
    writer.write("d", data.data(), 5);
    says(error_of([&] { writer.write("d", data.data(), 1); }), "all 4 tensors are complete");
    CHECK(fs::exists(folder / "x.partial"));
  }
  CHECK(folder.count() == 0);  // given up before finish(): nothing is left
  const std::pair<std::vector<TensorSpec>, const char*> declarations[] = {
      {{kFour[0], kFour[1], kFour[0]}, "two tensors are named a"},
      {{{"__metadata__", StoredType::F32, {}}}, "two tensors"},
      {{kFour[3], kFour[0]},
       "tensor a of F32 would begin at byte 5, not a multiple of 4\n  declare tensors of wider types first"},
      {{{"h", StoredType::U8, {1ull << 62, 4}}}, "more than 2^64 bytes"},
      {{{"h", StoredType::U8, {1ull << 63}}}, "2^63 bytes"}};
  for (const auto& [tensors, error] : declarations)
    says(error_of([&, &declared = tensors] { SafetensorsWriter(folder / "x", declared); }), error);
  CHECK(folder.count() == 0);

  SafetensorsDirectoryWriter directory(folder / "m", kFour, 25);
  directory.write("a", data.data(), 24);
  directory.write("b", data.data(), 16);
  says(error_of([&] { directory.finish(); }), "tensor c has 0 of its 6 bytes");
  CHECK(!fs::exists(folder / "m/model-00001-of-00003.safetensors"));  // no shard before all are complete
  says(error_of([&] { SafetensorsDirectoryWriter(folder / "n", {kFour[0], kFour[0]}, 1); }), "two tensors are named a");
  folder.write("old/model.safetensors", "1");
  folder.write("older/model-00001-of-00002.safetensors", "1");
  says(error_of([&] { SafetensorsDirectoryWriter(folder / "old", kFour); }), "already holds model.safetensors");
  says(error_of([&] { SafetensorsDirectoryWriter(folder / "older", kFour); }), "nothing is overwritten");
  folder.write("file", "1");
  says(error_of([&] { SafetensorsDirectoryWriter(folder / "file/below", kFour); }), "cannot create the folder");
}

TEST_CASE("write: an old file stays until the new one is complete") {
  const TemporaryFolder folder;
  folder.write("x", "old");
  folder.write("x.partial", std::string(1000, 'p'));
  {
    SafetensorsWriter given_up(folder / "x", kFour);
    given_up.write("a", "1234", 4);
  }
  CHECK(folder.read("x") == "old");
  std::mt19937 random(17);
  SafetensorsWriter writer(folder / "x", kFour);
  fill(writer, kFour, random, 100);
  CHECK(folder.read("x") == "old");
  writer.finish();
  CHECK(Safetensors(folder / "x").tensors().size() == 4);
  says(error_of([&] { writer.finish(); }), "already published");
  CHECK(folder.count() == 1);
}

TEST_CASE("write: a full disk, a limit, a folder that is not there") {
  const TemporaryFolder folder;
  const std::string data(3 << 20, 'x');
  const std::vector<TensorSpec> tensors = {{"a", StoredType::U8, {data.size()}}};

  FailingDisk full(1, ENOSPC);  // the first write, after the creation
  SUBCASE("the disk is full while writing") {
    SafetensorsWriter writer(folder / "x", tensors, full);
    says(error_of([&] { writer.write("a", data.data(), data.size()); }),
         "cannot write " + (folder / "x.partial") + " after 0 bytes: No space left on device",
         "the disk is full: free some space");
    CHECK(folder.count() == 0);
    says(error_of([&] { writer.write("a", data.data(), 1); }), "already closed");
    says(error_of([&] { writer.finish(); }), "tensor a has 0 of its");
  }
  SUBCASE("the disk is full when the last bytes leave the buffer") {
    SafetensorsWriter writer(folder / "x", {{"a", StoredType::U8, {4}}}, full);
    writer.write("a", "1234", 4);
    says(error_of([&] { writer.finish(); }), "No space left on device");
    CHECK(folder.count() == 0);
    says(error_of([&] { writer.finish(); }), "given up");
  }
  SUBCASE("one shard of a directory") {
    fs::create_directory(folder / "m");
    const fs::path in_its_way = folder / "m/model-00002-of-00002.safetensors.partial";
    fs::create_directory(in_its_way);
    const std::string message = error_of([&] {
      SafetensorsDirectoryWriter writer(folder / "m", {kFour[0], kFour[1]}, 24);
      writer.write("a", data.data(), 24);
      writer.write("b", data.data(), 16);
      writer.finish();
    });
    says(message, "model-00002-of-00002.safetensors.partial", "directory");
    fs::remove(in_its_way);
    CHECK(fs::is_empty(folder / "m"));
  }
  SUBCASE("a file may not grow beyond a limit") {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = {1500000, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string message = error_of([&] {
      SafetensorsWriter writer(folder / "y", tensors);
      writer.write("a", data.data(), data.size());
    });
    setrlimit(RLIMIT_FSIZE, &old);
    says(message, "after 1500000 bytes: File too large", "ulimit -f");
    CHECK(!fs::exists(folder / "y.partial"));
  }
  SUBCASE("no place to write to") {
    says(error_of([&] { SafetensorsWriter(folder / "none/x", tensors); }),
         "No such file or directory\n  create the folder");
    says(error_of([&] { SafetensorsWriter(folder.path(), tensors); }), "is a directory");
    says(error_of([&] { SafetensorsWriter("", tensors); }), "name is empty");
    says(error_of([&] { SafetensorsWriter("/proc/x", tensors); }), "cannot create /proc/x.partial");
    says(error_of([&] { write_file("/dev/null/x", "1"sv); }), "Not a directory");
    fs::create_directory(folder / "locked");
    fs::permissions(folder / "locked", fs::perms::owner_read);
    if (access((folder / "locked").c_str(), W_OK) != 0) {  // root may write everywhere
      says(error_of([&] { write_file(folder / "locked/x", "1"sv); }), "choose a folder that you may write to");
    }
    fs::permissions(folder / "locked", fs::perms::owner_all);
  }
}

TEST_CASE("new_file: whole, moved, replaced") {
  const TemporaryFolder folder;
  write_file(folder / "x", "one\n"sv);
  CHECK(folder.read("x") == "one\n");
  write_file(folder / "x", ""sv);
  CHECK(fs::file_size(folder / "x") == 0);
  {
    NewFile file(folder / "x");
    NewFile moved(std::move(file));
    moved.write("two");
    moved.seal();
    CHECK(folder.read("x") == "");
    CHECK(folder.read("x.partial") == "two");
    says(error_of([&] { moved.write("3"); }), "already closed");
    moved.publish();
  }
  CHECK(folder.read("x") == "two");
  CHECK(folder.count() == 1);
}
