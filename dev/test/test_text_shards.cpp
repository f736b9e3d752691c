// Covers: text as shards of a tokenizer's tokens: the same for any number of threads and parts, cached under a checksum
// of text and tokenizer, begun by the token that dev/data puts there; files that are no text
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>

#include "dev/test/crashing_disk.h"
#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/block_checksums.h"
#include "llmc/data/text_shards.h"
#include "llmc/data/token_dataset.h"
#include "llmc/run/export_folder.h"

namespace fs = std::filesystem;

namespace {

const std::string kTokenizers = "dev/test/tokenizers/";

ModelConfig config_of(int V) {
  ModelConfig config = ModelConfig::preset("tiny");
  config.V = V;
  return config;
}

// A folder with Llama 3's tokenizer, with its first four added tokens, which are special; `more` is put into the
// vocabulary.
std::string write_tokenizer(const std::string& folder, int64_t more = 0) {
  fs::create_directories(folder);
  Json file = Json::read(kTokenizers + "llama3.json"), added = Json::array();
  for (size_t i = 0; i < 4; ++i) added.push_back(file.at("added_tokens").at(i));
  if (more) {
    Json model = file.at("model");
    model.set("vocab", Json(model.at("vocab")).set("zzzz", more));
    file.set("model", model);
    added = Json::array();
  }
  write_file(folder + "/tokenizer.json", file.set("added_tokens", added).set("post_processor", Json()).dump());
  return folder;
}

std::string shakespeare(size_t bytes) {
  std::ifstream file(bundled_text(), std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), std::streamsize(bytes));
  return text;
}

std::vector<int32_t> tokens_in(const std::string& folder, int V, int* shards = nullptr) {
  const TokenDataset data = TokenDataset::open(folder + "/text_*.bin", V);
  std::vector<int32_t> tokens;
  for (int shard = 0; shard < data.shards(); ++shard) {
    std::vector<int32_t> part(size_t(data.shard_size(shard)));
    data.read(shard, 0, data.shard_size(shard), part.data());
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  if (shards) *shards = data.shards();
  return tokens;
}

std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

}  // namespace

TEST_CASE("the tokens of texts are those of each whole text, whatever the threads, parts and shards") {
  TemporaryFolder folder;
  const TextCodec codec = TextCodec::open(write_tokenizer(folder / "tokenizer"), "", "", config_of(2000));
  const std::string texts[] = {shakespeare(60'000), "short", shakespeare(9'000) + "\xff and <|end_of_text|>\n"};
  std::vector<int32_t> want;
  std::vector<std::string> paths;
  for (const std::string& text : texts) {
    paths.push_back(write_file(folder / std::to_string(paths.size()) + ".txt", text));
    want.push_back(*codec.tokenizer().id_of("<|begin_of_text|>"));
    TextEncoder(codec.tokenizer(), true).encode(text, false, want);
  }
  CHECK(std::count(want.begin(), want.end(), *codec.tokenizer().id_of("<|end_of_text|>")) == 0);
  std::atomic<int64_t> done = 0;
  const std::string one = tokenize_into_cache(paths, codec, SpelledTokens::letters, folder / "one", 1, done);
  CHECK(done == 2 * (60'000 + 5 + int64_t(texts[2].size())));
  int shards = 0;
  CHECK(tokens_in(one, 2000, &shards) == want);
  CHECK(shards == 1);
  CHECK(files_in(one).at("text_000001.bin") ==
        header_bytes(20240520, 1, int32_t(want.size())) + bytes_of(std::vector<uint16_t>(want.begin(), want.end())));
  for (const int threads : {1, 4})
    for (const size_t part : {1, 1000, 100'000}) {
      const std::string cut = tokenize_into_cache(paths, codec, SpelledTokens::letters,
                                                  folder / format("%d_%zu", threads, part), threads, done, 1000, part);
      CHECK(tokens_in(cut, 2000, &shards) == want);
      CHECK(shards == int((want.size() + 999) / 1000));
    }
}

TEST_CASE("special tokens that a text spells: letters, or the tokens of the whole text, and counted") {
  TemporaryFolder folder;
  // Special tokens that take no white space around them, with Llama 3's splitting and GPT-2's; and two that do.
  const std::string plain = write_tokenizer(folder / "plain"), strips = kTokenizers + "llama3.json";
  const Json splitting = Json::object()
                             .set("type", "ByteLevel")
                             .set("add_prefix_space", false)
                             .set("trim_offsets", true)
                             .set("use_regex", true);
  const std::string gpt2 =
      folder.write("gpt2.json", Json::read(plain + "/tokenizer.json").set("pre_tokenizer", splitting).dump());
  const std::string begin = "<|begin_of_text|>", end = "<|end_of_text|>";
  std::string text;
  std::ifstream plays(bundled_text());
  int64_t spelled = 0, line = 0;
  for (std::string words; text.size() < 30'000 && std::getline(plays, words); ++line) {
    text += words + (line % 7 == 3 ? " \n" : "\n");
    if (line % 3) continue;
    text += line % 2 ? end : line % 5 ? begin + "\n" : " " + end + " \n\n";
    ++spelled;
  }
  const std::vector<std::string> paths = {folder.write("t.txt", text)};
  std::atomic<int64_t> done = 0;
  for (const std::string& tokenizer : {plain, gpt2, strips}) {
    const TextCodec codec = TextCodec::open(tokenizer, "", "", config_of(2000));
    std::vector<int32_t> want = {*codec.tokenizer().id_of(begin)};
    TextEncoder(codec.tokenizer()).encode(text, false, want);
    CHECK(std::count_if(want.begin(), want.end(), [&](int32_t id) { return codec.is_special(id); }) == spelled + 1);
    for (const size_t part : {1, 100, 1000, 100'000}) {
      const std::string cut = tokenize_into_cache(paths, codec, SpelledTokens::tokens, folder / format("%zu", part), 2,
                                                  done, 1'000'000, part);
      CHECK(tokens_in(cut, 2000) == want);
      CHECK(Json::read(cut + "/made_of.json").get_int("special_tokens") == spelled);
    }
    const std::string letters = tokenize_into_cache(paths, codec, SpelledTokens::letters, folder / "letters", 2, done);
    const Json made_of = Json::read(letters + "/made_of.json");
    CHECK(made_of.get_int("special_tokens") == spelled);
    CHECK(made_of.get_string("first_special_token") == end);
    CHECK(tokens_in(letters, 2000).size() > want.size());
  }
}

TEST_CASE("a tokenizer may have more tokens than the model, a text may not") {
  TemporaryFolder folder;
  const TextCodec codec = TextCodec::open(kTokenizers + "llama3.json", "", "", config_of(1510));
  says(codec.description(), "1514 tokens, of which the model has 1510");
  const auto cut = [&](const std::string& text) {
    std::atomic<int64_t> done = 0;
    return error_of([&] {
      tokenize_into_cache({write_file(folder / "t.txt", text)}, codec, SpelledTokens::letters, folder / "cache", 1,
                          done, 1000);
    });
  };
  CHECK(cut("of <|added|> and more") == "");  // its last token
  says(cut("of <|single|> and more"), "t.txt: the text's token \"<|single|>\" is 1510", "--vocab-size 1514");
  CHECK(codec.encode("of <|added|>", true).back() == 1509);
  says(error_of([&] { codec.encode("of <|right|>", true); }), "the text's token \"<|right|>\" is 1513");
  const TextCodec small = TextCodec::open(kTokenizers + "llama3.json", "", "", config_of(1000));
  CHECK(small.prompt("").size() == 1);  // without the begin token, which this model lacks
  CHECK(small.prompt("")[0] < 1000);
}

TEST_CASE("the cache is used for the same text and tokenizer, and only if it is whole") {
  TemporaryFolder folder;
  const auto codec_of = [&](const std::string& at) { return TextCodec::open(at, "", "", config_of(2000)); };
  const std::string tokenizer = write_tokenizer(folder / "tokenizer"), text = shakespeare(20'000);
  const std::vector<std::string> paths = {write_file(folder / "t.txt", text)};
  std::atomic<int64_t> done = 0;
  const auto cut = [&] {
    return tokenize_into_cache(paths, codec_of(tokenizer), SpelledTokens::letters, folder / "cache", 2, done, 1000);
  };
  const std::string first = cut();
  const auto made = files_in(first);
  CHECK(fs::exists(first + "/made_of.json"));
  done = 0;
  CHECK(cut() == first);
  CHECK(done == 20'000);  // read for the checksum, not cut
  fs::remove(first + "/text_000002.bin");
  CHECK(cut() == first);
  CHECK(files_in(first) == made);
  fs::remove(first + "/made_of.json");
  CHECK(cut() == first);
  CHECK(files_in(first) == made);

  std::string changed = text;
  changed[10'000] ^= 1;
  write_file(paths[0], changed);
  const std::string second = cut();
  CHECK(second != first);
  write_file(paths[0], text);
  CHECK(cut() == first);
  write_file(tokenizer + "/tokenizer_config.json", R"({"bos_token": null, "eos_token": "<|end_of_text|>"})");
  CHECK(cut() != first);
  CHECK(std::distance(fs::directory_iterator(folder / "cache"), {}) == 3);  // nothing is left of what was not whole
  const std::string in_the_way = write_file(folder / "file", "x");
  CHECK(error_of([&] {
          tokenize_into_cache(paths, codec_of(tokenizer), SpelledTokens::letters, in_the_way, 1, done);
        }).starts_with("cannot create "));
}

namespace {

// Before the first rename, another run gives the folder of that name what it made itself.
class AnotherRun : public FailingDisk {
 public:
  AnotherRun(std::string made, int refused = -1) : FailingDisk(refused, EACCES), made_(std::move(made)) {}
  int rename(const std::string& from, const std::string& to) override {
    if (!made_.empty()) {
      fs::remove_all(to);
      fs::rename(std::exchange(made_, ""), to);
    }
    return FailingDisk::rename(from, to);
  }

 private:
  std::string made_;
};

}  // namespace

TEST_CASE("a cache that another run has just made stays, and an incomplete one is replaced or refused") {
  TemporaryFolder folder;
  const std::string tokenizer = write_tokenizer(folder / "tokenizer");
  const TextCodec codec = TextCodec::open(tokenizer, "", "", config_of(2000));
  const std::vector<std::string> paths = {write_file(folder / "t.txt", shakespeare(20'000))};
  std::atomic<int64_t> done = 0;
  const auto cut = [&](Disk& disk) {
    return tokenize_into_cache(paths, codec, SpelledTokens::letters, folder / "cache", 1, done, 1000, 10'000, disk);
  };
  const std::string path = cut(Disk::real());
  const auto made = files_in(path);
  const auto entries = [&] { return std::distance(fs::directory_iterator(folder / "cache"), {}); };
  const auto also = [&](const std::string& name) {  // the same, and a file by which it is known
    fs::copy(path, folder / name);
    write_file(folder / name + "/mine", "x");
    return folder / name;
  };
  const std::string theirs = also("theirs"), broken = also("broken");
  fs::remove(broken + "/text_000002.bin");
  fs::remove_all(path);
  AnotherRun complete(theirs), incomplete(broken);
  CHECK(cut(complete) == path);
  CHECK(fs::exists(path + "/mine"));
  CHECK(entries() == 1);
  fs::remove_all(path);
  CHECK(cut(incomplete) == path);
  CHECK(files_in(path) == made);
  CHECK(entries() == 1);
  // The second rename, which moves the incomplete folder away, fails.
  fs::remove(path + "/text_000002.bin");
  FailingDisk stays(1, EACCES);
  says(error_of([&] { cut(stays); }), path + " is incomplete, and cannot be moved away: Permission denied",
       "remove it, or name another folder with --cache DIR");
  CHECK(entries() == 1);
  CHECK(cut(Disk::real()) == path);
  CHECK(files_in(path) == made);
}

TEST_CASE("the folder for the tokens is next to the run's, unless it is named") {
  for (const auto& [out, cache, want] : {std::tuple{"", "", "runs/cache"},
                                         {"runs/mine", "", "runs/cache"},
                                         {"runs/mine/", "", "runs/cache"},
                                         {"mine", "", "cache"},
                                         {"/data/runs//./mine", "", "/data/runs/cache"},
                                         {"mine", "/tmp/tokens", "/tmp/tokens"},
                                         {"", "tokens", "tokens"}}) {
    Options options;
    options.out = out, options.cache = cache;
    CHECK(cache_folder(options) == want);
  }
  Options here;
  here.out = ".";
  CHECK(fs::path(cache_folder(here)).parent_path() == fs::current_path().parent_path());
}

TEST_CASE("the manifest of a text's shards lists their checksums") {
  TemporaryFolder folder;
  const TextCodec codec = TextCodec::open(write_tokenizer(folder / "tokenizer"), "", "", config_of(2000));
  const std::vector<std::string> paths = {write_file(folder / "t.txt", shakespeare(9'000))};
  std::atomic<int64_t> done = 0;
  const std::string cut = tokenize_into_cache(paths, codec, SpelledTokens::letters, folder / "[cache]", 1, done, 1000);
  const auto files = files_in(cut);
  const Json manifest = Json::read(cut + "/manifest.json");
  CHECK(manifest.get_int("xxh64_block_bytes") == int64_t(kChecksumBlockBytes));
  CHECK(manifest.at("delimiter").get_string("token") == "<|begin_of_text|>");
  int64_t tokens = 0;
  for (const Json& shard : manifest.at("shards").elements()) {
    const std::string& bytes = files.at(shard.get_string("name"));
    CHECK(shard.at("xxh64") == Json(Json::Array{block_checksums({bytes})[0]}));
    tokens += shard.get_int("tokens");
  }
  CHECK(tokens == Json::read(cut + "/made_of.json").get_int("tokens"));
}

TEST_CASE("a vocabulary of more than 65,536 tokens has shards of 4 bytes a token") {
  TemporaryFolder folder;
  const TextCodec codec = TextCodec::open(write_tokenizer(folder / "tokenizer", 70'000), "", "", config_of(70'001));
  const std::vector<std::string> paths = {write_file(folder / "t.txt", "zzzz of text")};
  std::atomic<int64_t> done = 0;
  const std::string cut = tokenize_into_cache(paths, codec, SpelledTokens::letters, folder / "cache", 1, done);
  const std::vector<int32_t> tokens = tokens_in(cut, 70'001);
  CHECK(tokens == codec.tokenizer().encode("zzzz of text", false));
  CHECK(tokens[0] == 70'000);
  CHECK(files_in(cut).at("text_000001.bin").starts_with(header_bytes(20240801, 7, int32_t(tokens.size()))));
}

TEST_CASE("what begins a document is what the files in the tokenizer's folder name") {
  TemporaryFolder folder;
  const std::string at = write_tokenizer(folder / "tokenizer");
  const std::tuple<const char*, const char*, std::string> steps[] = {
      {"unknown.json", "{}", "<|begin_of_text|>"},  // a usual one that it has
      {"special_tokens_map.json", R"({"bos_token": {"content": "a"}, "eos_token": "b"})", "a"},
      {"tokenizer_config.json", R"({"bos_token": null})", "b"},
      {"tokenizer_config.json", R"({"bos_token": "<|end_of_text|>"})", "<|end_of_text|>"},
      {"tokenizer_config.json", R"({"bos_token": null, "eos_token": null})", "none"}};
  for (const auto& [name, text, token] : steps) {
    write_file(at + "/" + name, text);
    const TextCodec codec = TextCodec::open(at, "", "", config_of(2000));
    CHECK((codec.document_token() ? *codec.tokenizer().token_of(*codec.document_token()) : "none") == token);
  }
}

TEST_CASE("the tokenizer of an exported model of bytes leaves text as bytes") {
  TemporaryFolder folder;
  for (const int V : {97, 256}) {
    const ModelConfig config = config_of(V);
    const std::string at = folder / std::to_string(V);
    fs::create_directories(at);
    TokenizerFiles(TextCodec::open("", "", "", config), config).write(at);
    const TextCodec codec = TextCodec::open(at, "", "", config);
    CHECK(codec.has_tokenizer());
    CHECK(!codec.tokenizes_text());
  }
  CHECK(!TextCodec::open("", "", "", config_of(256)).tokenizes_text());
  CHECK(TextCodec::open(kTokenizers + "llama3.json", "", "", config_of(2000)).tokenizes_text());
}

TEST_CASE("files that are no text are refused with what they are and a way out") {
  TemporaryFolder folder;
  const auto refusal = [&](const std::string& bytes, bool as_utf8) {
    const std::string path = folder.write("file.txt", bytes);
    return error_of([&] { is_text(path, as_utf8); });
  };
  using namespace std::string_literals;
  const std::string rest = " and what follows";
  for (const auto& [bytes, what] : {std::pair{"\x1f\x8b\x08"s, "is compressed with gzip\n"},
                                    {"\x28\xb5\x2f\xfd"s, "is compressed with zstd\n"},
                                    {"\xfd"s + "7zXZ\0"s, "is compressed with xz\n"},
                                    {"BZh91AY&SY"s, "is compressed with bzip2\n"},
                                    {"PK\x03\x04"s, "is a zip archive\n"},
                                    {"PAR1\x15"s, "is a parquet file\n"},
                                    {"ARROW1\0\0"s, "is an arrow file\n"},
                                    {"\xff\xfet\0"s, "is UTF-16\n"},
                                    {"%PDF-1.5"s, "is a PDF\n"},
                                    {"text\0"s, "is binary: byte 4 is 0\n"}})
    for (const bool as_utf8 : {false, true}) {
      says(refusal(bytes + rest, as_utf8), (folder / "file.txt ") + what, "expected plain text, or shards (*.bin): ");
    }
  CHECK(refusal("BZh1 and ARROW2, PAR1 and PK", true).empty());
  const std::string latin1(1000, '\xe9');
  says(refusal(latin1, true), "is binary, or text in another encoding");
  CHECK(refusal(latin1, false).empty());  // bytes are tokens
  CHECK(refusal(std::string(900, 'a') + std::string(100, '\xe9'), true).empty());
  CHECK(refusal(std::string(5000, 'a') + "\0"s, true).empty());  // only the beginning is looked at

  CHECK(is_text(write_file(folder / "a.txt", "text"), true));
  write_shard(folder / "a.bin", std::vector<uint16_t>{1});
  CHECK(!is_text(folder / "a.bin", true));
  CHECK(!is_text(folder / "nothing", true));
}
