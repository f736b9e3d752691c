// Covers: data: by what a run that goes on knows its data again: chunks of files, manifests, the rule of the documents
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/data/data_identity.h"
#include "llmc/data/token_dataset.h"

namespace {

Json identity(const TokenDataset& data) { return DataIdentity({{.tokens = data}}, {1}, {}).json(); }

std::string changed(const Json& was, const TokenDataset& data) {
  return error_of([&] { changed_data("run", was, identity(data)); });
}

void write_token(const std::string& path, int64_t at, uint16_t token) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(1024 + 2 * at).write(reinterpret_cast<const char*>(&token), 2);
}

}  // namespace

TEST_CASE("data that is too large to be read is known by chunks of each file and by its manifest") {
  TemporaryFolder folder;
  const int64_t size = int64_t(1) << 24;  // of each of three shards: holes, but for their headers
  for (const char* name : {"x_train_1.bin", "x_train_2.bin", "x_train_3.bin"}) {
    write_file(folder / name, header_bytes(20240520, 1, int32_t(size)));
    std::filesystem::resize_file(folder / name, uintmax_t(1024 + 2 * size));
  }
  const std::string second = folder / "x_train_2.bin";
  const TokenDataset data = TokenDataset::open(folder / "*.bin", 10);
  const Json was = identity(data);
  CHECK(was.at("train").at("listed").is_null());
  for (const int64_t at : {int64_t(0), size - 1, (size - (1 << 14)) * 5 / 63}) {
    CAPTURE(at);
    write_token(second, at, 1);
    const std::string message = changed(was, data);
    CHECK(message.starts_with("--resume run: the training data is not what it was: x_train_2.bin has other tokens"));
    says(message, "name the same --train-data");
    write_token(second, at, 0);
  }
  CHECK(changed(was, data) == "");
  write_token(second, 1 << 15, 1);
  CHECK(changed(was, data) == "");  // between the chunks
  write_manifest(folder / "", {{"x_train_1", size}, {"x_train_2", size}, {"x_train_3", size}}, false);
  CHECK(changed(was, data) == "");  // there was none before
  const Json listed = identity(data);
  write_manifest(folder / "", {{"x_train_2", size}, {"x_train_1", size}, {"x_train_3", size}}, false);
  CHECK(changed(listed, data) == "");
  std::string manifest = Json::read(folder / "manifest.json").dump();
  write_file(folder / "manifest.json", manifest.replace(manifest.find("of x_train_2"), 5, "other"));
  says(changed(listed, data), "manifest.json lists other checksums of its files");
}

TEST_CASE("the rule of the documents is a part of the data, where rows are packed with them") {
  TemporaryFolder folder;
  write_file(folder / "a.txt", std::string(100, 'a'));
  const TokenDataset data = TokenDataset::open(folder / "a.txt", 256);
  const auto with = [&](std::optional<DocumentRule> train, std::optional<DocumentRule> held_out) {
    return DataIdentity({{.tokens = data, .documents = train}}, {1}, {{.tokens = data, .documents = held_out}}).json();
  };
  const DocumentRule ends{10, false}, begins{10, true}, other{5, true};
  const Json was = with(ends, begins);
  const auto change = [&](const Json& is) { return error_of([&] { changed_data("run", was, is); }); };
  CHECK(change(with(ends, begins)) == "");
  says(change(with(other, begins)), "the training data is not what it was: each document begins with token 5",
       "each ends with token 10");
  says(change(with(begins, begins)), "each document begins with token 10");
  CHECK(change(with({}, {})) == "");  // --packed-documents off
  CHECK(changed_data("run", was, with(ends, begins)).empty());
  const std::vector<std::string> remarks = changed_data("run", was, with(ends, other));
  CHECK(remarks.size() == 1);
  says(remarks.at(0), "the held-out data is not what it was: each document begins with token 5");
}

TEST_CASE("of thousands of files the checkpoint keeps a few checksums") {
  TemporaryFolder folder;
  for (int i = 0; i < 3000; ++i) write_file(folder / format("%04d.txt", i), format("file %04d", i));
  const auto open = [&] { return TokenDataset::open(folder / "*.txt", 256); };
  const Json was = identity(open());
  CHECK(was.dump().size() < 400);
  CHECK(changed(was, open()) == "");
  write_file(folder / "1234.txt", "file 12E4");
  says(changed(was, open()), "one of its files has other tokens");
  write_file(folder / "1234.txt", "file 12345");
  says(changed(was, open()), "one of its files has another number of tokens");
}
