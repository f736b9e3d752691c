// Covers: data: token files of both formats and text, every check of a header, size and token, the held-out split
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/data/sampler.h"
#include "llmc/data/shard_manifest.h"
#include "llmc/data/token_dataset.h"

namespace {

std::vector<int32_t> tokens_of(const TokenDataset& data, int shard) {
  std::vector<int32_t> tokens(size_t(data.shard_size(shard)));
  data.read(shard, 0, data.shard_size(shard), tokens.data());
  return tokens;
}

// All tokens of all shards as text.
std::string text_of(const TokenDataset& data) {
  std::string text;
  for (int shard = 0; shard < data.shards(); shard++)
    for (int32_t token : tokens_of(data, shard)) text += char(token);
  return text;
}

std::string open_error(const std::string& pattern, int vocab_size = 50257) {
  return error_of([&] { TokenDataset::open(pattern, vocab_size); });
}

// Returns the error of reading everything, as --check-data does.
std::string check_error(const std::string& pattern, int vocab_size = 50257) {
  return error_of([&] {
    const TokenDataset data = TokenDataset::open(pattern, vocab_size);
    data.check(0, data.size());
  });
}

// The error of reading so many tokens of the whole, or of a shard.
std::string read_error(const TokenDataset& data, int64_t start, int64_t count) {
  std::vector<int32_t> out(size_t(std::clamp<int64_t>(count, 0, 10000)));
  return error_of([&] { data.read(start, count, out.data()); });
}
std::string read_error(const TokenDataset& data, int shard, int64_t start, int64_t count) {
  std::vector<int32_t> out(size_t(std::clamp<int64_t>(count, 0, 10000)));
  return error_of([&] { data.read(shard, start, count, out.data()); });
}

// The message starts with `first`, and every part stands in it.
template <class... Parts>
void check_message(const std::string& message, const std::string& first, const Parts&... parts) {
  CAPTURE(message);
  CHECK(message.starts_with(first));
  says(message, first, parts...);
}

}  // namespace

TEST_CASE("both shard formats, mixed under one pattern, in the order of their names") {
  TemporaryFolder folder;
  const std::vector<uint16_t> narrow = {0, 1, 50256, 7, 65535};
  const std::vector<uint32_t> four_bytes = {65536, 3, 128255};
  write_shard(folder / "b_1.bin", four_bytes);
  write_shard(folder / "b_0.bin", narrow);
  write_shard(folder / "other.bin", std::vector<uint16_t>{9});

  const TokenDataset data = TokenDataset::open(folder / "b_*.bin", 128256);
  CHECK(data.shards() == 2);
  CHECK(data.size() == 8);
  CHECK(data.vocab_size() == 128256);
  CHECK(!data.is_text());
  CHECK(data.shard_path(0) == folder / "b_0.bin");
  CHECK(data.shard_path(1) == folder / "b_1.bin");
  CHECK(tokens_of(data, 0) == std::vector<int32_t>{0, 1, 50256, 7, 65535});
  CHECK(tokens_of(data, 1) == std::vector<int32_t>{65536, 3, 128255});

  std::vector<int32_t> two(2);
  data.read(0, 2, 2, two.data());
  CHECK(two == std::vector<int32_t>{50256, 7});
}

TEST_CASE("text is read byte by byte, also bytes above 127") {
  TemporaryFolder folder;
  write_file(folder / "t.txt", std::string("a\0\xff z", 5));
  const TokenDataset data = TokenDataset::open(folder / "t.txt", 256);
  CHECK(data.is_text());
  CHECK(tokens_of(data, 0) == std::vector<int32_t>{'a', 0, 255, ' ', 'z'});
}

TEST_CASE("a read outside a shard is refused") {
  TemporaryFolder folder;
  write_shard(folder / "a.bin", std::vector<uint16_t>{1, 2, 3});
  const TokenDataset data = TokenDataset::open(folder / "a.bin", 10);
  CHECK(read_error(data, 0, 0, 3) == "");
  CHECK(read_error(data, 0, 3, 0) == "");
  check_message(read_error(data, 0, 1, 3), "3 tokens from token 1 of ", folder / "a.bin",
                "of which 3 are in this dataset");
  for (const auto& [start, count] : std::vector<std::pair<int64_t, int64_t>>{{-1, 2}, {4, 0}, {0, -1}, {INT64_MAX, 2}})
    CHECK(read_error(data, 0, start, count) != "");
  says(read_error(data, 0, 2, INT64_MAX), "of which 3 are in this dataset");
  for (const int shard : {1, -1})
    CHECK(read_error(data, shard, 0, 1) == format("shard %d of a dataset of 1 shards", shard));
}

TEST_CASE("missing and empty files") {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "dir.bin");
  for (const auto& [name, hint] : {std::pair("no.bin", "check the path"), {"*.txt", "quote a pattern"}})
    says(open_error(folder / name), "no data: nothing matches '" + (folder / name) + "'", hint);
  says(open_error(""), "no data: nothing matches ''");
  says(open_error("web/1.txt@0.5,web/2.txt@0.5"), "the sources of a mixture are NAME=FILES@SHARE");
  for (const char* name : {"empty.bin", "empty.txt"})
    says(open_error(folder.write(name, "")), (folder / name) + ": the file is empty (0 bytes)");
  says(open_error(folder / "dir.bin"), "it is a directory");
}

TEST_CASE("nanoGPT's files are tokens without a header") {
  TemporaryFolder folder;
  std::vector<uint16_t> tokens;
  for (int i = 0; i < 1000; ++i) tokens.push_back(uint16_t((i * 7919) % 50257));
  const std::string path = folder.write("train.bin", bytes_of(tokens));
  const TokenDataset data = TokenDataset::open(path, 50257);
  CHECK(!data.has_header(0));
  CHECK(data.size() == 1000);
  std::vector<int32_t> read(1000);
  data.read(0, 1000, read.data());
  CHECK(std::equal(read.begin(), read.end(), tokens.begin(), tokens.end()));
  CHECK(TokenDataset::open(folder.write("a.bin", header_bytes(20240520, 1, 1000) + bytes_of(tokens)), 50257)
            .has_header(0));
  says(open_error(path, 256), "train.bin has no header", "and the model has 256", "--vocab-size 50304");
  folder.write("meta.pkl", "x");
  says(open_error(path), "numbers of characters", "--train-data " + folder / "input.txt");
  // Zeros, as most of a header is, are no text.
  std::vector<uint16_t> zeros(1000, 0);
  zeros[0] = 1;
  says(open_error(folder.write("z.bin", bytes_of(zeros))), "wrong magic 1");
  // Nor are tokens of 4 bytes, or words beyond GPT-2's vocabulary, though a model has so many tokens.
  std::vector<uint32_t> four_bytes;
  for (uint32_t i = 0; i < 1000; ++i) four_bytes.push_back(1 + i * 7919 % 128000);
  says(open_error(folder.write("w.bin", bytes_of(four_bytes)), 128256), "wrong magic");
  tokens[100] = 60000;
  says(open_error(folder.write("t.bin", bytes_of(tokens)), 128256), "wrong magic");
}

TEST_CASE("a shard that is not whole: its header, magic, version and number of tokens") {
  TemporaryFolder folder;
  const std::string path = folder / "s.bin", ten = "0123456789",
                    expected = "expected 20240520 (uint16 tokens) or 20240801 (uint32 tokens)",
                    short_copy = ": the copy was cut short; fetch it again", rename = "rename it to .txt";
  std::string text;
  while (text.size() < 2000) text += "Caf\xc3\xa9, or not caf\xc3\xa9:\n\tthat is the question.\r\n";
  const auto zeros = [](int count) { return std::string(size_t(count), '\0'); };
  const auto swapped = [](int32_t magic) { return int32_t(__builtin_bswap32(uint32_t(magic))); };
  const std::tuple<std::string, std::string, std::vector<std::string>> cases[] = {
      {header_bytes(20240520, 1, 5).substr(0, 1023),
       "the file has 1023 bytes",
       {"expected a header of 1024 bytes", "cut short; fetch it again"}},
      {"To be, or not to be\n", "20 bytes of what looks like plain text", {"expected a header of 1024 bytes", rename}},
      {header_bytes(20240326, 3, 5) + ten, "wrong magic 20240326", {expected, "llm.c's weights of GPT-2"}},
      {header_bytes(swapped(20240520), 0x01000000, 0x05000000) + ten,
       format("magic %d is 20240520 with its bytes swapped", swapped(20240520)),
       {expected, "big-endian", "write it again little-endian"}},
      {header_bytes(swapped(20240801), 0x07000000, 0x05000000) + ten,
       format("magic %d is 20240801 with its bytes swapped", swapped(20240801)),
       {}},
      {text, "magic ", {"looks like plain text", expected, rename}},
      {header_bytes(20240520, 7, 5) + ten, "magic 20240520 with version 7", {"expected version 1", "write it again"}},
      {header_bytes(20240801, 1, 2) + "01234567",
       "magic 20240801 with version 1",
       {"expected version 7", "write it again"}},
      {header_bytes(20240801, 7, 100) + zeros(244),
       "header says 100 tokens, file holds 61\n  expected 1424 bytes, found 1268" + short_copy,
       {}},
      {header_bytes(20240520, 1, 100) + zeros(199),
       "header says 100 tokens, file holds 99\n  expected 1224 bytes, found 1223" + short_copy,
       {}},
      {header_bytes(20240520, 1, 100) + zeros(202),
       "header says 100 tokens, file holds 101\n  expected 1224 bytes, found 1226",
       {"longer than its header says"}},
      {header_bytes(20240520, 1, 0), "header says 0 tokens", {"expected at least 1"}},
      {header_bytes(20240520, 1, -5) + ten, "header says -5 tokens", {"expected at least 1"}},
      // 2^31-1 tokens of 4 bytes: the expected size does not fit into 32 bits.
      {header_bytes(20240801, 7, INT32_MAX) + "01234567",
       "header says 2147483647 tokens, file holds 2\n  expected 8589935612 bytes",
       {}}};
  for (const auto& [bytes, error, more] : cases) {
    write_file(path, bytes);
    const std::string message = open_error(path);
    check_message(message, "shard " + path + ": " + error);
    for (const std::string& part : more) says(message, part);
  }
  write_file(path, header_bytes(20240520, 1, 100) + zeros(200));
  CHECK(open_error(path) == "");
}

TEST_CASE("a token that the vocabulary does not have, wherever it stands") {
  TemporaryFolder folder;
  const std::string path = folder / "s.bin";
  // Before, at and after the borders of the blocks that the scan reduces, and in the rest after the last whole block.
  for (size_t at : {0, 1, 4095, 4096, 4097, 8191, 8192, 9999}) {
    CAPTURE(at);
    std::vector<uint16_t> narrow(10000, 50256);
    narrow[at] = 50257;
    write_shard(path, narrow);
    const std::string message = check_error(path);
    check_message(message, "shard " + path + ": token " + std::to_string(at) + " is 50257",
                  "below the model's vocabulary of 50257", "tokenizer");
    CHECK(check_error(path, 50258) == "");

    // Opening finds nothing; the token does when its turn comes, and not before.
    const TokenDataset data = TokenDataset::open(path, 50257);
    CHECK(read_error(data, 0, int64_t(at)) == "");
    CHECK(read_error(data, int64_t(at), 1) == message);
    CHECK(read_error(data, 0, 0, 10000) == message);
    if (at > 5) CHECK(read_error(data.split(5).second, 0, 9995) == message);

    std::vector<uint32_t> four_bytes(10000, 128255);
    four_bytes[at] = 0xfffffff0;  // negative, had it been read as a signed number
    write_shard(path, four_bytes);
    check_message(check_error(path, 128256), "shard " + path + ": token " + std::to_string(at) + " is 4294967280",
                  "below the model's vocabulary of 128256");
  }
  const std::string text = write_file(folder / "t.txt", "abcz\xc3\xa9");
  check_message(check_error(text, 128), "text " + text + ": token 4 is 195", "vocabulary of 128",
                "--vocab-size 256, as many as a text of bytes has");
  CHECK(check_error(text, 196) == "");
  check_message(open_error(text, 0), "cannot open '" + text + "' for a vocabulary of 0 tokens");
}

TEST_CASE("reads over the concatenation cross from file to file, of all sizes and kinds, and so do masks") {
  TemporaryFolder folder;
  bool masks = false;
  SUBCASE("without masks") {}
  SUBCASE("with masks") { masks = true; }
  std::vector<int32_t> all;
  std::vector<uint8_t> learnt;
  for (int file = 0; file < 40; file++) {
    std::vector<uint16_t> narrow;
    for (int i = 0; i <= file % 7; i++) narrow.push_back(uint16_t(all.size())), all.push_back(int32_t(all.size()));
    const std::string name = folder / std::to_string(100 + file);
    if (file % 3) write_shard(name + ".bin", narrow);
    else write_shard(name + ".bin", std::vector<uint32_t>(narrow.begin(), narrow.end()));
    std::string mask;
    for (uint16_t token : narrow) mask += char(token % 3 == 0), learnt.push_back(token % 3 == 0);
    if (masks) write_file(name + ".mask", header_bytes(20241121, 1, int32_t(narrow.size())) + mask);
  }
  const auto size = int64_t(all.size());
  const TokenDataset data = TokenDataset::open(folder / "*.bin", 1000);
  const auto [head, tail] = data.split(50);  // within a file
  for (int64_t start = 0; start <= size; start++)
    for (const int64_t count : {0, 1, 2, 5, 9, 30, 100}) {
      if (start + count > size) continue;
      std::vector<int32_t> out(static_cast<size_t>(count)), part(static_cast<size_t>(count));
      data.read(start, count, out.data());
      CHECK(std::equal(out.begin(), out.end(), all.begin() + start));
      if (start >= 50) tail.read(start - 50, count, part.data());
      if (start >= 50) CHECK(part == out);
      if (!masks) continue;
      std::vector<uint8_t> bytes(static_cast<size_t>(count));
      data.read_mask(start, count, bytes.data());
      CHECK(std::equal(bytes.begin(), bytes.end(), learnt.begin() + start));
    }
  CHECK(data.shard_begin(3) == 1 + 2 + 3);
  CHECK(read_error(data, size - 1, 2) ==
        format("2 tokens from token %lld of a dataset of %lld", (long long)size - 1, (long long)size));
  for (const auto& [start, count] : {std::pair<int64_t, int64_t>{-1, 2}, {1, -2}, {1, INT64_MAX}})
    CHECK(read_error(data, start, count) != "");
  CHECK(read_error(head, 49, 2) != "");
}

TEST_CASE("a file that shrinks after it was opened is an error with its name and sizes") {
  TemporaryFolder folder;
  // One file stays open between its reads; of very many, each is opened for a read.
  for (const int files : {1, 300}) {
    CAPTURE(files);
    for (int i = 0; i < files; i++)
      write_shard(folder / (std::to_string(1000 + i) + ".bin"), std::vector<uint16_t>(10000, uint16_t(7)));
    const TokenDataset data = TokenDataset::open(folder / "*.bin", 50);
    const std::string path = data.shard_path(files - 1);
    std::filesystem::resize_file(path, 5000);
    CHECK(read_error(data, files - 1, 0, 1988) == "");
    check_message(
        read_error(data, files - 1, 1900, 89),
        "cannot read bytes 4824 to 5002 of " + path + ": it had 21024 bytes when it was opened and has 5000 now",
        "fetch it again");
    std::filesystem::remove(path);
    const std::string message = read_error(data, files - 1, 0, 10);
    if (files == 1) CHECK(message == "");
    else check_message(message, "cannot open " + path + ": No such file", "check the path");
  }
}

TEST_CASE("ten thousand files of two terabytes open without being read; a bad token in the last is found") {
  TemporaryFolder folder;
  const int32_t tokens = 100000000;
  const std::string header = header_bytes(20240520, 1, tokens);
  std::string last;
  for (int i = 0; i < 10000; i++) {
    last = folder / format("%05d.bin", i);
    const int fd = open(last.c_str(), O_CREAT | O_WRONLY, 0600);
    CHECK(write(fd, header.data(), header.size()) == ssize_t(header.size()));
    CHECK(ftruncate(fd, 1024 + 2 * off_t(tokens)) == 0);
    const uint16_t bad = 300;
    if (i == 9999) CHECK(pwrite(fd, &bad, 2, 1024 + 2 * off_t(tokens - 1)) == 2);
    close(fd);
  }
  const auto start = std::chrono::steady_clock::now();
  const TokenDataset data = TokenDataset::open(folder / "*.bin", 300);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CAPTURE(seconds);
  CHECK(seconds < 20);  // 0.1 s on an idle machine; reading all takes an hour
  CHECK(data.size() == 10000 * int64_t(tokens));
  CHECK(read_error(data, data.size() - 17, 16) == "");
  const std::string message = "shard " + last + ": token 99999999 is 300";
  CHECK(read_error(data, data.size() - 16, 16).starts_with(message));
  CHECK(error_of([&] { data.check(data.size() - tokens, tokens); }).starts_with(message));
}

TEST_CASE("shards and text under one pattern are refused") {
  TemporaryFolder folder;
  write_shard(folder / "a.bin", std::vector<uint16_t>{1});
  write_file(folder / "b.md", "notes");
  check_message(open_error(folder / "*"), "'" + (folder / "*") + "' matches shards and text: ", folder / "a.bin",
                folder / "b.md", "name one kind");
}

TEST_CASE("a text's last tenth is held out, cut in the concatenation of the files") {
  TemporaryFolder folder;
  write_file(folder / "a.txt", "0123456789abcdefghij");
  write_file(folder / "b.txt", "KLMNO");
  const auto [train, held_out] = hold_out_last_tenth(TokenDataset::open(folder / "*.txt", 256), folder / "*.txt");
  CHECK(text_of(train) == "0123456789abcdefghijKLM");
  CHECK(text_of(held_out) == "NO");  // 25 / 10, rounded down
  CHECK(held_out.shards() == 1);

  SUBCASE("the cut may lie in any file, and parts keep their kind") {
    const TokenDataset all = TokenDataset::open(folder / "*.txt", 256);
    for (int64_t first = 1; first < 25; first++) {
      const auto [head, tail] = all.split(first);
      CAPTURE(first);
      CHECK(head.size() == first);
      CHECK(tail.size() == 25 - first);
      CHECK(text_of(head) + text_of(tail) == "0123456789abcdefghijKLMNO");
      CHECK(head.is_text());
      CHECK(tail.vocab_size() == 256);
    }
    for (const int at : {0, 25})
      CHECK(error_of([&] { all.split(at); }) ==
            format("cannot split 25 tokens into %d and %d\n  expected more than 0 in both", at, 25 - at));
  }
  SUBCASE("a part cannot be read beyond the cut") {
    CHECK(read_error(train, 1, 0, 3) == "");
    says(read_error(train, 1, 0, 4), "of which 3 are in this dataset");
  }
  SUBCASE("where tokens are, counted in the files") {
    const std::string a = " of " + (folder / "a.txt"), b = " of " + (folder / "b.txt");
    CHECK(train.where(3, 1) == "token 3" + a);
    CHECK(train.where(18, 4) == "tokens 18 to 19" + a + ", tokens 0 to 1" + b);
    CHECK(train.where(21, 3) == "tokens 1 to 2" + b + ", token 0" + a);  // goes on at the first one
    CHECK(held_out.where(0, 2) == "tokens 3 to 4" + b);
    CHECK(error_of([&] { train.where(23, 1); }) == "token 23 of 23");
  }
  SUBCASE("parts of a part") {
    const auto [head, tail] = train.split(21);
    CHECK(text_of(tail) == "LM");
    CHECK(text_of(tail.split(1).second) == "M");
  }
}

TEST_CASE("of a text of fewer than 10 tokens no tenth is held out") {
  TemporaryFolder folder;
  const auto held_out = [&](const std::string& content) {
    const std::string path = write_file(folder / "t.txt", content);
    return hold_out_last_tenth(TokenDataset::open(path, 256), path).second.size();
  };
  CHECK(held_out("0123456789") == 1);
  check_message(error_of([&] { held_out("012345678"); }), "the text '", "has 9 bytes", "at least 10");
}

TEST_CASE("a file that was altered is noticed where it is read, by the checksums of its blocks") {
  TemporaryFolder folder;
  std::vector<uint16_t> tokens(5000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = uint16_t(i % 200);
  const std::string a = write_shard(folder / "a.bin", tokens), b = write_shard(folder / "b.bin", tokens);
  const std::string header = header_bytes(20241121, 1, 5000);
  for (const char* name : {"a.mask", "b.mask"}) write_file(folder / name, header + std::string(5000, '\1'));
  const auto sums = [&](const std::string& name) {
    Json list = Json::array();
    for (const std::string& sum : block_checksums({folder.read(name)}, 1000)) list.push_back(sum);
    return list;
  };
  const auto entry = [&](const std::string& name) {
    const Json mask = Json::object().set("name", name + ".mask").set("xxh64", sums(name + ".mask"));
    return Json::object().set("name", name + ".bin").set("split", "train").set("tokens", 5000).set("mask", mask);
  };
  Json manifest = Json::object().set("format", "train_llama shards 1").set("xxh64_block_bytes", 1000);
  manifest.set("shards", Json::array().push_back(entry("a").set("xxh64", sums("a.bin"))).push_back(entry("b")));
  write_file(folder / "manifest.json", manifest.dump());
  const auto open = [&] {
    TokenDataset data = TokenDataset::open(folder / "*.bin", 256);
    compare_with_manifests(data);
    return data;
  };
  const auto flip = [&](const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get() ^ 1;
    file.seekp(at).put(char(byte));
  };
  CHECK(error_of([&] { open().check(0, 10000); }) == "");
  const TokenDataset before = open();
  before.verify(0, 10000);
  flip(a, 1024 + 2 * 2000);                                 // in bytes 5000 to 5999, which are tokens 1988 to 2487
  CHECK(error_of([&] { before.verify(0, 10000); }) == "");  // each block is read once
  const TokenDataset data = open();
  for (const auto& [start, count, noticed] :
       {std::tuple{0, 1988, false}, {0, 1989, true}, {2487, 1, true}, {2488, 7512, false}, {2000, 1, true}}) {
    CAPTURE(start);
    CHECK((error_of([&] { data.verify(start, count); }) != "") == noticed);
  }
  check_message(error_of([&] { data.check(0, 10000); }), a + " was altered or damaged: its bytes 5000 to 5999 have the",
                "fetch it again, or write it again with dev/data/prepare");
  const auto [first, second] = data.split(1500);
  CHECK(error_of([&] { first.verify(0, 1500); }) == "");
  says(error_of([&] { second.verify(0, 1000); }), "was altered");
  // Samples of training and of validation are verified; nothing else of the file needs to be.
  std::vector<int32_t> inputs(100), labels(100);
  const auto sample = [&](int64_t i) {
    return error_of([&] { ValidationWindows(data, 100, 100).fill(1, 1, i, 0, inputs.data(), labels.data()); });
  };
  CHECK(sample(0) == "");
  says(sample(20), "was altered");
  CHECK(sample(99) == "");
  bool noticed = false;
  for (int64_t step = 0; step < 100 && !noticed; ++step)
    noticed = error_of([&] {
                Sampler(data, 100, 1).fill({1, 1, 1}, step, 0, 0, inputs.data(), labels.data());
              }).find("was altered") != std::string::npos;
  CHECK(noticed);
  flip(a, 1024 + 2 * 2000);
  flip(folder / "b.mask", 3000);
  says(error_of([&] { open().check(0, 10000); }), "b.mask was altered or damaged: its bytes 3000 to 3999");
  flip(folder / "b.mask", 3000);
  flip(b, 3000);  // of this file the manifest lists nothing
  CHECK(error_of([&] { open().check(0, 10000); }) == "");
  manifest.set("shards", Json::array().push_back(entry("a").set("xxh64", Json::array())).push_back(entry("b")));
  write_file(folder / "manifest.json", manifest.dump());
  says(error_of([&] { open().verify(0, 1); }), "has 12 blocks of 1000 bytes, and checksums of 0 are listed");
}

TEST_CASE("the bundled text is the one that the figures were measured on") {
  const std::string path = "dev/data/tinyshakespeare.txt";
  const auto [train, held_out] = hold_out_last_tenth(TokenDataset::open(path, 256), path);
  CHECK(train.size() == 1003855);
  CHECK(held_out.size() == 111539);
  CHECK(text_of(train).starts_with("First Citizen:\nBefore we proceed any further, hear me speak."));
  CHECK(check_error(path, 123) == "");
  says(check_error(path, 122), "is 122");  // 'z'
}

TEST_CASE("shards and masks that the manifest lists and that are not there") {
  TemporaryFolder folder;
  const std::vector<uint16_t> tokens = {1, 2, 3};
  std::vector<std::pair<std::string, int64_t>> listed;
  for (const char* name : {"x_val_0", "x_train_1", "x_train_2", "x_train_3", "x_train_4", "x_train_5"}) {
    listed.push_back({name, 3});
    write_shard(folder / name + ".bin", tokens);
    write_file(folder / name + ".mask", header_bytes(20241121, 1, 3) + std::string("\1\0\1", 3));
  }
  write_manifest(folder / "", listed, true);
  const auto compared = [&](const std::string& pattern) {
    TokenDataset data = TokenDataset::open(folder / pattern, 10);
    return compare_with_manifests(data);
  };
  for (const char* pattern : {"x_train_*.bin", "x_val_*.bin", "*.bin"}) CHECK(compared(pattern).empty());
  const auto in_folder = [&](const std::string& pattern) {
    std::string all;
    for (const std::string& remark : compared(pattern)) all += remark + "\n";
    return all;
  };
  const std::string manifest = folder / "manifest.json";
  CHECK(in_folder("x_train_1.bin") == "4 of the 5 train shards that " + manifest +
                                          " lists are left out by the pattern: x_train_2.bin, x_train_3.bin, "
                                          "x_train_4.bin, …\n");
  for (const char* name : {"x_train_2.bin", "x_train_4.bin"}) std::filesystem::remove(folder / name);
  CHECK(in_folder("x_train_*.bin") ==
        "2 of the 5 train shards that " + manifest + " lists are not there: x_train_2.bin, x_train_4.bin\n");
  CHECK(in_folder("x_val_*.bin").empty());

  write_shard(folder / "x_train_3.bin", std::vector<uint16_t>{1, 2, 3, 4});
  write_file(folder / "x_train_3.mask", header_bytes(20241121, 1, 4) + std::string("\1\1\1\1", 4));
  check_message(error_of([&] { compared("x_train_*.bin"); }),
                "shard " + (folder / "x_train_3.bin") + " has 4 tokens, and " + manifest + " lists 3",
                "fetch both again");
  for (const auto& [name, count] : listed) std::filesystem::remove(folder / name + ".mask");
  check_message(error_of([&] { compared("x_train_1.bin"); }),
                "shard " + (folder / "x_train_1.bin") + " has no mask, and " + manifest + " lists x_train_1.mask",
                "fetch the .mask files too", "move manifest.json away");
  std::filesystem::remove(manifest);
  CHECK(compared("*.bin").empty());
}

TEST_CASE("a shard that was written with a mask is not read without it") {
  TemporaryFolder folder;
  std::string shard = header_bytes(20240520, 1, 2) + std::string(4, '\0');
  shard[12] = 1;
  write_file(folder / "a.bin", shard);
  const auto opened = [&] { TokenDataset::open(folder / "*.bin", 10); };
  check_message(error_of(opened), "shard " + (folder / "a.bin") + " was written with a mask", "a.mask is not there",
                "fetch the .mask files too");
  write_file(folder / "a.mask", header_bytes(20241121, 1, 2) + std::string(2, '\1'));
  CHECK(error_of(opened) == "");
}
