#include "llmc/base/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <unordered_set>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr const char* kFileName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

const struct {
  StoredType type;
  const char* name;
  size_t bytes;
} kTypes[] = {
    {StoredType::BOOL, "BOOL", 1},       {StoredType::U8, "U8", 1},           {StoredType::I8, "I8", 1},
    {StoredType::F8_E4M3, "F8_E4M3", 1}, {StoredType::F8_E5M2, "F8_E5M2", 1}, {StoredType::F8_E8M0, "F8_E8M0", 1},
    {StoredType::U16, "U16", 2},         {StoredType::I16, "I16", 2},         {StoredType::F16, "F16", 2},
    {StoredType::BF16, "BF16", 2},       {StoredType::U32, "U32", 4},         {StoredType::I32, "I32", 4},
    {StoredType::F32, "F32", 4},         {StoredType::U64, "U64", 8},         {StoredType::I64, "I64", 8},
    {StoredType::F64, "F64", 8},         {StoredType::C64, "C64", 8},
};

StoredType read_type(const Json& json) {
  for (const auto& type : kTypes) {
    if (json.as_string() == type.name) return type.type;
  }
  std::string known;
  for (const auto& type : kTypes) known += std::string(known.empty() ? "" : ", ") + type.name;
  fail("%s is %s, a number type that this program does not know\n  expected one of %s", json.where().c_str(),
       json.found().c_str(), known.c_str());
}

// Sets *result to factor * the product of the sizes. Returns false if that does not fit in 64 bits. If any size is 0,
// the result is 0, however large the others are.
bool product(const Shape& shape, uint64_t factor, uint64_t* result) {
  *result = factor;
  bool fits = true;
  for (uint64_t size : shape) fits &= !__builtin_mul_overflow(*result, size, result);
  const bool is_empty = std::count(shape.begin(), shape.end(), 0u) > 0;
  if (is_empty) *result = 0;
  return fits || is_empty;
}

uint64_t read_size(const Json& json) {
  const int64_t value = json.as_int();
  REQUIRE(value >= 0, "%s is %s\n  expected at least 0", json.where().c_str(), json.found().c_str());
  return uint64_t(value);
}

// One tensor's entry in the header.
struct Entry {
  TensorSpec spec;
  uint64_t begin, end;
};

Entry read_entry(const std::string& file, const std::string& name, const Json& json) {
  Entry entry{{name, read_type(json.at("dtype")), {}}, 0, 0};
  for (const Json& size : json.at("shape").elements()) entry.spec.shape.push_back(read_size(size));
  const Json& offsets = json.at("data_offsets");
  REQUIRE(offsets.elements().size() == 2, "%s is %s\n  expected [begin, end]", offsets.where().c_str(),
          offsets.found().c_str());
  entry.begin = read_size(offsets.at(size_t(0)));
  entry.end = read_size(offsets.at(size_t(1)));
  REQUIRE(entry.begin <= entry.end, "%s: tensor %s ends at %zu, before it begins at %zu\n  the header is damaged",
          file.c_str(), name.c_str(), size_t(entry.end), size_t(entry.begin));
  uint64_t expected = 0;
  REQUIRE(product(entry.spec.shape, bytes_of(entry.spec.type), &expected),
          "%s: tensor %s has the shape %s of %s, more than 2^64 bytes\n  the header is damaged", file.c_str(),
          name.c_str(), text_of(entry.spec.shape).c_str(), name_of(entry.spec.type));
  REQUIRE(entry.end - entry.begin == expected,
          "%s: tensor %s has the shape %s of %s, %zu bytes, but %zu bytes of data\n  the header is damaged",
          file.c_str(), name.c_str(), text_of(entry.spec.shape).c_str(), name_of(entry.spec.type), size_t(expected),
          size_t(entry.end - entry.begin));
  return entry;
}

// Throws unless the tensors tile the data. The format allows neither holes nor overlaps, and this is the only integrity
// check that a file has.
void check_layout(const std::string& file, const std::vector<Entry>& entries, uint64_t header_end,
                  uint64_t file_bytes) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const Entry* a, const Entry* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  uint64_t end = 0;
  const char* before = "the header";
  for (const Entry* entry : order) {
    REQUIRE(entry->begin >= end, "%s: tensors %s and %s overlap\n  one ends at %zu, the other begins at %zu",
            file.c_str(), before, entry->spec.name.c_str(), size_t(end), size_t(entry->begin));
    REQUIRE(entry->begin == end, "%s: %zu bytes between %s and tensor %s belong to no tensor\n  the header is damaged",
            file.c_str(), size_t(entry->begin - end), before, entry->spec.name.c_str());
    end = entry->end;
    before = entry->spec.name.c_str();
  }
  const uint64_t data_bytes = file_bytes - header_end;
  REQUIRE(end <= data_bytes,
          "%s: header says %zu bytes of tensors, file holds %zu\n"
          "  expected %zu bytes, found %zu: the copy was cut short; fetch it again",
          file.c_str(), size_t(end), size_t(data_bytes), size_t(header_end + end), size_t(file_bytes));
  REQUIRE(end == data_bytes, "%s: header says %zu bytes of tensors, file holds %zu\n  expected %zu bytes, found %zu",
          file.c_str(), size_t(end), size_t(data_bytes), size_t(header_end + end), size_t(file_bytes));
}

// Returns the header of a file to be written, with all offsets. Throws on tensors that no reader could use.
Json header_of(const std::string& path, const std::vector<TensorSpec>& tensors) {
  Json header = Json::object().set("__metadata__", Json::object().set("format", "pt"));
  std::unordered_set<std::string> names = {"__metadata__"};
  uint64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    REQUIRE(names.insert(tensor.name).second, "cannot write %s: two tensors are named %s", path.c_str(),
            tensor.name.c_str());
    REQUIRE(offset % bytes_of(tensor.type) == 0,
            "cannot write %s: tensor %s of %s would begin at byte %zu, not a multiple of %zu\n"
            "  declare tensors of wider types first",
            path.c_str(), tensor.name.c_str(), name_of(tensor.type), size_t(offset), bytes_of(tensor.type));
    const uint64_t bytes = tensor.bytes();
    REQUIRE(bytes <= uint64_t(INT64_MAX) - offset, "cannot write %s: more than 2^63 bytes of tensors", path.c_str());
    Json shape = Json::array();
    for (uint64_t size : tensor.shape) shape.push_back(size);
    Json entry = Json::object().set("dtype", name_of(tensor.type)).set("shape", shape);
    entry.set("data_offsets", Json().push_back(offset).push_back(offset + bytes));
    header.set(tensor.name, std::move(entry));
    offset += bytes;
  }
  return header;
}

}  // namespace

const char* name_of(StoredType type) {
  for (const auto& known : kTypes) {
    if (known.type == type) return known.name;
  }
  fail("no number type has the code %d", int(type));
}

size_t bytes_of(StoredType type) {
  for (const auto& known : kTypes) {
    if (known.type == type) return known.bytes;
  }
  fail("no number type has the code %d", int(type));
}

std::string text_of(const Shape& shape) {
  std::string text;
  for (uint64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

uint64_t TensorSpec::elements() const {
  uint64_t count = 0;
  REQUIRE(product(shape, 1, &count), "tensor %s: the shape %s has more than 2^64 elements", name.c_str(),
          text_of(shape).c_str());
  return count;
}

uint64_t TensorSpec::bytes() const {
  uint64_t bytes = 0;
  REQUIRE(product(shape, bytes_of(type), &bytes), "tensor %s: the shape %s of %s has more than 2^64 bytes",
          name.c_str(), text_of(shape).c_str(), name_of(type));
  return bytes;
}

Safetensors::Safetensors(const std::string& path) : path_(path) {
  std::error_code ignored;  // a path that cannot be examined cannot be opened either: open_file reports why
  if (fs::is_directory(path, ignored)) {
    open_directory(path);
  } else {
    open_file(path);
  }
}

size_t Safetensors::open_file(const std::string& path) {
  const size_t before = tensors_.size();
  files_.emplace_back(path);
  read_header(files_.back());
  return tensors_.size() - before;
}

void Safetensors::read_header(const MappedFile& file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const char* path = file.path().c_str();
  REQUIRE(text.rfind("version https://git-lfs", 0) != 0,
          "%s is a Git LFS pointer, not the tensors themselves\n  fetch them: git lfs pull", path);
  REQUIRE(file.size() >= kLengthBytes, "%s: %zu bytes are no safetensors file\n  expected at least 8: fetch it again",
          path, file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  REQUIRE(length <= kMaxHeaderBytes,
          "%s: not a safetensors file: its first 8 bytes would mean a header of %zu bytes\n  expected at most %zu",
          path, size_t(length), size_t(kMaxHeaderBytes));
  const uint64_t header_end = kLengthBytes + length;
  REQUIRE(header_end <= file.size(),
          "%s: header of %zu bytes, file holds %zu\n"
          "  expected at least %zu bytes, found %zu: the copy was cut short; fetch it again",
          path, size_t(length), file.size() - size_t(kLengthBytes), size_t(header_end), file.size());

  const Json header = Json::parse(text.substr(kLengthBytes, length), file.path() + " (header)");
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      for (const auto& [_, word] : value.items()) word.as_string();  // throws if it is none
    } else {
      entries.push_back(read_entry(file.path(), name, value));
    }
  }
  check_layout(file.path(), entries, header_end, file.size());
  for (Entry& entry : entries) {
    const auto [old, is_new] = index_.emplace(entry.spec.name, tensors_.size());
    REQUIRE(is_new, "tensor %s is in two files: %s and %s\n  keep one of them", entry.spec.name.c_str(),
            tensors_[old->second].file.c_str(), path);
    const std::byte* data = file.data() + header_end + entry.begin;
    tensors_.push_back({std::move(entry.spec), data, entry.end - entry.begin, file.path()});
  }
}

void Safetensors::open_directory(const std::string& path) {
  const fs::path directory(path);
  const fs::path single = directory / kFileName, index = directory / kIndexName;
  std::error_code error;
  const auto exists = [&](const fs::path& file) { return fs::exists(file, error); };
  if (exists(single)) {
    open_file(single.string());
    return;
  }
  REQUIRE(exists(index),
          "%s holds neither model.safetensors nor model.safetensors.index.json\n"
          "  expected a directory in Hugging Face's safetensors format%s",
          path.c_str(),
          exists(directory / "pytorch_model.bin") || exists(directory / "pytorch_model.bin.index.json")
              ? ": load the pytorch_model.bin in transformers and save it again"
              : "");

  const Json json = Json::read(index.string());
  std::vector<std::string> shards;
  std::unordered_map<std::string, size_t> promised;
  const Json& map = json.at("weight_map");
  for (const auto& [name, file] : map.items()) {
    const std::string& shard = file.as_string();
    listed_file(path, shard, file.where());
    if (promised[shard]++ == 0) shards.push_back(shard);
  }
  REQUIRE(!shards.empty(), "%s: the index names no tensor\n  fetch it again", index.c_str());
  std::sort(shards.begin(), shards.end());
  for (const std::string& shard : shards) {
    REQUIRE(exists(directory / shard), "shard %s is missing in %s\n  the index promises %zu tensors in it: fetch it",
            shard.c_str(), path.c_str(), promised[shard]);
  }
  for (const std::string& shard : shards) open_file((directory / shard).string());

  for (const auto& [name, file] : map.items()) {
    const StoredTensor* tensor = find(name);
    const std::string expected = (directory / file.as_string()).string();
    REQUIRE(tensor && tensor->file == expected, "tensor %s is not in %s, where the index promises it\n  %s%s",
            name.c_str(), expected.c_str(),
            tensor ? "it is in " : "index and shards are of different models; fetch both",
            tensor ? tensor->file.c_str() : "");
  }
  std::unordered_set<std::string> listed;
  for (const auto& item : map.items()) listed.insert(item.first);
  for (const StoredTensor& tensor : tensors_) {
    REQUIRE(listed.count(tensor.name) > 0, "tensor %s in %s is not in the index %s\n  fetch the index again",
            tensor.name.c_str(), tensor.file.c_str(), index.c_str());
  }
}

const StoredTensor* Safetensors::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const StoredTensor& Safetensors::at(const std::string& name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const StoredTensor& tensor : tensors_) names.push_back(tensor.name);
  const std::string near = nearest(name, names);
  fail("%s has no tensor %s\n  it holds %zu tensors%s%s", path_.c_str(), name.c_str(), tensors_.size(),
       near.empty() ? "" : "; the nearest name is ", near.c_str());
}

const StoredTensor& Safetensors::at(const std::string& name, const Shape& shape) const {
  const StoredTensor& tensor = at(name);
  REQUIRE(tensor.shape == shape, "%s: tensor %s has the shape %s\n  expected %s: is this the configuration's model?",
          tensor.file.c_str(), name.c_str(), text_of(tensor.shape).c_str(), text_of(shape).c_str());
  return tensor;
}

const std::byte* Safetensors::range(const StoredTensor& tensor, uint64_t offset, uint64_t length) {
  REQUIRE(offset <= tensor.data_bytes && length <= tensor.data_bytes - offset,
          "%s: tensor %s has %zu bytes, not %zu from byte %zu on", tensor.file.c_str(), tensor.name.c_str(),
          size_t(tensor.data_bytes), size_t(length), size_t(offset));
  return tensor.data + offset;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors, Disk& disk)
    : tensors_(std::move(tensors)), file_(path, disk) {
  std::string header = header_of(path, tensors_).dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // the data begins at a multiple of 8 bytes
  REQUIRE(header.size() <= kMaxHeaderBytes, "cannot write %s: a header of %zu bytes\n  expected at most %zu",
          path.c_str(), header.size(), size_t(kMaxHeaderBytes));
  const uint64_t length = header.size();
  file_.write(&length, kLengthBytes);
  file_.write(header);
  skip_complete();
}

// Skips tensors without elements, which are complete from the start.
void SafetensorsWriter::skip_complete() {
  while (current_ < tensors_.size() && filled_ == tensors_[current_].bytes()) {
    ++current_;
    filled_ = 0;
  }
}

void SafetensorsWriter::write(const std::string& name, const void* data, uint64_t bytes) {
  if (bytes == 0) return;
  REQUIRE(current_ < tensors_.size(), "cannot write tensor %s to %s: all %zu tensors are complete", name.c_str(),
          file_.path().c_str(), tensors_.size());
  const TensorSpec& tensor = tensors_[current_];
  REQUIRE(name == tensor.name, "cannot write tensor %s to %s\n  expected the next bytes of %s, %zu of %zu are written",
          name.c_str(), file_.path().c_str(), tensor.name.c_str(), size_t(filled_), size_t(tensor.bytes()));
  REQUIRE(bytes <= tensor.bytes() - filled_,
          "cannot write %zu bytes of tensor %s to %s\n  only %zu of its %zu are missing", size_t(bytes), name.c_str(),
          file_.path().c_str(), size_t(tensor.bytes() - filled_), size_t(tensor.bytes()));
  file_.write(data, bytes);
  filled_ += bytes;
  skip_complete();
}

void SafetensorsWriter::require_complete() const {
  if (is_complete()) return;
  fail("cannot finish %s: tensor %s has %zu of its %zu bytes", file_.path().c_str(), tensors_[current_].name.c_str(),
       size_t(filled_), size_t(tensors_[current_].bytes()));
}

void SafetensorsWriter::finish() {
  require_complete();
  file_.publish();
}

SafetensorsDirectoryWriter::SafetensorsDirectoryWriter(const std::string& directory, std::vector<TensorSpec> tensors,
                                                       uint64_t shard_bytes)
    : directory_(directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  REQUIRE(!error, "cannot create the folder %s: %s", directory.c_str(), error.message().c_str());
  const fs::directory_iterator entries(directory, error);
  REQUIRE(!error, "cannot look into the folder %s: %s", directory.c_str(), error.message().c_str());
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    const bool is_shard = name.rfind("model-", 0) == 0 && entry.path().extension() == ".safetensors";
    const bool weights = name == kFileName || name == kIndexName || is_shard;
    REQUIRE(!weights,
            "cannot write weights into %s: it already holds %s\n  choose another folder: nothing is overwritten",
            directory.c_str(), name.c_str());
  }

  uint64_t filled = 0;
  std::unordered_set<std::string> seen;
  shards_.emplace_back();
  for (TensorSpec& tensor : tensors) {
    REQUIRE(seen.insert(tensor.name).second, "cannot write %s: two tensors are named %s", directory.c_str(),
            tensor.name.c_str());
    const uint64_t bytes = tensor.bytes();
    if (!shards_.back().empty() && bytes > shard_bytes - std::min(filled, shard_bytes)) {
      shards_.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards_.back().push_back(std::move(tensor));
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    names_.push_back(shards_.size() == 1 ? kFileName
                                         : format("model-%05zu-of-%05zu.safetensors", i + 1, shards_.size()));
  }
  start_next_shard();
}

void SafetensorsDirectoryWriter::start_next_shard() {
  const size_t shard = writers_.size();
  const std::string path = (fs::path(directory_) / names_[shard]).string();
  writers_.push_back(std::make_unique<SafetensorsWriter>(path, shards_[shard]));
}

void SafetensorsDirectoryWriter::write(const std::string& name, const void* data, uint64_t bytes) {
  // A complete shard is closed before the next one begins, so that few files are open at once.
  while (bytes > 0 && writers_.back()->is_complete() && writers_.size() < shards_.size()) {
    writers_.back()->file_.seal();
    start_next_shard();
  }
  writers_.back()->write(name, data, bytes);
}

void SafetensorsDirectoryWriter::finish() {
  writers_.back()->require_complete();
  while (writers_.size() < shards_.size()) {  // shards of empty tensors only, to which nothing is written
    start_next_shard();
    writers_.back()->require_complete();
  }
  for (const auto& writer : writers_) writer->file_.seal();
  for (const auto& writer : writers_) writer->finish();
  if (shards_.size() == 1) return;

  uint64_t total = 0;
  Json map = Json::object();
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const TensorSpec& tensor : shards_[i]) {
      total += tensor.bytes();
      map.set(tensor.name, names_[i]);
    }
  }
  Json index = Json::object().set("metadata", Json::object().set("total_size", total)).set("weight_map", map);
  write_file((fs::path(directory_) / kIndexName).string(), index.dump(2) + "\n");
}
